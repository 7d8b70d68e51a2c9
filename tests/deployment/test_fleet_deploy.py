"""Deployment to a fleet: addresses, TLS files, logins and kinds; secrets; and what tables ask of link."""

import itertools
import json
import re
import subprocess
from dataclasses import replace
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom.cli.deploy_options import DeployOptions, both_deployments
from broadloom.deployment import (
    FleetBroker,
    FleetLogin,
    FleetTls,
    WiredLink,
    bridge_secret,
    fleet_settings,
    plan_trees,
    read_link_requests,
    wire,
)
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.deployment.targets import mosquitto_bridges, nats_leafnodes, rabbitmq_federation
from broadloom.model import write_link_problem
from broadloom.mqtt.topic_filters import covers

INTEREST = bl.Interest.from_lists([["x"], ["x"], ["y"]], node_ids=["rome", "oslo", "bonn"])
PLAN = bl.link(INTEREST, algorithm="gm")


@pytest.fixture
def plan(tmp_path):
    PLAN.save(tmp_path / "plan")
    return tmp_path / "plan"


def secret(path, text="secret"):
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def fleet_of(folder, *brokers):
    bl.Fleet(brokers).save(folder / "fleet.toml")
    return folder / "fleet.toml"


def three(folder, **changes):
    """A fleet of the plan's brokers: one with a login, one with TLS, one with both and a certificate."""
    login = FleetLogin("links", secret(folder / "secret"))
    tls = FleetTls("/pki/ca.pem", "/pki/me.crt", "/pki/me.key")
    brokers = (
        FleetBroker("rome", "10.0.0.1:1884", tls=None, login=login),
        FleetBroker("oslo", "10.0.0.2"),
        FleetBroker("bonn", "10.0.0.3", tls=tls, login=login),
    )
    return fleet_of(folder, *(replace(one, **changes.get(one.name, {})) for one in brokers))


def test_a_link_uses_the_access_of_the_broker_to_which_it_connects(run, plan, tmp_path):
    conf = tmp_path / "conf"
    code, out, err = run("deploy", "export", plan, "--fleet", three(tmp_path), "-o", conf)
    assert code == 0, err
    texts = {name: (conf / f"broker-{name}.conf").read_text() for name in INTEREST.node_ids}
    assert "connection broadloom-oslo:rome\naddress 10.0.0.1:1884\n" in texts["oslo"]
    assert "remote_username links\nremote_password __BROADLOOM_PASSWORD_rome__\n" in texts["oslo"]
    assert "bridge_" not in texts["oslo"].replace("bridge_protocol_version", "")
    owned = texts["bonn"]  # its id is the first in the alphabet, so it opens all its links
    assert "address 10.0.0.2:8883" in owned or "address 10.0.0.1:1884" in owned
    assert "replace __BROADLOOM_PASSWORD_rome__" in out
    assert "secret" not in "".join(texts.values())


def test_the_tls_files_are_those_of_the_fleet_or_of_a_folder_on_the_brokers(tmp_path):
    fleet = bl.Fleet.load(three(tmp_path))
    names = ("rome", "oslo", "bonn")
    chain = bl.link(bl.Interest.from_lists([["x"]] * 3, node_ids=["a-first", *names[1:]]), algorithm="gm")
    brokers = [replace(fleet.brokers["rome"], name="a-first"), fleet.brokers["oslo"], fleet.brokers["bonn"]]
    wiring = wire(chain, plan_trees(chain))
    for certificates, folder in ((None, "/pki"), ("/etc/certs", "/etc/certs")):
        settings = fleet_settings(bl.Fleet(brokers), chain, certificates)
        text = "".join(mosquitto_bridges.files(wiring, settings).values())
        ca = "ca.pem" if certificates is None else "ca.crt"
        assert f"bridge_cafile {folder}/{ca}\n" in text
        assert "bridge_capath /etc/ssl/certs\n" in text  # oslo: those of the system


