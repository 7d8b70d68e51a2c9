"""The agent, the client and either broker are killed in each state of a move, on real mosquitto brokers.

Afterwards the client is at exactly one broker, and it has received each message exactly once.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from moving import (
    LIMIT,
    TrafficCounter,
    addresses,
    all_moves_over,
    client_addresses,
    has_session,
    linked_brokers,
    payload_id,
    running_agent,
    wait_for,
    write_config,
)
from moving_child import policy_for, run_agent, run_client

from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_registry import Move, MoveState
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.agents.moves.operator_client import Operator
from broadloom.deployment.rehearsal.mosquitto_lab import MosquittoLab

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("moves"), pytest.mark.kills]

STATES = [
    MoveState.REQUESTED,
    MoveState.STAYING,
    MoveState.ACCEPTED,
    MoveState.REPLICATED,
    MoveState.CONNECTED,
    MoveState.REDIRECTED,
]
# Mosquitto saves its sessions every one to two seconds. The TTL is longer, so that the foreign broker has
# saved the session before the one at home ends.
CAREFUL = Timing(ttl=5.0, settle=0.2, answer=30.0, move=60.0, again=0.4)
DOWN = 0.4

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["broadloom.agents.moves.move_service", "broadloom.agents.moves.moving_client"]
)


class Load:
    """One publisher per broker; they do not move."""

    def __init__(self, brokers: MosquittoLab, traffic: TrafficCounter) -> None:
        self._brokers, self._traffic = brokers, traffic
        self._clients = [
            MovingClient(f"pub-{name}", client_addresses(brokers), name, plain=True) for name in "hf"
        ]
        self._over, self._publishing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
            assert client.wait_until_ready(LIMIT)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for client in self._clients:
            client.stop()

    def stop(self) -> None:
        """Stop publishing, and wait until the brokers have confirmed all messages."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            assert all(client.wait_until_confirmed(LIMIT) for client in self._clients)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Publish nothing during the block, which starts when all messages have arrived or are saved.

        A broker that is killed loses messages that it has confirmed, but neither forwarded nor saved.
        """
        with self._publishing:
            if not wait_for(lambda: set(self._traffic.sent) <= set(self._traffic.got["subject"]), 1.0):
                wait_until_saved(self._brokers)
            yield

    def _publish(self) -> None:
        while not self._over.wait(0.025):
            with self._publishing:
                for client in self._clients:
                    self._traffic.send(client, "t/1")


def outcome(
    home: str, traffic: TrafficCounter, got: Callable[[], list[tuple[str, str]]]
) -> dict[str, object]:
    """The result of a scenario: the numbers of lost and duplicated messages, and the client's broker."""
    sent = set(traffic.sent)
    wait_for(lambda: sent <= set(got()))
    return {"lost": len(sent - set(got())), "twice": len(got()) - len(set(got())), "home": home}


def wait_until_saved(brokers: MosquittoLab) -> None:
    """Wait until all brokers have saved their sessions; twice, as the first save can have begun before."""
    for _ in range(2):
        for broker in brokers.ports:
            brokers.wait_until_saved(broker)


def brokers_with_session(brokers: MosquittoLab) -> list[str]:
    return [name for name, address in addresses(brokers).items() if has_session(address, "subject")]


def kill_broker(broker: str, state: MoveState, folder: Path) -> dict[str, object]:
    """Kill a broker in a state of the move, and start it again; the agent and the client are threads."""
    traffic, killed = TrafficCounter(), threading.Event()
    with linked_brokers("hf") as brokers:

        def watch(move: Move) -> None:
            if move.state is state and not killed.is_set():
                with load.paused():
                    brokers.stop(broker, kill=True)
                killed.set()

        client = moving_client(brokers, traffic, state)
        with (
            running_agent(addresses(brokers), folder, CAREFUL, watch) as agent,
            client,
            Load(brokers, traffic) as load,
        ):
            begin_move(brokers, agent)
            assert killed.wait(LIMIT)
            time.sleep(DOWN)
            brokers.start(broker)  # not in a thread: a broker ends with the thread that started it
            assert wait_for(lambda: all_moves_over(agent)), agent.registry
            time.sleep(0.5)
            load.stop()
            result = outcome(home_of(agent), traffic, lambda: list(traffic.got["subject"].elements()))
            client.stop()
            return result | {"sessions": brokers_with_session(brokers), "state": last_state(agent)}


def moving_client(brokers: MosquittoLab, traffic: TrafficCounter, state: MoveState) -> MovingClient:
    """The client `subject`, which moves from h to f, with a policy that leads to a state."""
    client = MovingClient(
        "subject",
        client_addresses(brokers),
        "h",
        traffic.callback("subject"),
        policy_for(state),
        identify=payload_id,
        plain=True,
    )
    client.subscribe("t/1")
    return client


def begin_move(brokers: MosquittoLab, agent: MoveAgent) -> None:
    """Request the move once the brokers have saved all sessions."""
    assert wait_for(lambda: len(agent.registry.residents) == 3)
    wait_until_saved(brokers)
    agent.ask(lambda own: own.request_to_move("subject", "f"))


