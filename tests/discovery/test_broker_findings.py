"""Merged findings against a naive twin, completeness, and latencies."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom import InputError, UnreachableError
from broadloom.cli.discover import _seconds
from broadloom.deployment import Fleet, FleetBroker
from broadloom.deployment.rehearsal.mosquitto_lab import free_ports
from broadloom.discovery.broker_findings import carried_parts, merge_findings
from broadloom.discovery.latencies import estimated_rtt, great_circle_km, latencies
from broadloom.discovery.observed_publications import Observations, RepeatedMessages, listened_filters
from broadloom.discovery.subscription_sources import NO_START, SourceFindings, listened_source
from broadloom.formats import DumpRow
from broadloom.model import RowLedger

ROME = FleetBroker("rome", "10.0.0.1")
LEVELS = ("a", "b", "c")
TOPICS = ["/".join(levels) for depth in (1, 2, 3) for levels in itertools.product(LEVELS, repeat=depth)]
LEVEL = st.sampled_from((*LEVELS, "+"))
FILTERS = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(LEVEL, min_size=1, max_size=3),
    st.sampled_from(((), ("#",))),
) | st.just("#")


def matches(topic_filter, topic):
    """Whether a filter matches a topic, by the words of the standard."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        one in ("+", other) for one, other in zip(wanted, levels, strict=True)
    )


@given(FILTERS, st.lists(FILTERS, min_size=1, max_size=4))
def test_the_carried_parts_match_what_the_filter_and_the_carried_filters_match(topic_filter, carry):
    """Neither more nor less, and a reason exactly if topics are left out."""
    parts, reason = carried_parts(topic_filter, carry)
    wanted = {topic for topic in TOPICS if matches(topic_filter, topic)}
    carried = {topic for topic in wanted if any(matches(one, topic) for one in carry)}
    assert {topic for topic in TOPICS if any(matches(part, topic) for part in parts)} == carried
    if reason is None:
        assert carried == wanted


@given(st.lists(FILTERS, min_size=1, max_size=4))
def test_a_listener_hears_every_carried_topic_once(carry):
    """No topic matches two of the filters that it subscribes to."""
    chosen = listened_filters(carry)
    for topic in TOPICS:
        heard = sum(matches(one, topic) for one in chosen)
        assert heard <= 1
        assert heard or not any(matches(one, topic) for one in carry)


CLIENTS = st.sampled_from(("c1", "c2", "broadloom-x", "l.tco-a", None))
WRITTEN = FILTERS | st.sampled_from(("$share/g/a/+", "$SYS/x", "a+", "", "$queue/b"))
ROWS = st.builds(
    lambda client, text, reason: DumpRow("raw", None, client, text, reason),
    CLIENTS,
    WRITTEN,
    st.sampled_from((None, None, None, "session ended later")),
)


@given(st.lists(st.lists(ROWS, max_size=6), max_size=3), st.lists(FILTERS, min_size=1, max_size=3))
def test_every_row_of_every_source_is_in_the_account(lists, carry):
    """Used, a duplicate or left out with a reason; our own clients never count."""
    sources = [SourceFindings(str(number), "emqx", rows) for number, rows in enumerate(lists)]
    found = merge_findings(ROME, sources, Observations(), carry, needs_publishers=False)
    assert found.rows == sum(map(len, lists))
    assert found.rows == found.used + found.duplicates + sum(found.quarantined.values())
    assert found.clients <= {"c1", "c2", ""}
    live = {(row.client, row.filter) for rows in lists for row in rows if row.reason is None}
    assert found.found == len(live)
    strip = {"$share/g/a/+": "a/+", "$queue/b": "b"}
    theirs = [strip.get(text, text) for client, text in live if client in ("c1", "c2", None)]
    bare = [text for text in theirs if text and text not in ("$SYS/x", "a+")]
    for topic in TOPICS:
        wanted = any(matches(text, topic) for text in bare) and any(matches(one, topic) for one in carry)
        assert any(matches(text, topic) for text in found.wanted) == wanted
    assert {topic for topic, _ in found.not_carried} <= set(theirs)


def row(text, client="c1"):
    return DumpRow("raw", None, client, text)


def test_subscriptions_of_leaf_nodes_are_left_out_with_a_note():
    """They can be those of clients at a server outside of the fleet."""
    leaf = DumpRow("raw", None, "oslo", "a", "leaf node of NATS, not a client")
    sources = [SourceFindings("http://rome:8222", "nats", [leaf, leaf, row("b")])]
    found = merge_findings(ROME, sources, Observations(), ["#"], needs_publishers=False)
    assert found.wanted == ["b"]
    assert "2 subscriptions of leaf nodes are left out" in "".join(found.notes)


