"""The whole cycle by the command line: live system, tables, assignment, moves, live system."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest
from moving import (
    LIMIT,
    QUICK,
    TrafficCounter,
    addresses,
    all_moves_over,
    client_addresses,
    linked_brokers,
    new_threads_ended,
    payload_id,
    unlinked_brokers,
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
@pytest.mark.xdist_group("moves")
@pytest.mark.parametrize(
    "links", ["", '[links]\ntopics = ["t/far", "t/near", "t/all"]'], ids=["bridges", "embedded links"]
)
def test_three_of_six_clients_move_closer_and_then_the_plan_is_stable(run, tmp_path, monkeypatch, links):
    """Six clients start at one broker, three of them near the other one; no message is lost or duplicated.

    With bridges that carry everything, and with embedded links that carry the topics of the clients.
    """
    traffic, over = TrafficCounter(), threading.Event()
    with unlinked_brokers("hf") if links else linked_brokers("hf") as brokers:
        config, port = write_config(tmp_path, brokers, QUICK, SITES, links)
        monkeypatch.setenv("BROADLOOM_TOKEN", "token")
        agent = ("--agent", f"http://127.0.0.1:{port}")
        clients = []
        for number in range(6):
            name = f"c{number}"
            position = (9.0, 1.0) if number < 3 else (1.0, 0.0)
            client = MovingClient(
                name,
                client_addresses(brokers),
                "h",
                traffic.callback(name),
                identify=payload_id,
                place=position,
                plain=True,
            )
            client.subscribe("t/far" if number < 3 else "t/near", "t/all")
            client.start()
            clients.append(client)

        def load() -> None:
            while not over.wait(0.01):
                client = clients[len(traffic.sent) % 6]
                traffic.send(client, "t/far" if client.name < "c3" else "t/near")

        publishing = threading.Thread(target=load, daemon=True)
        with serving(AgentConfig.load(config), hold=embed_links) as service:
            assert wait_for(lambda: len(service.agent.registry.residents) == 6)
            publishing.start()
            moved = []
            for cycle in ("first", "second"):
                live, planned, moves = (
                    str(tmp_path / f"{cycle}-{name}") for name in ("live", "plan", "moves")
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
                plan = json.loads(out)
                assert plan["cost_after"] <= plan["cost_before"]
                code, out, _ = run("migrate", "run", moves, *agent, "--json")
                assert code == 0, out
                moved.append((json.loads(out)["moved"], len(plan["steps"])))
            assert wait_for(lambda: all_moves_over(service.agent))
            over.set()
            publishing.join()
            assert moved == [(3, 2), (0, 0)]
            assert [client.home for client in clients] == ["f"] * 3 + ["h"] * 3
            assert all(client.wait_until_confirmed(LIMIT) for client in clients)
            wants = {f"c{number}": {"t/far" if number < 3 else "t/near"} for number in range(6)}
            wait_for(lambda: traffic.counts(wants)[1] == 0)
            assert traffic.counts(wants)[1:] == (0, 0)
            for client in clients:
                client.stop()
        market = read_market_problem(tmp_path / "first-live")
        matrix = traffic_matrix(market)
        written = require_table(tmp_path / "first-live", "traffic_matrix")
        assert sum(written.column("rate").to_pylist()) == pytest.approx(matrix.sum())
        assert matrix[:3, 3:].sum() == matrix[3:, :3].sum() == 0
        assert matrix.sum() == pytest.approx((market.rates.sum(axis=1) * 2).sum())


def test_live_traffic_becomes_a_market_problem(tmp_path):
    """Rates are bytes per second, wildcards become topics, and a client without position has its broker's."""
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


def test_rates_are_averages_over_the_observed_seconds(tmp_path):
    residents = [Resident(name, "h", (("y", 1),), None, 0.0) for name in "ab"]
    save_tables(
        tmp_path / "live", live_tables(residents, [SentTraffic("a", 3.0, "y", 30)], {"h": Site()}, 10.0)
    )
    assert read_market_problem(tmp_path / "live").rates.tolist() == [[3.0], [0.0]]


def keep_only(folder, *names):
    """Delete the other tables."""
    for path in folder.iterdir():
        if path.stem not in names:
            path.unlink()


REQUIRED = ("subscribers", "brokers")


