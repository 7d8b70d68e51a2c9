"""HTTP server of the console: the report's page on a what-if session, on loopback and with a token.

Each request must name this server as its host, come from its own pages, and have the token: in the address of
a page, or as a bearer token of a call. Everything else gets 403.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from broadloom.console.relinking import DONE, RUNNING, Relinking
from broadloom.console.what_if import WhatIfSession
from broadloom.errors import BroadloomError, InputError, missing_extra
from broadloom.plans import Plan
from broadloom.report import html_of, record_of

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
except ImportError as error:
    raise missing_extra("fastapi or uvicorn", "serve", "the console needs it") from error

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# The largest request, in bytes: names of brokers and topics are short.
MOST_BYTES = 100_000


class ConsoleServer:
    """The console of one session.

    Args:
        session: the session.
        source: what the script of the session names as its plan.
        title: the heading of the page.
        unit: the unit of weights, as "ms".
        port: the port; 0: any free one.
    """

    def __init__(
        self, session: WhatIfSession, source: str, title: str, unit: str = "", port: int = 0
    ) -> None:
        self.session = session
        self.source = source
        self.title = title
        self.unit = unit
        self.token = secrets.token_urlsafe(24)
        self._socket = socket.create_server((LOOPBACK, port))
        self.port: int = self._socket.getsockname()[1]
        self.hosts = {f"{name}:{self.port}" for name in (LOOPBACK, "localhost")}
        self._relinking: Relinking | None = None
        self._measures: list[tuple[Plan, dict[str, Any]]] = []
        self._lock = asyncio.Lock()  # one change at a time
        self._tasks: set[asyncio.Task[None]] = set()
        config = uvicorn.Config(self._app(), log_level="warning", access_log=False, lifespan="off")
        self.server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until the process is interrupted."""
        try:
            self.server.run(sockets=[self._socket])
        finally:
            if self._relinking is not None:
                self._relinking.cancel()

    # Requests.

    def _app(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.middleware("http")(self._guard)
        app.get("/")(self._page)
        app.get("/compare")(self._compare)
        app.get("/api/state")(self._state)
        app.get("/api/record")(self._record)
        app.get("/api/script")(self._script)
        for name in ("do", "undo", "branch", "switch", "relink", "cancel", "use"):
            app.post(f"/api/{name}")(partial(self._call, name))
        return app

    async def _guard(self, request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse requests of others, and put the headers on all answers."""
        response: Response
        if (reason := self._refusal(request)) is not None:
            response = JSONResponse({"error": reason}, 403)
        elif int(request.headers.get("content-length") or 0) > MOST_BYTES:
            response = JSONResponse({"error": "the request is too large"}, 413)
        else:
            try:
                response = await call(request)
            except BroadloomError as error:
                response = JSONResponse({"error": str(error)}, 400)
        response.headers.update(HEADERS)
        return response

    def _refusal(self, request: Request) -> str | None:
        """Why a request is refused; None if it is not."""
        if request.headers.get("host") not in self.hosts:
            return "the host is not this server"
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.hosts}:
            return "the origin is not this server"
        page = not request.url.path.startswith("/api/")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = request.query_params.get("token", "") if page else bearer if scheme == "Bearer" else ""
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return "the token is missing or wrong; use the address that broadloom serve printed"
        return None

    async def _page(self) -> HTMLResponse:
        record = await self._in_thread(self._record_of, {self.session.branch_name: self.session.plan})
        return HTMLResponse(html_of(record, console={"token": self.token, "state": self.state()}))

    async def _compare(self, a: str, b: str) -> HTMLResponse:
        plans = {name: self.session.plan_of(name) for name in (a, b)}
        return HTMLResponse(html_of(await self._in_thread(self._record_of, plans)))

    async def _record(self) -> JSONResponse:
        plans = {self.session.branch_name: self.session.plan}
        return JSONResponse(await self._in_thread(self._record_of, plans))

    async def _state(self) -> JSONResponse:
        self._measure_soon()
        return JSONResponse(self.state())

    async def _script(self) -> PlainTextResponse:
        return PlainTextResponse(self.session.script(self.source))

    async def _call(self, name: str, request: Request) -> JSONResponse:
        try:
            body = await request.json() if await request.body() else {}
        except ValueError as error:
            raise InputError("the request is not JSON") from error
        if not isinstance(body, dict):
            raise InputError("the request is not a JSON object")
        async with self._lock:
            await self._in_thread(getattr(self, f"_{name}"), body)
        self._measure_soon()
        return JSONResponse(self.state())

    def _measure_soon(self) -> None:
        """Prepare and measure in the background; once at a time."""
        if not self._tasks:
            task = asyncio.create_task(self._in_thread(self._afterwards))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))

    # Work.

    def state(self) -> dict[str, Any]:
        """The state of the session as JSON."""
        session = self.session
        relinking = self._relinking
        relink = None
        if relinking is not None:
            relink = {"state": relinking.poll(), "fits": relinking.situation is session.situation}
            if relinking.plan is not None:
                relink["measures"] = self._measured(relinking.plan, relinking.plan.lower_bound)
                names = _links(relinking.plan) ^ _links(relinking.situation.plan)
                relink["changed"] = len(names)
        bound = (
            relinking.plan.lower_bound if relinking and relinking.plan and relink and relink["fits"] else None
        )
        return {
            "branch": session.branch_name,
            "branches": list(session.branches),
            "steps": session.steps,
            "measures": self._measured(session.plan, bound),
            "first": self._measured(session.first_plan, session.first_plan.lower_bound),
            "relink": relink,
        } | session.situation.record()

    def _measured(self, plan: Plan, bound: float | None) -> dict[str, Any]:
        """The cost, the number of links, the gap to a bound, and the longest paths once they are measured."""
        cost = plan.total_weight
        bound = plan.lower_bound if bound is None else bound
        paths = next((found for known, found in self._measures if known is plan), {})
        gap = None if bound is None else max(0.0, cost / bound - 1) if bound > 0 else None
        return {
            "cost": cost,
            "links": len(plan.edges),
            "brokers": plan.interest.node_count,
            "gap": gap,
        } | paths

    def _afterwards(self) -> None:
        """Prepare the next repair, and measure the longest paths of the plans that are shown."""
        self.session.prepare()
        plans = [self.session.plan, self.session.first_plan]
        if self._relinking is not None and self._relinking.plan is not None:
            plans.append(self._relinking.plan)
        known = self._measures
        self._measures = [
            next((one for one in known if one[0] is plan), None) or (plan, _paths(plan)) for plan in plans
        ]

    def _record_of(self, plans: dict[str, Plan]) -> dict[str, Any]:
        self._afterwards()
        return record_of(plans, self.title, self.unit, repairs=False)

    def _do(self, body: dict[str, Any]) -> None:
        self.session.do(_words(body))

    def _undo(self, _: dict[str, Any]) -> None:
        self.session.undo()

    def _branch(self, body: dict[str, Any]) -> None:
        self.session.branch(_name(body))

    def _switch(self, body: dict[str, Any]) -> None:
        self.session.switch(_name(body))

    def _relink(self, _: dict[str, Any]) -> None:
        self._cancel({})
        self._relinking = Relinking(self.session.situation, self.session.seed)

    def _cancel(self, _: dict[str, Any]) -> None:
        if self._relinking is not None and self._relinking.poll() == RUNNING:
            self._relinking.cancel()

    def _use(self, _: dict[str, Any]) -> None:
        """Use the links of the re-link."""
        found = self._relinking
        if found is None or found.poll() != DONE or found.situation is not self.session.situation:
            raise InputError("there is no finished re-link of the present plan; start one")
        self.session.do("relink", found.plan)


def _paths(plan: Plan) -> dict[str, Any]:
    metrics = plan.metrics()
    return {"worstDelay": metrics["weighted_max_diameter"], "worstHops": metrics["max_diameter"]}


def _links(plan: Plan) -> set[tuple[str, ...]]:
    names = plan.interest.node_ids
    return {tuple(sorted((names[u], names[v]))) for u, v in plan.edges.tolist()}


def _words(body: dict[str, Any]) -> list[str]:
    words = body.get("words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError("the field words is not a list of texts; give the words of an operation")
    return words


def _name(body: dict[str, Any]) -> str:
    if not isinstance(name := body.get("name"), str):
        raise InputError("the field name is not a text; give the name of a branch")
    return name
