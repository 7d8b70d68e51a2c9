"""Registry of the public callables: how each is called with clean values, and the kinds of its arguments."""

from __future__ import annotations

import inspect
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

import broadloom as bl
import hostile_values as hv
from broadloom.deployment import FleetBroker, FleetLinks, FleetLive
from broadloom.discovery import Finding
from broadloom.maintenance.live import OverlayNames
from broadloom.model import NotCarried

NODES, TOPICS = 4, 3
ROWS = [[0, 1], [1, 2], [0, 1, 2], [2]]
INTEREST = bl.Interest.from_lists(ROWS, topics=TOPICS)
EDGES = [(0, 2), (1, 2), (2, 3)]
MATRIX = [[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]]
POINTS = [[0, 0], [3, 4], [6, 0], [9, 9]]
WEIGHTS = bl.Weights.dense(MATRIX)
BY_SITE = bl.Weights.sites([0, 0, 1, 1])
OVERLAY = bl.Overlay.from_edges(NODES, EDGES)
PLAN = bl.Plan(INTEREST, WEIGHTS, OVERLAY, "by hand")
ON_MAP = replace(PLAN, nodes=pa.table({"node": list("0123"), "lat": [1, 2, 3, 4], "lon": [1, 2, 3, 4]}))
PROBLEM = bl.AssignmentProblem(
    [0, 0], [[1, 0], [0, 1]], [-1, -1], [[2, 0], [0, 2], [2, 2]], [[0]] * 3, [[1]] * 3
)
FILTERS = [[([0.0], [1.0])], [([0.0], [1.0])]]
RESULT = bl.AssignmentResult(PROBLEM, [0, 1, 0], FILTERS)
MARKET = bl.MarketProblem(
    [[3, 0], [0, 1], [1, 1]],
    [[0, 1], [1, 0], [1, 1]],
    [[1, 2], [2, 1], [1, 1]],
    [[0, 1], [1, 0]],
    capacity=90,
)
MARKET_RESULT = bl.MarketResult(MARKET, [0, 1, 0])
GRID = bl.Grid.over([0, 0], [4, 4], [2, 2])
DENSITY = bl.Density([[0, 1, 2]], [3.0, 1.0])
BROKERS = (FleetBroker("rome", "10.0.0.1"), FleetBroker("oslo", "10.0.0.7:8884"))
PUBLISHERS = bl.Publishers("observed", [("0", "1")])
FINDING = Finding("rome", "login", "ok", "user 'broadloom' is accepted")
MOVES = [[("meter-1", "rome", "oslo", 2.0, 1.0)]]
MESSAGES = pa.table({"publisher": ["a", "b"], "topic": ["x", "y"], "at": [0, 2_000_000], "bytes": [6, 4]})
TEMPORARY = tempfile.TemporaryDirectory(prefix="broadloom-calls-")
_numbers = itertools.count()


def new_path() -> Path:
    """A path at which nothing is."""
    return Path(TEMPORARY.name) / str(next(_numbers))


def saved(make: Callable[[Path], object]) -> Callable[[], Path]:
    """A function that returns one folder, which is made at the first call."""
    made: list[Path] = []

    def folder() -> Path:
        if not made:
            made.append(new_path())
            make(made[0])
        return made[0]

    return folder


def live(weights: bl.Weights | None = None) -> bl.Live:
    """A live overlay."""
    return bl.maintain(INTEREST, weights, edges=EDGES)


def saved_live() -> Path:
    """The folder of a live overlay that is closed."""
    folder = new_path()
    with live() as one:
        one.save(folder)
    return folder


def matrix_file() -> Path:
    """A file with a latency matrix."""
    file = Path(TEMPORARY.name) / "matrix.csv"
    file.write_text("\n".join(",".join(map(str, row)) for row in MATRIX))
    return file


def client() -> bl.MovingClient:
    """A client that is not connected."""
    return bl.MovingClient("meter-1", {"rome": "10.0.0.1:8883", "oslo": "10.0.0.7:8883"}, "rome")


def fleet_with_dumps() -> bl.Fleet:
    """A fleet whose subscriptions are in files, so that nothing connects to its brokers."""
    file = Path(TEMPORARY.name) / "dump.json"
    file.write_text('{"data": [{"clientid": "c1", "topic": "t/+"}]}')
    brokers = (FleetBroker(one.name, one.address, "emqx", subscriptions=str(file)) for one in BROKERS)
    return bl.Fleet(brokers)


class Willing:
    """A mover that executes every move at once."""

    def request_to_move(self, client: str, to: str, key: str = "") -> dict[str, str]:
        """Accept."""
        return {"id": f"{client}{to}{key}"[:0] + client}

    def move(self, move: str) -> dict[str, str]:
        """It has ended."""
        return {"state": "redirected", "id": move}


@dataclass(frozen=True)
class Call:
    """A public callable with the kinds of its arguments.

    Attributes:
        run: calls it with keyword arguments.
        arguments: by the name of the parameter.
    """

    run: Callable[..., Any]
    arguments: dict[str, hv.Argument] = field(default_factory=dict)

    def clean(self) -> dict[str, Any]:
        """Fresh clean arguments."""
        return {name: argument.clean() for name, argument in self.arguments.items()}


def written(save: Callable[..., object]) -> Callable[..., list[str]]:
    """A function that saves to the path and returns the names of the files there."""

    def run(**arguments: Any) -> list[str]:
        save(**arguments)
        target = arguments.get("path", arguments.get("folder"))
        return sorted(file.name for file in Path(target).iterdir()) if target is not None else []

    return run


def _loaded(path: Any) -> bl.Live:
    with bl.Live.load(path) as one:
        return one


def _saved_and_closed(**arguments: Any) -> None:
    with live() as one:
        one.save(**arguments)


def _churn() -> tuple[Any, ...]:
    return bl.workload.churn(INTEREST, rounds=3, seed=1)


def _node(run: Callable[..., Any]) -> Call:
    return Call(run, {"node": hv.count(1, below=NODES)})


