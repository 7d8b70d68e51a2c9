"""Saved overlays: no acknowledged change is lost or applied twice, wherever a process dies."""

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
    """The whole state of a live overlay, for comparisons."""
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
    """The folder of a live overlay, with a saved state and a journal of changes, and the state after each."""
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


def test_loading_restores_the_last_change(saved):
    path, states = saved
    with bl.Live.load(path) as live:
        assert state_of(live) == states[-1]
        live.save()
        assert live.leave(live.named("somebody")).kind == "leave"
        after = state_of(live)
    assert state_of(bl.Live.load(path)) == after


def journal_of(path):
    """The path of the only journal in a folder."""
    [journal] = saved_overlay.journals_in(path)
    return journal


def ends_of(data):
    """The positions at which the records of a journal end."""
    ends, position = [], len(saved_overlay.MAGIC)
    while (record := record_file.record_at(data, position)) is not None:
        position += record_file.HEAD.size + len(record)
        ends.append(position)
    return ends


def test_a_journal_truncated_at_any_byte_is_read_up_to_the_last_whole_record(saved):
    """A crash can truncate the last record at any byte; the test truncates the journal at every byte."""
    journal, states = journal_of(saved[0]), saved[1]
    data = journal.read_bytes()
    ends = ends_of(data)
    assert len(ends) == len(states) - 1
    for cut in range(len(data) + 1):
        journal.write_bytes(data[:cut])
        entries = saved_overlay.read_entries(journal)
        assert len(entries) == sum(end <= cut for end in ends)
        assert journal.stat().st_size == ([len(saved_overlay.MAGIC), *ends])[len(entries)]


def test_a_truncated_journal_loads_the_state_of_the_last_whole_record(saved):
    """Three hundred truncations, at random bytes and within the first bytes, each loaded in full."""
    path, states = saved
    journal = journal_of(path)
    data = journal.read_bytes()
    ends, rng = ends_of(data), random.Random(0)
    for cut in [0, 7, 19, 20, *(rng.randrange(len(data)) for _ in range(296))]:
        journal.write_bytes(data[:cut])
        with bl.Live.load(path) as live:
            assert state_of(live) == states[sum(end <= cut for end in ends)]


def test_zeros_at_the_end_are_removed_but_earlier_damage_is_an_error(saved):
    """A file system can leave zeros after a crash. An acknowledged change is never dropped silently."""
    path, states = saved
    journal = journal_of(path)
    data = journal.read_bytes()
    journal.write_bytes(data + bytes(100))
    with bl.Live.load(path) as live:
        assert state_of(live) == states[-1]
    damaged = bytearray(data)
    damaged[len(saved_overlay.MAGIC) + 12] ^= 1
    journal.write_bytes(damaged)
    with pytest.raises(InputError, match="is damaged at byte 20, before its end"):
        bl.Live.load(path)
    journal.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        bl.Live.load(path)


class KilledError(BaseException):
    """A simulated kill; no `except Exception` handles it."""


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("step", ["begin", "write_state", "new_folder", "go_on"])
def test_a_kill_at_any_step_of_a_save_loses_no_change(saved, monkeypatch, step, overwrite):
    """Either the old state is loaded with its journal, or the new state with its journal."""
    path, states = saved
    live = bl.Live.load(path)

    def die(*_, **__):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(saved_overlay.OverlayJournal, "go_on", die)  # a killed process does not clean up
        if step != "go_on":
            patch.setattr(saved_overlay.OverlayJournal if step == "begin" else saved_overlay, step, die)
        with pytest.raises(KilledError):
            live.save(overwrite=overwrite)
    live._journal.close()
    with bl.Live.load(path) as again:
        assert state_of(again) == states[-1]
        assert len(saved_overlay.journals_in(path)) == 1, "no old journal remains"


