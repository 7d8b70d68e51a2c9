"""Application of a change to running NATS brokers: by reloads or restarts, killed, resumed, rolled back."""

import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom.deployment import (
    Deployment,
    WiredLink,
    Wiring,
    call_api,
    export,
    fleet_settings,
    plan_trees,
    roll_out,
    target_named,
    wire,
)
from broadloom.deployment.nats_control import can_reload
from broadloom.deployment.rehearsal.mosquitto_lab import listens
from broadloom.deployment.targets import nats_leafnodes
from fleet_lab import wait_until
from nats_sites import NatsClient, NatsLoad, nats_fleet, running_nats

# Debian's NATS restarts. Set BROADLOOM_NATS_SERVER to NATS 2.14 or later to test reloads: make test-nats
GIVEN = os.environ.get("BROADLOOM_NATS_SERVER")
needs_given = pytest.mark.skipif(GIVEN is None, reason="not given")
needs_installed = pytest.mark.needs("nats-server")
PROGRAMS = [
    pytest.param((shutil.which("nats-server"), None), marks=needs_installed, id="installed"),
    pytest.param((GIVEN, None), marks=needs_given, id="given"),
    pytest.param((GIVEN, "APP"), marks=needs_given, id="given-account"),
]
NATS = target_named("nats")
LINES = (
    ", imports: $BROADLOOM_IMPORTS",
    "BROADLOOM_A: $BROADLOOM_A",
    "BROADLOOM_B: $BROADLOOM_B",
    'include "broadloom.conf"',
)
WANTS = {"a": ["x"], "b": ["x", "y"], "c": ["x", "y"], "d": ["x", "y"], "e": ["x", "y"]}


@pytest.fixture(params=PROGRAMS)
def sites(request, tmp_path):
    """Five NATS servers, and plans: broker e joins, broker a leaves, and the tree moves."""
    program, account = request.param
    with running_nats(program, tmp_path, "abcde", account=account) as found:
        nats_fleet(found).save(tmp_path / "fleet.toml")
        for name, members, edges in (
            ("empty", "abcd", ()),
            ("old", "abcd", ("ab", "bc", "cd")),
            ("new", "bcde", ("bd", "cd", "de")),
        ):
            lists = [WANTS[one] if edges else [f"own-{one}"] for one in members]
            interest = bl.Interest.from_lists(lists, node_ids=list(members))
            near = {frozenset(edge) for edge in edges}
            matrix = [
                [0.0 if u == v else 1.0 if frozenset(u + v) in near else 9.0 for v in members]
                for u in members
            ]
            sent = bl.Publishers("observed", [])
            bl.link(interest, bl.Weights.dense(matrix), "grmaw", publishers=sent).save(tmp_path / name)
        yield found


def applied(folder, old, new, killed_at=0, back=False):
    """Apply a change; it is killed before a step, or comes to its end and returns its counts."""
    fleet = bl.Fleet.load(folder / "fleet.toml")
    sides = []
    for name in (old, new):
        plan = bl.Plan.load(folder / name)
        settings = fleet_settings(fleet, plan)
        wiring = wire(plan, plan_trees(plan, publishers="observed"), publishers="observed")
        sides.append(Deployment(wiring, settings, export(wiring, NATS, settings)))
    lines = []

    def report(text):
        lines.append(text)
        if sum("/" in line.split()[0] for line in lines) == killed_at > 0:
            raise KeyboardInterrupt

    counts = roll_out(*sides, NATS, fleet, back=back, patience=20, report=report)
    assert lines[: len(counts["notes"])] == counts["notes"]  # said before anything is done
    return counts


def loses_nothing(sites):
    """Whether clients have an account of their own, and brokers need no restart."""
    varz = call_api(sites["b"].broker("b"), "GET", "/varz")
    return sites["b"].account is not None and can_reload(varz)


def links_of(sites):
    """The number of links of each broker."""
    return {name: call_api(site.broker(name), "GET", "/varz")["leafnodes"] for name, site in sites.items()}


def test_a_change_of_nats_killed_at_every_step_ends_the_same_and_can_go_back(sites, tmp_path):
    assert applied(tmp_path, "empty", "old")["restarts"]
    before = {"a": 1, "b": 2, "c": 2, "d": 1, "e": 0}
    assert links_of(sites) == before
    own = [(site.folder / "nats.conf").read_text() for site in sites.values()]
    for _ in range(40):
        try:
            applied(tmp_path, "old", "new", killed_at=3)  # one or two steps more each time
            break
        except KeyboardInterrupt:
            continue
    after = {"a": 0, "b": 1, "c": 1, "d": 3, "e": 1}
    assert links_of(sites) == after
    files = [site.links.read_text() for site in sites.values()]
    with pytest.raises(bl.InputError, match="nothing to roll back"):
        applied(tmp_path, "old", "new", back=True)
    for killed_at in (3, 5, 9, 12, 16) if loses_nothing(sites) else (2, 4):
        with pytest.raises(KeyboardInterrupt):
            applied(tmp_path, "new", "old", killed_at=killed_at)
        applied(tmp_path, "new", "old", back=True)
        assert links_of(sites) == after
    assert [site.links.read_text() for site in sites.values()][1:] == files[1:]  # a listens for links
    assert [(site.folder / "nats.conf").read_text() for site in sites.values()] == own


