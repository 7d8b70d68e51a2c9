"""Dumps of EMQX and definitions of RabbitMQ go through `ingest` to a plan, and to links of the fleet."""

import json

import pytest

import broadloom as bl
from broadloom.deployment import FleetBroker
from broadloom.pipeline.ingest import ingest

pytestmark = pytest.mark.spark

WANTS = {"rome": ["sensors/#", "alarms/fire"], "oslo": ["sensors/+/temp"], "bonn": ["alarms/+"]}


def emqx(filters):
    rows = [{"clientid": f"c{i}", "topic": text, "qos": 1} for i, text in enumerate(filters)]
    return json.dumps({"data": rows, "meta": {"page": 1, "limit": 100, "count": len(rows)}})


def rabbitmq(filters):
    keys = [text.replace("/", ".").replace("+", "*") for text in filters]
    bindings = [
        {
            "source": "amq.topic",
            "destination": f"mqtt-subscription-c{i}qos1",
            "destination_type": "queue",
            "routing_key": key,
        }
        for i, key in enumerate(keys)
    ]
    return json.dumps({"rabbit_version": "3.12.1", "bindings": bindings})


def planned(kind, dump, folder, spark, run):
    """The fleet file and the plan of dumps of three brokers."""
    sources = []
    for name, filters in WANTS.items():
        (folder / f"{name}.json").write_text(dump(filters))
        sources.append(f"{kind}@{name}={folder / name}.json")
    ingest(sources, folder / "tables", spark=spark)
    code, out, err = run("link", folder / "tables", "-o", folder / "plan")
    assert code == 0, err
    assert "any broker can publish every topic: " in out
    brokers = [FleetBroker(name, f"{name}.example.org", kind) for name in WANTS]
    bl.Fleet(brokers).save(folder / "fleet.toml")
    plan = bl.Plan.load(folder / "plan")
    assert {plan.interest.topic_ids[t] for t in plan.interest.topics_of(1)} <= {"sensors/+/temp", "alarms/+"}
    return folder / "fleet.toml", folder / "plan"


def test_rabbitmq_definitions_go_to_calls_of_its_api(tmp_path, spark, run):
    fleet, plan = planned("rabbitmq", rabbitmq, tmp_path, spark, run)
    code, out, err = run("deploy", "export", plan, "--fleet", fleet, "-o", tmp_path / "conf")
    assert code == 0, err
    assert "files for rabbitmq: " in out
    calls = json.loads((tmp_path / "conf" / "broker-rome.json").read_text())
    assert {"sensors.*.temp", "alarms.*"} <= {call["body"].get("routing_key") for call in calls}


def test_an_emqx_dump_goes_to_a_plan_and_to_links(tmp_path, spark, run):
    fleet, plan = planned("emqx", emqx, tmp_path, spark, run)
    assert run("deploy", "check", plan)[0] == 0
    code, out, err = run("deploy", "export", plan, "--fleet", fleet, "-o", tmp_path / "conf")
    assert code == 0, err
    assert "files for emqx" in out
