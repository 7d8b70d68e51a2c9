"""Pipeline runs: raw inputs to a plan and a report; finished steps are not done again."""

import json
import os
import shutil

import pytest

import broadloom as bl
from broadloom import InputError, workload
from broadloom.pipeline import RunConfig
from broadloom.pipeline import run as pipeline

pytestmark = pytest.mark.spark

CONFIG = """
sources = ["raw"]
output = "out"
[ingest]
symmetric = "mean"
[link]
algorithm = "gm"
"""


@pytest.fixture(scope="module")
def done(spark, tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("run")
    workload.devices(folder / "raw", brokers=12, subscriptions=3000, seed=1)
    (folder / "run.toml").write_text(CONFIG)
    return folder, pipeline.run_pipeline(RunConfig.load(folder / "run.toml"), spark=spark)


@pytest.fixture
def again(done, tmp_path):
    """A copy of a finished run with its sources, to change."""
    shutil.copytree(done[0], tmp_path / "run", copy_function=shutil.copy2)
    for file in (tmp_path / "run" / "raw").iterdir():
        before = (done[0] / "raw" / file.name).stat()
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    return tmp_path / "run"


def test_a_run_ends_with_a_plan_and_a_report(done):
    folder, outcome = done
    plan = bl.Plan.load(folder / "out" / "plan")
    assert plan.is_topic_connected()
    assert plan.interest.node_count == 12
    assert outcome.metrics["edges"] == len(plan.edges)
    assert all(account.adds_up for account in outcome.ledger.accounts)
    page = outcome.report.read_text()
    assert outcome.plan in page
    assert "our own link" in page


def test_a_run_keeps_the_filters_of_clients_and_lists_what_is_not_carried(done):
    """From raw rows to the plan: every filter, one topic per group, and topics of brokers left out."""
    folder, outcome = done
    plan = bl.Plan.load(folder / "out" / "plan")
    wanted = {line.split(",")[2] for line in _raw_lines(folder) if line.count(",") == 2}
    assert plan.interest.has_filters
    assert set(plan.interest.topic_ids) <= {*wanted, *_topics(folder)}
    assert f"{plan.interest.filter_count:,} topic filters" in outcome.plan
    left_out = {(row.topic, row.reason) for row in plan.not_carried.subscriptions}
    assert ("$SYS/broker/load", "topic of the broker itself") in left_out
    assert any("'$SYS/broker/load'" in line for line in outcome.carried)
    assert outcome.carried_record["not_carried"] == plan.not_carried.record()
    verdict = json.loads((folder / "out" / "verify" / "verdict.json").read_text())
    assert verdict["topics"] == plan.interest.grouped().topic_count
    assert verdict["filters"] == plan.interest.filter_count


def _raw_lines(folder):
    files = sorted((folder / "raw").glob("subscriptions-*.csv"))
    return [line for file in files for line in file.read_text("utf-8", "replace").split("\n")]


def _topics(folder):
    return (folder / "raw" / "topics.csv").read_text().split()[1:]


def test_a_second_run_does_nothing(done, spark):
    config = RunConfig.load(done[0] / "run.toml")
    assert set(pipeline.run_pipeline(config, spark=spark).steps.values()) == {None}


def steps_done(folder, spark):
    outcome = pipeline.run_pipeline(RunConfig.load(folder / "run.toml"), spark=spark)
    return [name for name, seconds in outcome.steps.items() if seconds is not None]


def test_another_option_starts_at_its_step(again, spark):
    pipeline.run_pipeline(
        RunConfig.load(again / "run.toml"), spark=spark
    )  # the copy has another path, so that all steps are done again
    (again / "run.toml").write_text(CONFIG + "seed = 1\n")
    assert steps_done(again, spark) == ["link", "verify", "measure", "plan", "report"]


def test_a_killed_run_continues_with_the_step_that_it_was_in(again, spark, monkeypatch):
    """A run killed in a step keeps the steps before it, and no half of the folder of that step."""
    config = RunConfig.load(again / "run.toml")

    def die(_, folder):
        (folder / "half").write_text("done")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline._Run, "_measure", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run_pipeline(config, spark=spark, fresh=True)
    assert set(json.loads((again / "out" / "run.json").read_text())) == {
        "ingest",
        "interest",
        "link",
        "verify",
    }
    assert not (again / "out" / "measure" / "half").exists()
    assert steps_done(again, spark) == ["measure", "plan", "report"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('sources = ["raw"]', "has no output"),
        ('sources = ["raw"]\noutput = "out"\n[links]\n', r"unknown name 'links' \(did you mean 'link'\?\)"),
        ('sources = ["raw"]\noutput = "out"\n[link]\nseed = "x"\n', "seed is 'x'; expected int"),
        ("sources = [", "is not TOML"),
        ('sources = ["nowhere"]\noutput = "out"\n', "no such file"),
        ('sources = [3]\noutput = "out"\n', "source 3 is not a string"),
        (f"{CONFIG}[assign]\nengine = 'x'\n", r"\[assign\]: no engine 'x'; there are process, spark"),
        (
            f"{CONFIG}[assign]\nengine = 'spark'\nalgorithm = 'gr'\n",
            "gr does not run on Spark; give broadloom",
        ),
    ],
)
def test_a_bad_configuration_is_refused(tmp_path, text, words):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(InputError, match=words):
        pipeline.run_pipeline(RunConfig.load(tmp_path / "run.toml"))


