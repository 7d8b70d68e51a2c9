"""The command line: files in, files out, and errors of one line."""

import json
import os
import pty
import subprocess
import sys

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import broadloom as bl
from broadloom import Plan
from broadloom.cli import main
from broadloom.errors import missing_extra
from broadloom.model import RowLedger, TableAccount
from broadloom.storage import RecordJournal


@pytest.fixture
def tables(run, tmp_path):
    """The folder of generated tables with 40 nodes and 30 topics."""
    code, _, _ = run(
        "generate", "--nodes", 40, "--topics", 30, "--sizes", 2, 6, "-q", "-o", tmp_path / "tables"
    )
    assert code == 0
    return tmp_path / "tables"


def test_generated_tables_are_linked_verified_and_measured(run, tables, tmp_path):
    """The first session of a new user."""
    code, out, _ = run("link", tables, "-a", "gm", "-o", tmp_path / "plan")
    assert code == 0
    assert "every one of 30 topics connected" in out
    assert run("verify", tmp_path / "plan")[:2] == (0, "every one of 30 topics is connected\n")
    code, out, _ = run("measure", tmp_path / "plan", "--json")
    assert code == 0
    assert json.loads(out)["topic_connected"] is True


@pytest.mark.parametrize("kind", ["planar", "sites", "regions", "none"])
def test_tables_with_every_kind_of_weights_are_generated_and_linked(run, tmp_path, kind):
    generate = ("generate", "--nodes", 30, "--topics", 9, "--sizes", 1, 3, "--weights", kind, "--churn", 7)
    code, out, _ = run(*generate, "-o", tmp_path / "t", "--json")
    assert code == 0
    assert json.loads(out)["events"] == 7
    code, out, _ = run("link", tmp_path / "t", "-o", tmp_path / "p", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["nodes"] == 30


def test_the_same_seed_gives_the_same_bytes(run, tmp_path):
    generate = ("generate", "--nodes", 20, "--topics", 9, "--sizes", 1, 3, "--seed", 7)
    for name in ("one", "two"):
        run(*generate, "-o", tmp_path / name / "t")
        run("link", tmp_path / name / "t", "-o", tmp_path / name / "p")
    for file in (tmp_path / "one").rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "two" / file.relative_to(tmp_path / "one")).read_bytes()


def test_ids_of_csv_tables_that_look_like_numbers_stay_text(run, tmp_path):
    """Also coordinates in a CSV table are used as weights."""
    (tmp_path / "subscriptions.csv").write_text("node,topic\n01,x\n02,x\n03,y\n")
    (tmp_path / "nodes.csv").write_text("node,x,y\n01,0,0\n02,0,1\n03,4,4\n04,5,5\n")
    code, _, _ = run("link", tmp_path, "-o", tmp_path / "plan")
    assert code == 0
    plan = Plan.load(tmp_path / "plan")
    assert plan.interest.node_ids == ("01", "02", "03", "04")
    assert plan.weights.kind == "euclidean"


