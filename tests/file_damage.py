"""Files of agents, controller, moves and changes with one flipped bit at each position: refused, or harmless.

`benchmarks/live.py` counts and writes the table of the documentation; a test checks that nothing is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from broadloom.agents.links.agent_files import OrdersFile, read_checked, write_checked
from broadloom.agents.links.hop_store import FAR, NEAR, HopStore
from broadloom.agents.links.route_orders import AgentOrders, Epoch, Route
from broadloom.agents.links.watch_state import WatchState
from broadloom.errors import InputError, StorageError
from broadloom.storage.record_journal import RecordJournal
from damage import with_flipped_bits

Read = Callable[[], Any]


def record_journal(folder: Path) -> tuple[Path, Read]:
    """The journal of the controller, of moves, of `maintain` and of `deploy apply`."""
    path = folder / "a.journal"
    with RecordJournal(path) as journal:
        journal.append_all([("a", {"n": n, "filters": ["t/#"] * n}) for n in range(8)])

    def read() -> Any:
        with RecordJournal(path) as found:
            return found.records()

    return path, read


def stored_orders(folder: Path, pattern: str) -> tuple[Path, Read]:
    """The orders of an agent: a base, and the changes since."""
    hops = frozenset({("rome", "oslo"), ("oslo", "rome")})
    file = OrdersFile(folder)
    for version in range(3):
        routes = {1: Route(1, ("t/1",), hops, version)}
        file.store(AgentOrders(Epoch(1, "c"), version, version, routes=routes))
    (path,) = folder.glob(pattern)
    return path, lambda: OrdersFile(folder).load()


def checked_value(folder: Path) -> tuple[Path, Read]:
    """The state of an agent, and other values with a checksum."""
    path = folder / "value.json"
    write_checked(path, {"filters": ["a/#"], "number": 17})
    return path, lambda: read_checked(path)


def known_subscriptions(folder: Path) -> tuple[Path, Read]:
    """What an agent knows of the subscriptions at its broker, and the log lines since then."""
    path = folder / "subscriptions.jsonl"
    state = WatchState(path)
    state.write({"knows_all": True}, [["c1", "stays", True, False, ["a/#", "b"], False, True, True]])
    state.append("subscribe", "c1 0 c/+")
    state.append("unsubscribe", "c1 b")
    state.close()

    def read() -> Any:
        try:
            found = WatchState(path).load()
        except ValueError as error:  # an agent says so, and learns it anew
            raise InputError(str(error)) from error
        return found and found[:3]

    return path, read


def hop_memory(folder: Path) -> tuple[Path, Read]:
    """The memory of a hop: what it is of, not the packets in flight, of which a flipped bit forgets one."""
    path = folder / "a.hop"
    store = HopStore(path)
    store.version = 77
    store.begin(NEAR)
    store.begin(FAR)
    rng = random.Random(0)
    for packet in range(1, 101):
        store.record(packet, store.next_number(), rng.getrandbits(32))
    store.close()

    def read() -> Any:
        found = HopStore(path)
        try:
            return found.version, found.is_new, found.has_begun(NEAR), found.has_begun(FAR)
        finally:
            found.close()

    return path, read


FILES: dict[str, Callable[[Path], tuple[Path, Read]]] = {
    "journal of controller, moves, `maintain` and `apply`": record_journal,
    "orders of an agent": lambda folder: stored_orders(folder, "orders.json"),
    "changes of orders": lambda folder: stored_orders(folder, "orders-*.log"),
    "state of an agent": checked_value,
    "subscriptions that an agent knows": known_subscriptions,
    "memory of a hop": hop_memory,
}


def flips(make: Callable[[Path], tuple[Path, Read]], folder: Path, step: int = 1) -> dict[str, int]:
    """Flip one bit at every `step`-th position of a file, read it, and count: refused, harmless, wrong."""
    folder.mkdir(parents=True)
    path, read = make(folder)
    whole = path.read_bytes()
    expected = read()
    counts = {"flipped bits": 0, "refused": 0, "harmless": 0, "wrong": 0}
    for data in islice(with_flipped_bits(whole), 0, None, step):
        path.write_bytes(data)
        counts["flipped bits"] += 1
        try:
            counts["harmless" if read() == expected else "wrong"] += 1
        except (InputError, StorageError):
            counts["refused"] += 1
    return counts
