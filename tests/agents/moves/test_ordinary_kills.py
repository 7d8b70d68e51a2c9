"""The mover of ordinary clients and the router are killed during a move; no message is lost.

`make test` kills the mover in its most delicate state, `make test-kills` in all of them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from ordinary import (
    Publisher,
    RoutedBrokers,
    Subscriber,
    homes,
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
MOMENTS = [(state, before) for state in STATES for before in (True, False)]
WORST = ("leaving", False)  # the client is being disconnected from home


@contextmanager
def mover(config, state="never", before=False):
    """A mover in a process of its own, which kills itself once when a move has reached a state."""
    command = [*killed_with_parent(), sys.executable, str(MOVER), str(config), state, str(int(before))]
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
        client.stop()
        assert system.connected("c-1")[-1] == "b"


@pytest.mark.parametrize(
    ("state", "before"),
    [pytest.param(*one, marks=() if one == WORST else pytest.mark.kills) for one in MOMENTS],
)
def test_a_mover_that_is_killed_in_any_state_loses_nothing(tmp_path, state, before):
    """Before or after the state is in its journal; the next one continues."""

    def disturb(system, config, operator, asking):
        with mover(config, state, before) as first:
            assert wait_for(lambda: "c-1" in homes(operator))
            asking.start()
            assert wait_for(lambda: first.poll() is not None)
        with mover(config):
            asking.join()
            assert wait_for(lambda: state_of(operator, "c-1") == "redirected")
            assert wait_for(lambda: system.connected("c-1")[-1] == "b")

    check_move(tmp_path, disturb)


@pytest.mark.kills
@pytest.mark.parametrize("state", ["replicated", "connected", "redirected"])
def test_a_router_that_is_killed_loses_nothing(tmp_path, state):
    def disturb(system, config, operator, asking):
        with mover(config):
            assert wait_for(lambda: "c-1" in homes(operator))
            asking.start()
            assert wait_for(lambda: state_of(operator, "c-1") == state)
            system.kill_router()
            system.start_router()
            assert wait_for(lambda: state_of(operator, "c-1") == "redirected")
            assert wait_for(lambda: system.connected("c-1")[-1] == "b")
        asking.join()

    check_move(tmp_path, disturb)
