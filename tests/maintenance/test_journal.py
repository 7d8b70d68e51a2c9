"""Saved overlays: no acknowledged change is lost or applied twice, wherever a process dies."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import broadloom as bl
from broadloom import InputError, StorageError
from broadloom.maintenance import saved_overlay
from broadloom.storage import RecordJournal, repair_journal
from damage import with_flipped_bits

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


def damage_of(path, entries):
    """The error of a journal; None: it is read, with the expected entries."""
    opened = saved_overlay.open_journal(path)
    try:
        assert opened.open(journal_of(path).name) == entries
    except InputError as error:
        return str(error)
    finally:
        opened.close()
    return None


def test_each_flipped_bit_of_a_journal_is_refused_or_harmless(tmp_path):
    """An acknowledged change is never dropped silently, not even the last one."""
    path = tmp_path / "live"
    live = bl.maintain(INTEREST)
    live.save(path)
    for event in EVENTS[:4]:
        live.apply([event])
    live.close()
    journal = journal_of(path)
    opened = saved_overlay.open_journal(path)
    entries = opened.open(journal.name)
    opened.close()
    assert len(entries) == 4
    errors = []
    for data in with_flipped_bits(journal.read_bytes()):
        journal.write_bytes(data)
        errors.append(damage_of(path, entries))
    found = [error for error in errors if error is not None]
    assert len(found) > 500
    assert all("is damaged: " in error and f"broadloom repair {journal}" in error for error in found)


def test_a_damaged_record_is_refused_with_its_position_and_repaired(saved):
    """What is before the damage is kept, and changes go on from there."""
    path, states = saved
    journal = journal_of(path)
    data = journal.read_bytes()
    assert data.count(b"somebody") == 1
    journal.write_bytes(data.replace(b"somebody", b"somebodY"))
    with pytest.raises(
        InputError, match=r"position 41 is not as it was written.*broadloom repair .*journal\.1"
    ):
        bl.Live.load(path)
    assert repair_journal(journal).lost_from == 41
    with bl.Live.load(path) as live:
        assert state_of(live) == states[-2]
        live.join(["a new topic"], name="somebody")
        assert state_of(live) == states[-1]
    with bl.Live.load(path) as live:
        assert state_of(live) == states[-1]


def test_a_shorter_or_missing_journal_is_refused(saved):
    path, _ = saved
    journal = journal_of(path)
    data = journal.read_bytes()
    for size in (0, 10, len(data) // 2, len(data) - 1):
        journal.write_bytes(data[:size])
        with pytest.raises((InputError, StorageError), match=r"is damaged|cannot be"):
            bl.Live.load(path)
    journal.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        bl.Live.load(path)


def test_a_journal_of_an_earlier_version_is_refused_unless_it_is_empty(saved):
    """To load and save an overlay with the earlier version makes its journal empty."""
    path, _ = saved
    journal = journal_of(path)
    journal.write_bytes(saved_overlay.OLD_EMPTY + b"record")
    with pytest.raises(InputError, match="earlier version of broadloom; load and save it with that version"):
        bl.Live.load(path)
    journal.write_bytes(saved_overlay.OLD_EMPTY)
    with bl.Live.load(path) as live:
        live.join([0])
        after = state_of(live)
    with bl.Live.load(path) as live:
        assert state_of(live) == after


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
        live._journal._records._database.execute("PRAGMA max_page_count = 1")
        patch.setattr(saved_overlay, "KIND", "x" * 100_000)  # a record that needs more pages
        with pytest.raises(StorageError, match=r"could not be written .*is full\); load it again"):
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


def test_the_records_of_a_journal_are_json(saved):
    """One record per change, with the number of changes before it."""
    path, states = saved
    with RecordJournal(journal_of(path)) as journal:
        records = journal.records()
    assert [record.body["number"] for record in records] == list(range(len(states) - 1))
    assert {record.kind for record in records} == {"changes"}
    assert records[0].body["requests"][0][0] in ("join", "leave", "subscribe", "unsubscribe")
