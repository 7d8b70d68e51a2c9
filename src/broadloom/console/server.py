"""HTTP server of the console: the report's page on a what-if session, on loopback and with a token.

Each request must name this server as its host, come from its own pages, and have the token: in the address of
a page, or as a bearer token of a call. Everything else gets 403.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import json
import secrets
import shlex
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from broadloom.console.measuring import MeasuringProcess, PathMeasures
from broadloom.console.relinking import DONE, RUNNING, Relinking
from broadloom.console.running_fleet import RunningFleet
from broadloom.console.what_if import WhatIfSession, above_limit, changed_links
from broadloom.errors import BroadloomError, InputError, missing_extra
from broadloom.plans import Plan
from broadloom.report import html_of

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

    from broadloom.agents.http_server import LARGEST_HEAD, ClosingServer, guarded_http
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
# Connections at a time; a new one then replaces the one that has been without a request for the longest time.
MOST_CONNECTIONS = 64
# Plans whose longest paths are remembered.
MOST_MEASURED = 8


class ConsoleServer:
    """The console of one session.

    Args:
        session: the session.
        source: what the script of the session names as its plan.
        title: the heading of the page.
        unit: the unit of weights, as "ms".
        port: the port; 0: any free one.
        fleet: a running fleet to show; its plan is that of the session until the first operation.
        fleet_file: the fleet file, for the commands that the page shows.
    """

    def __init__(
        self,
        session: WhatIfSession,
        source: str,
        title: str,
        unit: str = "",
        port: int = 0,
        fleet: RunningFleet | None = None,
        fleet_file: str = "fleet.toml",
    ) -> None:
        self.session = session
        self.source = source
        self.fleet = fleet
        self.fleet_file = fleet_file
        self.title = title
        self.unit = unit
        self.token = secrets.token_urlsafe(24)
        self._socket = socket.create_server((LOOPBACK, port))
        # Accepted sockets inherit it; otherwise the body of each answer waits 40 ms for an acknowledgement.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        self.hosts = {f"{name}:{self.port}" for name in (LOOPBACK, "localhost")}
        self._relinking: Relinking | None = None
        self._measuring = MeasuringProcess()
        self._measures: list[tuple[Plan, PathMeasures]] = []  # the newest last
        self._base = 0  # rises when the session begins again
        self._saved: Plan | None = None  # the plan of a fleet that is in the folder of the source
        self._record_lock = asyncio.Lock()
        self._last_record: tuple[dict[str, Plan], bytes] = ({}, b"")
        self._changes = ThreadPoolExecutor(1, "broadloom-console")  # one change at a time
        self._tasks: set[asyncio.Task[None]] = set()
        config = uvicorn.Config(
            self._app(),
            http=guarded_http(MOST_CONNECTIONS, drop_idle=True),
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            h11_max_incomplete_event_size=LARGEST_HEAD,
        )
        self.server = ClosingServer(config)

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until the process is interrupted."""
        self._changes.submit(self._warm_up)
        gc.freeze()  # what is loaded stays; a collection of all of it would hold up an operation by 200 ms
        if self.fleet is not None:
            self.fleet.start(self._follow_fleet)
        try:
            self.server.run(sockets=[self._socket])
        finally:
            self.close()

    def close(self) -> None:
        """End all processes and connections; `run` does it."""
        if self.fleet is not None:
            self.fleet.stop()
        self._changes.shutdown(cancel_futures=True)
        if self._relinking is not None:
            self._relinking.cancel()
        self._measuring.close()
        self._socket.close()

    # Requests.

    def _app(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.middleware("http")(self._guard)
        app.get("/")(self._page)
        app.get("/compare")(self._compare)
        app.get("/api/state")(self._state)
        app.get("/api/record")(self._record)
        app.get("/api/script")(self._script)
        app.get("/api/apply")(self._apply)
        app.get("/api/fleet")(self._fleet)
        for name in ("do", "undo", "branch", "switch", "relink", "cancel", "use", "restart"):
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
        fleet = self._fleet_record()  # before the record: if the plan changes meanwhile, the page sees it
        record = await self._present_record()
        settings = {"token": self.token, "state": self.state(), "fleet": fleet}
        page = await self._in_thread(lambda: html_of(json.loads(record), console=settings))
        return HTMLResponse(page)

    async def _compare(self, a: str, b: str) -> HTMLResponse:
        async with self._record_lock:
            record = await self._record_of({name: self.session.plan_of(name) for name in (a, b)})
        return HTMLResponse(await self._in_thread(lambda: html_of(json.loads(record))))

    async def _record(self) -> Response:
        return Response(await self._present_record(), media_type="application/json")

    async def _state(self) -> JSONResponse:
        self._measure_soon()
        return JSONResponse(self.state())

    async def _script(self) -> PlainTextResponse:
        await self._save_source()
        return PlainTextResponse(self.session.script(self.source))

    async def _apply(self) -> PlainTextResponse:
        """The commands that put the present plan into effect; the console runs none of them."""
        await self._save_source()
        made = "what-if"
        if self.fleet is not None:
            commands = self.fleet.apply_commands(made)
        else:
            option = f"--fleet {shlex.quote(self.fleet_file)}"
            commands = [
                "# The steps on the running brokers; without --dry-run, they are taken:",
                f"broadloom deploy apply {shlex.quote(self.source)} {made} {option} --dry-run",
                "# Or the new files of all brokers, to install by hand:",
                f"broadloom deploy export {made} {option} -o conf",
            ]
        return PlainTextResponse(self.session.script(self.source, made) + "\n".join(commands) + "\n")

    async def _fleet(self, after: int = -1) -> JSONResponse:
        return JSONResponse(self._fleet_record(after))

    async def _call(self, name: str, request: Request) -> JSONResponse:
        try:
            body = await request.json() if await request.body() else {}
        except ValueError as error:
            raise InputError("the request is not JSON") from error
        if not isinstance(body, dict):
            raise InputError("the request is not a JSON object")
        work = partial(getattr(self, f"_{name}"), body)
        await asyncio.get_running_loop().run_in_executor(self._changes, work)
        self._changes.submit(self._prepare)
        self._measure_soon()
        return JSONResponse(self.state())

    def _measure_soon(self) -> None:
        """Measure in the background; once at a time."""
        if not self._tasks:
            task = asyncio.create_task(self._in_thread(self._afterwards))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))

    # The running fleet.

    def _fleet_record(self, after: int = -1) -> dict[str, Any] | None:
        """The running fleet as JSON, if there is one."""
        if self.fleet is None:
            return None
        base = {"base": self._base, "isBase": self.fleet.plan is self.session.first_plan}
        return self.fleet.record(after) | base

    def _follow_fleet(self) -> None:
        """Begin again with the plan of the fleet, unless operations were done."""

        def restart() -> None:
            changed = self.fleet is not None and self.fleet.plan is not self.session.first_plan
            if changed and not self.session.is_used:
                self._restart({})

        self._changes.submit(restart)

    def _restart(self, _: dict[str, Any]) -> None:
        """Begin a new session with the plan of the running fleet."""
        if self.fleet is None:
            raise InputError("this console does not show a running fleet; undo operations instead")
        self._cancel({})
        self._relinking = None
        session = WhatIfSession(self.fleet.plan, self.session.seed)
        session.prepare()
        self.session = session
        self._base += 1

    async def _save_source(self) -> None:
        """Write the plan of a running fleet that operations began with: scripts start from it."""
        plan = self.session.first_plan
        if self.fleet is not None and self._saved is not plan:
            await self._in_thread(self._measuring.save, plan, Path(self.source))
            self._saved = plan

    # Work.

    def state(self) -> dict[str, Any]:
        """The state of the session as JSON."""
        session = self.session
        relinking = self._relinking
        relink: dict[str, Any] | None = None
        bound = None
        if relinking is not None:
            fits = relinking.situation is session.situation
            relink = {"state": relinking.poll(), "fits": fits, "error": relinking.error}
            if relinking.plan is not None:
                added, removed = changed_links(relinking.situation.plan, relinking.plan)
                relink["measures"] = self._measured(relinking.plan, relinking.plan.lower_bound)
                relink["changed"] = len(added) + len(removed)
                relink["aboveLimit"] = list(above_limit(relinking.plan, relinking.situation.limit))
                bound = relinking.plan.lower_bound if fits else None
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
        paths = self._known_paths(plan)
        found = {} if paths is None else {"worstDelay": paths.delay, "worstHops": paths.hops}
        gap = None if bound is None else max(0.0, cost / bound - 1) if bound > 0 else None
        return {
            "cost": cost,
            "links": len(plan.edges),
            "brokers": plan.interest.node_count,
            "gap": gap,
        } | found

    def _known_paths(self, plan: Plan) -> PathMeasures | None:
        return next((found for known, found in self._measures if known is plan), None)

    def _remember_paths(self, plan: Plan, found: PathMeasures) -> None:
        others = [one for one in self._measures if one[0] is not plan]
        self._measures = [*others, (plan, found)][-MOST_MEASURED:]

    def _warm_up(self) -> None:
        """Load the kernels of repairs with a session of its own, so that the first one is quick."""
        session = WhatIfSession(self.session.first_plan, self.session.seed)
        with suppress(BroadloomError):
            for name in session.names[:1]:
                session.do(["fail", "broker", name])

    def _prepare(self) -> None:
        """Prepare the next repair."""
        self.session.prepare()

    def _afterwards(self) -> None:
        """Measure the longest paths of the plans that are shown."""
        session = self.session
        plans = [session.first_plan, session.plan]
        if self._relinking is not None and self._relinking.plan is not None:
            plans.append(self._relinking.plan)
        for plan in plans:
            if self._known_paths(plan) is None:
                self._remember_paths(plan, self._measuring.paths(plan))

    async def _present_record(self) -> bytes:
        """The record of the present plan; requests that waited together get the newest one."""
        async with self._record_lock:
            return await self._record_of({self.session.branch_name: self.session.plan})

    async def _record_of(self, plans: dict[str, Plan]) -> bytes:
        """The record of a page, as JSON."""
        known, record = self._last_record
        if list(known) == list(plans) and all(known[name] is plan for name, plan in plans.items()):
            return record
        record, paths = await self._in_thread(self._measuring.record, plans, self.title, self.unit)
        for plan, found in zip(plans.values(), paths, strict=True):
            self._remember_paths(plan, found)
        self._last_record = (plans, record)
        return record

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


def _words(body: dict[str, Any]) -> list[str]:
    words = body.get("words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError("the field words is not a list of texts; give the words of an operation")
    return words


def _name(body: dict[str, Any]) -> str:
    if not isinstance(name := body.get("name"), str):
        raise InputError("the field name is not a text; give the name of a branch")
    return name