@pytest.mark.parametrize("seed", range(20))
def test_histograms_messages_and_matrix_yield_the_same_traffic(tmp_path, seed):
    """Each of these tables alone yields the same traffic matrix."""
    rng = random.Random(seed)
    names, topics = [f"c{number}" for number in range(rng.randrange(1, 7))], ["x", "y", "z/1", "z/2"]
    residents = [
        Resident(name, "h", tuple((topic, 1) for topic in rng.sample([*topics, "z/#"], 2)), None, 0.0)
        for name in names
    ]
    sent = [
        SentTraffic(rng.choice(names), float(number), rng.choice(topics), rng.randrange(50))
        for number in range(rng.randrange(12))
    ]
    matrices = {}
    for kept in ({"histograms", "subscriptions"}, {"messages", "subscriptions"}, {"traffic_matrix"}):
        folder = tmp_path / min(kept)
        save_tables(folder, live_tables(residents, sent, {"h": Site()}))
        keep_only(folder, *REQUIRED, *kept)
        matrices[min(kept)] = traffic_matrix(read_market_problem(folder))
    assert np.allclose(matrices["histograms"], matrices["messages"])
    assert np.allclose(matrices["histograms"], matrices["traffic_matrix"])


def test_invalid_histograms_and_matrices_are_refused(tmp_path):
    residents = [Resident("a", "h", (("x", 1),), None, 0.0)]
    for name, columns, message in (
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
        keep_only(tmp_path / "live", *REQUIRED, "subscriptions", name)
        with pytest.raises(bl.InputError, match=message):
            read_market_problem(tmp_path / "live")


def test_a_traffic_matrix_that_is_too_large_is_omitted(monkeypatch):
    monkeypatch.setattr("broadloom.agents.moves.traffic_summary.MOST_FLOWS", 1)
    residents = [Resident(name, "h", (("x", 1),), None, 0.0) for name in "abc"]
    tables = live_tables(residents, [SentTraffic("a", 0.0, "x", 9)], {"h": Site()})
    assert (tables["traffic_matrix"].num_rows, tables["histograms"].num_rows) == (0, 1)


def test_a_traffic_matrix_with_too_many_different_rates_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("broadloom.model.channels.MAX_CELLS", 3)
    residents = [Resident(name, "h", (("x", 1),), None, 0.0) for name in "abc"]
    sent = [SentTraffic("a", 0.0, "x", 9), SentTraffic("b", 1.0, "x", 5)]
    save_tables(tmp_path / "live", live_tables(residents, sent, {"h": Site()}))
    keep_only(tmp_path / "live", *REQUIRED, "subscriptions", "traffic_matrix")
    with pytest.raises(bl.InputError, match="3 users and 2 different amounts, too much for memory; give"):
        read_market_problem(tmp_path / "live")


@pytest.mark.parametrize("kept", [{"histograms", "subscriptions"}, {"traffic_matrix"}])
def test_clients_move_closer_by_tables_without_messages(run, tmp_path, kept):
    """The clients far from their broker move in the first cycle, and none in the second."""
    sites = {"h": Site((0.0, 0.0), 1e6), "f": Site((10.0, 0.0), 1e6)}
    near, far, home = (1.0, 0.0), (9.0, 1.0), dict.fromkeys("abcdef", "h")
    sent = [SentTraffic(name, float(at), "far" if name < "d" else "near", 90) for at, name in enumerate(home)]
    for cycle, moved in enumerate((3, 0)):
        residents = [
            Resident(
                name, broker, (("far", 1),) if name < "d" else (("near", 1),), far if name < "d" else near, 0
            )
            for name, broker in home.items()
        ]
        live, planned, moves = (tmp_path / f"{name}{cycle}" for name in ("live", "plan", "moves"))
        save_tables(live, live_tables(residents, sent, sites, 10.0))
        keep_only(live, *REQUIRED, "assignment", *kept)
        assert run("market", live, "-o", planned, "-a", "greedy-packing")[0] == 0
        assert run("migrate", "plan", live, planned, "-o", moves)[0] == 0
        plan = bl.MovePlan.load_from(moves)
        home |= {move.client: move.to for step in plan.steps for move in step}
        assert plan.move_count == moved
    assert home == dict.fromkeys("abc", "f") | dict.fromkeys("def", "h")


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("moves")
def test_an_unreachable_broker_is_named_and_leaves_no_threads():
    before = set(threading.enumerate())
    with linked_brokers("h") as brokers:
        (unused,) = free_ports(1)
        endpoints = addresses(brokers) | {"x": Address(HOST, unused)}
        with pytest.raises(bl.UnreachableError, match="broker 'x' does not answer: Connection refused"):
            watch_traffic(endpoints, Login(), 0.1, lambda _: None)
    assert new_threads_ended(before)


def test_a_system_without_clients_has_valid_tables(tmp_path):
    save_tables(tmp_path / "live", live_tables([], [], {"h": Site()}))
    market = read_market_problem(tmp_path / "live")
    assert (market.user_count, market.broker_count) == (0, 1)
    assert bl.plan_moves(market, [], []).move_count == 0


def test_subscriptions_of_unknown_clients_are_refused(tmp_path):
    tables = live_tables([], [], {"h": Site()})
    tables["subscriptions"] = pa.table({"node": ["stranger"], "topic": ["x"]})
    save_tables(tmp_path / "live", tables)
    with pytest.raises(bl.InputError, match="subscriptions row 0: 'stranger' is unknown"):
        read_market_problem(tmp_path / "live")


def test_a_client_without_messages_is_not_moved(run, tmp_path):
    """It gains nothing, wherever `market` puts it."""
    wants = {"sender": "y", "reader": "y", "idle": "z"}
    residents = [Resident(name, "h", ((topic, 1),), None, 0.0) for name, topic in wants.items()]
    sites = {"h": Site(capacity=9.0), "f": Site(capacity=9.0)}
    traffic = [SentTraffic("sender", 1.0, "y", 1)]
    save_tables(tmp_path / "live", live_tables(residents, traffic, sites))
    moved = [Resident(one.client, "f", one.filters, None, 0.0) for one in residents]
    save_tables(tmp_path / "planned", live_tables(moved, traffic, sites))
    code, out, _ = run("migrate", "plan", tmp_path / "live", tmp_path / "planned", "-o", tmp_path / "moves")
    assert code == 0
    assert "2 moves in 1 step," in out
    (step,) = json.loads((tmp_path / "moves" / "moves.json").read_text())["steps"]
    assert {move["client"] for move in step} == {"sender", "reader"}


def test_the_commands_plan_run_and_summarize_refuse_bad_input_in_one_line(run, tmp_path, monkeypatch):
    residents = [Resident("a", "h", (("x", 1),), None, 0.0)]
    sites = {"h": Site(capacity=9.0), "f": Site(capacity=9.0)}
    save_tables(tmp_path / "live", live_tables(residents, [SentTraffic("a", 1.0, "x", 1)], sites))
    save_tables(tmp_path / "other", live_tables([], [], sites))
    plan = ("migrate", "plan", tmp_path / "live")
    for planned, message in (
        (tmp_path / "other", "assignment has no user 'a'"),
        (tmp_path / "nowhere", "is not a folder; expected assignment"),
    ):
        code, _, err = run(*plan, planned, "-o", tmp_path / "moves")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    code, out, _ = run(*plan, tmp_path / "live", "-o", tmp_path / "moves")
    assert (code, "0 moves in 0 steps" in out) == (0, True)
    monkeypatch.delenv("BROADLOOM_TOKEN", raising=False)
    code, _, err = run("migrate", "run", tmp_path / "moves")
    assert (code, "the token is missing; give --token-file" in err) == (2, True)
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    assert run("migrate", "run", tmp_path / "moves", "--quiet")[0] == 0  # no client has to move
    bl.MovePlan(((("a", "h", "f", 1.0, 1.0),),)).save(tmp_path / "one")
    for status, expected in ((401, 2), (500, 3)):  # neither means that a client refuses
        answer = status, {"error": "no"}
        monkeypatch.setattr(
            "broadloom.agents.moves.operator_client.Operator._ask_once", lambda *_, answer=answer: answer
        )
        code, _, err = run("migrate", "run", tmp_path / "one", "--quiet")
        assert (code, err.count("\n"), "the agent says: no" in err) == (expected, 1, True)
    monkeypatch.setattr("broadloom.agents.moves.operator_client.Operator._ask_once", _refuse_connection)
    monkeypatch.setattr("broadloom.agents.moves.operator_client.PATIENCE", 0.0)
    code, _, err = run("migrate", "summarize", "-o", tmp_path / "s")
    assert (code, "does not answer" in err, "token" in err.replace("token-file", "")) == (3, True, False)
    assert not np.any([(tmp_path / "s").exists()])


def test_summarize_says_that_without_messages_there_is_nothing_to_plan(run, tmp_path, monkeypatch):
    """As when it runs before the first client publishes."""
    answer = {"clients": [], "sent": [], "sites": {"h": [[0.0, 0.0], None]}, "left_out": 0}
    monkeypatch.setattr("broadloom.agents.moves.operator_client.Operator._ask_once", lambda *_: (200, answer))
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    code, out, err = run("migrate", "summarize", "-o", tmp_path / "live")
    assert (code, "0 messages in 10 s" in out + err) == (0, True)
    assert "wait until the clients publish, and count again with --force" in out + err
    answer["sent"] = [["a", 1.0, "x", 1, 1]]
    answer["clients"] = [asdict(Resident("a", "h", (("x", 1),), None, 0.0))]
    code, out, err = run("migrate", "summarize", "-o", tmp_path / "live", "--force")
    assert (code, "wait until" in out + err) == (0, False)


def _refuse_connection(*_):
    raise ConnectionRefusedError
