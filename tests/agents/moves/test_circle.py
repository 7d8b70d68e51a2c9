"""The whole cycle by the command line: live system, tables, assignment, moves, live system."""

from __future__ import annotations

import json
import random
import threading

import numpy as np
import pyarrow as pa
import pytest
from moving import (
    LIMIT,
    QUICK,
    Counted,
    addresses,
    is_over,
    known,
    linked,
    no_new_thread,
    payload_id,
    unlinked,
    wait_for,
    write_config,
)

import broadloom as bl
from broadloom.agents.links.embedded_links import embed_links
from broadloom.agents.moves.move_registry import Resident
from broadloom.agents.moves.move_service import AgentConfig, serving
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.agents.moves.traffic_summary import (
    SentTraffic,
    Site,
    live_tables,
    save_tables,
    traffic_matrix,
    watch_traffic,
)
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.model import read_market_problem
from broadloom.mqtt.endpoint import Address, Login
from broadloom.storage.tables import require_table

SITES = {"h": "place = [0, 0]\ncapacity = 100000", "f": "place = [10, 0]\ncapacity = 100000"}


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
@pytest.mark.parametrize(
    "links", ["", '[links]\ntopics = ["t/far", "t/near", "t/all"]'], ids=["bridges", "links of its own"]
)
def test_round_the_circle(run, tmp_path, monkeypatch, links):
    """Six clients at one broker, three of them near the other: these move, and then nothing is left to do.

    By bridges that carry everything, and by links of the agent's own that carry what clients want.
    """
    counted, over = Counted(), threading.Event()
    with unlinked("hf") if links else linked("hf") as brokers:
        config, port = write_config(tmp_path, brokers, QUICK, SITES, links)
        monkeypatch.setenv("BROADLOOM_TOKEN", "token")
        agent = ("--agent", f"http://127.0.0.1:{port}")
        clients = []
        for number in range(6):
            place, name = (9.0, 1.0) if number < 3 else (1.0, 0.0), f"c{number}"
            client = MovingClient(
                name, known(brokers), "h", counted.ear(name), identify=payload_id, place=place
            )
            client.subscribe("t/far" if number < 3 else "t/near", "t/all")
            client.start()
            clients.append(client)

        def load() -> None:
            while not over.wait(0.01):
                client = clients[len(counted.sent) % 6]
                counted.send(client, "t/far" if client.name < "c3" else "t/near")

        publishing = threading.Thread(target=load, daemon=True)
        with serving(AgentConfig.load(config), hold=embed_links) as service:
            assert wait_for(lambda: len(service.agent.registry.residents) == 6)
            publishing.start()
            moved = []
            for turn in ("first", "second"):
                live, planned, moves = (
                    str(tmp_path / f"{turn}-{what}") for what in ("live", "plan", "moves")
                )
                assert run("migrate", "summarize", *agent, "--seconds", 2, "-o", live)[0] == 0
                assert run("market", live, "-o", planned, "--core-price", 0.1, "-a", "greedy-packing")[0] == 0
                code, out, _ = run(
                    "migrate",
                    "plan",
                    live,
                    planned,
                    "-o",
                    moves,
                    "--at-once",
                    2,
                    "--core-price",
                    0.1,
                    "--json",
                )
                assert code == 0
                told = json.loads(out)
                assert told["cost_after"] <= told["cost_before"]
                code, out, _ = run("migrate", "run", moves, *agent, "--json")
                assert code == 0, out
                moved.append((json.loads(out)["moved"], len(told["steps"])))
            assert wait_for(lambda: is_over(service.agent))
            over.set()
            publishing.join()
            assert moved == [(3, 2), (0, 0)]
            assert [client.home for client in clients] == ["f"] * 3 + ["h"] * 3
            assert all(client.wait_until_confirmed(LIMIT) for client in clients)
            wants = {f"c{number}": {"t/far" if number < 3 else "t/near"} for number in range(6)}
            wait_for(lambda: counted.faults(wants)[1] == 0)
            assert counted.faults(wants)[1:] == (0, 0)
            for client in clients:
                client.stop()
        market = read_market_problem(tmp_path / "first-live")
        matrix = traffic_matrix(market)
        written = require_table(tmp_path / "first-live", "traffic_matrix")
        assert sum(written.column("rate").to_pylist()) == pytest.approx(matrix.sum())
        assert matrix[:3, 3:].sum() == matrix[3:, :3].sum() == 0
        assert matrix.sum() == pytest.approx((market.rates.sum(axis=1) * 2).sum())


