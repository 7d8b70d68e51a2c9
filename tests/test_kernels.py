"""Kernels: plain Python and compiled code give the same result, and the cache on disk never breaks a run."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.caching import IndexDataCacheFile
from numba.core.cpu import CPUTargetOptions

import broadloom as bl
from broadloom.kernels import group_by, jit, lowest, popcount
from broadloom.linking import greedy_overlays, topic_trees
from broadloom.measures import sub_overlays
from broadloom.progress import Silent, watched_by
from strategies import instances

WORDS = st.integers(0, 2**64 - 1).map(np.uint64)


def in_mode(mode: str, function):
    """Call a function with all kernels compiled, or all as plain Python."""
    before = jit.MODE
    jit.MODE = mode
    try:
        return function()
    finally:
        jit.MODE = before


def outcome(function):
    """The result of a call, or the message of its error."""
    try:
        return function()
    except bl.InputError as error:
        return str(error)


def same_both_ways(function):
    """Check that a function gives the same result with compiled kernels and with plain Python."""
    compiled, plain = (in_mode(mode, lambda: outcome(function)) for mode in ("compiled", "plain"))
    assert compiled == plain
    return plain


def plan_record(plan: bl.Plan) -> list[object]:
    """Everything that a plan computes, bit for bit."""
    return [plan.edges.tolist(), plan.lower_bound, plan.metrics(), plan.notes]


@given(instance=instances(), seed=st.integers(0, 3), ties=st.sampled_from(["smallest", "random"]))
@settings(max_examples=20)
@pytest.mark.parametrize("algorithm", bl.algorithms("link"), ids=lambda row: row["name"])
def test_every_link_algorithm_is_the_same_in_plain_python(algorithm, instance, seed, ties):
    """Same edges, bounds and metrics, bit for bit."""
    options = {"ties": ties} if "ties" in algorithm["options"] else {}
    same_both_ways(lambda: plan_record(bl.link(*instance, algorithm["name"], seed, **options)))


@given(instance=instances())
@settings(max_examples=15)
def test_improvement_bounds_and_measures_are_the_same_in_plain_python(instance):
    """Also the functions that take a plan."""
    interest, weights = instance
    plan = bl.link(interest, weights, "grmaw")
    same_both_ways(lambda: plan_record(bl.improve(plan)))
    same_both_ways(lambda: bl.lower_bound(interest, weights))
    same_both_ways(lambda: plan_record(bl.link(interest, weights, "gm", previous=plan)))
    same_both_ways(lambda: bl.measures.link_loads(interest, plan.overlay).tolist())
    weak = same_both_ways(lambda: [part.tolist() for part in bl.measures.weak_points(interest, plan.overlay)])
    assert weak


@pytest.mark.parametrize("algorithm", [row["name"] for row in bl.algorithms("maintain")])
@pytest.mark.parametrize("weighted", [False, True])
def test_maintenance_is_the_same_in_plain_python(algorithm, weighted):
    """The same links after the same joins, leaves and changes of subscriptions."""
    interest = bl.workload.interest(nodes=12, topics=8, sizes=(1, 4), seed=1)
    weights = bl.workload.weights(nodes=12, kind="planar", seed=1) if weighted else None

    def run():
        live = bl.maintain(interest, weights, algorithm=algorithm)
        for step in range(12):
            at = (0.1 * step + 0.013, 0.3) if weighted else None
            live.join([step % 8, (step + 3) % 8], at=at)
            live.leave(step)
            live.resubscribe(12, [step % 8])
        live.rebaseline()
        return [live.edges.tolist(), live.metrics()]

    same_both_ways(run)


@pytest.mark.parametrize(
    "algorithm",
    [row["name"] for row in bl.algorithms("assign") if row["problem"] == "AssignmentProblem"],
)
def test_every_subscriber_assignment_is_the_same_in_plain_python(algorithm):
    """The same brokers, filters and metrics."""
    problem = bl.workload.subscribers(set=2, subscribers=25, brokers=4, geography=0, seed=2)

    def run():
        result = bl.assign(problem, algorithm)
        metrics = {name: value for name, value in result.metrics().items() if name != "seconds"}
        return [result.broker_of.tolist(), repr(result.filters), result.lower_bound, metrics]

    same_both_ways(run)


@given(users=st.integers(1, 40), brokers=st.integers(1, 8), seed=st.integers(0, 5))
@settings(max_examples=5)
@pytest.mark.parametrize(
    "algorithm", [row["name"] for row in bl.algorithms("assign") if row["problem"] == "MarketProblem"]
)
def test_every_market_algorithm_is_the_same_in_plain_python(algorithm, users, brokers, seed):
    """The same brokers, bounds and costs, bit for bit."""
    problem = bl.workload.market(users=users, brokers=brokers, channels=4, seed=seed)

    def run():
        result = bl.assign(problem, algorithm)
        return [result.broker_of.tolist(), result.lower_bound, result.metrics()]

    same_both_ways(run)


@given(word=WORDS)
def test_bit_counts_are_those_of_python(word):
    """The pattern that becomes one instruction, and the plain version."""
    with np.errstate(over="ignore"):
        assert popcount(word) == popcount.function(word) == popcount.dispatcher.py_func(word)
        assert lowest(word) == lowest.function(word)
    assert popcount(word) == bin(int(word)).count("1")
    assert lowest(word) == next((i for i in range(64) if int(word) >> i & 1), 64)


@given(keys=st.lists(st.integers(0, 6), max_size=20))
def test_grouping_equals_a_stable_sort(keys):
    """Compared with NumPy's stable argsort."""
    array = np.array(keys, np.int32)
    for mode in ("compiled", "plain"):
        start, order = in_mode(mode, lambda: group_by(array, 7))
        assert order.tolist() == np.argsort(array, kind="stable").tolist()
        assert start.tolist() == [sum(key < group for key in keys) for group in range(8)]