interest = hv.thing(lambda: INTEREST, PLAN, OVERLAY, WEIGHTS)
weights = hv.thing(lambda: WEIGHTS, PLAN, OVERLAY, INTEREST, MATRIX, bl.Weights.uniform(3), optional=True)
plan = hv.thing(lambda: PLAN, INTEREST, OVERLAY, RESULT)
links = hv.edges(EDGES, NODES)
seed = hv.count(1)
problem = hv.thing(lambda: PROBLEM, MARKET, RESULT, INTEREST)
market = hv.thing(lambda: MARKET, PROBLEM, MARKET_RESULT, INTEREST)
at_brokers = hv.indices([0, 1, 0], 2, repeats=True)
core = hv.choice("pair")
filters = hv.Argument(
    lambda: [[(np.zeros(1), np.ones(1))] for _ in range(2)],
    lambda _: [
        3,
        "x",
        {},
        [[]],
        [3, 4],
        [[], [], []],
        [[(0, 1)], []],
        [[([0.0], [1.0, 2.0])], []],
        [[([0.0], ["1"])], []],
        [[([np.nan], [1.0])], []],
        [[([2.0], [1.0])], []],
        [[([0.0], [np.inf])], []],
        [[([0.0],)], []],
        [[(np.ma.array([0.0], mask=[True]), [1.0])], []],
        [None, None],
        {0, 1},
    ],
    lambda clean: [tuple(map(tuple, clean)), [[[[0.0], [1.0]]]] * 2, np.array([[[[0.0], [1.0]]]] * 2)],
)
result_fields = {
    "algorithm": hv.Argument(
        lambda: "by hand", lambda _: [3, b"x", [], hv.SURROGATE, object(), float("nan")]
    ),
    "seed": seed,
    "options": hv.mapping(lambda: {"k": 3}),
    "lower_bound": hv.number(0.5, optional=True),
    "notes": hv.mapping(lambda: {"n": [1]}),
}
node_ids = hv.ids(["a", "b", "c", "d"], optional=True)
NAMES = [3, "abcd", ["a"], {"a", "b", "c", "d"}, {"a": 1}, object(), np.array([["a"] * 4])]
nonsense_nodes = [3, "x", [], [[0]], {"a": 1}, pa.table({"other": ["a"]}), object(), float("nan"), b"x"]
workload_subscribers = {
    "set": hv.count(2),
    "subscribers": hv.count(12),
    "brokers": hv.count(2, minimum=1),
    "levels": hv.count(1, minimum=1),
    "interest_skew": hv.choice("high"),
    "broad_interests": hv.choice("low"),
    "latency": hv.choice("loose", optional=True),
    "seed": seed,
}

positions = hv.Argument(  # a node without a position can be masked
    lambda: np.array(POINTS, float),
    lambda clean: [
        v for v in hv.numbers(POINTS, nan=True).wrong(clean) if not isinstance(v, np.ma.MaskedArray)
    ],
    hv.numbers(POINTS).same,
    optional=True,
)
box = {
    "lo": hv.ordered(hv.numbers([0, 0])),
    "hi": hv.ordered(hv.numbers([4, 4])),
    "cells": hv.ordered(hv.integers([2, 2], least=1)),
}
rows = hv.numbers([[0.5, 1], [3, 3]], nan=True, inf=True)
saving = {"path": hv.path(new_path), "overwrite": hv.flag(False)}
measured = {"interest": interest, "edges": links}
weighed = measured | {"weights": weights}
routed = {"problem": market, "broker_of": at_brokers, "core": core}
chance = hv.number(0.5)
topics_of_node = hv.Argument(
    lambda: [0, 2],
    lambda _: (
        [
            3,
            "ab",
            b"ab",
            {0: 1},
            [0.0],
            [0, 0],
            [-1],
            [3],
            [2**31],
            [2**70],
            [True],
            [1.5],
            [None],
            [""],
            [hv.SURROGATE],
            [b"a"],
            [float("nan")],
            [hv.UUID],
            [hv.DAY],
            [[0]],
            np.array([[0, 2]]),
            np.array(0),
            np.array([True, False, True]),
            np.ma.array([0, 2], mask=[1, 0]),
            np.array([0.0, 2.0]),
            object(),
        ]
    ),
    lambda _: [(0, 2), {0, 2}, [2, 0], iter([0, 2]), np.array([0, 2], ">i2"), ["0", "2"], [np.uint8(0), 2]],
)
events = hv.Argument(
    _churn,
    lambda _: (
        [
            3,
            "ab",
            [3],
            [(1, 2)],
            ["abcd"],
            [(0, "typo", 1, ())],
            [(0, ["join"], 1, ())],
            [(0, "leave", -1, ())],
            [(0, "leave", 1.0, ())],
            [(0, "leave", "1", ())],
            [(0, "subscribe", 1, [9])],
            [(0, "subscribe", 1, [0.0])],
            [(0, "subscribe", 1, 3)],
            [(0, "subscribe", 1, "0x")],
            [(0, "leave", 2**70, ())],
            [(0, "subscribe", 1, [-1])],
            [(0, "subscribe", True, ())],
            [None],
            [object()],
            [(0, np.array(["leave"]), 1, ())],
            [[(0, "leave", 1, ())]],
        ]
    ),
    lambda clean: [list(clean), iter(clean), [list(event) for event in clean]],
)

