"""Progress of a run of moves: who moves, who waits, how long, and why clients did not move."""

from __future__ import annotations

import io
import time

from broadloom.agents.moves import MovePlan, RunningMove, RunProgress, run_moves
from broadloom.agents.moves.move_registry import COMING
from broadloom.agents.moves.traffic_summary import TrafficTally, _add_logged
from broadloom.cli.migrate import _why_not
from broadloom.cli.migrate_progress import MOST_ROWS, MoveDisplay, progress_view

PLAN = MovePlan(((("a", "h", "f", 2.0, 1.0), ("b", "h", "f", 1.0, 1.0)),), capacity={"f": 1.5})


class Undecided:
    """Moves that wait for a while, and then end."""

    def __init__(self, end: str) -> None:
        self._states = ["replicated", "replicated", end]

    def request_to_move(self, client, _to, _key=""):
        """Begin a move."""
        return {"id": client}

    def move(self, _move):
        """The next state."""
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return {"state": state, "note": "waiting for the client to connect"}


def test_a_run_reports_who_moves_and_why_others_do_not():
    seen: list[RunProgress] = []
    run_moves(PLAN, Undecided("failed"), sleep=lambda _: None, watch=seen.append)
    assert [(one.move.client, one.state) for one in seen[0].running] == [("a", "replicated")]
    assert seen[0].running[0].note == "waiting for the client to connect"
    assert seen[-1].running == ()
    assert seen[-1].reasons == {
        "a": "failed: waiting for the client to connect",
        "b": "no room: no spare capacity at 'f'",
    }


def test_a_run_does_not_wait_for_absent_clients(monkeypatch):
    """They still count at both brokers, and the agent moves them when they come."""
    monkeypatch.setattr("broadloom.agents.moves.move_plans.ABSENT_SECONDS", 0.0)
    seen: list[RunProgress] = []
    ended = run_moves(PLAN, Undecided("replicated"), sleep=lambda _: None, watch=seen.append)
    assert ended == {"absent": 1, "no_room": 1}
    assert seen[-1].reasons["a"] == "absent: waiting for the client to connect"


def test_a_run_does_not_wait_a_day_for_a_client_that_has_moved_and_is_absent(monkeypatch):
    """Its reason says where it belongs; a client that is back in time is waited for."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    notes = [COMING, "", *[COMING] * 400]

    class Absent(Undecided):
        def move(self, _move):
            return {"state": "connected", "note": notes.pop(0)}

    def sleep(seconds):
        clock[0] += 20.0 if len(notes) > 398 else seconds

    seen: list[RunProgress] = []
    assert run_moves(PLAN, Absent("connected"), sleep=sleep, watch=seen.append) == {"absent": 1, "no_room": 1}
    assert 70 < clock[0] < 100
    assert seen[-1].reasons["a"] == (
        "absent: waiting for the client to connect; it belongs to 'f' now, and gets there what waits at 'h'"
    )


def test_a_run_reports_the_problems_of_the_agent_while_it_waits():
    """A full disk, and links that are down: the display shows both."""
    from rich.console import Console

    class Ill(Undecided):
        def health(self):
            return {"problems": ["nothing moves until the journal can be written"], "links_down": ["f"]}

    seen: list[RunProgress] = []
    run_moves(PLAN, Ill("redirected"), sleep=lambda _: None, watch=seen.append)
    assert seen[0].running
    assert seen[0].problems == (
        "nothing moves until the journal can be written",
        "a link of broker 'f' is down",
    )
    out = io.StringIO()
    Console(file=out, width=120).print(progress_view(seen[0]))
    assert all(problem in out.getvalue() for problem in seen[0].problems)
    out = io.StringIO()
    many = RunProgress(1, 1, 1, {}, (), {}, tuple(f"problem {number}" for number in range(9)))
    Console(file=out, width=120).print(progress_view(many))
    assert "and 4 more problems" in out.getvalue()


def test_the_reasons_are_listed_by_how_many_clients_they_stop():
    class Operator:
        def health(self):
            return {"problems": ["broker 'h' cannot be seen"]}

    reasons = {f"c{number}": "declined: the policy file does not let it move" for number in range(5)}
    lines = _why_not(reasons | {"x": "refused: unknown"}, Operator()).splitlines()
    assert lines[1:] == [
        "  c0, c1, c2 and 2 more: declined: the policy file does not let it move",
        "  x: refused: unknown",
        "  broker 'h' cannot be seen",
    ]


def test_the_display_shows_the_longest_waiting_first_and_is_silent_in_a_pipe(monkeypatch):
    from rich.console import Console

    running = tuple(
        RunningMove(PLAN.steps[0][0]._replace(client=f"c{number}"), "connected", "", float(number))
        for number in range(MOST_ROWS + 2)
    )
    state = RunProgress(1, 2, 40, {"redirected": 3}, running, {})
    out = io.StringIO()
    Console(file=out, width=120).print(progress_view(state))
    text = out.getvalue()
    assert "step 1 of 2: 3 of 40 moves ended (3 redirected), 17 under way" in text
    assert text.index(f"c{MOST_ROWS + 1} ") < text.index("c5 ")
    assert "and 2 more" in text
    err = io.StringIO()
    monkeypatch.setattr("sys.stderr", err)
    with MoveDisplay(quiet=False) as display:
        display.update(state)
    assert err.getvalue() == ""


def test_the_log_file_of_a_broker_says_what_ordinary_clients_publish(tmp_path):
    """Lines from before, of other clients, and of clients at another broker do not count."""
    log = tmp_path / "log"
    line = "1700000000: Received PUBLISH from {} (d0, q1, r0, m7, '{}', ... ({} bytes))\n"
    log.write_text(line.format("c 1", "t/old", 9))
    start = log.stat().st_size
    with log.open("a") as file:
        for client, topic, size in (
            ("c 1", "t/1", 10),
            ("c 1", "t/1", 20),
            ("m", "t/1", 5),
            ("far", "t/1", 5),
        ):
            file.write(line.format(client, topic, size))
        file.write(line.format("c 1", "$broadloom/from/c/register", 99) + "1700000000: Received PUBL")
    home_of = {"c 1": "h", "m": "h", "far": "f"}.get
    tally = TrafficTally()
    _add_logged(tally, log, start, "h", home_of, {"c 1", "far"})
    assert [(one.publisher, one.topic, one.size) for one in tally.sent()] == [
        ("c 1", "t/1", 10),
        ("c 1", "t/1", 20),
    ]
    assert all(one.at <= time.time() for one in tally.sent())
    nothing = TrafficTally()
    _add_logged(nothing, tmp_path / "missing", 0, "h", home_of, {"c 1"})
    assert nothing.sent() == []