@given(instance=instances(), choices=st.randoms(use_true_random=False))
@settings(max_examples=10)
@pytest.mark.parametrize("algorithm", ["broadloom", "gm", "grmaw", "pdrdmaw", "low-oda", "cd-oda-2"])
def test_kernels_can_mix_plain_python_and_compiled_code(algorithm, instance, choices):
    """Each call of a kernel chooses anew, as in a run in which some kernels are on disk."""

    def call(self, *arguments):
        if jit._thread.runs_plain_python or choices.random() < 0.5:
            return self.function(*arguments)
        return self.dispatcher(*arguments)

    expected = in_mode("compiled", lambda: plan_record(bl.link(*instance, algorithm)))
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(jit.Kernel, "__call__", call)
        assert plan_record(bl.link(*instance, algorithm)) == expected


def test_the_work_of_pairs_counts(monkeypatch):
    """Many nodes of one topic have small arrays and much work, which must not run as plain Python."""
    asked = []
    monkeypatch.setattr(jit, "MODE", "auto")
    monkeypatch.setattr(jit, "_plain_seconds", 0.0)
    monkeypatch.setattr(jit, "_kernels_on_disk", frozenset)
    monkeypatch.setattr(jit, "numba_is_loaded", lambda: False)
    is_small = jit.Kernel._is_small

    def recorded(self, arguments):
        small = is_small(self, arguments)
        asked.append((self.__name__, small))
        return small

    monkeypatch.setattr(jit.Kernel, "_is_small", recorded)
    for kernel in (topic_trees._spanning_tree, greedy_overlays._collect_keys, sub_overlays._diameters):
        monkeypatch.setattr(kernel, "is_compiled", False)
    interest = bl.Interest.from_lists([["all"]] * 2500)
    bl.link(interest, bl.workload.weights(nodes=2500, kind="planar", seed=0), "trmaw")
    plan = bl.link(interest, bl.workload.weights(nodes=2500, kind="planar", seed=0), "grmaw")
    bl.measures.topic_diameters(interest, plan.overlay)
    for name in ("_spanning_tree", "_collect_keys", "_diameters"):
        assert (name, False) in asked
        assert (name, True) not in asked


def test_small_calls_run_as_plain_python_and_large_ones_compiled(monkeypatch):
    """By the number of array elements, times the kernel's cost; and by the time of all plain calls."""
    monkeypatch.setattr(jit, "MODE", "auto")
    monkeypatch.setattr(jit, "_plain_seconds", 0.0)
    monkeypatch.setattr(jit, "_kernels_on_disk", lambda: frozenset({"test_kernels._total"}))
    monkeypatch.setattr(jit, "numba_is_loaded", lambda: False)
    runs_plain = jit.Kernel(_total)
    small = np.zeros(jit.WARM_LIMITS.work)
    assert runs_plain((small, 1)) == 0
    assert not runs_plain.is_compiled
    assert jit.Kernel(_total, cost=2)._is_small(((small[1:], 1),)) is False
    monkeypatch.setattr(jit, "_kernels_on_disk", frozenset)
    assert jit.Kernel(_total, cost=2)._is_small(((small[1:], 1),))  # compiling would take longer
    assert runs_plain((np.zeros(jit.COLD_LIMITS.work + 1), 1)) == 0
    assert runs_plain.is_compiled
    monkeypatch.setattr(jit, "_plain_seconds", jit.COLD_LIMITS.seconds + 1)
    assert jit.Kernel(_total)._is_small(((small, 1),)) is False