def test_subscribers_are_assigned_before_brokers_are_linked(spark, tmp_path):
    """A run assigns the subscribers of its sources, and the links connect the cells that they want."""
    workload.devices(tmp_path / "raw", brokers=8, subscriptions=500, subscribers=60, seed=2)
    (tmp_path / "run.toml").write_text(CONFIG + "[assign]\nalgorithm = 'gr*'\nmax_delay = 2.0\n")
    outcome = pipeline.run_pipeline(RunConfig.load(tmp_path / "run.toml"), spark=spark)
    assert list(outcome.steps)[:4] == ["ingest", "assign", "interest", "link"]
    assert outcome.assignment in outcome.report.read_text()
    served = bl.AssignmentResult.load(tmp_path / "out" / "assign")
    assert served.feasible
    assert served.problem.subscriber_count == 60
    plan = bl.Plan.load(tmp_path / "out" / "plan")
    assert any(topic.startswith("$content/") for topic in plan.interest.topic_ids)
    assert plan.is_topic_connected()
    more = "[interest]\ncells = 9\n"
    (tmp_path / "run.toml").write_text((tmp_path / "run.toml").read_text() + more)
    assert steps_done(tmp_path, spark)[0] == "interest"
    (tmp_path / "run.toml").write_text((tmp_path / "run.toml").read_text().replace("2.0", "2.5"))
    assert steps_done(tmp_path, spark)[0] == "assign"
    (tmp_path / "run.toml").write_text(CONFIG + "[assign]\nmax_delay = 0\nbeta = 1\nbeta_max = 1\n")
    with pytest.raises(InputError, match=r"NOT feasible .* larger limits"):
        pipeline.run_pipeline(RunConfig.load(tmp_path / "run.toml"), spark=spark)


def test_both_engines_make_the_same_assignment(spark, tmp_path):
    """The step assign on Spark: the same brokers and filters as in one process."""
    workload.devices(tmp_path / "raw", brokers=8, subscriptions=500, subscribers=60, seed=2)
    found = []
    for engine in ("process", "spark"):
        section = f"[assign]\nmax_delay = 2.0\nengine = '{engine}'\n"
        options = "[assign.options]\nsample = 20\npasses = 2\npolish_up_to = 0\n"
        (tmp_path / "run.toml").write_text(CONFIG + section + options)
        pipeline.run_pipeline(RunConfig.load(tmp_path / "run.toml"), spark=spark)
        found.append(bl.AssignmentResult.load(tmp_path / "out" / "assign"))
    assert (tmp_path / "out" / "assign" / "assignments.parquet").is_dir()  # a folder: Spark wrote it
    assert found[0].broker_of.tolist() == found[1].broker_of.tolist()
    assert found[0].metrics() == found[1].metrics()