def test_passwords_are_written_only_on_request_and_only_for_their_owner(run, plan, tmp_path):
    conf = tmp_path / "conf"
    export = ("deploy", "export", plan, "--fleet", three(tmp_path), "-o", conf, "--with-secrets")
    code, out, err = run(*export, "--json")
    assert code == 0, err
    assert "remote_password secret\n" in (conf / "broker-oslo.conf").read_text()
    assert oct(conf.stat().st_mode & 0o777) == "0o700"
    assert {oct(file.stat().st_mode & 0o777) for file in conf.glob("broker-*")} == {"0o600"}
    assert "contains passwords" in json.loads(out)["notes"][0]
    assert "secret" not in (conf / "deployment.json").read_text()


def native(tmp_path, kind, **changes):
    """A fleet of three brokers of a kind: one with a login, one with TLS, one with both."""
    made = bl.Fleet.load(three(tmp_path))
    own = {name: replace(one, kind=kind, **changes.get(name, {})) for name, one in made.brokers.items()}
    return bl.Fleet(own.values())


def test_leaf_nodes_listen_where_the_fleet_says_and_never_everywhere(tmp_path):
    fleet = native(tmp_path, "nats", rome={"leaf_listen": "192.168.7.1:7500"})
    wiring = wire(PLAN, plan_trees(PLAN))
    files = nats_leafnodes.files(nats_leafnodes.joined(wiring), fleet_settings(fleet, PLAN))
    text = "".join(files.values())
    assert 'listen: "192.168.7.1:7500"' in files["broker-rome.conf"]
    assert "0.0.0.0" not in text
    assert 'listen: "10.0.0.2:7422"' in files["broker-oslo.conf"] or "listen" not in files["broker-oslo.conf"]
    assert "10.0.0.1:7500" not in files["broker-rome.conf"]  # others connect to its address
    assert 'authorization { user: "links", password: $BROADLOOM_PASSWORD_rome }' in files["broker-rome.conf"]
    assert "$BROADLOOM_URL_rome" in text
    with pytest.raises(bl.InputError, match="leaf_listen is for nats, but kind is mosquitto"):
        FleetBroker("rome", "10.0.0.1", leaf_listen="10.0.0.1")


def test_links_of_nats_have_accounts_of_their_own_if_clients_have_one(tmp_path):
    own = {name: {"account": "APP"} for name in ("rome", "oslo", "bonn")}
    fleet = native(tmp_path, "nats", **own)
    wiring = nats_leafnodes.joined(wire(PLAN, plan_trees(PLAN)))
    files = nats_leafnodes.files(wiring, fleet_settings(fleet, PLAN))
    for text in files.values():
        assert text.count("account: BROADLOOM_A, subject") == 2 * text.count("account: BROADLOOM_B, subject")
    assert 'user: "links-b", password: $BROADLOOM_PASSWORD_rome, account: BROADLOOM_B' in "".join(
        files.values()
    )
    assert "APP { imports: $BROADLOOM_IMPORTS }" in files["broker-rome.conf"]
    fleet.save(tmp_path / "accounts.toml")
    assert bl.Fleet.load(tmp_path / "accounts.toml").brokers["oslo"].account == "APP"
    with pytest.raises(bl.InputError, match="--accounts does not apply"):
        nats_leafnodes.files(wiring, fleet_settings(fleet, PLAN, accounts=True))
    others = [replace(one, account=None) if one.name == "oslo" else one for one in fleet.brokers.values()]
    some = fleet_settings(bl.Fleet(others), PLAN)
    with pytest.raises(bl.InputError, match="'oslo' has no account in the fleet file"):
        nats_leafnodes.files(wiring, some)
    links = tuple(WiredLink(link.owner, link.peer, ("#",), ("#",)) for link in wiring.links)
    with pytest.raises(bl.InputError, match="matches subjects of NATS itself"):
        nats_leafnodes.files(replace(wiring, links=links), fleet_settings(fleet, PLAN))


