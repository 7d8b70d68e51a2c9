"""Nothing that was acknowledged is lost, and nothing is applied twice, wherever a process dies."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import broadloom as bl
from broadloom import InputError
from broadloom.maintenance import journal as module
from broadloom.maintenance import store
from broadloom.model import _records

INTEREST = bl.workload.interest(nodes=30, topics=10, sizes=(2, 4), seed=0)
EVENTS = bl.workload.churn(INTEREST, rounds=400, change=0.3, seed=1)


def state_of(live):
    """All that there is, to compare."""
    present = live._engine.present()
    return (
        live.edges.tolist(),
        present.contents.backups.tolist(),
        present.contents.chance,
        live.interest.topics.tolist(),
        dict(live.counts),
        live._engine.next_id,
        live.topic_ids,
        sorted(live._names.items()),
    )


@pytest.fixture
def saved(tmp_path):
    """A live overlay with a state and a journal of some changes, and what it was after each."""
    live = bl.maintain(INTEREST)
    live.save(tmp_path / "live")
    states = [state_of(live)]
    for event in EVENTS[:40]:
        live.apply([event])
        states.append(state_of(live))
    live.join(["a new topic"], name="somebody")
    states.append(state_of(live))
    live.close()
    return tmp_path / "live", states


def test_loading_comes_back_to_the_last_change(saved):
    place, states = saved
    with bl.Live.load(place) as live:
        assert state_of(live) == states[-1]
        live.save()
        assert live.leave(live.named("somebody")).kind == "leave"
        after = state_of(live)
    assert state_of(bl.Live.load(place)) == after


def test_cut_at_every_byte_it_loads_to_the_last_whole_record(saved, tmp_path):
    """A crash can leave any beginning of the last record; here the journal is cut at each byte of all."""
    place, states = saved
    data = (place / module.FILE).read_bytes()
    ends, at = [], len(module.MAGIC)
    while (record := _records.record_at(data, at)) is not None:
        at += _records.HEAD.size + len(record)
        ends.append(at)
    assert len(ends) == len(states) - 1
    for cut in range(len(module.MAGIC), len(data) + 1):
        (place / module.FILE).write_bytes(data[:cut])
        entries = module.read_entries(place)
        assert len(entries) == sum(end <= cut for end in ends)
        assert (place / module.FILE).stat().st_size == ([len(module.MAGIC), *ends])[len(entries)]
    for cut in random.Random(0).sample(range(len(module.MAGIC), len(data)), 15):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(place, copy)
        (copy / module.FILE).write_bytes(data[:cut])
        with bl.Live.load(copy) as live:
            assert state_of(live) == states[sum(end <= cut for end in ends)]


def test_zeros_at_the_end_are_cut_but_damage_before_it_is_told(saved):
    """A file system may leave zeros after a crash. A change that was acknowledged never goes in silence."""
    place, states = saved
    data = (place / module.FILE).read_bytes()
    (place / module.FILE).write_bytes(data + bytes(100))
    with bl.Live.load(place) as live:
        assert state_of(live) == states[-1]
    spoiled = bytearray(data)
    spoiled[len(module.MAGIC) + 12] ^= 1
    (place / module.FILE).write_bytes(spoiled)
    with pytest.raises(InputError, match="is damaged at byte 20, with more behind it"):
        bl.Live.load(place)


def test_killed_between_saving_and_cutting_the_journal(saved):
    """The new state knows the changes that the old journal still has; they are not applied twice."""
    place, states = saved
    old = (place / module.FILE).read_bytes()
    with bl.Live.load(place) as live:
        live.save()
    (place / module.FILE).write_bytes(old)
    with bl.Live.load(place) as live:
        assert state_of(live) == states[-1]


def test_killed_before_the_first_journal(saved):
    place, _ = saved
    (place / module.FILE).unlink()
    with bl.Live.load(place) as live:
        assert live.counts.total() == 0
        live.leave(0)
    assert bl.Live.load(place).counts["leave"] == 1


def test_one_process_at_a_time(saved):
    place, _ = saved
    with bl.Live.load(place), pytest.raises(InputError, match="is open already"):
        bl.Live.load(place)


def test_another_overlay_is_not_overwritten_unasked(saved):
    place, _ = saved
    other = bl.maintain(INTEREST)
    with pytest.raises(InputError, match="holds a live overlay already"):
        other.save(place)
    other.save(place, overwrite=True)
    other.close()
    assert bl.Live.load(place).counts.total() == 0
    with pytest.raises(InputError, match="give a path"):
        bl.maintain(INTEREST).save()


def test_a_full_disk_refuses_further_changes(saved, monkeypatch):
    """A change that could not be kept is not acknowledged, and nothing goes on as if it had been."""
    place, states = saved
    live = bl.Live.load(place)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", full)
        with pytest.raises(InputError, match="could not be written: No space left"):
            live.leave(live.named("somebody"))
    with pytest.raises(InputError, match="load it again"):
        live.join([0])
    live.close()
    with bl.Live.load(place) as again:
        assert state_of(again) == states[-1]


def test_nothing_and_nonsense_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be opened"):
        bl.Live.load(tmp_path / "nowhere")
    (tmp_path / store.STATE).mkdir()
    with pytest.raises(InputError, match="holds no live overlay"):
        bl.Live.load(tmp_path)


def test_weights_and_options_come_back(tmp_path):
    weights = bl.workload.weights(nodes=30, kind="planar", seed=0)
    live = bl.maintain(INTEREST, weights, rho=float("inf"), coverage=2, backups="greedy", seed=7)
    live.save(tmp_path / "live")
    live.join([1, 2], at=[0.5, 0.25])
    live.close()
    with bl.Live.load(tmp_path / "live") as again:
        assert state_of(again) == state_of(live)
        assert (again.options, again.seed, again.method) == (live.options, 7, "shadow")
        assert again.plan().weights == live.plan().weights


def test_killed_a_hundred_times_nothing_is_lost(tmp_path):
    """Killed while it loads, changes or saves, it goes on where it was, as if nobody had killed it."""
    script = Path(__file__).parents[2] / "benchmarks" / "_kills.py"
    done = subprocess.run([sys.executable, script, tmp_path, "100", "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["lost"], found["twice"]) == (0, 0)
    assert found["same_as_without_kills"]
    assert found["changes"] > 100


def test_the_journal_is_plain_to_read(saved):
    """Length, checksum, JSON: anybody can read it."""
    place, _ = saved
    data = (place / module.FILE).read_bytes()
    assert data.startswith(b"broadloom journal 1\n")
    number, requests, _ = json.loads(_records.record_at(data, len(module.MAGIC)))
    assert number == 0
    assert requests[0][0] in ("join", "leave", "subscribe", "unsubscribe")
    assert len(data) < 10_000