def disk_full(*_, **__):
    """A system call on a full disk."""
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("folder", ["live", "other"])
def test_after_a_failed_save_the_journal_continues(saved, tmp_path, monkeypatch, folder):
    """In the same folder or another one: later changes are kept, and no lock remains."""
    path, _ = saved
    live = bl.Live.load(path)
    with monkeypatch.context() as patch:
        patch.setattr(saved_overlay, "write_state", disk_full)
        with pytest.raises(StorageError, match=r"cannot write .*No space left"):
            live.save(tmp_path / folder, overwrite=True)
    live.leave(live.named("somebody"))
    after = state_of(live)
    live.close()
    with bl.Live.load(path) as again:
        assert state_of(again) == after
        again.save(tmp_path / "other")
        again.join([0])
        moved = state_of(again)
    with bl.Live.load(tmp_path / "other") as other, bl.Live.load(path) as old:
        assert state_of(other) == moved
        assert state_of(old) == after, "changes after a save to another folder are kept only there"


def test_a_folder_with_other_files_and_a_file_are_refused(tmp_path):
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'letters\.txt', which is not part of a live overlay"):
        bl.maintain(INTEREST).save(tmp_path)
    with pytest.raises(InputError, match="is a file; choose a folder"):
        bl.maintain(INTEREST).save(tmp_path / "letters.txt")


def test_a_refused_join_creates_no_topic(tmp_path):
    """Only applied changes create topics, so that the journal creates the same topics again."""
    weights = bl.Weights.euclidean([[0.0], [1.0], [2.0]])
    live = bl.maintain(bl.Interest.from_lists([["a", "b"], ["b"], ["a"]]), weights)
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


def test_loading_restores_named_sites_and_dense_weights(tmp_path):
    """Also sites that joins created; weights to unknown nodes are ignored."""
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


def test_an_open_overlay_cannot_be_loaded_again(saved):
    path, _ = saved
    with bl.Live.load(path), pytest.raises(InputError, match="is open already"):
        bl.Live.load(path)


def test_another_overlay_is_overwritten_only_on_request(saved):
    path, _ = saved
    other = bl.maintain(INTEREST)
    with pytest.raises(InputError, match="holds a live overlay already"):
        other.save(path)
    other.save(path, overwrite=True)
    other.close()
    assert bl.Live.load(path).counts.total() == 0
    with pytest.raises(InputError, match="give a path"):
        bl.maintain(INTEREST).save()


def test_a_full_disk_refuses_further_changes(saved, monkeypatch):
    """A change that cannot be written is not acknowledged, and the overlay must be loaded again."""
    path, states = saved
    live = bl.Live.load(path)
    with monkeypatch.context() as patch:
        patch.setattr(saved_overlay.os, "fsync", disk_full)
        with pytest.raises(StorageError, match="could not be written: No space left"):
            live.leave(live.named("somebody"))
    with pytest.raises(StorageError, match="load it again"):
        live.join([0])
    live.close()
    with bl.Live.load(path) as again:
        assert state_of(again) == states[-1]


def test_a_missing_folder_and_a_folder_without_a_state_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be opened"):
        bl.Live.load(tmp_path / "nowhere")
    (tmp_path / saved_overlay.STATE).mkdir()
    with pytest.raises(InputError, match="holds no live overlay"):
        bl.Live.load(tmp_path)


def test_loading_restores_weights_and_options(tmp_path):
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
    """A process is killed while it loads, changes or saves; the result is that of a run without kills."""
    script = Path(__file__).parents[2] / "benchmarks" / "_kills.py"
    done = subprocess.run([sys.executable, script, tmp_path, "100", "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert (counts["lost"], counts["twice"]) == (0, 0)
    assert counts["same_as_without_kills"]
    assert counts["changes"] > 100


def test_the_journal_is_a_first_line_and_records_of_json(saved):
    """A record is a length, a checksum and a JSON text."""
    path, _ = saved
    data = journal_of(path).read_bytes()
    assert data.startswith(b"broadloom journal 1\n")
    number, requests, _ = json.loads(record_file.record_at(data, len(saved_overlay.MAGIC)))
    assert number == 0
    assert requests[0][0] in ("join", "leave", "subscribe", "unsubscribe")
    assert len(data) < 10_000
