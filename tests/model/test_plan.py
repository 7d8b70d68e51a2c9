"""Plans: saved atomically, and loaded as they were saved."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings

import broadloom as bl
from broadloom import InputError, Interest, InternalError, Overlay, Plan, StorageError, Weights
from broadloom.storage import folders, new_folder
from broadloom.storage import tables as stored_tables
from strategies import instances


@given(instances())
@settings(max_examples=40, deadline=None)
def test_a_loaded_plan_equals_the_saved_one(tmp_path_factory, instance):
    """For every kind of weights and every shape, the loaded plan and its metrics equal the saved ones."""
    plan = bl.link(*instance, algorithm="gm")
    path = tmp_path_factory.mktemp("plans") / "plan"
    plan.save(path)
    loaded = Plan.load(path)
    assert loaded.interest == plan.interest
    assert loaded.overlay == plan.overlay
    assert np.array_equal(loaded.weights.matrix(), plan.weights.matrix())
    assert loaded.metrics() == plan.metrics()
    assert (loaded.algorithm, loaded.seed, loaded.options) == ("gm", 0, plan.options)


def test_the_same_plan_gives_the_same_bytes(tmp_path):
    plan = _plan()
    plan.save(tmp_path / "one")
    plan.save(tmp_path / "two")
    for file in sorted((tmp_path / "one").iterdir()):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


def test_nodes_keep_their_further_columns(tmp_path):
    nodes = pa.table({"node": ["0", "1"], "site": ["paris", "tokyo"]})
    interest = Interest.from_lists([[0], [0]])
    plan = Plan(interest, Weights.uniform(2), Overlay.from_edges(2, [(0, 1)]), "gm", nodes=nodes)
    plan.save(tmp_path / "plan")
    assert Plan.load(tmp_path / "plan").nodes.column("site").to_pylist() == ["paris", "tokyo"]


def test_a_plan_is_overwritten_only_on_request(tmp_path):
    plan = _plan()
    plan.save(tmp_path / "plan")
    with pytest.raises(InputError, match="exists already"):
        plan.save(tmp_path / "plan")
    plan.save(tmp_path / "plan", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["plan"]


def test_a_plan_that_disconnects_a_topic_is_not_saved(tmp_path):
    plan = _disconnected_plan()
    with pytest.raises(InputError, match="disconnected"):
        plan.save(tmp_path / "plan")
    assert not list(tmp_path.iterdir())


def test_verify_raises_an_internal_error():
    """A broken promise of an algorithm is a bug, not bad input."""
    _plan().verify()
    with pytest.raises(InternalError, match="none: the plan leaves a topic disconnected; please report this"):
        _disconnected_plan().verify()


def test_a_full_disk_is_a_storage_error(tmp_path, monkeypatch):
    """The old plan stays, and no scratch folder is left behind."""
    path = tmp_path / "plan"
    _plan().save(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored_tables, "write_table", full)
    with pytest.raises(StorageError, match=f"cannot write {path}: No space left on device"):
        _plan().save(path, overwrite=True)
    assert list(tmp_path.iterdir()) == [path]
    assert Plan.load(path).overlay == _plan().overlay


def test_a_folder_below_a_file_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write to"):
        _plan().save(tmp_path / "file" / "plan")


SLOW_SAVE = """
import sys, time
import broadloom.storage.tables as module
from broadloom import Interest, link
write = module.write_table
def slowly(folder, name, table):
    write(folder, name, table)
    print(name, flush=True)
    time.sleep(0.2)
