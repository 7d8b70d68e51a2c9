"""Nothing that was acknowledged is lost, and nothing is applied twice, wherever a process dies."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import broadloom as bl
from broadloom import InputError, StorageError
from broadloom.maintenance import saved_overlay
from broadloom.storage import journal as record_file

INTEREST = bl.workload.interest(nodes=30, topics=10, sizes=(2, 4), seed=0)
EVENTS = bl.workload.churn(INTEREST, rounds=400, change=0.3, seed=1)


def state_of(live):
    """All that there is, to compare."""
    present = live._dynamics.present()
    return (
        live.edges.tolist(),
        present.contents.backups.tolist(),
        present.contents.random_state,
        live.interest.topics.tolist(),
        dict(live.counts),
        live._dynamics.next_id,
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


def journal_of(place):
    """The one journal that is there."""
    [journal] = saved_overlay.journals_in(place)
    return journal


def ends_of(data):
    """Where the records of a journal end."""
    ends, at = [], len(saved_overlay.MAGIC)
    while (record := record_file.record_at(data, at)) is not None:
        at += record_file.HEAD.size + len(record)
        ends.append(at)
    return ends


def test_cut_at_every_byte_it_reads_to_the_last_whole_record(saved):
    """A crash can leave any beginning of the last record; here the journal is cut at each byte of all."""
    journal, states = journal_of(saved[0]), saved[1]
    data = journal.read_bytes()
    ends = ends_of(data)
    assert len(ends) == len(states) - 1
    for cut in range(len(data) + 1):
        journal.write_bytes(data[:cut])
        entries = saved_overlay.read_entries(journal)
        assert len(entries) == sum(end <= cut for end in ends)
        assert journal.stat().st_size == ([len(saved_overlay.MAGIC), *ends])[len(entries)]


def test_cut_hundreds_of_times_it_loads_to_the_last_whole_record(saved):
    """Three hundred crashes at random bytes, the very first ones among them, each loaded in full."""
    place, states = saved
    journal = journal_of(place)
    data = journal.read_bytes()
    ends, rng = ends_of(data), random.Random(0)
    for cut in [0, 7, 19, 20, *(rng.randrange(len(data)) for _ in range(296))]:
        journal.write_bytes(data[:cut])
        with bl.Live.load(place) as live:
            assert state_of(live) == states[sum(end <= cut for end in ends)]


def test_zeros_at_the_end_are_cut_but_damage_before_it_is_told(saved):
    """A file system may leave zeros after a crash. A change that was acknowledged never goes in silence."""
    place, states = saved
    journal = journal_of(place)
    data = journal.read_bytes()
    journal.write_bytes(data + bytes(100))
    with bl.Live.load(place) as live:
        assert state_of(live) == states[-1]
    spoiled = bytearray(data)
    spoiled[len(saved_overlay.MAGIC) + 12] ^= 1
    journal.write_bytes(spoiled)
    with pytest.raises(InputError, match="is damaged at byte 20, before its end"):
        bl.Live.load(place)
    journal.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        bl.Live.load(place)


class KilledError(BaseException):
    """Stands for a kill: nothing after it is done."""


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("step", ["begin", "write_state", "new_folder", "go_on"])
def test_killed_anywhere_in_a_save_every_change_is_there(saved, monkeypatch, step, overwrite):
    """The old state with its journal, or the new one with its own: never one without the other's changes."""
    place, states = saved
    live = bl.Live.load(place)

    def die(*_, **__):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(saved_overlay.OverlayJournal, "go_on", die)  # a process that is dead cleans nothing up
        if step != "go_on":
            patch.setattr(saved_overlay.OverlayJournal if step == "begin" else saved_overlay, step, die)
        with pytest.raises(KilledError):
            live.save(overwrite=overwrite)
    live._journal.close()
    with bl.Live.load(place) as again:
        assert state_of(again) == states[-1]
        assert len(saved_overlay.journals_in(place)) == 1, "no litter stays"