def _total(arrays):
    return arrays[0].sum()


def run_python(
    code: str, cache: Path, mode: str = "compiled", **settings: str
) -> subprocess.CompletedProcess:
    """Run code in a process of its own, with its own folder for compiled kernels."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "BROADLOOM_KERNELS": mode} | settings
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


def test_a_change_in_one_file_compiles_the_kernels_of_all_anew(tmp_path):
    """Kernels are compiled into one another, which numba does not check."""
    package = tmp_path / "broadloom"
    (package / "kernels").mkdir(parents=True)
    source = Path(jit.__file__).parents[1]
    for file in ("kernels/jit.py", "errors.py", "progress.py", "folder_locks.py"):
        (package / file).write_text((source / file).read_text())
    (package / "kernels" / "__init__.py").write_text("from broadloom.kernels.jit import kernel\n")
    (package / "__init__.py").touch()
    constant = package / "inner.py"
    (package / "outer.py").write_text(
        "from broadloom.kernels import kernel\nfrom broadloom.inner import inner\n\n"
        "@kernel\ndef outer():\n    return inner()\n\nprint(outer())\n"
    )
    for value in (1, 2):
        constant.write_text(
            f"from broadloom.kernels import kernel\n\n@kernel\ndef inner():\n    return {value}\n"
        )
        # -B: two files of one size, written in one second, look the same to Python's own cache of bytecode.
        command = [sys.executable, "-B", "-c", "import broadloom.outer"]
        environment = {"PATH": "", "BROADLOOM_KERNELS": "compiled"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.stdout == f"{value}\n", done.stderr
        folders = list((package / "__pycache__").glob("kernels-*"))
        assert len(folders) == 1, "folders of earlier versions are removed"


def test_every_file_with_kernels_is_in_the_stamp():
    """A kernel file that does not name `broadloom.kernels` would not be compiled anew after a change."""
    for file in Path(bl.__file__).parent.rglob("*.py"):
        text = file.read_text()
        if re.search(r"@(inner_)?kernel\b|compiled_for\(", text):
            assert "broadloom.kernels" in text, file


def test_kernels_are_saved_under_a_lock(tmp_path, monkeypatch):
    """Numba saves in two steps; between them another process must not use the same file name."""
    held = []
    locked = jit._locked

    @contextmanager
    def recorded(folder):
        with locked(folder):
            held.append(folder)
            yield
            held.remove(folder)

    save = IndexDataCacheFile.save
    saved = []

    def checked(self, key, data):
        assert held == [tmp_path], "saved without the lock"
        saved.append(key)
        save(self, key, data)

    monkeypatch.setattr(jit, "_locked", recorded)
    monkeypatch.setattr(jit, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(IndexDataCacheFile, "save", checked)
    monkeypatch.setattr(jit, "MODE", "compiled")
    kernel = jit.Kernel(_total)
    before = jit.compiled_count()
    assert kernel((np.ones(2), 1)) == 2
    assert kernel((np.ones(2, np.int8), 1)) == 2
    assert jit.compiled_count() == before + 2
    assert len(saved) == 2
    assert not held, "the lock is released"
    assert jit._compilation.saving is None
    assert jit._compilation.shown is None


def test_numba_still_has_the_options_that_we_use():
    """A new version of numba must know the private options of kernels."""
    options = {*jit.OPTIONS, *jit.INNER_OPTIONS}
    assert not [option for option in options if not hasattr(CPUTargetOptions, option)]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    """Kernels are compiled for the process; `compile_kernels` says what is wrong."""
    file = tmp_path / "file"
    file.touch()
    code = (
        "import numpy as np; from broadloom.kernels import group_by; print(group_by(np.zeros(3, 'i4'), 1)[0])"
    )
    done = run_python(code, file / "cache")
    assert done.stdout == "[0 3]\n", done.stderr
    code = "import broadloom as bl\ntry: bl.compile_kernels()\nexcept bl.StorageError as error: print(error)"
    assert "cannot be written; set NUMBA_CACHE_DIR" in run_python(code, file / "cache").stdout
    code = code.replace("StorageError", "InputError")
    assert "KERNEL_CACHE is 0" in run_python(code, tmp_path, BROADLOOM_KERNEL_CACHE="0").stdout


def test_kernels_of_another_user_are_copied(tmp_path, monkeypatch):
    """Numba reads only folders that it can write; the copy is for this process alone."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "shared"))
    monkeypatch.setattr(jit, "_temporary", None)
    jit._cache_folder.cache_clear()
    try:
        shared = jit._cache_folder()
        assert shared.is_relative_to(tmp_path / "shared")
        (shared / "total.nbi").write_text("machine code")
        assert jit.folder_of_kernels() == shared
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: path != shared and access(path, mode))
        jit._cache_folder.cache_clear()
        copied = jit._cache_folder()
        assert copied != shared
        assert (copied / "total.nbi").read_text() == "machine code"
        with pytest.raises(bl.StorageError, match="cannot be written; set NUMBA_CACHE_DIR"):
            jit.folder_of_kernels()
        jit._temporary.cleanup()
    finally:
        jit._cache_folder.cache_clear()


