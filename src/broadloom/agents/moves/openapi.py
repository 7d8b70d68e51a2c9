"""The operators' HTTP API as OpenAPI has it; a test compares it with what the server answers."""

from __future__ import annotations

from typing import Any

from broadloom._version import VERSION
from broadloom.agents.moves.move import State

_TEXT, _NUMBER, _COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_MOVE = {
    "type": "object",
    "required": ["id", "client", "home", "foreign", "state", "since", "until", "key", "note"],
    "properties": {
        **dict.fromkeys(("id", "client", "home", "foreign", "key", "note"), _TEXT),
        **dict.fromkeys(("since", "until"), _NUMBER),
        "state": {"type": "string", "enum": [str(state) for state in State]},
    },
}
_CLIENT = {
    "type": "object",
    "required": ["client", "broker", "filters", "place", "since", "sends", "heard"],
    "properties": {
        "client": _TEXT,
        "broker": _TEXT,
        "filters": {"type": "array", "items": {"type": "array"}},
        "place": {"type": ["array", "null"], "items": _NUMBER},
        "since": _NUMBER,
        "sends": {"type": "array", "items": _TEXT},
        "heard": _NUMBER,
    },
}
_COUNTS = {"type": "object", "additionalProperties": _COUNT}
_ABANDONED = {
    "type": "object",
    "required": ["client", "broker", "since", "forward"],
    "properties": {"client": _TEXT, "broker": _TEXT, "since": _NUMBER, "forward": {"type": "boolean"}},
}
_HEALTH = {
    "type": "object",
    "required": ["clients", "strays", "abandoned", "abandoned_last", "moves", "refused", "links_down"],
    "properties": {
        **dict.fromkeys(("clients", "strays", "abandoned"), _COUNT),
        "abandoned_last": {"type": "array", "items": _ABANDONED},
        **dict.fromkeys(("moves", "refused"), _COUNTS),
        "links_down": {"type": "array", "items": _TEXT},
    },
}


def _answer(words: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _operation(name: str, words: str, answer: dict[str, Any], code: str = "200") -> dict[str, Any]:
    error = {"$ref": "#/components/responses/Error"}
    return {
        "operationId": name,
        "summary": words,
        "responses": {code: _answer(words, answer), "4XX": error, "5XX": error},
    }


def _body(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _paged(name: str, words: str, item: dict[str, Any]) -> dict[str, Any]:
    page = {
        "type": "object",
        "required": [name, "next"],
        "properties": {name: {"type": "array", "items": item}, "next": {"type": ["string", "null"]}},
    }
    query = [_query("after", _TEXT), _query("limit", _COUNT)]
    return _operation(name, f"{words}; `next` goes into `after`.", page) | {"parameters": query}


def document() -> dict[str, Any]:
    """The whole description.

    Examples:
        >>> sorted(document()["paths"])[:3]
        ['/clients', '/health', '/metrics']
    """
    move, client = ({"$ref": f"#/components/schemas/{name}"} for name in ("Move", "Client"))
    one_of_them = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    ask = _body({"client": _TEXT, "to": _TEXT, "key": _TEXT}, ["client", "to"])
    cancel = _operation("cancel", "Give up a move whose client has not been told to go yet.", move)
    metrics = _operation("metrics", "The counts of `/health`, as Prometheus reads them.", _TEXT)
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    paths = {
        "/openapi.json": {"get": _operation("describe", "This description.", {"type": "object"})},
        "/health": {
            "get": _operation(
                "health",
                "Counts, sessions given up, messages refused, brokers at which a link is down.",
                _HEALTH,
            )
        },
        "/metrics": {"get": metrics},
        "/clients": {"get": _paged("clients", "Who is where, by name", client)},
        "/moves": {
            "get": _paged("moves", "Moves, oldest first", move),
            "post": _operation("request_to_move", "Ask a client to move.", move, "201")
            | {"requestBody": ask},
        },
        "/moves/{id}": {"get": _operation("move", "One move.", move) | {"parameters": one_of_them}},
        "/moves/{id}/cancel": {"post": cancel | {"parameters": one_of_them}},
        "/summarize": {
            "post": _operation("summarize", "Count for some seconds what clients send.", {"type": "object"})
            | {"requestBody": _body({"seconds": _NUMBER}, ["seconds"])},
        },
    }
    error = {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Broadloom migration agent", "version": VERSION},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {"Move": _MOVE, "Client": _CLIENT},
            "responses": {"Error": _answer("What is wrong, in one line.", error)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