@pytest.mark.parametrize("sites", PROGRAMS[2:], indirect=True)
@pytest.mark.parametrize(
    ("replaced", "fault"),
    [
        (dict.fromkeys(LINES, ""), "does not define the accounts BROADLOOM_A, BROADLOOM_B"),
        (
            {LINES[0]: "", LINES[1]: f"OTHER {{ {LINES[0][2:]} }}\n{LINES[1]}"},
            "account APP imports nothing from links",
        ),
    ],
)
def test_lines_that_an_account_of_clients_lacks_are_named(sites, tmp_path, replaced, fault):
    """There are no links yet, or another account than that of the fleet file imports them."""
    own = sites["b"].folder / "nats.conf"
    text = changed = own.read_text()
    for line, other in replaced.items():
        changed = changed.replace(line, other)
    own.write_text(changed)
    for name in ("stop", "start"):
        subprocess.run(getattr(sites["b"].hooks(), name), check=True, stdin=subprocess.DEVNULL, timeout=30)
    wait_until(lambda: listens(sites["b"].monitoring), "the broker is back")
    with pytest.raises(bl.InputError, match=f"broker 'b': .*{fault}.*; add to its block accounts: "):
        applied(tmp_path, "empty", "old")
    own.write_text(text)
    subprocess.run(sites["b"].hooks().reload, check=True, stdin=subprocess.DEVNULL)
    wait_until(
        lambda: nats_leafnodes.SECOND in call_api(sites["b"].broker("b"), "GET", "/accountz")["accounts"],
        "the broker has the account",
    )
    assert applied(tmp_path, "empty", "old")["taken"]


def test_a_change_of_nats_under_load_doubles_nothing(sites, tmp_path):
    """Messages that cross a link while it moves are lost, unless clients have an account of their own."""
    applied(tmp_path, "empty", "old")
    clients = {name: NatsClient(sites[name], WANTS[name]) for name in "bcd"}
    try:
        with NatsLoad(clients, 300) as load:
            restarts = applied(tmp_path, "old", "new")["restarts"]
        counts = load.counts()
        assert counts["doubled"] == 0
        assert counts["lost"] == 0 if loses_nothing(sites) else counts["lost"] < counts["expected"] / 2
        if "b" not in restarts:
            assert sum(client.away for client in clients.values()) == 0
        with NatsLoad(clients, 300) as calm:
            pass
        assert (calm.counts()["lost"], calm.counts()["doubled"]) == (0, 0)
    finally:
        for client in clients.values():
            client.close()


@given(st.lists(st.integers(0, 7), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_each_broker_of_a_tree_has_one_hub_at_most(parents, random):
    names = random.sample("abcdefghi", len(parents) + 1)
    pairs = [(names[i + 1], names[parent % (i + 1)]) for i, parent in enumerate(parents)]
    links = [tuple(sorted(pair)) for pair in pairs]
    hubs = nats_leafnodes.hub_links(links)
    below = [peer if (owner, peer) in hubs else owner for owner, peer in links]
    assert sorted(below) == sorted(set(below))


@pytest.mark.needs("nats-server")
def test_a_broker_without_subscribers_relays_between_the_brokers_to_which_it_links(tmp_path):
    ends = (("a", "b"), ("a", "c"), ("a", "d"))
    star = Wiring(tuple("abcd"), {}, {}, tuple(WiredLink(u, v, ("x",), ("x",)) for u, v in ends))

    def files(fleet):
        plan = bl.link(bl.Interest.from_lists([["x"]] * 4, node_ids=list("abcd")))
        texts = nats_leafnodes.files(star, fleet_settings(fleet, plan))
        return dict(zip(star.brokers, texts.values(), strict=True))

    with running_nats(shutil.which("nats-server"), tmp_path, "abcd", files) as sites:
        wait_until(lambda: links_of(sites)["a"] == 3, "a has three links")
        clients = {name: NatsClient(sites[name], ["x"]) for name in "bcd"}
        try:
            with NatsLoad(clients, 100) as load:
                pass
            counts = load.counts()
            assert counts["expected"] > 100
            assert (counts["lost"], counts["doubled"]) == (0, 0)
        finally:
            for client in clients.values():
                client.close()
