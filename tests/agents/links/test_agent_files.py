"""Orders of an agent on the disk: a base and a log of differences."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadloom.agents.links import agent_files
from broadloom.agents.links.agent_files import ORDERS, OrdersFile
from broadloom.agents.links.route_orders import AgentOrders, Epoch, Route
from broadloom.errors import InputError, StorageError

NAMES = st.sampled_from("abc")
ROUTES = st.builds(
    Route,
    st.integers(0, 6),
    st.tuples(NAMES),
    st.frozensets(st.tuples(NAMES, NAMES), max_size=3),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.frozensets(NAMES),
)
ORDER_LISTS = st.lists(
    st.builds(
        AgentOrders,
        st.builds(Epoch, st.integers(0, 2), NAMES),
        st.integers(0, 9),
        st.integers(0, 9),
        st.dictionaries(st.integers(0, 5), st.integers(0, 5)),
        st.lists(ROUTES, max_size=5).map(lambda some: {one.number: one for one in some}),
        st.dictionaries(NAMES, NAMES),
    ),
    min_size=1,
    max_size=6,
)


def orders(count, version=1):
    return AgentOrders(
        Epoch(1, "c"),
        version,
        version,
        routes={
            number: Route(number, (f"t/{number}",), frozenset({("a", "b"), ("b", "a")}), 1)
            for number in range(count)
        },
    )


@settings(max_examples=50)
@given(some=ORDER_LISTS, restarts=st.sets(st.integers(0, 5)), compactions=st.sets(st.integers(0, 5)))
def test_a_restarted_agent_has_the_last_orders(tmp_path_factory, some, restarts, compactions):
    """Whatever was stored before, with restarts and new bases in between."""
    folder = tmp_path_factory.mktemp("agent")
    file = OrdersFile(folder)
    assert file.load() is None
    for index, one in enumerate(some):
        file.store(one)
        if index in compactions:
            asyncio.run(file.compact())
        if index in restarts:
            file = OrdersFile(folder)
            assert file.load() == one
    assert OrdersFile(folder).load() == some[-1]


def test_a_change_of_one_route_writes_one_short_line(tmp_path):
    file = OrdersFile(tmp_path)
    many = orders(2000)
    file.store(many)
    base = (tmp_path / ORDERS).read_bytes()
    changed = replace(many, number=2, routes={**many.routes, 7: replace(many.routes[7], until=1)})
    file.store(changed)
    assert (tmp_path / ORDERS).read_bytes() == base
    (log,) = tmp_path.glob("orders-*.log")
    assert len(log.read_bytes()) < 500
    assert OrdersFile(tmp_path).load() == changed


def test_a_long_log_becomes_a_new_base_while_orders_come(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_files, "LEAST_LOG_BYTES", 100)
    file = OrdersFile(tmp_path)
    file.store(orders(1))
    for version in range(2, 20):
        file.store(orders(version, version))
    assert file.is_long

    async def compact_while_orders_come():
        compaction = asyncio.create_task(file.compact())
        await asyncio.sleep(0)  # it has begun, with the orders so far
        file.store(orders(30, 30))
        await compaction

    asyncio.run(compact_while_orders_come())
    assert not file.is_long
    assert json.loads((tmp_path / ORDERS).read_bytes().partition(b"\n")[2])["version"] == 19
    assert OrdersFile(tmp_path).load() == orders(30, 30)
    file.store(orders(31, 31))
    assert OrdersFile(tmp_path).load() == orders(31, 31)
    assert len(list(tmp_path.glob("orders-*.log"))) == 1


def test_a_line_that_a_crash_has_cut_is_left_out(tmp_path):
    file = OrdersFile(tmp_path)
    file.store(orders(1))
    file.store(orders(2, 2))
    (log,) = tmp_path.glob("orders-*.log")
    log.write_bytes(log.read_bytes()[:-5])
    again = OrdersFile(tmp_path)
    assert again.load() == orders(1)
    again.store(orders(3, 3))
    assert OrdersFile(tmp_path).load() == orders(3, 3)


def test_damage_is_refused(tmp_path):
    file = OrdersFile(tmp_path)
    file.store(orders(1))
    file.store(orders(2, 2))
    (log,) = tmp_path.glob("orders-*.log")
    good = log.read_bytes()
    log.write_bytes(good.replace(b'"version":2', b'"version":3'))
    with pytest.raises(InputError, match=r"orders-\w+\.log is damaged"):
        OrdersFile(tmp_path).load()
    log.write_bytes(good)
    (tmp_path / ORDERS).write_bytes((tmp_path / ORDERS).read_bytes().replace(b"t/0", b"t/1"))
    with pytest.raises(InputError, match=r"orders\.json is damaged"):
        OrdersFile(tmp_path).load()


def test_after_a_full_disk_orders_are_stored_whole(tmp_path, monkeypatch):
    file = OrdersFile(tmp_path)
    file.store(orders(1))

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(agent_files.os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            file.store(orders(2, 2))
    file.store(orders(3, 3))
    assert OrdersFile(tmp_path).load() == orders(3, 3)