def test_a_wrong_setting_is_refused(tmp_path):
    """Instead of being ignored."""
    done = run_python("import broadloom as bl; bl.Interest", tmp_path, mode="fast")
    assert "BROADLOOM_KERNELS is 'fast'; set it to auto, compiled or plain" in done.stderr


def test_the_user_is_told_once_that_kernels_are_compiled(monkeypatch, capsys):
    """On a terminal; and not under a silent watcher."""
    monkeypatch.setattr(jit._Compilation, "count", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(jit, "MODE", "compiled")
    monkeypatch.setattr(jit, "_cache_folder", lambda: None)
    kernel = jit.Kernel(_total)
    kernel((np.ones(2), 1))
    kernel((np.ones(2, np.int16), 1))
    assert capsys.readouterr().err.count("compiles the kernels that this needs, once") == 1
    monkeypatch.setattr(jit._Compilation, "count", 0)
    with watched_by(Silent()):
        kernel((np.ones(2, np.int32), 1))
    assert capsys.readouterr().err == ""


def test_after_compile_nothing_more_is_compiled(tmp_path):
    """`compile_kernels` covers the stages, each with larger instances than its own."""
    code = """
import json
import broadloom as bl
from broadloom.kernels import compiled_count
first = bl.compile_kernels().compiled
interest = bl.workload.interest(nodes=120, topics=60, sizes=(2, 20), seed=1)
for weights in (None, bl.workload.weights(nodes=120, kind="sites", seed=1)):
    plan = bl.link(interest, weights)
    plan.metrics()
    bl.improve(plan)
    live = bl.maintain(interest, weights, edges=plan.edges)
    live.leave(3)
    live.metrics()
    bl.Plan.load(plan.save("plan", overwrite=True) or "plan").metrics()
bl.assign(bl.workload.subscribers(set=1, subscribers=500, brokers=8, seed=1)).metrics()
bl.assign(bl.workload.market(users=200, brokers=8, channels=6, seed=1)).metrics()
print(json.dumps([first, compiled_count() - first]))
"""
    environment = os.environ | {"BROADLOOM_KERNELS": "compiled"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[1] == 0


def test_functions_of_others_are_compiled_without_a_word(monkeypatch):
    """Functions of users are neither counted nor announced, and the setting of the cache is kept."""
    import numba

    monkeypatch.setattr(jit, "MODE", "compiled")
    jit.Kernel(_total)((np.ones(2), 1))
    before = jit.compiled_count()
    assert numba.njit(lambda x: x + 1)(1) == 2
    assert jit.compiled_count() == before
    assert os.environ.get("NUMBA_CACHE_DIR", "") == numba.config.CACHE_DIR


def test_kernels_that_start_in_several_threads_are_set_up_once(tmp_path):
    """Eight threads call a kernel for the first time, at once."""
    code = """
import threading
import numpy as np
from broadloom.kernels import group_by
start, results = threading.Barrier(8), []
def call():
    start.wait()
    results.append(group_by(np.array([1, 0, 1], np.int32), 2)[1].tolist())
threads = [threading.Thread(target=call) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert results == [[1, 0, 2]] * 8, results
import numba
print(len(numba.core.event._registered["numba:compile"]), repr(numba.config.CACHE_DIR))
"""
    done = run_python(code, tmp_path / "cache")
    assert done.stdout == f"1 {str(tmp_path / 'cache')!r}\n", done.stderr