def test_json_prints_one_object_and_quiet_prints_nothing(run, tables, tmp_path):
    code, out, err = run("link", tables, "-o", tmp_path / "a", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["algorithm"] == "broadloom"
    assert run("link", tables, "-o", tmp_path / "b", "--quiet") == (0, "", "")


def test_a_broken_plan_exits_with_1(run, tables, tmp_path):
    """If links are removed from the table of a plan, verify names the disconnected topics."""
    run("link", tables, "-o", tmp_path / "plan")
    path = tmp_path / "plan" / "edges.parquet"
    pa.parquet.write_table(pa.parquet.read_table(path).slice(8), path)
    code, out, _ = run("verify", tmp_path / "plan", "--json")
    assert code == 1
    assert json.loads(out)["disconnected"]


def test_an_improved_plan_is_not_heavier_than_the_previous_one(run, tables, tmp_path):
    run("link", tables, "-a", "trmaw", "-o", tmp_path / "today")
    code, out, _ = run("link", tables, "--improve", "--previous", tmp_path / "today", "-o", tmp_path / "next")
    assert code == 0
    assert "links to add" in out
    assert Plan.load(tmp_path / "next").total_weight <= Plan.load(tmp_path / "today").total_weight


def test_a_plan_is_overwritten_only_with_force(run, tables, tmp_path):
    assert run("link", tables, "-o", tmp_path / "plan")[0] == 0
    code, _, err = run("link", tables, "-o", tmp_path / "plan")
    assert code == 2
    assert "exists already" in err
    assert "--force" in err
    assert run("link", tables, "-o", tmp_path / "plan", "--force")[0] == 0


def test_the_algorithms_command_lists_the_algorithms(run):
    code, out, _ = run("algorithms", "--json")
    assert code == 0
    assert "gm" in [row["name"] for row in json.loads(out)["algorithms"]]


def test_the_algorithms_command_cuts_no_name_and_no_option_short(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("algorithms")
    assert code == 0
    assert "…" not in out
    assert "seconds=None" in out


def test_the_algorithms_command_takes_a_stage(run):
    code, out, _ = run("algorithms", "maintain", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)["algorithms"]] == ["shadow", "naive"]
    code, out, err = run("algorithms", "maintian")
    assert (code, out) == (2, "")
    assert "no stage 'maintian' (did you mean 'maintain'?); there are link, assign, maintain" in err


def test_every_command_has_help_with_an_example(run):
    code, out, _ = run("--help")
    assert code == 0
    assert run()[:2] == (0, out)
    for verb in ("generate", "link", "verify", "measure", "algorithms"):
        assert verb in out
        code, text, _ = run(verb, "--help")
        assert code == 0
        assert "Example: broadloom" in text


TABLES = {
    "no folder": ({}, "is not a folder"),
    "no table": ({"nodes.csv": "node\na\n"}, "expected subscriptions.parquet"),
    "no column": ({"subscriptions.csv": "node,subject\na,x\n"}, "has no column 'topic'"),
    "not text": ({"subscriptions.csv": b"node,topic\na,\xff\xfe\n"}, "cannot be read"),
    "not parquet": ({"subscriptions.parquet": "hello"}, "cannot be read"),
    "both": ({"subscriptions.csv": "node,topic\n", "subscriptions.parquet": "x"}, "has both"),
    "ragged": ({"subscriptions.csv": "node,topic\na,x\nb\n"}, "cannot be read"),
    "duplicate": ({"subscriptions.csv": "node,topic\na,x\na,x\n"}, "node 'a' subscribes to topic 'x' twice"),
    "unknown": ({"subscriptions.csv": "node,topic\na,x\n", "nodes.csv": "node\nb\n"}, "node a is unknown"),
    "empty id": ({"subscriptions.csv": "node,topic\n,x\n"}, "subscriptions row 0 has no node; give"),
    "no number": (
        {"subscriptions.csv": "node,topic\na,x\n", "latency.csv": "src,dst,rtt_ms\na,b,fast\n"},
        "cannot be read",
    ),
    "negative": (
        {"subscriptions.csv": "node,topic\na,x\nb,x\n", "latency.csv": "src,dst,rtt_ms\na,b,-4\n"},
        "latency row 0: 'a' to 'b': rtt_ms is -4.0",
    ),
    "zero": (
        {"subscriptions.csv": "node,topic\na,x\nb,x\n", "latency.csv": "src,dst,rtt_ms\na,b,0\n"},
        "or a floor for zeros",
    ),
    "nan": (
        {"subscriptions.csv": "node,topic\na,x\nb,x\n", "latency.csv": "src,dst,rtt_ms\na,b,nan\n"},
        "latency row 0: 'a' to 'b': rtt_ms is nan",
    ),
    "missing pair": (
        {"subscriptions.csv": "node,topic\na,x\nb,x\nc,x\n", "latency.csv": "src,dst,rtt_ms\na,b,4\n"},
        "'a' and 'c' have no latency (and 1 more like it); measure them, or fill missing pairs by shortest "
        'paths (--missing path, missing="path")',
    ),
    "latency twice": (
        {"subscriptions.csv": "node,topic\na,x\nb,x\n", "latency.csv": "src,dst,rtt_ms\na,b,4\na,b,5\n"},
        "'a' to 'b' appears twice",
    ),
    "latency of an unknown node": (
        {"subscriptions.csv": "node,topic\na,x\nb,x\n", "latency.csv": "src,dst,rtt_ms\na,z,4\n"},
        "'a' to 'z': a name is unknown",
    ),
    "column twice": ({"subscriptions.csv": "node,node,topic\na,a,x\n"}, "has column 'node' more than once"),
    "a word as a coordinate": (
        {"subscriptions.csv": "node,topic\na,x\n", "nodes.csv": "node,x\na,here\n"},
        "coordinates of table nodes are not numbers",
    ),
    "no site": (
        {"subscriptions.csv": "node,topic\na,x\n", "nodes.csv": "node,site\na,\n"},
        "node 'a' has no site",
    ),
    "half a coordinate": (
        {"subscriptions.csv": "node,topic\na,x\n", "nodes.csv": "node,y\na,1\n"},
        "nodes have coordinates y",
    ),
    "same point": (
        {"subscriptions.csv": "node,topic\na,x\nb,x\n", "nodes.csv": "node,x\na,1\nb,1\n"},
        "nodes 'a' and 'b' are at the same point",
    ),
}


@pytest.mark.parametrize(("files", "message"), TABLES.values(), ids=TABLES)
def test_an_error_in_tables_is_one_line_and_exit_code_2(run, tmp_path, files, message):
    """The line names what is wrong, and no output is written."""
    folder = tmp_path / "tables"
    for name, text in files.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = run("link", folder, "-o", tmp_path / "plan")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "plan").exists()