def test_live_counts_become_the_market_that_they_are(tmp_path):
    """Rates in bytes a second, wildcards as topics that they match, brokers' places where none is told."""
    residents = [
        Resident("a", "h", (("x/#", 1),), None, 0.0),
        Resident("b", "f", (("y", 1), ("z", 0)), (3.0, 4.0), 0.0),
    ]
    sent = [
        SentTraffic("a", 10.0, "y", 30),
        SentTraffic("b", 12.0, "x/1", 50),
        SentTraffic("b", 15.0, "x/2", 20),
        SentTraffic("?", 16.0, "y", 9),
    ]
    tables = live_tables(residents, sent, {"h": Site((0.0, 0.0)), "f": Site((3.0, 0.0))})
    save_tables(tmp_path / "live", tables)
    market = read_market_problem(tmp_path / "live", headroom=3)
    assert market.user_ids == ("a", "b")
    assert market.rates.tolist() == [[0, 0, 6, 0], [10, 4, 0, 0]]  # x/1, x/2, y, z in 5 seconds
    assert market.wants.astype(int).tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert market.access.tolist() == [[0, 3], [5, 4]]
    assert traffic_matrix(market).tolist() == [[0, 6], [14, 0]]
    assert market.capacity.tolist() == [60, 60]
    assert tables["traffic_matrix"].to_pylist() == [
        {"src": "a", "dst": "b", "rate": 6.0},
        {"src": "b", "dst": "a", "rate": 14.0},
    ]
    assert tables["assignment"].to_pylist() == [{"user": "a", "broker": "h"}, {"user": "b", "broker": "f"}]
    assert bl.assign(market, "greedy-packing").feasible


def test_rates_are_over_the_seconds_that_were_counted(tmp_path):
    """One message in ten seconds is no message a second."""
    residents = [Resident(name, "h", (("y", 1),), None, 0.0) for name in "ab"]
    save_tables(
        tmp_path / "live", live_tables(residents, [SentTraffic("a", 3.0, "y", 30)], {"h": Site()}, 10.0)
    )
    assert read_market_problem(tmp_path / "live").rates.tolist() == [[3.0], [0.0]]


def keep_only(folder, *names):
    for place in folder.iterdir():
        if place.stem not in names:
            place.unlink()


LEAST = ("subscribers", "brokers")


@pytest.mark.parametrize("seed", range(20))
def test_histograms_messages_and_the_matrix_tell_the_same(tmp_path, seed):
    """Each of the tables alone leads to the traffic matrix that the others lead to."""
    chance = random.Random(seed)
    names, topics = [f"c{number}" for number in range(chance.randrange(1, 7))], ["x", "y", "z/1", "z/2"]
    residents = [
        Resident(name, "h", tuple((one, 1) for one in chance.sample([*topics, "z/#"], 2)), None, 0.0)
        for name in names
    ]
    sent = [
        SentTraffic(chance.choice(names), float(number), chance.choice(topics), chance.randrange(50))
        for number in range(chance.randrange(12))
    ]
    told = {}
    for kept in ({"histograms", "subscriptions"}, {"messages", "subscriptions"}, {"traffic_matrix"}):
        folder = tmp_path / min(kept)
        save_tables(folder, live_tables(residents, sent, {"h": Site()}))
        keep_only(folder, *LEAST, *kept)
        told[min(kept)] = traffic_matrix(read_market_problem(folder))
    assert np.allclose(told["histograms"], told["messages"])
    assert np.allclose(told["histograms"], told["traffic_matrix"])