@pytest.mark.parametrize("kind", ["mosquitto", "rabbitmq", "nats"])
def test_apply_has_the_passwords_of_links(plan, tmp_path, kind):
    fleet = native(tmp_path, kind)
    fleet.save(tmp_path / "own.toml")
    options = DeployOptions(None, tmp_path / "own.toml")
    _, *sides = both_deployments((plan, plan), options, (None, None), ("latency", 0.1), with_secrets=True)
    for side in sides:
        text = "".join(side.files.values())
        assert "secret" in text
        assert "BROADLOOM_PASSWORD" not in text


@given(st.lists(st.text("ab+", min_size=1, max_size=3), max_size=6), st.booleans())
def test_subjects_of_an_account_are_disjoint_and_cover_the_filters(words, more):
    filters = ["/".join(word) + ("/#" if more and number % 2 else "") for number, word in enumerate(words)]
    subjects = nats_leafnodes.disjoint_subjects(filters)
    topics = ["/".join(levels) for size in (1, 2, 3, 4) for levels in itertools.product("ab", repeat=size)]
    as_filters = [text.replace(".", "/").replace("*", "+").replace(">", "+/#") for text in subjects]
    for topic in topics:
        count = sum(covers(text, topic) for text in as_filters)
        assert count <= 1
        if any(covers(text, topic) for text in filters):
            assert count == 1


def test_passwords_of_nats_are_written_on_request(tmp_path):
    """In the URL they are encoded, and in a string they are quoted."""
    secret(tmp_path / "other", 'p@ss/"w\\o:rd')
    login = FleetLogin("li nks", str(tmp_path / "other"))
    fleet = native(tmp_path, "nats", rome={"login": login})
    written = fleet_settings(fleet, PLAN, with_secrets=True)
    files = nats_leafnodes.files(nats_leafnodes.joined(wire(PLAN, plan_trees(PLAN))), written)
    text = "".join(files.values())
    assert 'authorization { user: "li nks", password: "p@ss/\\"w\\\\o:rd" }' in files["broker-rome.conf"]
    assert "://li%20nks:p%40ss%2F%22w%5Co%3Ard@10.0.0.1:7422" in text
    assert "$BROADLOOM" not in text


def test_upstreams_of_rabbitmq_have_the_access_of_the_fleet(tmp_path):
    """Login, TLS and certificates differ per broker; every part of the URI is encoded."""
    secret(tmp_path / "other", "p@ss?verify=verify_none")
    login = FleetLogin("a:b", str(tmp_path / "other"))
    fleet = native(tmp_path, "rabbitmq", rome={"login": login})
    wiring = wire(PLAN, plan_trees(PLAN))
    text = "".join(rabbitmq_federation.files(wiring, fleet_settings(fleet, PLAN, with_secrets=True)).values())
    uris = {urlsplit(uri).hostname: urlsplit(uri) for uri in re.findall(r'"uri": "([^"]*)"', text)}
    rome = uris["10.0.0.1"]
    assert (rome.scheme, rome.query, rome.port) == ("amqp", "", 5672)
    assert (unquote(rome.username), unquote(rome.password)) == ("a:b", "p@ss?verify=verify_none")
    oslo = parse_qs(uris["10.0.0.2"].query)
    assert oslo == {"cacertfile": ["/etc/ssl/certs/ca-certificates.crt"], "verify": ["verify_peer"]}
    if "10.0.0.3" in uris:
        bonn = parse_qs(uris["10.0.0.3"].query)
        assert bonn["certfile"] == ["/pki/me.crt"]
    referred = "".join(rabbitmq_federation.files(wiring, fleet_settings(fleet, PLAN)).values())
    assert "amqp://a%3Ab:__BROADLOOM_PASSWORD_rome__@10.0.0.1:5672" in referred


