"""One flipped bit at each position of the files of agents: refused, or harmless.

The journals of the controller, of changes, of moves and of `maintain` have the same tests next to theirs.
"""

import random

import pytest

from broadloom.agents.links.agent_files import OrdersFile, read_checked, write_checked
from broadloom.agents.links.hop_store import FAR, NEAR, HopStore
from broadloom.agents.links.route_orders import AgentOrders, Epoch, Route
from broadloom.errors import InputError
from damage import with_flipped_bits
from file_damage import FILES, flips


def orders(version):
    hops = frozenset({("rome", "oslo"), ("oslo", "rome")})
    return AgentOrders(Epoch(1, "c"), version, version, routes={1: Route(1, ("t/1",), hops, version)})


@pytest.mark.parametrize("pattern", ["orders.json", "orders-*.log"])
def test_orders_of_an_agent(tmp_path, pattern):
    file = OrdersFile(tmp_path)
    for version in range(3):
        file.store(orders(version))
    (path,) = tmp_path.glob(pattern)
    whole = path.read_bytes()
    refused = 0
    for data in with_flipped_bits(whole):
        path.write_bytes(data)
        with pytest.raises(InputError, match="is damaged; restore it from a copy"):
            OrdersFile(tmp_path).load()
        refused += 1
    assert refused == len(whole)
    path.write_bytes(whole)
    assert OrdersFile(tmp_path).load() == orders(2)


def test_values_with_a_checksum(tmp_path):
    path = tmp_path / "value.json"
    write_checked(path, {"filters": ["a/#"], "number": 17})
    for data in with_flipped_bits(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(InputError, match="is damaged"):
            read_checked(path)


def test_the_memory_of_a_hop(tmp_path):
    """Its version and its sessions are never wrong; a flipped slot forgets one packet at most."""
    path = tmp_path / "a.hop"
    store = HopStore(path)
    store.version = 77
    store.begin(NEAR)
    store.begin(FAR)
    rng = random.Random(0)
    digests = {packet: rng.getrandbits(32) for packet in range(1, 101)}
    for packet, digest in digests.items():
        store.record(packet, store.next_number(), digest)
    store.close()
    whole = path.read_bytes()
    refused = 0
    for offset in [*range(128), *(rng.randrange(128, len(whole)) for _ in range(500))]:
        data = bytearray(whole)
        data[offset] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            again = HopStore(path)
        except InputError:
            refused += 1
            continue
        assert again.version == 77
        assert not again.is_new
        assert again.has_begun(NEAR)
        assert again.has_begun(FAR)
        forgotten = [packet for packet, digest in digests.items() if not again.has(packet, digest)]
        assert len(forgotten) <= 1 or 24 <= offset < 32  # the number of messages received
        assert not any(again.has(packet, digest ^ 1) for packet, digest in digests.items())
        again.close()
    assert refused >= 30


def test_a_new_hop_has_begun_nowhere(tmp_path):
    store = HopStore(tmp_path / "a.hop")
    assert store.is_new
    assert store.version == 0
    assert not store.has_begun(NEAR)
    assert not store.has_begun(FAR)
    store.begin(FAR)
    store.close()
    again = HopStore(tmp_path / "a.hop")
    assert not again.is_new
    assert (again.has_begun(NEAR), again.has_begun(FAR)) == (False, True)
    again.close()


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_is_read_as_something_else(tmp_path, name):
    counts = flips(FILES[name], tmp_path / "files")
    assert counts["wrong"] == 0
    assert counts["refused"] > 30
    assert counts["refused"] + counts["harmless"] == counts["flipped bits"]