@pytest.mark.parametrize(
    ("sources", "observed", "problem"),
    [
        ([], Observations(), "its subscriptions are unknown; set subscriptions in [brokers.rome]: the path"),
        ([], Observations(counted=0), None),
        (
            [],
            Observations(counted=2),
            "the broker counts 2 subscriptions, and no source shows them: 2 are missing",
        ),
        ([SourceFindings("m.log", "mosquitto", [row("a")])], Observations(), None),
        ([SourceFindings("m.log", "mosquitto", [row("a")])], Observations(counted=1), None),
        (
            [SourceFindings("m.log", "mosquitto", [row("a")], notes=[NO_START])],
            Observations(),
            "the broker's own count is unknown, and the log does not begin with the broker's start",
        ),
        ([SourceFindings("m.log", "mosquitto", [row("a")], notes=[NO_START])], Observations(counted=1), None),
        ([SourceFindings("m.log", "mosquitto", [row("a")])], Observations(counted=2), "add mosquitto.db"),
        ([SourceFindings("m.db", "mosquitto-db", [row("a")])], Observations(counted=1), None),
        (
            [SourceFindings("m.db", "mosquitto-db", [row("a")])],
            Observations(problem="rome does not answer"),
            "the broker's own count is unknown (rome does not answer); add a log",
        ),
        ([SourceFindings("m.db", problem="it is damaged")], Observations(), "it is damaged"),
        ([SourceFindings("m.db", problem="it is damaged")], Observations(counted=0), None),
        ([listened_source(["1: c1 1 a"], 0)], Observations(), "its subscriptions are unknown"),
        ([listened_source(["1: c1 1 a"], 0)], Observations(counted=1), None),
    ],
)
def test_a_broker_is_complete_only_with_good_reason(sources, observed, problem):
    """The broker's own count decides where it is known."""
    found = merge_findings(ROME, sources, observed, ["#"], needs_publishers=False)
    if problem is None:
        assert found.problems == []
    else:
        assert problem in found.problems[0]


def test_more_subscriptions_than_the_broker_counts_are_no_proof_that_none_is_missing():
    rows = SourceFindings("m.log", "mosquitto", [row("a"), row("b")])
    found = merge_findings(ROME, [rows], Observations(counted=1), ["#"], needs_publishers=False)
    assert any("the sources show 2: its count is older" in note for note in found.notes)


def test_observed_publishers_must_have_been_observed():
    source = SourceFindings("m.log", "mosquitto", [row("a")])
    found = merge_findings(ROME, [source], Observations(problem="refused"), ["#"], needs_publishers=True)
    assert found.problems == ["its publishers are unknown: refused"]


def test_equal_messages_at_two_brokers_are_noted():
    seen = RepeatedMessages()
    seen.add("rome", "a", b"1")
    seen.add("rome", "a", b"1")
    seen.add("oslo", "a", b"2")
    assert seen.topics == {}
    seen.add("oslo", "a", b"1")
    assert seen.topics == {"a": {"rome", "oslo"}}


# Latencies.

PLACES = {"rome": (41.9, 12.5), "oslo": (59.9, 10.7), "quito": (-0.2, -78.5)}


def fleet(**changes):
    """Three brokers with positions."""
    return Fleet(
        FleetBroker(name, f"{name}.example.org", **({"position": place} | changes))
        for name, place in PLACES.items()
    )


def test_latencies_by_positions_are_those_of_light_in_fibre():
    """Against the angle between two points on a sphere, by the product of their vectors."""

    def vector(place):
        lat, lon = map(math.radians, place)
        return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)

    found = latencies(fleet(), "auto", {})
    assert found.basis == "estimated from positions, not measured"
    assert len(found.rows) == 6
    for src, dst, rtt in found.rows:
        product = sum(
            one * other for one, other in zip(vector(PLACES[src]), vector(PLACES[dst]), strict=True)
        )
        km = 6371 * math.acos(product)
        assert great_circle_km(PLACES[src], PLACES[dst]) == pytest.approx(km)
        assert rtt == pytest.approx(1 + 0.015 * km, abs=0.001)


@given(*[st.tuples(st.floats(-90, 90), st.floats(-180, 180))] * 2)
def test_estimated_latencies_are_symmetric_and_positive(one, other):
    assert estimated_rtt(one, other) == pytest.approx(estimated_rtt(other, one), abs=0.002)
    assert 1 <= estimated_rtt(one, other) <= 302


def test_measured_latencies_go_by_way_of_this_machine():
    found = latencies(fleet(), "measured", {"rome": 10.0, "oslo": 20.0, "quito": 5.0})
    assert {row[:2]: row[2] for row in found.rows}["rome", "oslo"] == 30.0
    assert "an upper bound" in found.notes[0]
    with pytest.raises(UnreachableError, match="no round trip to broker 'oslo'"):
        latencies(fleet(), "measured", {"rome": 10.0, "quito": 5.0})


