"""The agent, the client and either broker are killed in each state of a move, on real mosquitto brokers.

The client ends up at exactly one broker, no message is lost, none comes twice.
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
    Counted,
    addresses,
    agent_of,
    has_session,
    is_over,
    known,
    linked,
    payload_id,
    wait_for,
    write_config,
)
from moving_child import policy_for, run_agent, run_client

from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_registry import Move, MoveState
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.agents.moves.operator_api import Operator
from broadloom.deployment.rehearsal.mosquitto_lab import MosquittoLab

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto"), pytest.mark.kills]

STATES = [
    MoveState.REQUESTED,
    MoveState.STAYING,
    MoveState.ACCEPTED,
    MoveState.REPLICATED,
    MoveState.CONNECTED,
    MoveState.REDIRECTED,
]
SAVED = 2.5  # mosquitto looks every second whether it last saved its sessions more than a second ago
# Longer than that, so that the foreign broker has saved the session before the one at home ends.
CAREFUL = Timing(ttl=2.5, settle=0.2, answer=30.0, move=60.0, again=0.4)
DOWN = 0.4

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["broadloom.agents.moves.move_service", "broadloom.agents.moves.moving_client"]
)


class Load:
    """Publishers at both brokers, none of which moves."""

    def __init__(self, brokers: MosquittoLab, counted: Counted) -> None:
        self._counted = counted
        self._clients = [MovingClient(f"pub-{name}", known(brokers), name) for name in "hf"]
        self._over, self._gate = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
            assert client.wait_until_ready()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for client in self._clients:
            client.stop()

    def stop(self) -> None:
        """Publish no more, and wait until brokers have confirmed everything."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            assert all(client.wait_until_confirmed() for client in self._clients)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Publish nothing for the block, once all has come, or a second later where it waits in a session.

        What a broker has taken in the moment of its death, and neither passed on nor saved, nobody can keep.
        """
        with self._gate:
            wait_for(lambda: set(self._counted.sent) <= set(self._counted.got["subject"]), 1.0)
            yield

    def _publish(self) -> None:
        while not self._over.wait(0.025):
            with self._gate:
                for client in self._clients:
                    self._counted.send(client, "t/1")


def outcome(home: str, counted: Counted, got: Callable[[], list[tuple[str, str]]]) -> dict[str, object]:
    """What has come of a scenario: what is lost, what came twice, and who serves the client."""
    sent = set(counted.sent)
    wait_for(lambda: sent <= set(got()))
    return {"lost": len(sent - set(got())), "twice": len(got()) - len(set(got())), "home": home}


def sessions(brokers: MosquittoLab) -> list[str]:
    return [name for name, address in addresses(brokers).items() if has_session(address, "subject")]


def kill_broker(broker: str, state: MoveState, folder: Path) -> dict[str, object]:
    """Kill a broker in a state, and start it again, with the agent and the client in this process."""
    counted, down = Counted(), threading.Event()
    with linked("hf") as brokers:

        def watch(move: Move) -> None:
            if move.state is state and not down.is_set():
                with load.held():
                    brokers.stop(broker, kill=True)
                down.set()

        client = subject(brokers, counted, state)
        with (
            agent_of(addresses(brokers), folder, CAREFUL, watch) as agent,
            client,
            Load(brokers, counted) as load,
        ):
            begin_move(agent)
            assert down.wait(60)
            time.sleep(DOWN)
            brokers.start(broker)  # in this thread: the system ends a broker with the thread that started it
            assert wait_for(lambda: is_over(agent)), agent.registry
            time.sleep(0.5)
            load.stop()
            told = outcome(home_of(agent), counted, lambda: list(counted.got["subject"].elements()))
            client.stop()
            return told | {"sessions": sessions(brokers), "state": last_state(agent)}


def subject(brokers: MosquittoLab, counted: Counted, state: MoveState) -> MovingClient:
    """The client that moves, by a policy that leads to a state."""
    ear, policy = counted.ear("subject"), policy_for(state)
    client = MovingClient("subject", known(brokers), "h", ear, policy, identify=payload_id)
    client.subscribe("t/1")
    return client


def begin_move(agent: MoveAgent) -> None:
    """Ask the client to move, once brokers have saved all sessions."""
    assert wait_for(lambda: len(agent.registry.residents) == 3)
    time.sleep(SAVED)
    agent.ask(lambda own: own.request_to_move("subject", "f"))


def last_state(agent: MoveAgent) -> str:
    return str(list(agent.registry.moves.values())[-1].state)


def home_of(agent: MoveAgent) -> str:
    return agent.registry.residents["subject"].broker


def kill_client(state: MoveState, folder: Path) -> dict[str, object]:
    """Kill the client in a state, and start it again; it remembers its broker and nothing else."""
    counted, killed = Counted(), threading.Event()
    with linked("hf") as brokers:
        arguments = "subject", known(brokers), ("t/1",), folder, str(state)
        first, second = (processes.Process(target=run_client, args=arguments, daemon=True) for _ in range(2))

        def watch(move: Move) -> None:
            if move.state is state and not killed.is_set():
                first.kill()
                first.join()
                killed.set()

        first.start()
        with agent_of(addresses(brokers), folder / "journal", CAREFUL, watch) as agent, ExitStack() as stack:
            assert wait_for(lambda: "subject" in agent.registry.residents)
            load = stack.enter_context(Load(brokers, counted))
            begin_move(agent)
            assert killed.wait(60)
            time.sleep(DOWN)
            second.start()
            assert wait_for(lambda: is_over(agent)), agent.registry
            time.sleep(0.5)
            load.stop()
            told = outcome(home_of(agent), counted, lambda: written(folder))
            second.kill()
            second.join()
            return told | {"sessions": sessions(brokers), "state": last_state(agent)}


def written(folder: Path) -> list[tuple[str, str]]:
    """What a client that was killed wrote down; its own memory of ids went with it, so without repeats."""
    return [("t/1", line) for line in dict.fromkeys((folder / "got").read_text().split())]


def kill_agent(state: MoveState, when: str, folder: Path) -> dict[str, object]:
    """Kill the agent just before or after the journal has the state, and start it again."""
    counted = Counted()
    with linked("hf") as brokers:
        config = write_config(folder, brokers, CAREFUL)
        operator = Operator(f"http://127.0.0.1:{config[1]}", "token", patience=60)
        running = [processes.Process(target=run_agent, args=(config[0], str(state), when), daemon=True)]
        running[0].start()
        client = subject(brokers, counted, state)
        with client, Load(brokers, counted) as load:
            assert wait_for(lambda: len(operator.clients()) == 3)
            asked = threading.Thread(target=lambda: operator.request_to_move("subject", "f", "key"))
            asked.start()
            assert wait_for(lambda: not running[0].is_alive()), operator.moves()
            running.append(
                processes.Process(target=run_agent, args=(config[0], str(state), when), daemon=True)
            )
            running[1].start()
            asked.join()
            assert wait_for(lambda: settled(operator)), operator.moves()
            time.sleep(0.3)
            load.stop()
            (home,) = (one["broker"] for one in operator.clients() if one["client"] == "subject")
            told = outcome(home, counted, lambda: list(counted.got["subject"].elements()))
        told |= {"sessions": sessions(brokers), "state": operator.moves()[-1]["state"]}
        running[1].kill()
        running[1].join()
        return told


def settled(operator: Operator) -> bool:
    health = operator.health()
    return health["strays"] == 0 and set(health["moves"]) <= {"redirected", "failed", "expired", "declined"}


def at_once(tmp_path: Path, scenarios: dict[str, Callable[[Path], dict[str, object]]]) -> None:
    """Run scenarios side by side, each on brokers of its own, and compare with what must come out."""
    folders = {name: tmp_path / name for name in scenarios}
    for folder in folders.values():
        folder.mkdir()
    with ThreadPoolExecutor(len(scenarios)) as pool:
        told = {name: pool.submit(run, folders[name]) for name, run in scenarios.items()}
    right = {"lost": 0, "twice": 0, "home": "f", "sessions": ["f"], "state": "redirected"}
    assert {name: one.result() for name, one in told.items()} == dict.fromkeys(scenarios, right)


def test_the_agent_is_killed_in_each_state(tmp_path):
    """Just before the journal has it, and just after."""
    at_once(
        tmp_path,
        {
            f"{when}-{state}": lambda place, state=state, when=when: kill_agent(state, when, place)
            for when in ("before", "after")
            for state in STATES
        },
    )


def test_the_client_is_killed_in_each_state(tmp_path):
    at_once(tmp_path, {state: lambda place, state=state: kill_client(state, place) for state in STATES})


def test_either_broker_is_killed_in_each_state(tmp_path):
    at_once(
        tmp_path,
        {
            f"{broker}-{state}": lambda place, state=state, broker=broker: kill_broker(broker, state, place)
            for broker in "hf"
            for state in STATES
        },
    )