module.write_table = slowly
link(Interest.from_lists([[0], [0], [0]]), algorithm="gm").save(sys.argv[1], overwrite=True)
"""


@pytest.mark.parametrize("tables_written", [1, 3, 5])
def test_a_process_killed_while_saving_leaves_the_old_plan(tmp_path, tables_written):
    """A reader sees the last good plan; the next save removes the files of the killed process."""
    path = tmp_path / "plan"
    _plan().save(path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    process = subprocess.Popen([sys.executable, "-c", SLOW_SAVE, path], stdout=subprocess.PIPE)
    for _ in range(tables_written):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert len(list(tmp_path.iterdir())) == 2
    Plan.load(path).save(path, overwrite=True)
    assert list(tmp_path.iterdir()) == [path]


def test_readers_never_see_an_incomplete_plan(tmp_path):
    """While one process saves repeatedly, every load gives a complete plan."""
    path = tmp_path / "plan"
    _plan().save(path)
    code = SLOW_SAVE.replace("time.sleep(0.2)", "").replace("link(", "for _ in range(60): link(")
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.DEVNULL)
    loads = 0
    while process.poll() is None:
        assert Plan.load(path).algorithm == "gm"
        loads += 1
    assert process.returncode == 0
    assert loads > 3


def _edit(**fields):
    """Damage that changes fields of plan.json."""

    def damage(path):
        record = json.loads((path / "plan.json").read_text())
        (path / "plan.json").write_text(json.dumps(record | fields))

    return damage


def _reverse(name):
    def damage(path):
        table = pa.parquet.read_table(path / name)
        pa.parquet.write_table(table.take(list(range(table.num_rows))[::-1]), path / name)

    return damage


DAMAGE = {
    "format as text": (_edit(format="one"), "'format' is missing or wrong"),
    "no such format": (_edit(format=0), "has format 0"),
    "no options": (_edit(options=None), "'options' is missing or wrong"),
    "no weights": (_edit(weights="dense"), "'weights' is missing or wrong"),
    "no such weights": (_edit(weights={"kind": "hyper"}), "the weights of the plan are damaged"),
    "other weights": (_edit(weights={"kind": "dense"}), "the weights of the plan are damaged"),
    "bound as text": (_edit(lower_bound="low"), "'lower_bound' is missing or wrong"),
    "nodes in another order": (_reverse("nodes.parquet"), "in another order"),
    "no plan": (
        lambda path: (path / "plan.json").unlink(),
        "is not a plan: it has no plan.json; give a folder that",
    ),
    "truncated": (lambda path: (path / "plan.json").write_text('{"format"'), "cannot be read"),
    "not ours": (lambda path: (path / "plan.json").write_text("[]"), "is not a plan's record"),
    "newer": (
        lambda path: (path / "plan.json").write_text(
            (path / "plan.json").read_text().replace('"format": 1', '"format": 9')
        ),
        "has format 9, this version reads 1 to 1",
    ),
    "no edges": (lambda path: (path / "edges.parquet").unlink(), "expected edges.parquet or edges.csv"),
    "truncated table": (
        lambda path: (path / "edges.parquet").write_bytes((path / "edges.parquet").read_bytes()[:40]),
        "edges.parquet cannot be read",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_plan_is_refused(tmp_path, damage, message):
    _plan().save(tmp_path / "plan")
    damage(tmp_path / "plan")
    with pytest.raises(InputError) as caught:
        Plan.load(tmp_path / "plan")
    assert message in str(caught.value)


def test_the_gap_is_relative_to_the_bound():
    plan = _plan()
    assert plan.gap is None
    certified = Plan(plan.interest, plan.weights, plan.overlay, "gm", lower_bound=1.6)
    assert certified.gap == pytest.approx(0.25)
    assert "at most 25.0% above the best possible" in certified.summary()


def test_the_nodes_table_must_match_the_interest():
    """In another order, the rows would give weights and sites to the wrong nodes."""
    plan = _plan()
    with pytest.raises(InputError, match="in another order"):
        replace(plan, nodes=pa.table({"node": ["2", "1", "0"]}))


def test_numpy_numbers_are_saved(tmp_path):
    plan = replace(
        _plan(), seed=np.int64(3), options={"k": np.int64(2)}, notes={"seen": np.arange(2), "x": np.nan}
    )
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert (loaded.seed, dict(loaded.options), dict(loaded.notes)) == (
        3,
        {"k": 2},
        {"seen": [0, 1], "x": None},
    )


def test_a_plan_can_be_pickled():
    """A pickled copy is equal and still read-only; Spark pickles plans."""
    plan = pickle.loads(pickle.dumps(_plan()))
    assert plan.overlay == _plan().overlay
    with pytest.raises(TypeError):
        plan.options["k"] = 1


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -1.0])
def test_a_bound_is_a_number(bound):
    with pytest.raises(InputError, match="the lower bound is"):
        replace(_plan(), lower_bound=bound)


def test_only_our_own_folders_are_replaced(tmp_path):
    """A folder with other files is never replaced, nor is a file; a symbolic link is followed."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years")
    with pytest.raises(InputError, match=r"holds 'thesis.txt', which is not Broadloom's"):
        _plan().save(tmp_path / "precious", overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        _plan().save(tmp_path / "file", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    _plan().save(tmp_path / "link")
    _plan().save(tmp_path / "link", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link", "precious", "real"]
    assert (tmp_path / "link").is_symlink()


def test_a_live_scratch_folder_is_left_alone(tmp_path):
    """The scratch folder of another writer is locked, so it is not removed."""
    with new_folder(tmp_path / "plan") as scratch:
        _plan().save(tmp_path / "plan")
        assert scratch.is_dir()
        (scratch / "x.json").write_text("{}")
        shutil.rmtree(tmp_path / "plan")
    assert (tmp_path / "plan" / "x.json").exists()


def test_without_an_atomic_exchange_two_renames_replace_the_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    for _ in range(2):
        _plan().save(tmp_path / "plan", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["plan"]


def test_sizes_must_agree():
    with pytest.raises(InputError, match="3 nodes but the weights 2"):
        Plan(_plan().interest, Weights.uniform(2), _plan().overlay, "gm")


def _disconnected_plan() -> Plan:
    return Plan(Interest.from_lists([[0], [0]]), Weights.uniform(2), Overlay.from_edges(2, []), "none")


def _plan() -> Plan:
    return bl.link(Interest.from_lists([[0], [0, 1], [1]]), algorithm="gm")