CALLS: dict[str, Call] = {
    "AssignmentProblem": Call(
        bl.AssignmentProblem,
        {
            "publisher": hv.numbers([0, 0]),
            "broker_place": hv.numbers([[1, 0], [0, 1]]),
            "broker_parent": hv.indices([-1, 0], 2, least=-1, repeats=True),
            "subscriber_place": hv.numbers([[2, 0], [0, 2], [2, 2]]),
            "lo": hv.numbers([[0], [1], [2]]),
            "hi": hv.numbers([[3], [4], [5]]),
            "max_delay": hv.number(0.5),
            "max_latency": hv.Argument(
                lambda: np.array([9.0, np.nan, 9.0]),
                lambda _: (
                    [
                        "x",
                        [1.0],
                        [9.0, "9", 9.0],
                        [-1.0] * 3,
                        1j,
                        object(),
                        {},
                        {9.0},
                        np.ma.array([9.0] * 3, mask=True),
                    ]
                ),
                lambda clean: [clean.tolist(), clean.astype(">f8"), [9, None, 9]],
                optional=True,
            ),
            "alpha": hv.Argument(lambda: 2, lambda _: [0, 17, 2.5, "2", True, [2], 2**70, float("nan"), 1j]),
            "beta": hv.number(1.5, minimum=1),
            "beta_max": hv.number(2.0, minimum=1.5),
            "capacity": hv.numbers([1, 2], minimum=0, optional=True),
            "density": hv.thing(lambda: DENSITY, GRID, optional=True),
            "broker_ids": hv.ids(["a", "b"], optional=True),
            "subscriber_ids": hv.ids(["a", "b", "c"], optional=True),
        },
    ),
    "AssignmentProblem.subset": Call(
        PROBLEM.subset, {"subscribers": hv.indices([0, 2], 3, mask=True, repeats=True)}
    ),
    "AssignmentResult": Call(
        bl.AssignmentResult,
        {"problem": problem, "broker_of": at_brokers, "filters": filters, **result_fields},
    ),
    "AssignmentResult.load": Call(bl.AssignmentResult.load, {"path": hv.path(saved(RESULT.save))}),
    "AssignmentResult.save": Call(written(RESULT.save), saving),
    "Change": Call(
        bl.Change,
        {
            "node": hv.count(1, minimum=-1),
            "added": hv.integers([[0, 1]]),
            "removed": hv.integers([[0, 1], [2, 3]]),
            "shadow": hv.integers([0, 1]),
            "seconds": hv.number(0.5),
            "backup_seconds": hv.number(0.5),
            "kind": hv.choice("join"),
            "edges_before": hv.count(3),
            "fallbacks": hv.count(0),
        },
    ),
    "Density": Call(
        bl.Density,
        {
            "edges": hv.Argument(
                lambda: [np.array([0.0, 1.0, 2.0])],
                lambda _: [
                    3,
                    "x",
                    [3],
                    [[0, "1", 2]],
                    [[0, 1]],
                    [[0, 2, 1]],
                    [[0, np.nan, 2]],
                    {},
                    [[]],
                    [[[0, 1, 2]]],
                ],
                lambda clean: [tuple(clean), [[0, 1, 2]], np.array(clean), iter(clean)],
            ),
            "mass": hv.numbers([3, 1], minimum=0),
        },
    ),
    "Density.from_events": Call(
        bl.Density.from_events, {"points": hv.numbers([[0.0], [1.0], [4.0]]), "bins": hv.count(2, minimum=1)}
    ),
    "Density.measure": Call(DENSITY.measure, {"lo": hv.numbers([0.5]), "hi": hv.numbers([2.0], inf=True)}),
    "DoctorReport": Call(
        bl.DoctorReport,
        {
            "findings": hv.Argument(
                lambda: [FINDING],
                lambda _: [3, "x", ["rome"], [None], {}, {"rome": FINDING}, FINDING, object()],
                lambda clean: [tuple(clean), iter(clean)],
            )
        },
    ),
    "DoctorReport.lines": Call(bl.DoctorReport([FINDING]).lines, {"everything": hv.flag(True)}),
    "Fleet": Call(
        bl.Fleet,
        {
            "brokers": hv.Argument(
                lambda: list(BROKERS),
                lambda _: [3, "x", [], ["rome"], [None], {}, {"rome": BROKERS[0]}, [*BROKERS] * 2, object()],
                lambda clean: [tuple(clean), iter(clean)],
            ),
            "links": hv.thing(FleetLinks, PLAN, optional=True),
            "path": hv.path(new_path, optional=True),
            "live": hv.thing(FleetLive, PLAN, optional=True),
        },
    ),
    "Fleet.joined": Call(bl.Fleet(BROKERS).joined, {"name": hv.text("bern"), "address": hv.text("10.0.0.9")}),
    "Fleet.load": Call(bl.Fleet.load, {"path": hv.path(saved(bl.Fleet(BROKERS).save))}),
    "Fleet.save": Call(
        lambda path, overwrite: bl.Fleet(BROKERS).save(path, overwrite),
        {"path": hv.path(new_path), "overwrite": hv.flag(False)},
    ),
    "discover": Call(
        lambda **arguments: bl.discover(**arguments).summary(),
        {
            "fleet": hv.thing(fleet_with_dumps, PLAN),
            "output": hv.path(new_path),
            "listen": hv.number(0.0, optional=True),
            "latency": hv.choice("none"),
            "partial": hv.flag(False),
            "overwrite": hv.flag(False),
        },
    ),
    "Grid": Call(bl.Grid, box),
    "Grid.channel_of": Call(GRID.channel_of, {"points": rows}),
    "Grid.covering": Call(
        bl.Grid.covering,
        {"points": hv.numbers([[0, 0], [3, 3]], nan=True), "channels": hv.count(4, minimum=1)},
    ),
    "Grid.over": Call(bl.Grid.over, box),
    "Grid.rates": Call(
        GRID.rates,
        {
            "densities": hv.Argument(
                lambda: [lambda at: at[:, 0]],
                lambda _: [
                    3,
                    "x",
                    [3],
                    [lambda _: 1.0],
                    [lambda at: at],
                    [lambda at: -at[:, 0]],
                    [lambda _: "x"],
                    {},
                ],
                lambda clean: [tuple(clean), iter(clean)],
            ),
            "samples": hv.count(2, minimum=1),
        },
    ),
    "Grid.touched": Call(
        GRID.touched, {"lo": hv.numbers([[0, 1]], nan=True), "hi": hv.numbers([[3, 3]], nan=True, inf=True)}
    ),
    "Interest": Call(
        bl.Interest,
        {
            "node_ids": hv.ids(["a", "b", "c", "d"]),
            "topic_ids": hv.ids(["x", "y", "z"]),
            "topic_start": hv.integers([0, 2, 4, 7, 8], least=0),
            "topics": hv.indices([0, 1, 1, 2, 0, 1, 2, 2], TOPICS, repeats=True),
            "node_start": hv.integers([0, 2, 5, 8], least=0),
            "nodes": hv.indices([0, 2, 0, 1, 2, 1, 2, 3], NODES, repeats=True),
        },
    ),
    "Interest.from_lists": Call(
        bl.Interest.from_lists,
        {
            "lists": hv.Argument(
                lambda: [list(row) for row in ROWS],
                lambda _: (
                    [
                        3,
                        "ab",
                        [3],
                        ["ab"],
                        [b"ab"],
                        b"ab",
                        {0: [1]},
                        {(0, 1)},
                        [{0: 1}],
                        [[0, 0]],
                        [[0.0]],
                        [[True]],
                        [[0, "a"]],
                        [[hv.UUID]],
                        [[hv.DAY]],
                        [[hv.SURROGATE]],
                        [[b"a"]],
                        [[None]],
                        [[""]],
                        [[2**70]],
                        [[3]],
                        [np.ma.array([0, 1], mask=[1, 0])],
                        [[-1]],
                        [[float("nan")]],
                        [[hv.decimal.Decimal(1)]],
                        [[[0]]],
                        [np.array([[0]])],
                        object(),
                        [None],
                    ]
                ),
                lambda _: (
                    [
                        tuple(map(tuple, ROWS)),
                        map(iter, ROWS),
                        [set(row) for row in ROWS],
                        map(np.array, ROWS),
                        [row[::-1] for row in ROWS],
                        [np.array(row, ">i4") for row in ROWS],
                        [np.array(r, "u1") for r in ROWS],
                    ]
                ),
            ),
            "topics": hv.count(3, optional=True),
            "node_ids": node_ids,
        },
    ),
    "Interest.from_matrix": Call(
        bl.Interest.from_matrix,
        {
            "matrix": hv.numbers([[1, 0, 1], [0, 1, 1]], minimum=0),
            "node_ids": hv.ids(["a", "b"], optional=True),
            "topic_ids": hv.ids(["x", "y", "z"], optional=True),
        },
    ),
    "Interest.from_pairs": Call(
        bl.Interest.from_pairs,
        {
            "nodes": hv.ids(["a", "b", "c"], repeats=True),
            "topics": hv.ids(["x", "y", "z"], repeats=True),
            "node_ids": hv.ids(["a", "b", "c"], optional=True, more=True),
            "topic_ids": hv.ids(["x", "y", "z"], optional=True, more=True),
        },
    ),
    "Interest.from_rows": Call(
        bl.Interest.from_rows,
        {
            "start": hv.integers([0, 2, 4, 7, 8], least=0),
            "topics": hv.indices([0, 1, 1, 2, 0, 1, 2, 2], TOPICS, repeats=True),
            "topic_ids": hv.Argument(
                lambda: 3,
                lambda _: [
                    -1,
                    2.0,
                    "xyz",
                    True,
                    2**31,
                    2**70,
                    2,
                    {"x", "y", "z"},
                    ["x", "x", "y"],
                    [hv.SURROGATE, "", 3],
                ],
                lambda _: [np.int8(3), ["0", "1", "2"], (0, 1, 2), np.array([0, 1, 2])],
            ),
            "node_ids": node_ids,
        },
    ),
    "Interest.from_table": Call(
        bl.Interest.from_table,
        {
            "subscriptions": hv.Argument(
                lambda: pa.table({"node": ["a", "b"], "topic": ["x", "x"]}),
                lambda _: (
                    [
                        3,
                        "x",
                        [],
                        [[0]],
                        object(),
                        float("nan"),
                        b"x",
                        pa.table({"other": ["a"]}),
                        pa.table({"node": [hv.UUID], "topic": ["x"]}),
                        pa.table({"node": [hv.DAY], "topic": ["x"]}),
                        pa.table({"node": [None], "topic": ["x"]}),
                        pa.table({"node": [1.5], "topic": ["x"]}),
                        pa.table({"node": ["a", "a"], "topic": ["x", "x"]}),
                        pa.table({"node": [b"a"], "topic": ["x"]}),
                    ]
                ),
            ),
            "nodes": hv.Argument(
                lambda: pa.table({"node": ["a", "b"]}), lambda _: nonsense_nodes, optional=True
            ),
            "topics": hv.Argument(
                lambda: pa.table({"topic": ["x", "y"]}), lambda _: nonsense_nodes, optional=True
            ),
        },
    ),
    "Interest.nodes_of": Call(INTEREST.nodes_of, {"topic": hv.count(1, below=TOPICS)}),
    "Interest.subset": Call(INTEREST.subset, {"nodes": hv.indices([0, 2], NODES, mask=True)}),
    "Interest.topics_of": Call(INTEREST.topics_of, {"node": hv.count(1, below=NODES)}),
    "Live": Call(
        lambda **arguments: bl.Live(**arguments).edges,
        {
            "dynamics": hv.thing(lambda: live()._dynamics),
            "method": hv.Argument(lambda: "shadow", lambda _: [3, b"x", [], object()]),
            "options": hv.thing(lambda: live().options),
            "seed": seed,
            "names": hv.thing(lambda: OverlayNames(INTEREST.topic_ids, dict(enumerate(INTEREST.node_ids)))),
            "counts": hv.thing(Counter),
        },
    ),
    "Live.apply": Call(lambda **arguments: live().apply(**arguments), {"events": events}),
    "Live.backups": _node(lambda node: live().backups(node)),
    "Live.join": Call(
        lambda **arguments: live(bl.Weights.euclidean(POINTS)).join(**arguments),
        {
            "topics": topics_of_node,
            "name": hv.text("new", optional=True),
            "at": hv.numbers([1, 1]),
            "address": hv.text("10.0.0.7:1883", optional=True),
            "site": hv.text("rome", optional=True),
        },
    ),
    "Live.leave": _node(lambda node: live().leave(node)),
    "Live.load": Call(lambda path: _loaded(path), {"path": hv.path(saved_live)}),
    "Live.name_of": _node(lambda node: live().name_of(node)),
    "Live.named": Call(
        lambda name: live().named(name),
        {"name": hv.Argument(lambda: "1", lambda _: [3, b"1", [], {}, object()])},
    ),
    "Live.primaries": _node(lambda node: live().primaries(node)),
    "Live.rebuild_due": Call(
        lambda **arguments: live().rebuild_due(**arguments),
        {
            "max_degree": hv.number(1),
            "mean_degree": hv.number(0.5),
            "total_weight": hv.number(0.5),
            "drift": hv.thing(lambda: live().drift(), (1, 2, 3), optional=True),
        },
    ),
    "Live.resubscribe": Call(
        lambda **arguments: live().resubscribe(**arguments),
        {"node": hv.count(1, below=NODES), "topics": topics_of_node},
    ),
    "Live.save": Call(written(lambda **arguments: _saved_and_closed(**arguments)), saving),
    "Live.topics_of": _node(lambda node: live().topics_of(node)),
    "Login": Call(
        bl.Login,
        {
            name: hv.Argument(
                lambda: "word",
                lambda _: [3, b"x", [], "a\0", hv.SURROGATE, object(), float("nan")],
                optional=True,
            )
            for name in ("user", "password", "ca")
        }
        | {
            "certificate": hv.Argument(
                lambda: ("a.crt", "a.key"),
                lambda _: ["ab", 3, ("a",), ("a", None), ("a", 3), {"a", "b"}, ("a", hv.SURROGATE), object()],
                lambda clean: [list(clean)],
                optional=True,
            )
        },
    ),
    "MarketProblem": Call(
        bl.MarketProblem,
        {
            "rates": hv.numbers([[3, 0], [0, 1]], minimum=0),
            "wants": hv.Argument(
                lambda: np.array([[False, True], [True, False]]),
                lambda clean: (
                    [
                        value
                        for value in hv.numbers([[0, 1], [1, 0]], minimum=0).wrong(clean.astype(float))
                        if not (isinstance(value, np.ndarray) and value.dtype.kind == "c")
                    ]
                    + [[[0, 2], [1, 0]], [[0.5, 1], [1, 0]], [["0", "1"], ["1", "0"]]]
                ),
                lambda clean: [clean.tolist(), clean.astype(float), clean.astype(">i4"), clean[::-1][::-1]],
            ),
            "access": hv.numbers([[1, 2], [2, 1]], minimum=0),
            "core": hv.numbers([[0, 1], [1, 0]], minimum=0),
            "capacity": hv.numbers([9, 9], minimum=0),
            "user_ids": hv.Argument(lambda: ("a", "b"), hv.ids(["a", "b"]).wrong, hv.ids(["a", "b"]).same),
            "broker_ids": hv.Argument(lambda: ("a", "b"), hv.ids(["a", "b"]).wrong, hv.ids(["a", "b"]).same),
            "close": hv.flag(True),
        },
    ),
    "MarketResult": Call(
        bl.MarketResult, {"problem": market, "broker_of": at_brokers, "core": core, **result_fields}
    ),
    "MarketResult.load": Call(
        bl.MarketResult.load,
        {
            "path": hv.path(saved(MARKET_RESULT.save)),
            "problem": hv.thing(lambda: MARKET, PROBLEM, optional=True),
        },
    ),
    "MarketResult.save": Call(written(MARKET_RESULT.save), saving),
    "MovePlan": Call(
        bl.MovePlan,
        {
            "steps": hv.Argument(
                lambda: [list(step) for step in MOVES],
                lambda _: (
                    [
                        3,
                        "x",
                        [3],
                        [[3]],
                        [["abcde"]],
                        [[("a", "b", "c", 1.0)]],
                        [[("a", "b", 3, 1.0, 1.0)]],
                        {},
                        [[("a", "b", "c", "1", 1.0)]],
                        [[("a", "b", "c", 1.0, float("nan"))]],
                        [[("a", "b", "c", 1.0, -1.0)]],
                        [[(hv.SURROGATE, "b", "c", 1.0, 1.0)]],
                        [[("", "b", "c", 1.0, 1.0)]],
                        [None],
                    ]
                ),
                lambda clean: [tuple(map(tuple, clean)), iter(clean)],
            ),
            "blocked": hv.Argument(
                lambda: (), lambda _: [3, "x", [3], {}, [("a",)]], lambda _: [[], iter([])]
            ),
            "advice": hv.Argument(lambda: "wait", lambda _: [3, b"x", [], object()]),
            "cost_before": hv.number(5.0),
            "cost_after": hv.number(3.0),
            "load": hv.Argument(
                lambda: {"rome": 1.0}, lambda _: [3, "x", [], {"rome": "1"}, {"rome": float("nan")}, {3: 1.0}]
            ),
            "capacity": hv.Argument(
                lambda: {"rome": 1.0},
                lambda _: [3, "x", [], {"rome": None}, {"rome": np.inf}, {hv.SURROGATE: 1.0}],
            ),
            "key": hv.Argument(lambda: "ff", lambda _: [3, b"x", [], object()]),
        },
    ),
    "MovePlan.load_from": Call(bl.MovePlan.load_from, {"path": hv.path(saved(bl.MovePlan(MOVES).save))}),
    "MovePlan.save": Call(written(bl.MovePlan(MOVES).save), saving),
    "MoveRequest": Call(
        bl.MoveRequest,
        {
            "move": hv.text("00ff00ff00ff00ff"),
            "home": hv.text("rome"),
            "foreign": hv.text("oslo"),
            "address": hv.text("10.0.0.7:8883"),
            "ttl": hv.number(5.0),
        },
    ),
    "MovingClient": Call(
        bl.MovingClient,
        {
            "name": hv.text("meter-1"),
            "brokers": hv.Argument(
                lambda: {"rome": "10.0.0.1:8883"},
                lambda _: [
                    3,
                    "x",
                    [],
                    {"rome": 3},
                    {"rome": "x"},
                    {3: "a:1"},
                    {"rome": None},
                    {},
                    {"": "a:1"},
                    object(),
                ],
            ),
            "home": hv.text("rome"),
            "heard": hv.function(lambda: print),
            "policy": hv.function(lambda: print),
            "login": hv.thing(bl.Login, optional=True),
            "place": hv.numbers([1, 2], optional=True),
            "memory": hv.path(new_path, optional=True),
            "identify": hv.function(lambda: print),
            "learn": hv.flag(True),
            "patience": hv.number(3.0),
            "key": hv.text("ab" * 32, optional=True),
            "plain": hv.flag(True),
        },
    ),
    "MovingClient.accept": Call(lambda move: client().accept(move), {"move": hv.text("ff")}),
    "MovingClient.connect": Call(lambda broker: client().connect(broker), {"broker": hv.text("oslo")}),
    "MovingClient.decline": Call(lambda move: client().decline(move), {"move": hv.text("ff")}),
    "MovingClient.publish": Call(
        lambda **arguments: len(client().publish(**arguments)),
        {
            "topic": hv.text("a/b"),
            "payload": hv.Argument(
                lambda: b"hello", lambda _: ["x", 3, [1], bytearray(b"x"), np.zeros(2), object()]
            ),
        },
    ),
    "MovingClient.subscribe": Call(
        lambda filters, qos: client().subscribe(filters, qos=qos),
        {"filters": hv.text("a/#"), "qos": hv.Argument(lambda: 1, hv.count(1, below=2).wrong)},
    ),
    "MovingClient.unsubscribe": Call(
        lambda filters: client().unsubscribe(filters), {"filters": hv.text("a/#")}
    ),
    "MovingClient.wait_until_confirmed": Call(
        lambda seconds: client().wait_until_confirmed(seconds), {"seconds": hv.number(0.0)}
    ),
    "MovingClient.wait_until_ready": Call(
        lambda seconds: client().wait_until_ready(seconds), {"seconds": hv.number(0.0)}
    ),
    "Overlay": Call(bl.Overlay, {"node_count": hv.count(NODES), "edges": links}),
    "Overlay.from_edges": Call(bl.Overlay.from_edges, {"node_count": hv.count(NODES), "edges": links}),
    "Plan": Call(
        bl.Plan,
        {
            "interest": interest,
            "weights": hv.thing(lambda: WEIGHTS, INTEREST, bl.Weights.uniform(3)),
            "overlay": hv.thing(lambda: OVERLAY, EDGES, bl.Overlay.from_edges(3, [])),
            **result_fields,
            "nodes": hv.Argument(
                lambda: pa.table({"node": list(INTEREST.node_ids)}), lambda _: nonsense_nodes, optional=True
            ),
            "publishers": hv.thing(
                lambda: PUBLISHERS, "anywhere", PLAN, bl.Publishers("observed", [("z", "x")])
            ),
            "not_carried": hv.thing(NotCarried, PLAN, "x", []),
            "division": hv.thing(lambda: None, PLAN, INTEREST, optional=True),
        },
    ),
    "Publishers": Call(
        bl.Publishers,
        {
            "mode": hv.choice("observed"),
            "observed": hv.Argument(
                lambda: [("0", "x", 2.0), ("1", "y")],
                lambda _: [
                    3,
                    "ab",
                    b"ab",
                    {"a": "b"},
                    [3],
                    ["ab"],
                    [("a",)],
                    [("a", "x", 1.0, 2)],
                    [("a", 3)],
                    [(3, "x")],
                    [("", "x")],
                    [("a", "")],
                    [("a", "x/#")],
                    [("a", "x/+")],
                    [("a", "x", -1.0)],
                    [("a", "x", "1")],
                    [("a", "x", float("nan"))],
                    [("a", "x", float("inf"))],
                    [("a", "x", True)],
                    [("a", hv.SURROGATE)],
                    [None],
                    [object()],
                    object(),
                ],
                lambda clean: [tuple(clean), iter(clean), [["0", "x", 2], ["1", "y", 0.0]], clean[::-1]],
            ),
        },
    ),
    "Plan.plot": Call(
        lambda **arguments: PLAN.plot(**arguments).get_title(),
        {
            "ax": hv.thing(lambda: Figure().subplots(), optional=True),
            "positions": positions,
            "labels": hv.Argument(lambda: True, hv.flag(True).wrong, hv.flag(True).same, optional=True),
        },
    ),
    "Plan.to_geojson": Call(ON_MAP.to_geojson, {"positions": positions}),
    "Plan.to_graphml": Call(PLAN.to_graphml, {"path": hv.path(new_path)}),
    "Plan.load": Call(bl.Plan.load, {"path": hv.path(saved(PLAN.save))}),
    "Plan.save": Call(written(PLAN.save), saving),
    "Weights": Call(
        bl.Weights,
        {
            "kind": hv.choice("dense"),
            "node_count": hv.count(NODES),
            "table": hv.numbers(MATRIX, minimum=0),
            "points": hv.Argument(
                lambda: np.empty((0, 0)),
                lambda _: ["x", [[1.0]], 3.0, [[0], [0, 1]], {"a": 1}, object()],
                optional=False,
            ),
            "site": hv.Argument(lambda: np.empty(0, np.int32), lambda _: ["x", [1], 3, {"a": 1}, object()]),
            "inner": hv.number(1.0, above=True),
            "outer": hv.number(2.0, above=True),
        },
    ),
    "Weights.dense": Call(
        bl.Weights.dense,
        {
            "matrix": hv.numbers(MATRIX, minimum=0),
            "names": hv.Argument(lambda: ["a"] * 4, lambda _: NAMES, optional=True),
        },
    ),
    "Weights.euclidean": Call(
        bl.Weights.euclidean,
        {
            "points": hv.numbers(POINTS),
            "names": hv.Argument(lambda: ["a"] * 4, lambda _: NAMES, optional=True),
        },
    ),
    "Weights.from_networkx": Call(
        bl.Weights.from_networkx,
        {
            "graph": hv.thing(lambda: networkx.path_graph(4), PLAN, INTEREST),
            "nodes": hv.ids(["0", "1", "3"], more=True),
            "weight": hv.Argument(
                lambda: None, lambda _: [3, b"x", "typo", [], object(), hv.SURROGATE], optional=True
            ),
            "missing": hv.choice("path"),
        },
    ),
    "Weights.of": Call(
        WEIGHTS.of,
        {
            name: hv.Argument(
                lambda: np.array([0, 2, 0]),
                lambda clean: [
                    v
                    for v in hv.indices([0, 2, 0], NODES, repeats=True).wrong(clean)
                    if not (isinstance(v, (int, np.ndarray)) and np.ndim(v) == 0)
                ],
                hv.indices([0, 2, 0], NODES, repeats=True).same,
            )
            for name in ("u", "v")
        },
    ),
    "Weights.scaled": Call(WEIGHTS.scaled, {"factor": hv.number(2.0, above=True)}),
    "Weights.sites": Call(
        bl.Weights.sites,
        {
            "site_of_node": hv.indices([0, 0, 1], 2, repeats=True),
            "inner": hv.number(1.0, above=True),
            "outer": hv.number(2.0, above=True),
            "between": hv.numbers([[1, 2], [2, 1]], optional=True),
        },
    ),
    "Weights.subset": Call(WEIGHTS.subset, {"nodes": hv.indices([0, 2], NODES, mask=True)}),
    "Weights.uniform": Call(bl.Weights.uniform, {"node_count": hv.count(3, below=2**31)}),
    "algorithms": Call(bl.algorithms, {"stage": hv.choice("link", optional=True)}),
    "assign": Call(
        bl.assign,
        {
            "problem": hv.thing(lambda: PROBLEM, INTEREST, PLAN, RESULT),
            "algorithm": hv.choice("closest"),
            "seed": seed,
        },
    ),
    "doctor": Call(
        lambda fleet, deliver: bl.doctor(fleet, deliver).findings[0].verdict,
        {
            "fleet": hv.thing(lambda: bl.Fleet([FleetBroker("a", "127.0.0.1:1")]), PLAN, "fleet.toml"),
            "deliver": hv.flag(False),
        },
    ),
    "improve": Call(
        bl.improve,
        {
            "plan": plan,
            "exchange": hv.flag(True),
            "rounds": hv.count(2),
            "seconds": hv.number(1e6, optional=True),
        },
    ),
    "is_topic_connected": Call(bl.is_topic_connected, measured),
    "link": Call(
        bl.link,
        {
            "interest": interest,
            "weights": weights,
            "algorithm": hv.choice("grmaw", optional=True),
            "seed": seed,
            "improve": hv.flag(True),
            "previous": hv.thing(lambda: PLAN, INTEREST, RESULT, optional=True),
            "publishers": hv.thing(lambda: PUBLISHERS, "anywhere", INTEREST, optional=True),
        },
    ),
    "link_change": Call(bl.link_change, {"before": plan, "after": plan}),
    "lower_bound": Call(
        bl.lower_bound,
        {
            "interest": interest,
            "weights": weights,
            "iterations": hv.count(3),
            "seconds": hv.number(1e6, optional=True),
        },
    ),
    "maintain": Call(
        lambda **arguments: bl.maintain(**arguments),
        {
            "interest": hv.thing(lambda: INTEREST, WEIGHTS, ROWS),  # or a plan
            "weights": hv.thing(lambda: BY_SITE, INTEREST, MATRIX, bl.Weights.uniform(3)),
            "algorithm": hv.choice("shadow", optional=True),
            "method": hv.choice("shadow", optional=True),
            "rho": hv.number(3.0, minimum=1),
            "coverage": hv.count(2, minimum=1),
            "seed": seed,
            "edges": hv.edges(EDGES, NODES, optional=True),
            "backups": hv.choice("greedy"),
            "sites": hv.Argument(
                lambda: ["s", "t"], hv.ids(["s", "t"], more=True).wrong, lambda _: [("s", "t")]
            ),
        },
    ),
    "measures.components_per_topic": Call(bl.measures.components_per_topic, measured),
    "measures.content_metrics": Call(
        bl.measures.content_metrics, {"problem": problem, "broker_of": at_brokers, "filters": filters}
    ),
    "measures.disconnected_topics": Call(bl.measures.disconnected_topics, measured),
    "measures.filters_text": Call(bl.measures.filters_text, {"count": hv.count(3)}),
    "measures.is_topic_connected": Call(bl.measures.is_topic_connected, measured),
    "measures.link_loads": Call(bl.measures.link_loads, weighed),
    "measures.market_cost": Call(bl.measures.market_cost, routed),
    "measures.market_flows": Call(bl.measures.market_flows, routed),
    "measures.market_metrics": Call(bl.measures.market_metrics, routed),
    "measures.metrics": Call(
        bl.measures.metrics, weighed | {"sample": hv.count(2, minimum=1, optional=True), "seed": seed}
    ),
    "measures.routing_costs": Call(bl.measures.routing_costs, weighed),
    "measures.topic_diameters": Call(
        bl.measures.topic_diameters,
        weighed
        | {
            "topics": hv.Argument(
                lambda: np.array([0, 2]),
                hv.indices([0, 2], TOPICS, repeats=True, mask=True).wrong,
                hv.indices([0, 2], TOPICS, repeats=True, mask=True).same,
                optional=True,
            ),
            "searches": hv.count(9, minimum=1, optional=True),
        },
    ),
    "measures.weak_points": Call(bl.measures.weak_points, measured),
    "plan_moves": Call(
        bl.plan_moves,
        {
            "problem": market,
            "present": at_brokers,
            "planned": hv.indices([1, 1, 0], 2, repeats=True),
            "at_once": hv.count(2, minimum=1),
            "core": core,
        },
    ),
    "run_moves": Call(
        bl.run_moves,
        {
            "plan": hv.thing(lambda: bl.MovePlan(MOVES), PLAN),
            "mover": hv.thing(Willing),
            "stop": hv.function(lambda: bool),
            "sleep": hv.function(lambda: float),
            "watch": hv.function(lambda: id),
        },
    ),
    "summarize": Call(
        bl.summarize,
        {
            "messages": hv.Argument(
                lambda: MESSAGES,
                lambda _: (
                    [3, "x", [], {}, object(), pa.table({"publisher": ["a"]}), MESSAGES.to_pydict()]
                    + [
                        MESSAGES.set_column(3, "bytes", pa.array(values))
                        for values in ([-1, 1], [None, 1], ["6", "4"])
                    ]
                    + [
                        MESSAGES.set_column(0, "publisher", pa.array(values))
                        for values in (["a", "c"], [None, "a"])
                    ]
                ),
            ),
            "users": hv.ids(["a", "b"], more=True),
            "channels": hv.ids(["x", "y"], more=True),
            "seconds": hv.number(2.0, above=True, optional=True),
        },
    ),
    "workload.churn": Call(
        bl.workload.churn,
        {"interest": interest, "rounds": hv.count(3), "join": chance, "change": chance, "seed": seed},
    ),
    "workload.devices": Call(
        written(bl.workload.devices),
        {
            "folder": hv.path(new_path),
            "brokers": hv.count(2, minimum=1),
            "subscriptions": hv.count(9),
            "wild": chance,
            "bad": chance,
            "repeated": chance,
            "seed": seed,
            "subscribers": hv.count(2),
        },
    ),
    "workload.events_table": Call(bl.workload.events_table, {"interest": interest, "events": events}),
    "workload.first_geography": Call(bl.workload.first_geography, workload_subscribers),
    "workload.interest": Call(
        bl.workload.interest,
        {
            "nodes": hv.count(4),
            "topics": hv.count(5),
            "popularity": hv.choice("zipf"),
            "alpha": hv.number(2.0, minimum=None),
            "rate": hv.number(5.0, minimum=None),
            "sizes": hv.Argument(
                lambda: (1, 3),
                lambda _: [
                    3,
                    "13",
                    (1,),
                    (3, 1),
                    (1, 2.5),
                    (-1, 2),
                    (9, 9),
                    {1, 3},
                    {1: 3},
                    (True, 2),
                    (1, 2**70),
                ],
                lambda clean: [list(clean), np.array(clean), (np.int8(1), 3)],
            ),
            "size_law": hv.choice("power"),
            "gamma": hv.number(2.0, minimum=None),
            "seed": seed,
        },
    ),
    "workload.market": Call(
        bl.workload.market,
        {
            "users": hv.count(4),
            "brokers": hv.count(2, minimum=1),
            "channels": hv.count(3, minimum=1),
            "width": hv.number(0.5, above=True, optional=True),
            "seed": seed,
            "access": hv.choice("euclidean"),
            "ratio": hv.number(1.0, above=True),
            "headroom": hv.number(2.0, above=True),
        },
    ),
    "workload.mean_weight": Call(
        bl.workload.mean_weight, {"weights": hv.thing(lambda: WEIGHTS, INTEREST, MATRIX)}
    ),
    "workload.read_matrix": Call(bl.workload.read_matrix, {"path": hv.path(matrix_file)}),
    "workload.region_latency": Call(
        bl.workload.region_latency,
        {
            "regions": hv.Argument(
                lambda: bl.workload.REGIONS[:3],
                lambda _: (
                    [
                        3,
                        "x",
                        [3],
                        {},
                        [("a", "b", 0.0, 0.0)],
                        [bl.workload.Region("a", "b", 91.0, 0.0)],
                        [bl.workload.Region("a", "b", "0", 0.0)],
                        [bl.workload.Region("a", "b", float("nan"), 0.0)],
                    ]
                ),
                lambda clean: [list(clean), iter(clean)],
            )
        },
    ),
    "workload.subscribers": Call(
        bl.workload.subscribers, workload_subscribers | {"geography": hv.count(0, optional=True)}
    ),
    "workload.weights": Call(
        bl.workload.weights,
        {
            "nodes": hv.count(4, optional=True),
            "kind": hv.choice("planar"),
            "mean": hv.number(2.0, above=True, optional=True),
            "seed": seed,
        },
    ),
    "workload.weights_or_none": Call(
        bl.workload.weights_or_none,
        {
            "nodes": hv.count(4, optional=True),
            "kind": hv.choice("sites"),
            "mean": hv.number(2.0, above=True, optional=True),
            "seed": seed,
            "options": hv.Argument(
                lambda: {"site_size": 2},
                lambda _: [3, "x", [], {"typo": 1}, {"site_size": 0}, {"site_size": "2"}, {"inner": "1"}],
            ),
        },
    ),
    "workload.write": Call(
        written(bl.workload.write),
        {
            "folder": hv.path(new_path),
            "interest": interest,
            "weights": hv.thing(lambda: BY_SITE, INTEREST, bl.Weights.uniform(3), optional=True),
            "events": events,
            "in_regions": hv.flag(False),
            "overwrite": hv.flag(False),
        },
    ),
}

# Plain records, which hold what they are given; the functions that take them check them.
RECORDS = {
    "measures.MarketCost",
    "measures.WeakPoints",
    "workload.ChurnEvent",
    "workload.Event",
    "workload.Region",
}


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions, classes and methods that take an argument, by name; errors are left out."""
    for name in bl.__all__:
        public = getattr(bl, name)
        if inspect.ismodule(public):
            members = [(f"{name}.{inner}", getattr(public, inner)) for inner in public.__all__]
        elif inspect.isclass(public) and issubclass(public, BaseException):
            members = []
        elif inspect.isclass(public):
            methods = [inner for inner in dir(public) if not inner.startswith("_")]
            members = [(name, public), *((f"{name}.{inner}", getattr(public, inner)) for inner in methods)]
        else:
            members = [(name, public)]
        yield from ((key, value) for key, value in members if callable(value) and parameters_of(value))


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that a caller gives, without `self` and keyword options."""
    found = inspect.signature(function).parameters.values()
    return [one.name for one in found if one.name != "self" and one.kind is not one.VAR_KEYWORD]