def test_a_latency_file_is_checked(tmp_path):
    path = tmp_path / "latency.csv"
    path.write_text("src,dst,rtt_ms\nrome,oslo,30\noslo,rome,32\nrome,paris,10\nrome,rome,1\n")
    found = latencies(fleet(), path, {})
    assert found.rows == (("rome", "oslo", 30.0), ("oslo", "rome", 32.0))
    assert found.notes == (
        f"2 rows of {path} name others than the fleet's brokers; left out",
        f"{path} lacks 2 of 3 pairs; give `link` the option --missing path",
    )
    for text, problem in [
        ("a,b\n1,2", "no column 'src'"),
        ("src,dst,rtt_ms\nrome,oslo,-3", "line 2: 'rome', 'oslo', '-3'; give two names and a number above 0"),
        ("src,dst,rtt_ms\nrome,oslo,x", "line 2"),
        ("src,dst,rtt_ms\nrome,oslo,1\nrome,oslo,1", "lines 2 and 3: 'rome' to 'oslo' twice"),
        ("src,dst,rtt_ms\nx,y,1", "has no row between two brokers"),
    ]:
        path.write_text(text)
        with pytest.raises(InputError, match=problem):
            latencies(fleet(), path, {})
    with pytest.raises(InputError, match="cannot be read"):
        latencies(fleet(), tmp_path / "missing.csv", {})


def test_without_positions_the_sites_decide(tmp_path):
    assert latencies(fleet(position=None), "auto", {}).basis == "none; `link` weighs links uniformly"
    assert latencies(fleet(position=None, site="x"), "auto", {}).basis == "none; `link` weighs links by site"
    with pytest.raises(InputError, match=r"broker 'rome' .* has no position"):
        latencies(fleet(position=None), "positions", {})
    path = tmp_path / "sites.csv"
    path.write_text("src,dst,rtt_ms\nx,x,1")
    assert latencies(fleet(site="x"), path, {}).basis == f"from {path}, between sites"


# The command line, without brokers.


def offline_fleet(folder, links=""):
    """A fleet whose subscriptions are in files, at positions."""
    (folder / "dump.json").write_text(json.dumps({"data": [{"clientid": "c", "topic": "t/+"}]}))
    (folder / "fleet.toml").write_text(
        '[defaults]\nkind = "emqx"\n'
        '[brokers.rome]\naddress = "10.0.0.1"\nsubscriptions = "dump.json"\nposition = [41.9, 12.5]\n'
        '[brokers.oslo]\naddress = "10.0.0.2"\nsubscriptions = ["dump.json"]\n'
        f"position = [59.9, 10.7]\n{links}"
    )
    return folder / "fleet.toml"


def test_tables_of_files_lead_to_a_plan_on_the_command_line(tmp_path, run):
    """Without a broker, from `discover` to `link` and `verify`, with the weights of the positions."""
    path = offline_fleet(tmp_path)
    code, out, err = run("discover", path, "-o", tmp_path / "tables", "--latency", "positions")
    assert (code, err) == (0, "")
    assert out.startswith("2 brokers: 2 clients, 2 filters -> ")
    assert "latency: estimated from positions, not measured" in out
    code, out, _ = run("link", tmp_path / "tables", "-o", tmp_path / "plan", "--json")
    assert (code, json.loads(out)["metrics"]["total_weight"]) == (0, pytest.approx(31.08))
    assert run("verify", tmp_path / "plan")[0] == 0
    record = json.loads((tmp_path / "tables" / "discovery.json").read_text())
    RowLedger.__post_init__(bl.discover(path, tmp_path / "again").ledger())
    assert record["latency"] == {"basis": "estimated from positions, not measured", "rows": 2}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--listen", "soon"), "--listen is 'soon'; give a time such as 30s or 5m"),
        (("--latency", "nowhere.csv"), "the latency table nowhere.csv cannot be read"),
        (("--listen", "999h"), "listen is"),
    ],
)
def test_wrong_options_are_found_before_anything_is_read(tmp_path, run, options, problem):
    code, out, err = run("discover", offline_fleet(tmp_path), "-o", tmp_path / "tables", *options)
    assert (code, out) == (2, "")
    assert problem in err
    assert not (tmp_path / "tables").exists()


def test_a_broker_that_cannot_be_measured_is_an_error_before_it_listens(tmp_path, run):
    (port,) = free_ports(1)
    (tmp_path / "fleet.toml").write_text(f'[brokers.rome]\naddress = "127.0.0.1:{port}"\ntls = false')
    options = ("--latency", "measured", "--listen", "24h")
    code, out, err = run("discover", tmp_path / "fleet.toml", "-o", tmp_path / "tables", *options)
    assert (code, out) == (3, "")
    assert "no round trip to broker 'rome' was measured" in err


def test_an_existing_output_is_kept(tmp_path, run):
    path = offline_fleet(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "mine.txt").write_text("mine")
    code, _, err = run("discover", path, "-o", tmp_path / "tables", "--force")
    assert (code, "mine.txt" in err) == (2, True)


def test_observed_publishers_need_time_to_listen(tmp_path):
    path = offline_fleet(tmp_path, '[links]\npublishers = "observed"')
    with pytest.raises(InputError, match="listen is 0"):
        bl.discover(path, tmp_path / "tables", listen=0)


def test_discovery_runs_inside_of_an_event_loop(tmp_path):
    """As in a notebook."""
    import asyncio

    async def cell():
        return bl.discover(offline_fleet(tmp_path), tmp_path / "tables")

    assert asyncio.run(cell()).is_complete


def test_times_to_listen():
    assert [_seconds(text) for text in (None, "30s", "1.5m", "2h", "7")] == [None, 30, 90, 7200, 7]
