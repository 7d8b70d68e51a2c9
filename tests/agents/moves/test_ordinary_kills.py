"""The mover of ordinary clients and the router are killed during a move; no message is lost.

`make test` kills the mover in its most delicate state, `make test-kills` in all of them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from ordinary import (
    Publisher,
    RoutedBrokers,
    Subscriber,
    homes,
    precise_state_of,
    state_of,
    wait_for,
    write_ordinary_config,
)

from routed import killed_with_parent

pytestmark = [
    pytest.mark.needs("mosquitto", "mosquitto_sub", "mosquitto_pub", "haproxy"),
    pytest.mark.xdist_group("moves"),
]
MOVER = Path(__file__).with_name("killed_mover.py")
STATES = ("requested", "accepted", "replicated", "leaving", "connected", "redirected")
MOMENTS = [(state, moment) for state in STATES for moment in ("before", "after")]
WORST = ("leaving", "after")  # the client is being disconnected from home


@contextmanager
def mover(config, state="never", moment="after"):
    """A mover in a process of its own, which kills itself or holds moves when one has reached a state."""
    command = [*killed_with_parent(), sys.executable, str(MOVER), str(config), state, moment]
    with config.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def check_move(folder, disturb):
    """Move a client under load while something is killed; it arrives and has every message."""
    with RoutedBrokers(folder, ("a", "b")) as system:
        client = Subscriber(folder, "c-1", system.port)
        client.start()
        config, operator = write_ordinary_config(folder, system)
        asking = threading.Thread(target=lambda: operator.request_to_move("c-1", "b", "key"))
        with Publisher(system.lab.ports["b"]) as load:
            disturb(system, config, operator, asking)
            more = load.sent + 10
            assert wait_for(lambda: load.sent > more)
        assert wait_for(lambda: not load.missing(client.got()))
        assert wait_for(lambda: system.present()["c-1"] == {"b"})
        client.stop()


def has_moved(system, operator):
    """Whether the move has ended with the client at its new broker, and only there."""
    return state_of(operator, "c-1") == "redirected" and system.present()["c-1"] == {"b"}


@pytest.mark.parametrize(
    ("state", "moment"),
    [pytest.param(*one, marks=() if one == WORST else pytest.mark.kills) for one in MOMENTS],
)
def test_a_mover_that_is_killed_in_any_state_loses_nothing(tmp_path, state, moment):
    """Before or after the state is in its journal; the next one continues."""

    def disturb(system, config, operator, asking):
        with mover(config, state, moment) as first:
            assert wait_for(lambda: "c-1" in homes(operator))
            asking.start()
            assert wait_for(lambda: first.poll() is not None)
        with mover(config):
            asking.join()
            assert wait_for(lambda: has_moved(system, operator))

    check_move(tmp_path, disturb)


@pytest.mark.kills
@pytest.mark.parametrize("state", STATES)
def test_a_router_that_is_killed_in_any_state_loses_nothing(tmp_path, state):
    """The move goes on while the router is down."""

    def disturb(system, config, operator, asking):
        with mover(config, state, "hold"):
            assert wait_for(lambda: "c-1" in homes(operator))
            asking.start()
            assert wait_for(lambda: precise_state_of(operator, "c-1") == state)
            system.kill_router()
            config.with_suffix(".released").touch()
            time.sleep(1.0)  # how long it is down
            system.start_router()
            assert wait_for(lambda: has_moved(system, operator))
        asking.join()

    check_move(tmp_path, disturb)