@pytest.mark.parametrize(
    ("files", "section", "words"),
    [
        (
            ("nodes",),
            "[assign]\nseed = 1\n",
            r"a section \[assign\], but no source has the table subscribers",
        ),
        (("subscribers", "brokers"), "", "subscribers but not the table publisher"),
        (("subscribers", "publisher"), "", "subscribers but not the table brokers"),
    ],
)
def test_missing_tables_of_assign_are_refused_before_spark_starts(tmp_path, files, section, words):
    header = {"subscribers": "subscriber,place,lo,hi", "brokers": "broker,place", "publisher": "place"}
    (tmp_path / "raw").mkdir()
    for name in files:
        (tmp_path / "raw" / f"{name}.csv").write_text(header.get(name, "node") + "\n")
    (tmp_path / "run.toml").write_text(CONFIG + section)
    with pytest.raises(InputError, match=words):
        pipeline.run_pipeline(RunConfig.load(tmp_path / "run.toml"))


def test_link_on_spark_by_the_command_line(spark, tmp_path, done):
    """With a master the command makes the in-process plan; other algorithms are refused."""
    from broadloom.cli import main

    plans = []
    for name, where in (("process", []), ("spark", ["--master", "local[2]"])):
        with pytest.raises(SystemExit) as stopped:
            main(
                [
                    "link",
                    str(done[0] / "out" / "interest"),
                    "-a",
                    "dcmaw",
                    "-q",
                    "-o",
                    str(tmp_path / name),
                    *where,
                ]
            )
        assert stopped.value.code == 0
        plans.append({file.name: file.read_bytes() for file in sorted((tmp_path / name).iterdir())})
    assert plans[0] == plans[1]
    assert spark.range(2).count() == 2
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "link",
                str(done[0] / "out" / "interest"),
                "-a",
                "gm",
                "-o",
                str(tmp_path / "no"),
                "--master",
                "local[2]",
            ]
        )
    assert stopped.value.code == 2


def test_link_on_spark_in_a_run(again, spark):
    """The same plan from both engines, byte for byte, through all steps."""
    plans = []
    for engine in ("process", "spark"):
        (again / "run.toml").write_text(CONFIG.replace('"gm"', f'"dcmaw"\nengine = "{engine}"'))
        pipeline.run_pipeline(RunConfig.load(again / "run.toml"), spark=spark)
        plans.append({file.name: file.read_bytes() for file in sorted((again / "out" / "plan").iterdir())})
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    "rows",
    [
        "publications.csv:node,topic,rate\nc,x/1,2\n",
        "messages.csv:publisher,at,bytes,topic\nc,2026-01-01 00:00:00,2,x/1\nother,2026-01-01 00:00:01,2,y\n",
    ],
    ids=["publications", "messages"],
)
def test_a_run_takes_observed_publishers_from_its_sources(rows, spark, tmp_path):
    name, _, text = rows.partition(":")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / name).write_text(text)
    (tmp_path / "raw" / "nodes.csv").write_text("node\na\nb\nc\n")
    (tmp_path / "raw" / "subscriptions.csv").write_text("node,topic\na,x/#\nb,x/1\nb,z\n")
    (tmp_path / "run.toml").write_text(f'{CONFIG}publishers = "observed"\n')
    outcome = pipeline.run_pipeline(RunConfig.load(tmp_path / "run.toml"), spark=spark)
    plan = bl.Plan.load(tmp_path / "out" / "plan")
    assert [(one.broker, one.topic) for one in plan.publishers.observed] == [("c", "x/1")]
    assert [(row.node, row.filters) for row in plan.not_carried.publications] == [
        ("a", ("z",)),
        ("c", ("z",)),
    ]
    assert any("from c: z" in line for line in outcome.carried)