def test_what_histograms_and_matrices_cannot_be(tmp_path):
    residents = [Resident("a", "h", (("x", 1),), None, 0.0)]
    for name, columns, words in (
        (
            "histograms",
            {"publisher": ["z"], "topic": ["x"], "rate": [1.0]},
            "row 0: publisher 'z' is unknown",
        ),
        ("histograms", {"publisher": ["a"], "topic": [None], "rate": [1.0]}, "row 0: topic None is unknown"),
        ("histograms", {"publisher": ["a"], "topic": ["x"], "rate": [-1.0]}, "row 0 has rate -1.0; give"),
        ("histograms", {"publisher": ["a"], "topic": ["x"], "rate": [None]}, "row 0 has rate nan; give"),
        ("traffic_matrix", {"src": ["a"], "dst": ["z"], "rate": [1.0]}, "row 0: dst 'z' is unknown"),
        ("traffic_matrix", {"src": ["a"], "dst": ["a"], "rate": [1.0]}, "of 'a' to itself; drop it"),
    ):
        tables = live_tables(residents, [], {"h": Site()}) | {name: pa.table(columns)}
        save_tables(tmp_path / "live", tables, overwrite=True)
        keep_only(tmp_path / "live", *LEAST, "subscriptions", name)
        with pytest.raises(bl.InputError, match=words):
            read_market_problem(tmp_path / "live")


def test_a_matrix_that_is_too_large_is_left_out(monkeypatch):
    monkeypatch.setattr("broadloom.agents.moves.traffic_summary.MOST_FLOWS", 1)
    residents = [Resident(name, "h", (("x", 1),), None, 0.0) for name in "abc"]
    tables = live_tables(residents, [SentTraffic("a", 0.0, "x", 9)], {"h": Site()})
    assert (tables["traffic_matrix"].num_rows, tables["histograms"].num_rows) == (0, 1)


def test_a_matrix_of_too_many_amounts_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("broadloom.model.channels.MAX_CELLS", 3)
    residents = [Resident(name, "h", (("x", 1),), None, 0.0) for name in "abc"]
    sent = [SentTraffic("a", 0.0, "x", 9), SentTraffic("b", 1.0, "x", 5)]
    save_tables(tmp_path / "live", live_tables(residents, sent, {"h": Site()}))
    keep_only(tmp_path / "live", *LEAST, "subscriptions", "traffic_matrix")
    with pytest.raises(bl.InputError, match="3 users and 2 different amounts, too much for memory; give"):
        read_market_problem(tmp_path / "live")


@pytest.mark.parametrize("kept", [{"histograms", "subscriptions"}, {"traffic_matrix"}])
def test_the_circle_closes_from_tables_alone(run, tmp_path, kept):
    """Without a log of messages: who is far from its broker moves, and then nobody does."""
    sites = {"h": Site((0.0, 0.0), 1e6), "f": Site((10.0, 0.0), 1e6)}
    near, far, home = (1.0, 0.0), (9.0, 1.0), dict.fromkeys("abcdef", "h")
    sent = [SentTraffic(name, float(at), "far" if name < "d" else "near", 90) for at, name in enumerate(home)]
    for turn, moved in enumerate((3, 0)):
        residents = [
            Resident(
                name, broker, (("far", 1),) if name < "d" else (("near", 1),), far if name < "d" else near, 0
            )
            for name, broker in home.items()
        ]
        live, planned, moves = (tmp_path / f"{what}{turn}" for what in ("live", "plan", "moves"))
        save_tables(live, live_tables(residents, sent, sites, 10.0))
        keep_only(live, *LEAST, "assignment", *kept)
        assert run("market", live, "-o", planned, "-a", "greedy-packing")[0] == 0
        assert run("migrate", "plan", live, planned, "-o", moves)[0] == 0
        plan = bl.MovePlan.load_from(moves)
        home |= {move.client: move.to for step in plan.steps for move in step}
        assert plan.move_count == moved
    assert home == dict.fromkeys("abc", "f") | dict.fromkeys("def", "h")


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_broker_that_is_away_is_named_and_nothing_goes_on():
    before = set(threading.enumerate())
    with linked("h") as brokers:
        (port,) = free_ports(1)  # none of those that brokers have
        places = addresses(brokers) | {"x": Address(HOST, port)}
        with pytest.raises(bl.UnreachableError, match="broker 'x' does not answer: Connection refused"):
            watch_traffic(places, Login(), 0.1, lambda _: None)
    assert no_new_thread(before)