@pytest.mark.parametrize("password", ["", " x", "x ", "a\nb", "a\rb", "\tx", "a\0b", "a\x7fb"])
def test_a_password_that_mosquitto_would_misread_is_refused(password):
    with pytest.raises(bl.InputError, match="the password of broker 'rome' begins or ends with a space"):
        bridge_secret(password, "rome")


@given(st.text())
def test_no_other_password_breaks_a_line(password):
    try:
        kept = bridge_secret(password, "rome")
    except bl.InputError:
        return
    assert f"remote_password {kept}\n".splitlines() == [f"remote_password {kept}"]
    assert f"remote_password {kept}".partition(" ")[2].strip() == password


@pytest.mark.needs("mosquitto", "mosquitto_passwd")
@pytest.mark.xdist_group("mosquitto")
@pytest.mark.parametrize("password", ["#comment", "a  # b", '${HOME} "hi" it\'s \\n', "pä ß 100%"])
def test_mosquitto_reads_a_hostile_password_as_it_is(tmp_path, password):
    """A bridge with it logs in at a broker that asks for it."""
    from fleet_lab import LabBroker

    file = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", file, "links", password], check=True)
    file.chmod(0o644)
    near, far = free_ports(2)
    guarded = LabBroker("far", tmp_path, far, f"allow_anonymous false\npassword_file {file}\n")
    one = FleetBroker("near", f"{HOST}:{near}", tls=None)
    two = FleetBroker(
        "rome", f"{HOST}:{far}", tls=None, login=FleetLogin("links", secret(tmp_path / "secret", password))
    )
    plan = bl.link(bl.Interest.from_lists([["x"], ["x"]], node_ids=["near", "rome"]), algorithm="gm")
    settings = fleet_settings(bl.Fleet([one, two]), plan, with_secrets=True)
    bridge = mosquitto_bridges.files(wire(plan, plan_trees(plan)), settings)["broker-near.conf"]
    try:
        open_broker = LabBroker("near", tmp_path, near, bridge)
        try:
            guarded.wait_for("connected", "as r.broadloom-near:rome", "u'links'")
        finally:
            open_broker.stop()
    finally:
        guarded.stop()


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({"bonn": {"kind": "nats"}}, (), "several kinds (mosquitto: rome, oslo; nats: bonn)"),
        ({}, ("--to", "nats"), "--to is nats, but the brokers of the fleet are mosquitto"),
        ({}, ("--address", "{broker}.x"), "--address and --fleet exclude each other"),
        ({}, ("--no-tls",), "--no-tls and --fleet exclude each other"),
        ({}, ("--credentials",), "--credentials and --fleet exclude each other"),
        ({"bonn": {"name": "kyiv"}}, (), "has no broker 'bonn', but the plan has"),
    ],
)
def test_a_fleet_that_does_not_fit_is_refused_in_one_line(run, plan, tmp_path, changes, options, expected):
    fleet = three(tmp_path, **changes)
    code, _, err = run("deploy", "export", plan, "--fleet", fleet, "-o", tmp_path / "conf", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert expected in err
    assert not (tmp_path / "conf").exists()


def test_without_fleet_or_target_export_asks_for_one(run, plan, tmp_path):
    code, _, err = run("deploy", "export", plan, "-o", tmp_path / "conf")
    assert (code, "give --to (mosquitto, rabbitmq, nats, emqx) or --fleet" in err) == (2, True)
    code, _, err = run(
        "deploy", "export", plan, "--to", "mosquitto", "-o", tmp_path / "conf", "--with-secrets"
    )
    assert (code, "--with-secrets needs --fleet" in err) == (2, True)


@pytest.mark.parametrize(
    ("target", "text"),
    [("mosquitto", "address rome:1884"), ("nats", "tls://rome:7422"), ("rabbitmq", '"amqps://rome:5671?')],
)
def test_addresses_of_a_plan_have_the_port_of_clients(run, tmp_path, target, text):
    """NATS and RabbitMQ have another one for links."""
    nodes = pa.table({"node": ["rome", "oslo", "bonn"], "address": ["rome:1884", "oslo", "[::1]:1884"]})
    replace(PLAN, nodes=nodes).save(tmp_path / "plan")
    code, out, err = run("deploy", "export", tmp_path / "plan", "--to", target, "-o", tmp_path / "conf")
    assert code == 0, err
    assert ("2 addresses in the plan have a port, such as 'rome:1884'" in out) == (target != "mosquitto")
    files = "".join(path.read_text() for path in (tmp_path / "conf").glob("broker-*"))
    assert text in files
    assert ("1884" in files) == (target == "mosquitto")


def test_brokers_without_an_address_are_named(run, plan, tmp_path):
    """Nothing is guessed in silence; a pattern, addresses in the plan, or a fleet end the note."""
    export = ("deploy", "export", plan, "--to", "mosquitto", "-o", tmp_path / "conf", "--force")
    assert "3 brokers have no address in the plan, so links use the broker's id" in run(*export)[1]
    assert "no address" not in run(*export, "--address", "{broker}.example.org")[1]
    nodes = pa.table({"node": list(INTEREST.node_ids), "address": ["a", "b", "c"]})
    replace(PLAN, nodes=nodes).save(plan, overwrite=True)
    assert "no address" not in run(*export)[1]
    unused = "--address is not used for 3 of the brokers, whose address is in the plan"
    assert unused in run(*export, "--address", "{broker}.example.org")[1]
    assert unused not in run(*export)[1]


def test_brokers_of_the_fleet_that_are_not_in_the_plan_are_one_line(run, plan, tmp_path):
    fleet = bl.Fleet.load(three(tmp_path))
    (tmp_path / "more").mkdir()
    file = fleet_of(tmp_path / "more", *fleet.brokers.values(), FleetBroker("kyiv", "10.0.0.9"))
    out = run("deploy", "check", plan, "--fleet", file)[1]
    assert out.splitlines()[-1] == "no links for kyiv: in the fleet, not in the plan"


def test_check_finds_a_fault_and_exits_with_1(run, tmp_path):
    """Here a topic that mosquitto's bridges cannot carry; --json has the same."""
    spaced = bl.link(bl.Interest.from_lists([["a b"], ["a b"]]), algorithm="gm")
    spaced.save(tmp_path / "plan")
    code, out, _ = run("deploy", "check", tmp_path / "plan", "--to", "mosquitto")
    assert code == 1
    assert out.startswith("FAULT: topic 'a b' has a space or a quote")
    record = json.loads(run("deploy", "check", tmp_path / "plan", "--to", "mosquitto", "--json")[1])
    assert (record["ok"], record["fault"][:11]) == (False, "topic 'a b'")
    assert run("deploy", "check", tmp_path / "plan")[0] == 0
    assert run("deploy", "check", tmp_path / "nothing")[0] == 2


def test_check_says_what_one_way_links_cost(run, plan):
    record = json.loads(run("deploy", "check", plan, "--json")[1])
    assert record["publishers"] == {
        "mode": "anywhere",
        "observed": 0,
        "plan_links": 1,
        "plan_weight": 1.0,
        "one_way_links": 2,
        "one_way_weight": 2.0,
    }
    assert record["links"] == 3
    observed = json.loads(run("deploy", "check", plan, "--publishers", "observed", "--json")[1])
    assert [row["node"] for row in observed["not_carried"]["publications"]] == ["rome", "oslo", "bonn"]
    assert observed["links"] == 1


def test_the_commands_of_a_change_name_the_fleet(run, tmp_path):
    fleet = three(tmp_path)
    for name, lists in (("old", [["x"], ["x"], []]), ("new", [["x"], ["x"], ["x"]])):
        bl.link(bl.Interest.from_lists(lists, node_ids=INTEREST.node_ids), algorithm="gm").save(
            tmp_path / name
        )
    code, out, err = run("deploy", "diff", tmp_path / "old", tmp_path / "new", "--fleet", fleet)
    assert code == 0, err
    assert f"--fleet {fleet}" in out
    assert "secret" not in out


def test_a_session_takes_the_address_and_the_login_of_the_fleet(run, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("broadloom.mqtt.paho.update_session", lambda *call: calls.append(call))
    fleet = three(tmp_path)
    assert run("deploy", "session", "rome", "r.x", "--open=t", "--fleet", fleet)[0] == 0
    ((what, address, client, filters, _, login),) = calls
    assert (what, str(address), client, filters) == ("open", "10.0.0.1:1884", "r.x", ["t"])
    assert (login.user, login.password, login.ca) == ("links", "secret", None)
    code, _, err = run("deploy", "session", "kyiv", "r.x", "--open=t", "--fleet", fleet)
    assert (code, "has no broker 'kyiv'; name one of its brokers" in err) == (2, True)


@pytest.fixture
def tables(tmp_path):
    observed = pa.table({"node": ["bonn"], "topic": ["x"], "rate": [5.0]})
    left_out = pa.table({"node": ["rome"], "topic": ["chat/#"], "reason": ["outside carry"]})
    folder = tmp_path / "tables"
    write_link_problem(folder, INTEREST, {"publications": observed, "not_carried": left_out})
    return folder


def test_link_takes_what_the_tables_ask_for(run, tables, tmp_path):
    (tables / "links.json").write_text('{"publishers": "observed", "max_degree": 2}')
    code, out, err = run("link", tables, "-o", tmp_path / "plan")
    assert code == 0, err
    assert "not carried: 1 subscription\n  outside carry: 'chat/#' at rome" in out
    plan = bl.Plan.load(tmp_path / "plan")
    assert plan.publishers == bl.Publishers("observed", [("bonn", "x", 5.0)])
    assert plan.options["max_degree"] == 2
    assert [row.node for row in plan.not_carried.publications] == ["rome", "oslo"]
    verified = json.loads(run("verify", tmp_path / "plan", "--json")[1])
    assert verified["not_carried"] == plan.not_carried.record()
    run("link", tables, "-o", tmp_path / "plan", "--publishers", "anywhere", "--force")
    assert bl.Plan.load(tmp_path / "plan").publishers.mode == "anywhere"


def test_an_algorithm_that_cannot_keep_the_limit_is_refused(run, tables, tmp_path):
    (tables / "links.json").write_text('{"publishers": "anywhere", "max_degree": 2}')
    code, _, err = run("link", tables, "-a", "trmaw", "-o", tmp_path / "plan")
    assert code == 2
    assert "asks for at most 2 links per broker (max_degree), which trmaw cannot keep; choose " in err
    assert "or lift it with --option max_degree=null" in err
    code, _, err = run("link", tables, "-a", "trmaw", "-O", "max_degree=null", "-o", tmp_path / "plan")
    assert code == 0, err
    assert bl.Plan.load(tmp_path / "plan").algorithm == "trmaw"


def test_messages_of_brokers_count_as_publications(tmp_path):
    """Messages of other publishers are ignored."""
    write_link_problem(tmp_path / "tables", INTEREST)
    (tmp_path / "tables" / "messages.csv").write_text(
        "publisher,at,bytes,topic\nbonn,2026-01-01 00:00:00,6,x\nmeter-1,2026-01-01 00:00:01,6,x\n"
    )
    found = read_link_requests(tmp_path / "tables", INTEREST).publishers
    assert [(one.broker, one.topic) for one in found.observed] == [("bonn", "x")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "is unknown"),
        ("{", "cannot be read"),
        ('{"publisher": "anywhere"}', "'publisher' is unknown"),
        ('{"publishers": "nowhere"}', "choose anywhere or observed"),
        ('{"max_degree": 0}', "max_degree is 0"),
    ],
)
def test_a_wrong_links_file_is_refused(tables, text, expected):
    (tables / "links.json").write_text(text)
    with pytest.raises(bl.InputError, match=expected):
        read_link_requests(tables, INTEREST)
