"""`broadloom deploy` on the command line."""

import json

import pyarrow as pa
import pyarrow.csv
import pytest

import broadloom as bl


@pytest.fixture
def plan(run, tmp_path):
    made = ("generate", "--nodes", 6, "--topics", 4, "--sizes", 1, 3, "-q", "-o", tmp_path / "tables")
    assert run(*made)[0] == 0
    assert run("link", tmp_path / "tables", "-q", "-o", tmp_path / "plan")[0] == 0
    return tmp_path / "plan"


@pytest.mark.parametrize("target", ["mosquitto", "rabbitmq", "nats", "emqx"])
def test_export_writes_one_file_per_broker_and_the_same_each_time(run, plan, tmp_path, target):
    more = ("--accounts",) if target == "nats" else ()
    for name in ("one", "two"):
        code, out, _ = run("deploy", "export", "--to", target, plan, "-o", tmp_path / name, "--json", *more)
        assert code == 0
    record = json.loads(out)
    assert record["brokers"] == 6
    assert len(record["files"]) == (7 if target == "mosquitto" else 6)
    for file in (tmp_path / "one").rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "two" / file.relative_to(tmp_path / "one")).read_bytes()
    trees = json.loads((tmp_path / "one" / "deployment.json").read_text())["trees"]
    assert sum(len(tree["filters"]) for tree in trees) <= 4


def test_an_export_says_that_anyone_can_link_to_nats_without_a_login(run, tmp_path):
    names = ["rome", "oslo"]
    bl.link(bl.Interest.from_lists([["x"], ["x"]], node_ids=names)).save(tmp_path / "two")
    export = ("deploy", "export", "--to", "nats", tmp_path / "two", "--no-tls", "-o")
    text = "anyone who can reach rome:7422 can link to broker 'rome' (and 1 more); give it a login"
    assert text in run(*export, tmp_path / "open")[1]
    assert text not in run(*export, tmp_path / "closed", "--credentials")[1]


def test_export_replaces_an_export_but_nothing_else(run, plan, tmp_path):
    folder = tmp_path / "conf"
    export = ("deploy", "export", "--to", "mosquitto", plan, "-o", folder)
    assert run(*export)[0] == 0
    assert run(*export)[0] == 2
    assert run(*export, "--force")[0] == 0
    (folder / "deployment.json").unlink()
    code, _, err = run(*export, "--force")
    assert code == 2
    assert "so it is not an export" in err


@pytest.mark.parametrize("target", ["mosquitto", "rabbitmq", "nats", "emqx"])
def test_export_remove_writes_what_takes_the_links_away(run, plan, tmp_path, target):
    more = ("--accounts",) if target == "nats" else ()
    export = ("deploy", "export", "--to", target, plan, *more)
    code, out, err = run(*export, "--remove", "-o", tmp_path / "gone")
    assert code == 0, err
    assert out.startswith("what removes ")
    folder = tmp_path / "gone"
    assert json.loads((folder / "deployment.json").read_text())["remove"] is True
    if target == "mosquitto":
        text = (folder / "remove.txt").read_text()
        record = json.loads((folder / "deployment.json").read_text())
        for link in record["links"]:
            name = f"broadloom-{link['owner']}:{link['peer']}"
            assert f"broadloom deploy session {link['peer']}:8883 r.{name} --end" in text
            assert f"broadloom deploy session {link['owner']}:8883 l.{name} --end" in text
        assert f"follow {folder / 'remove.txt'}" in out
    for file in folder.glob("broker-*"):
        lines = file.read_text().splitlines()
        if target == "nats":
            assert all(line.startswith("#") for line in lines)
        else:
            assert {call["method"] for call in json.loads(file.read_text())} <= {"DELETE"}
    assert run(*export, "--remove", "-o", folder, "--force")[0] == 0
    code, _, err = run(*export, "--remove", "--with-secrets", "-o", folder)
    assert (code, "--remove writes no passwords" in err) == (2, True)


def test_export_says_which_settings_brokers_should_have(run, plan, tmp_path):
    out = run("deploy", "export", "--to", "mosquitto", plan, "-o", tmp_path / "conf")[1]
    assert "each mosquitto.conf should have persistence true, autosave_interval 60, max_queued_mess" in out
    assert "should have" not in run("deploy", "export", "--to", "emqx", plan, "-o", tmp_path / "other")[1]


def test_export_attaches_publishers_of_a_log(run, plan, tmp_path):
    log = {"publisher": ["0", "1"], "at": ["2026-01-01 00:00:00"] * 2, "bytes": [10, 10], "topic": ["0", "0"]}
    (tmp_path / "log").mkdir()
    pa.csv.write_csv(pa.table(log), tmp_path / "log" / "messages.csv")
    export = ("deploy", "export", "--to", "mosquitto", plan, "--messages", tmp_path / "log")
    assert run(*export, "-o", tmp_path / "conf", "--least", "weight")[0] == 0
    code, _, err = run(*export, "-o", tmp_path / "other", "--least", "hops")
    assert (code, err) == (2, "broadloom: least is 'hops'; choose latency or weight\n")


def test_errors_say_what_would_be_right(run, plan, tmp_path):
    code, _, err = run("deploy", "export", "--to", "kafka", plan, "-o", tmp_path / "x")
    assert (code, err) == (
        2,
        "broadloom: target 'kafka' is unknown; choose mosquitto, rabbitmq, nats, emqx\n",
    )
    code, _, err = run("deploy", "export", "--to", "mosquitto", tmp_path / "nothing", "-o", tmp_path / "x")
    assert code == 2
    assert "is not a plan" in err
    code, _, err = run("deploy", "rehearse", plan, "--on", "kafka")
    assert (code, err) == (2, "broadloom: no rehearsal on 'kafka'; choose mosquitto or rabbitmq\n")


def test_an_export_into_the_plan_itself_is_refused(run, plan):
    """It would block the plan's next version."""
    before = sorted(plan.rglob("*"))
    for folder in (plan / "conf", plan / "deep" / "conf", plan / ".." / "plan" / "conf"):
        code, _, err = run("deploy", "export", "--to", "mosquitto", plan, "-o", folder)
        assert (code, err) == (
            2,
            f"broadloom: {folder} is inside of the plan {plan}; choose another output\n",
        )
    assert sorted(plan.rglob("*")) == before


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_brokers_that_fail_are_an_error_of_one_line(run, plan, monkeypatch):
    monkeypatch.setattr("broadloom.deployment.rehearsal.mosquitto_lab._LISTEN", "nonsense\n")
    for verb in (("rehearse", plan), ("diff", plan, plan, "--rehearse")):
        code, _, err = run("deploy", *verb)
        assert (code, err.count("\n")) == (3, 1)
        assert err.startswith("broadloom: broker ")
        assert "ended; the end of its log: " in err