COMMANDS = {
    "unknown command": (["weave"], "No such command 'weave'"),
    "no output": (["generate"], "Missing option '-o' / '--output'"),
    "no such option": (["generate", "--node", "3", "-o", "x"], "No such option"),
    "not a number": (["generate", "--nodes", "many", "-o", "x"], "Invalid value for '--nodes'"),
    "no algorithm": (["link", "TABLES", "-a", "gmm", "-o", "x"], "no algorithm 'gmm' (did you mean 'gm'?)"),
    "no option": (["link", "TABLES", "-O", "k=2", "-a", "gm", "-o", "x"], "gm has no option 'k'"),
    "an option of other algorithms": (
        ["link", "TABLES", "-O", "max-degree=2", "-a", "pdmaw", "-o", "x"],
        "it has no options; max_degree is an option of broadloom, gm, grmaw, low-oda",
    ),
    "no rule for ties": (
        ["link", "TABLES", "-O", "ties=largest", "-a", "gm", "-o", "x"],
        "ties is 'largest'; give one of smallest, random",
    ),
    "ties of another algorithm": (
        ["link", "TABLES", "-O", "ties=random", "-a", "dcmaw", "-o", "x"],
        "ties is an option of trmaw, gm, grmaw, minmax-oda, low-oda, cd-oda, cd-oda-1, cd-oda-2",
    ),
    "no value": (["link", "TABLES", "-O", "k", "-o", "x"], "option 'k' is not of the form name=value"),
    "no weights": (["link", "TABLES", "--weights", "gold", "-o", "x"], "no weights 'gold'"),
    "no latency": (["link", "TABLES", "--weights", "coordinates", "-o", "x"], "has no coordinates"),
    "no plan": (["verify", "nowhere"], "nowhere is not a plan"),
    "seed": (["generate", "--seed", "-1", "-o", "x"], "seed is -1"),
    "gamma": (["generate", "--size-law", "power", "--gamma", "nan", "-o", "x"], "gamma is nan"),
    "mean without weights": (
        ["generate", "--weights", "none", "--mean", "2", "-o", "x"],
        "mean is an option of weights",
    ),
    "site size of regions": (["generate", "--site-size", "2", "-o", "x"], "no option 'site_size'"),
    "inner of latency": (["link", "TABLES", "--inner", "2", "-o", "x"], "inner is for weights from sites"),
    "floor": (["link", "TABLES", "--floor", "nan", "-o", "x"], "floor is nan"),
    "itself": (["link", "TABLES", "--force", "-o", "TABLES"], "is also the input"),
    "too few topics": (["generate", "--topics", "5", "-o", "x"], "start at 20, above the 5 topics"),
}


@pytest.mark.parametrize(("command", "message"), COMMANDS.values(), ids=COMMANDS)
def test_a_wrong_command_is_one_line_and_exit_code_2(run, tables, monkeypatch, tmp_path, command, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*[tables if word == "TABLES" else word for word in command])
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("doctor",), "the fleet file"),
        (("controller",), "the fleet file"),
        (("status",), "the fleet file"),
        (("repair",), "the journal"),
        (("migrate", "agent"), "the configuration file"),
    ],
)
def test_a_uri_where_a_local_file_is_needed_is_shown_as_it_was_given(run, command, name):
    """`Path` makes one slash of the two in `s3a://`."""
    code, _, error = run(*command, "s3a://bucket/file")
    assert (code, error) == (2, f"broadloom: {name} is s3a://bucket/file; give a path on this machine\n")


