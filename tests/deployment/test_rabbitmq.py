"""Real RabbitMQ nodes: trees that close rings, each delivery once, links as planned, a live change."""

import json

import pytest
from injection_attempts import accepted

import broadloom as bl
from broadloom.deployment import (
    Publication,
    Settings,
    WiredLink,
    Wiring,
    plan_trees,
    removal,
    sample_messages,
    target_named,
    wire,
)
from broadloom.deployment.rehearsal import rabbitmq_lab, rehearse_rabbitmq
from broadloom.deployment.rehearsal.delivery_counts import DeliveryTally, LabClients, publish_all, settle
from broadloom.deployment.rehearsal.rabbitmq_lab import RabbitLab
from broadloom.deployment.targets import rabbitmq_federation
from certificates import authority

pytestmark = [pytest.mark.rabbitmq, pytest.mark.needs("rabbitmq-server")]

TREES = {"x": ("01", "12"), "y": ("23", "03"), "z": ("12", "23", "03")}


def ring():
    """Nodes 0 to 3; x on 0-1-2, y on 2-3-0 and z on 1-2-3-0."""
    pairs = sorted({pair for tree in TREES.values() for pair in tree})
    links = []
    for u, v in pairs:
        carried = tuple(topic for topic, tree in TREES.items() if u + v in tree)
        links.append(WiredLink(u, v, carried, carried))
    wants = {"0": ("x", "y", "z"), "1": ("x", "z"), "2": ("x", "y", "z"), "3": ("y", "z")}
    return Wiring(tuple("0123"), wants, {}, tuple(links))


def test_four_nodes_deliver_each_message_once():
    wiring = ring()
    outcome = rehearse_rabbitmq(wiring, sample_messages(wiring, 50))
    assert outcome.ok, outcome.record()
    assert outcome.counts["expected"] == 50 * (3 * 3 + 3 * 3 + 4 * 4)


def test_everything_that_calls_make_can_be_deleted():
    """Also topics whose names must be quoted; only RabbitMQ's own exchanges remain."""
    odd = ("a~b", "50%/c", "f/+/#", "ü x", "g%7Eh")
    wiring = Wiring(("n", "m"), {}, {}, (WiredLink("n", "m", odd, odd),))
    alone = Wiring(("n",), {}, {}, ())
    with RabbitLab(alone) as lab:
        made = rabbitmq_federation.calls(wiring, "n", Settings(tls=False))
        lab.apply({"n": made})
        assert len(lab.call("n", "GET", "/api/bindings/%2F/e/amq.topic/e/broadloom.link.n%3Am")) == len(odd)
        lab.apply({"n": [rabbitmq_federation.undone(call) for call in reversed(made)]})
        assert lab.call("n", "GET", "/api/parameters/federation-upstream") == []
        names = {exchange["name"] for exchange in lab.call("n", "GET", "/api/exchanges")}
        assert not [name for name in names if name.startswith("broadloom")]


def test_a_node_takes_hostile_texts_as_values_and_forgets_all_of_them():
    """Every call of the accepted attempts to inject: upstreams are as written, and nothing else appears."""
    target = target_named("rabbitmq")
    count = 0
    with RabbitLab(Wiring(("n",), {}, {}, ())) as lab:

        def known():
            kinds = ("vhosts", "users", "permissions", "exchanges", "policies", "parameters", "bindings")
            return {kind: len(lab.call("n", "GET", f"/api/{kind}")) for kind in kinds}

        before = known()
        for field, text, deployment in accepted(target):
            deleted = removal(deployment.wiring, target, deployment.settings)
            for name, content in deployment.files.items():
                made = json.loads(content)
                lab.apply({"n": made})
                found = lab.call("n", "GET", "/api/parameters/federation-upstream")
                wanted = {call["body"]["value"]["uri"] for call in made if "value" in call["body"]}
                assert {one["value"]["uri"] for one in found} == wanted, (field, text)
                lab.apply({"n": json.loads(deleted[name])})
                count += len(made)
        assert known() == before
    assert count > 200