def last_state(agent: MoveAgent) -> str:
    return str(list(agent.registry.moves.values())[-1].state)


def home_of(agent: MoveAgent) -> str:
    return agent.registry.residents["subject"].broker


def kill_client(state: MoveState, folder: Path) -> dict[str, object]:
    """Kill the client in a state of the move, and start it again; it remembers only its broker."""
    traffic, killed = TrafficCounter(), threading.Event()
    with linked_brokers("hf") as brokers:
        arguments = "subject", client_addresses(brokers), ("t/1",), folder, str(state)
        first, second = (processes.Process(target=run_client, args=arguments, daemon=True) for _ in range(2))

        def watch(move: Move) -> None:
            if move.state is state and not killed.is_set():
                first.kill()
                first.join()
                killed.set()

        first.start()
        with (
            running_agent(addresses(brokers), folder / "journal", CAREFUL, watch) as agent,
            ExitStack() as stack,
        ):
            assert wait_for(lambda: "subject" in agent.registry.residents)
            load = stack.enter_context(Load(brokers, traffic))
            begin_move(brokers, agent)
            assert killed.wait(LIMIT)
            time.sleep(DOWN)
            second.start()
            assert wait_for(lambda: all_moves_over(agent)), agent.registry
            time.sleep(0.5)
            load.stop()
            result = outcome(home_of(agent), traffic, lambda: written(folder))
            second.kill()
            second.join()
            return result | {"sessions": brokers_with_session(brokers), "state": last_state(agent)}


def written(folder: Path) -> list[tuple[str, str]]:
    """The messages in the file of a killed client, without duplicates: it lost its memory of message ids."""
    return [("t/1", line) for line in dict.fromkeys((folder / "got").read_text().split())]


def kill_agent(state: MoveState, when: str, folder: Path) -> dict[str, object]:
    """Kill the agent just before or after it journals the state, and start it again."""
    traffic = TrafficCounter()
    with linked_brokers("hf") as brokers:
        config = write_config(folder, brokers, CAREFUL)
        operator = Operator(f"http://127.0.0.1:{config[1]}", "token", patience=60)
        running = [processes.Process(target=run_agent, args=(config[0], str(state), when), daemon=True)]
        running[0].start()
        client = moving_client(brokers, traffic, state)
        with client, Load(brokers, traffic) as load:
            assert wait_for(lambda: len(operator.clients()) == 3)
            requesting = threading.Thread(target=lambda: operator.request_to_move("subject", "f", "key"))
            requesting.start()
            assert wait_for(lambda: not running[0].is_alive()), operator.moves()
            running.append(
                processes.Process(target=run_agent, args=(config[0], str(state), when), daemon=True)
            )
            running[1].start()
            requesting.join()
            assert wait_for(lambda: settled(operator)), operator.moves()
            time.sleep(0.3)
            load.stop()
            (home,) = (one["broker"] for one in operator.clients() if one["client"] == "subject")
            result = outcome(home, traffic, lambda: list(traffic.got["subject"].elements()))
        result |= {"sessions": brokers_with_session(brokers), "state": operator.moves()[-1]["state"]}
        running[1].kill()
        running[1].join()
        return result


def settled(operator: Operator) -> bool:
    health = operator.health()
    return health["strays"] == 0 and set(health["moves"]) <= {"redirected", "failed", "expired", "declined"}


def check_in_parallel(tmp_path: Path, scenarios: dict[str, Callable[[Path], dict[str, object]]]) -> None:
    """Run scenarios in parallel, each on its own brokers, and check their results."""
    folders = {name: tmp_path / name for name in scenarios}
    for folder in folders.values():
        folder.mkdir()
    with ThreadPoolExecutor(len(scenarios)) as pool:
        results = {name: pool.submit(run, folders[name]) for name, run in scenarios.items()}
    expected = {"lost": 0, "twice": 0, "home": "f", "sessions": ["f"], "state": "redirected"}
    assert {name: result.result() for name, result in results.items()} == dict.fromkeys(scenarios, expected)


def test_killing_the_agent_in_any_state_loses_and_duplicates_nothing(tmp_path):
    """Just before it journals the state, and just after."""
    check_in_parallel(
        tmp_path,
        {
            f"{when}-{state}": lambda folder, state=state, when=when: kill_agent(state, when, folder)
            for when in ("before", "after")
            for state in STATES
        },
    )


def test_killing_the_client_in_any_state_loses_nothing(tmp_path):
    check_in_parallel(
        tmp_path, {state: lambda folder, state=state: kill_client(state, folder) for state in STATES}
    )


def test_killing_either_broker_in_any_state_loses_and_duplicates_nothing(tmp_path):
    check_in_parallel(
        tmp_path,
        {
            f"{broker}-{state}": lambda folder, state=state, broker=broker: kill_broker(broker, state, folder)
            for broker in "hf"
            for state in STATES
        },
    )
