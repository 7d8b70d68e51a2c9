"""Links that exist already: the reader of mosquitto.conf, and the rings that links close."""

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadloom.discovery.existing_links import (
    ExistingLink,
    is_own_name,
    link_findings,
    links_of_client_ids,
    rings,
    without_repeats,
)
from broadloom.discovery.mosquitto_config import read_mosquitto_config
from broadloom.errors import InputError
from broadloom.mqtt import Address

PAIRS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(lambda p: p[0] != p[1])
)


def link(one, other, *filters):
    return ExistingLink(f"{one}-{other}", one, other, "test", "remove it", filters or None)


@given(PAIRS)
def test_each_link_that_closes_a_ring_gives_that_ring(pairs):
    """As many rings as links beyond a spanning forest, and each is a closed walk over different links."""
    links = [link(*pair) for pair in pairs]
    graph = networkx.MultiGraph(pairs)
    forest = graph.number_of_nodes() - networkx.number_connected_components(graph)
    found = rings(links)
    assert len(found) == len(pairs) - forest
    for ring in found:
        cycle = networkx.MultiGraph([(one.broker, one.peer) for one in ring])
        assert len({id(one) for one in ring}) == len(ring)
        assert networkx.is_connected(cycle)
        assert {degree for _, degree in cycle.degree} == {2}


def test_a_ring_whose_topics_differ_is_advice():
    """No message can circulate, as far as configuration files say; an unknown link can carry anything."""
    ring = [link("a", "b", "x/#"), link("b", "c", "y/#", "x/1"), link("c", "a", "x/+", "z")]
    apart = [link("a", "b", "x/#"), link("b", "c", "y/#"), link("c", "a", "x/+")]
    unknown = [link("a", "b", "x/#"), link("b", "c"), link("c", "a", "x/+")]
    for links, verdict in ((ring, "must change"), (apart, "advice"), (unknown, "must change")):
        (one,) = [one for one in link_findings(links, {}) if one.check == "ring"]
        assert one.verdict == verdict
        assert " - ".join("cabc") in one.found or " - ".join("cbac") in one.found


def test_links_of_broadloom_and_nats_routes_are_no_ring():
    own = [
        ExistingLink(f"l.broadloom-{one}:{other}", one, other, "test", "")
        for one, other in (("a", "b"), ("b", "c"), ("c", "a"))
    ]
    routes = [
        ExistingLink("route", one, other, "/routez", "", loops=False) for one, other in ("ab", "bc", "ca")
    ]
    assert [one.verdict for one in link_findings(own, {})] == ["ok"] * 3
    assert [one.check for one in link_findings(routes, {})] == ["bridges"] * 3


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("broadloom-rome:oslo", True),
        ("r.broadloom-rome:oslo", True),
        ("vm.example.org.broadloom-rome:oslo", True),
        ("broadloom.link.rome:oslo", True),
        ("vm.to-rome", False),
        ("my-broadloom-bridge", False),
    ],
)
def test_links_of_broadloom_are_known_by_their_names(name, own):
    assert is_own_name(name) == own


def test_the_same_client_id_at_two_brokers_is_one_link():
    seen = links_of_client_ids({"rome": ["vm.one", "vm.two"], "oslo": ["vm.one"], "bern": []})
    assert [(one.name, one.broker, one.peer) for one in seen] == [
        ("vm.one", "rome", "oslo"),
        ("vm.two", "rome", None),
    ]
    configured = [ExistingLink("one", "oslo", "rome", "mosquitto.conf", "")]
    assert [one.name for one in without_repeats(seen, configured)] == ["one", "vm.two"]


def test_mosquitto_conf_is_read_with_what_it_includes(tmp_path):
    (tmp_path / "conf.d").mkdir()
    main = "# a comment\nlistener 1883\npersistence false\n\nlog_type error\nlog_type subscribe\n"
    (tmp_path / "mosquitto.conf").write_text(f"{main}include_dir {tmp_path}/conf.d\n")
    bridges = "persistence true\nconnection one\naddress 10.0.0.1:1884 ::1:1885\nremote_clientid me\n"
    bridges += (
        'topic sensors/# both 1\ntopic x in 0 local/ "remote/"\nconnection two\naddresses oslo\ntopic #\n'
    )
    (tmp_path / "conf.d" / "b.conf").write_text(bridges)
    (tmp_path / "conf.d" / "ignored").write_text("persistence false\n")
    config = read_mosquitto_config(tmp_path / "mosquitto.conf")
    assert config.last("persistence", "") == "true"
    assert config.options["log_type"] == ["error", "subscribe"]
    one, two = config.bridges
    assert (one.name, one.client, one.filters) == ("one", "me", ["sensors/#", "local/x"])
    assert one.addresses == [Address("10.0.0.1", 1884), Address("[::1]", 1885)]
    assert (two.addresses, two.filters) == ([Address("oslo", 1883)], ["#"])
    assert two.file == str(tmp_path / "conf.d" / "b.conf")
    with pytest.raises(InputError, match="cannot be read"):
        read_mosquitto_config(tmp_path / "missing.conf")