def full(*_, **__):
    """A disk without room."""
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("place", ["live", "other"])
def test_a_save_that_fails_keeps_the_journal_on(saved, tmp_path, monkeypatch, place):
    """Into its own folder or another: what changes afterwards is kept, and no lock stays behind."""
    home, _ = saved
    live = bl.Live.load(home)
    with monkeypatch.context() as patch:
        patch.setattr(saved_overlay, "write_state", full)
        with pytest.raises((InputError, StorageError), match=r"cannot write .*No space left"):
            live.save(tmp_path / place, overwrite=True)
    live.leave(live.named("somebody"))
    after = state_of(live)
    live.close()
    with bl.Live.load(home) as again:
        assert state_of(again) == after
        again.save(tmp_path / "other")
        again.join([0])
        moved = state_of(again)
    with bl.Live.load(tmp_path / "other") as there, bl.Live.load(home) as left:
        assert state_of(there) == moved
        assert state_of(left) == after, "what is saved elsewhere is kept there"


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'letters\.txt', which is not part of a live overlay"):
        bl.maintain(INTEREST).save(tmp_path)
    with pytest.raises(InputError, match="is a file; choose a folder"):
        bl.maintain(INTEREST).save(tmp_path / "letters.txt")


def test_a_refused_join_leaves_no_topic_behind(tmp_path):
    """Topics are made by changes that happen, so that the journal of those makes the same ones."""
    places = bl.Weights.euclidean([[0.0], [1.0], [2.0]])
    live = bl.maintain(bl.Interest.from_lists([["a", "b"], ["b"], ["a"]]), places)
    live.save(tmp_path / "live")
    with pytest.raises(InputError, match="give its point"):
        live.join(["ghost"], at=None)
    live.apply([(0, "unsubscribe", 0, ["nobody's"])])
    assert live.topic_ids == ("a", "b")
    live.join(["c"], at=[5.0])
    live.join([2], at=[6.0])
    live.close()
    with bl.Live.load(tmp_path / "live") as again:
        assert state_of(again) == state_of(live)


def test_named_sites_and_weights_to_every_node_come_back(tmp_path):
    """A new site is new after loading too; what is given for nodes that are not there does no harm."""
    named = bl.maintain(INTEREST, bl.Weights.sites([0] * 15 + [1] * 15), sites=["fra", "nyc"])
    named.save(tmp_path / "sites")
    for at in ("nyc", "sin", "sin", 0):
        named.join([1, 2], at=at)
    assert named.site_ids == ("fra", "nyc", "sin")
    with pytest.raises(InputError, match="sites are 0 to 2"):
        named.join([1], at=3)
    matrix = 1 + abs(np.subtract.outer(np.arange(30), np.arange(30)))
    dense = bl.maintain(INTEREST, bl.Weights.dense(matrix))
    dense.save(tmp_path / "dense")
    dense.join([1, 2], at=dict.fromkeys(range(30), 2.5) | {"nobody": 1.0})
    for live, folder in ((named, "sites"), (dense, "dense")):
        live.close()
        with bl.Live.load(tmp_path / folder) as again:
            assert state_of(again) == state_of(live)
            assert again.plan().weights == live.plan().weights
            assert again.site_ids == live.site_ids


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

    with monkeypatch.context() as patch:
        patch.setattr(saved_overlay.os, "fsync", full)
        with pytest.raises(StorageError, match="could not be written: No space left"):
            live.leave(live.named("somebody"))
    with pytest.raises(StorageError, match="load it again"):
        live.join([0])
    live.close()
    with bl.Live.load(place) as again:
        assert state_of(again) == states[-1]


def test_nothing_and_nonsense_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be opened"):
        bl.Live.load(tmp_path / "nowhere")
    (tmp_path / saved_overlay.STATE).mkdir()
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
    data = journal_of(place).read_bytes()
    assert data.startswith(b"broadloom journal 1\n")
    number, requests, _ = json.loads(record_file.record_at(data, len(saved_overlay.MAGIC)))
    assert number == 0
    assert requests[0][0] in ("join", "leave", "subscribe", "unsubscribe")
    assert len(data) < 10_000