def test_export_shows_the_uri_of_a_fleet_file_as_it_was_given(run, tables, tmp_path):
    run("link", tables, "-q", "-o", tmp_path / "plan")
    fleet = "s3a://bucket/fleet.toml"
    code, _, error = run("deploy", "export", tmp_path / "plan", "--fleet", fleet, "-o", tmp_path / "out")
    assert code == 2
    assert error == f"broadloom: the fleet file is {fleet}; give a path on this machine\n"


def test_the_table_of_maintained_rounds_shows_whole_counts_and_all_digits(run, tmp_path):
    run("generate", "--nodes", 300, "--churn", 2400, "-q", "-o", tmp_path / "tables")
    code, out, _ = run(
        "maintain", tmp_path / "tables", "--events", tmp_path / "tables", "-o", tmp_path / "out"
    )
    assert code == 0
    assert "leave  1,190 " in out
    assert "…" not in out


def test_options_fill_missing_latencies_by_paths_and_raise_zeros(run, tmp_path):
    (tmp_path / "subscriptions.csv").write_text("node,topic\na,x\nb,x\nc,x\n")
    (tmp_path / "latency.csv").write_text("src,dst,rtt_ms\na,b,4\nb,a,6\nb,c,0\n")
    code, _, _ = run("link", tmp_path, "--missing", "path", "--floor", 0.5, "-o", tmp_path / "plan")
    assert code == 0
    assert Plan.load(tmp_path / "plan").weights.of([0, 0], [1, 2]).tolist() == [5.0, 5.5]


def test_a_matrix_determines_the_number_of_nodes(run, tmp_path):
    (tmp_path / "m.csv").write_text("0,1,2\n1,0,3\n2,3,0\n")
    generate = ("generate", "--weights", tmp_path / "m.csv", "--topics", 9, "--sizes", 1, 3)
    code, out, _ = run(*generate, "-o", tmp_path / "t", "--json")
    assert (code, json.loads(out)["nodes"]) == (0, 3)


def test_measure_reports_that_a_broken_plan_is_not_connected(run, tables, tmp_path):
    run("link", tables, "-o", tmp_path / "plan")
    path = tmp_path / "plan" / "edges.parquet"
    pa.parquet.write_table(pa.parquet.read_table(path).slice(8), path)
    assert "topics NOT connected" in run("measure", tmp_path / "plan")[1]


def test_progress_is_drawn_on_a_terminal(tables, tmp_path):
    """A process with a terminal as standard error draws a bar; for a pipe, see below."""
    command = [sys.executable, "-m", "broadloom.cli", "measure", str(_plan_of(tables, tmp_path))]
    controller, terminal = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal) as process:
        os.close(terminal)
        drawn = _read_all(controller)
    assert process.returncode == 0
    assert b"measure diameters" in drawn


def _plan_of(tables, tmp_path):
    """Link the tables in another process, and return the folder of the plan."""
    command = [sys.executable, "-m", "broadloom.cli", "link", tables, "-q", "-o", tmp_path / "plan"]
    subprocess.run(command, check=True)
    return tmp_path / "plan"


def _read_all(handle):
    """Read from a terminal until its other end is closed."""
    text = b""
    try:
        while part := os.read(handle, 4096):
            text += part
    except OSError:  # the terminal's other end was closed
        pass
    return text