TLS_ONLY = """\
listeners.tcp = none
listeners.ssl.1 = {{host}}:{{amqp}}
ssl_options.cacertfile = {folder}/ca.crt
ssl_options.certfile = {folder}/broker.crt
ssl_options.keyfile = {folder}/broker.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_cert_login_from = common_name
auth_mechanisms.1 = EXTERNAL
"""


class TlsRabbitLab(RabbitLab):
    """Nodes that accept links over TLS only, with certificates of the authority."""

    def __init__(self, wiring, certificates):
        super().__init__(wiring)
        self.certificates = certificates

    def settings(self):
        """The addresses of the nodes, and the certificates of links."""
        addresses = {broker: f"localhost:{amqp}" for broker, (amqp, *_) in self._ports.items()}
        return Settings(addresses=addresses, certificates=str(self.certificates))


@pytest.mark.needs("openssl")
def test_links_authenticate_by_certificates(tmp_path, monkeypatch):
    """Without passwords: each message arrives once, on nodes that accept no link without a certificate."""
    folder = authority(tmp_path / "certs")
    listen = "listeners.tcp.1 = {host}:{amqp}\n"
    config = rabbitmq_lab._CONFIG.replace(listen, TLS_ONLY.format(folder=folder))
    monkeypatch.setattr(rabbitmq_lab, "_CONFIG", config)
    plugins = rabbitmq_lab._PLUGINS.replace("[", "[rabbitmq_auth_mechanism_ssl,")
    monkeypatch.setattr(rabbitmq_lab, "_PLUGINS", plugins)
    pair = Wiring(("a", "b"), {"a": ("x",), "b": ("x",)}, {}, (WiredLink("a", "b", ("x",), ("x",)),))
    tally = DeliveryTally(pair)
    with TlsRabbitLab(pair, folder) as lab, LabClients(lab.ports, tally.receive) as clients:
        for broker in pair.brokers:
            lab.call(broker, "PUT", "/api/users/broker", {"password_hash": "", "tags": ""})
            everything = dict.fromkeys(("configure", "write", "read"), ".*")
            lab.call(broker, "PUT", "/api/permissions/%2F/broker", everything)
        lab.apply(lab.calls(pair))
        lab.wait_until_linked(pair)
        clients.subscribe(pair.wants)
        publish_all(clients, tally, sample_messages(pair, 5))
        settle(clients, tally)
    counts = tally.counts()
    assert [counts[key] for key in ("expected", "missing", "duplicates", "unexpected")] == [20, 0, 0, 0]


def test_a_live_change_with_a_broker_that_only_publishes():
    """All links are added first and then removed; afterwards every message arrives once."""
    plan = bl.link(bl.Interest.from_lists([["x", "y"], ["x", "y"], ["x"], []]), algorithm="gm")
    sent = [Publication(3, "x", 1.0)]
    old = wire(plan, plan_trees(plan, sent), sent)
    other = WiredLink("1", "2", ("x",), ("x", "y"))  # any broker can publish y, too
    new = Wiring(old.brokers, old.wants, old.publishes, (old.links[0], other, old.links[2]))
    tally = DeliveryTally(old)
    with RabbitLab(old) as lab:
        lab.apply(lab.calls(old))
        lab.wait_until_linked(old)
        with LabClients(lab.ports, tally.receive) as clients:
            clients.subscribe({broker: list(old.wants[broker]) for broker in old.brokers})
            publish_all(clients, tally, sample_messages(old, 5))
            settle(clients, tally)
            adds, removals = rabbitmq_federation.change(old, new, lab.settings())
            lab.apply(adds)
            lab.wait_until_linked(new)
            lab.apply(removals)
            clients.run(lambda: False, 1)
            publish_all(clients, tally, sample_messages(old, 5))
            settle(clients, tally)
    counts = tally.counts()
    assert (counts["missing"], counts["duplicates"], counts["unexpected"]) == (0, 0, 0)