def test_an_empty_system_has_tables_too(tmp_path):
    save_tables(tmp_path / "live", live_tables([], [], {"h": Site()}))
    market = read_market_problem(tmp_path / "live")
    assert (market.user_count, market.broker_count) == (0, 1)
    assert bl.plan_moves(market, [], []).move_count == 0


def test_subscriptions_of_strangers_are_refused(tmp_path):
    tables = live_tables([], [], {"h": Site()})
    tables["subscriptions"] = pa.table({"node": ["who"], "topic": ["x"]})
    save_tables(tmp_path / "live", tables)
    with pytest.raises(bl.InputError, match="subscriptions row 0: 'who' is unknown"):
        read_market_problem(tmp_path / "live")


def test_what_plan_and_run_refuse(run, tmp_path, monkeypatch):
    residents = [Resident("a", "h", (("x", 1),), None, 0.0)]
    sites = {"h": Site(capacity=9.0), "f": Site(capacity=9.0)}
    save_tables(tmp_path / "live", live_tables(residents, [SentTraffic("a", 1.0, "x", 1)], sites))
    save_tables(tmp_path / "other", live_tables([], [], sites))
    plan = ("migrate", "plan", tmp_path / "live")
    for planned, words in (
        (tmp_path / "other", "assignment has no user 'a'"),
        (tmp_path / "nowhere", "is not a folder; expected assignment"),
    ):
        code, _, err = run(*plan, planned, "-o", tmp_path / "moves")
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
    code, out, _ = run(*plan, tmp_path / "live", "-o", tmp_path / "moves")
    assert (code, "0 moves in 0 steps" in out) == (0, True)
    monkeypatch.delenv("BROADLOOM_TOKEN", raising=False)
    code, _, err = run("migrate", "run", tmp_path / "moves")
    assert (code, "the token is missing; give --token-file" in err) == (2, True)
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    assert run("migrate", "run", tmp_path / "moves", "--quiet")[0] == 0  # nobody has to be asked
    bl.MovePlan(((("a", "h", "f", 1.0, 1.0),),)).save(tmp_path / "one")
    for status, expected in ((401, 2), (500, 3)):  # neither is the refusal of a client
        answer = status, {"error": "no"}
        monkeypatch.setattr(
            "broadloom.agents.moves.operator_api.Operator._ask_once", lambda *_, told=answer: told
        )
        code, _, err = run("migrate", "run", tmp_path / "one", "--quiet")
        assert (code, err.count("\n"), "the agent says: no" in err) == (expected, 1, True)
    monkeypatch.setattr("broadloom.agents.moves.operator_api.Operator._ask_once", _nobody)
    monkeypatch.setattr("broadloom.agents.moves.operator_api.PATIENCE", 0.0)
    code, _, err = run("migrate", "summarize", "-o", tmp_path / "s")
    assert (code, "does not answer" in err, "token" in err.replace("token-file", "")) == (3, True, False)
    assert not np.any([(tmp_path / "s").exists()])


def _nobody(*_):
    raise ConnectionRefusedError