def test_ctrl_c_prints_one_line_and_exits_with_130(tables, tmp_path):
    """No output is written."""
    code = (
        "import signal, sys, threading, os, time\n"
        "import broadloom.model as model\n"
        "model.read_link_problem = lambda *_: (os.kill(os.getpid(), signal.SIGINT), time.sleep(9))\n"
        "from broadloom.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, "link", tables, "-o", tmp_path / "plan"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "broadloom: interrupted; existing outputs are unchanged\n"
    assert not (tmp_path / "plan").exists()


def test_a_closed_pipe_is_not_a_failed_check(tables, tmp_path):
    plan = _plan_of(tables, tmp_path)
    command = f"{sys.executable} -m broadloom.cli measure {plan} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141)  # 0 if all was written before the reader closed the pipe
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (bl.InputError("k is 0; give a number from 1"), 2),
        (missing_extra("paho-mqtt", "deploy"), 2),
        (FileNotFoundError(2, "No such file or directory", "edges.csv"), 2),
        (bl.StorageError("cannot write plan: No space left on device"), 3),
        (bl.UnreachableError("rome:8883 refused the connection; is the broker running?"), 3),
        (PermissionError(13, "Permission denied", "plan"), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_error_has_its_exit_code(run, monkeypatch, error, code):
    """An expected error is one line on standard error; by the exit code a script knows whether to retry."""

    def fail(_):
        raise error

    monkeypatch.setattr("broadloom.cli.inspect.bl.algorithms", fail)
    exit_code, out, err = run("algorithms")
    assert (exit_code, out) == (code, "")
    assert err.startswith("broadloom: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [bl.InternalError("a topic stayed disconnected"), ZeroDivisionError()])
def test_a_bug_shows_a_traceback(monkeypatch, error):
    """An error in Broadloom is not reported as a mistake of the user."""

    def fail(_):
        raise error

    monkeypatch.setattr("broadloom.cli.inspect.bl.algorithms", fail)
    with pytest.raises(type(error)):
        main(["algorithms"])


def test_a_pipe_gets_no_colour_and_no_progress():
    """In a separate process, which also shows that the module runs as a command."""
    done = subprocess.run(
        [sys.executable, "-m", "broadloom.cli", "algorithms"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_random_ties_and_the_strict_rule_are_those_of_python(run, tables, tmp_path):
    options = ("--option", "ties=random", "--option", "strict=true", "--option", "k=1", "--seed", "5")
    code, _, _ = run("link", tables, "-a", "low-oda", *options, "-o", tmp_path / "plan")
    assert code == 0
    plan = bl.Plan.load(tmp_path / "plan")
    same = bl.link(plan.interest, plan.weights, "low-oda", 5, ties="random", strict=True, k=1)
    assert plan.options == same.options
    assert plan.edges.tolist() == same.edges.tolist()


def test_infinity_is_a_number_and_an_error_of_the_system_names_the_file(run, tables, tmp_path):
    code, out, _ = run("link", tables, "-a", "low-oda", "-O", "k=inf", "-o", tmp_path / "plan")
    assert (code, "topics connected" in out) == (0, True)
    (tmp_path / "file").write_text("")
    code, _, err = run("link", tables, "-a", "gm", "-o", tmp_path / "file" / "plan")
    assert code == 2
    assert str(tmp_path / "file") in err


def test_a_damaged_journal_is_repaired(run, tmp_path):
    """Records before the damage are kept, and the damaged file too; an undamaged journal is not changed."""
    path = tmp_path / "records"
    with RecordJournal(path) as journal:
        for text in ("first", "second", "third"):
            journal.append("kind", {"text": text})
    assert run("repair", path)[:2] == (0, f"{path}: not damaged; it has 3 records\n")
    damaged = path.read_bytes().replace(b"second", b"secind")
    path.write_bytes(damaged)
    code, out, _ = run("repair", path, "--json")
    result = json.loads(out)
    assert (code, result["kept"], result["lost_from"]) == (0, 1, 2)
    assert (tmp_path / "records.damaged-1").read_bytes() == damaged
    with RecordJournal(path) as journal:
        assert [record.body["text"] for record in journal.records()] == ["first"]
    code, _, error = run("repair", tmp_path / "missing")
    assert code == 2
    assert "does not exist" in error


def test_ingest_prints_the_reasons_for_quarantine(run, tmp_path, monkeypatch):
    account = TableAccount("subscriptions", 9, 2, 1, {"no topic": 2, "unknown node": 4}, 2)
    monkeypatch.setattr("broadloom.pipeline.ingest.ingest", lambda *_, **__: RowLedger((account,)))
    code, out, _ = run("ingest", tmp_path, "-o", tmp_path / "tables")
    assert code == 0
    lines = [line.strip() for line in out.splitlines()[1:3]]
    assert lines == ["in quarantine: 4 unknown node", "in quarantine: 2 no topic"]
