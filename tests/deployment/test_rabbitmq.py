"""Real RabbitMQ nodes: trees that close rings, each delivery once, links as planned, a live change."""

import json
import random

import pytest

import broadloom as bl
from broadloom.deployment import (
    Deployment,
    FleetBroker,
    FleetLogin,
    Publication,
    Settings,
    WiredLink,
    Wiring,
    plan_trees,
    removal,
    roll_out,
    sample_messages,
    target_named,
    wire,
)
from broadloom.deployment.apply import ChangeJournal, apply_change
from broadloom.deployment.rabbitmq_control import RabbitChange, RabbitControl
from broadloom.deployment.rehearsal import rabbitmq_lab, rehearse_live_change, rehearse_rabbitmq
from broadloom.deployment.rehearsal.delivery_counts import DeliveryTally, LabClients, publish_all, settle
from broadloom.deployment.rehearsal.mosquitto_lab import HOST
from broadloom.deployment.rehearsal.rabbitmq_lab import RabbitLab
from broadloom.deployment.rehearsal.rehearsals import change_under_load
from broadloom.deployment.targets import rabbitmq_federation
from certificates import authority
from injection_attempts import accepted

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
        tree = f"broadloom.{rabbitmq_federation.version(wiring, Settings(tls=False))}.tree"
        assert len(lab.call("n", "GET", f"/api/bindings/%2F/e/{tree}/e/amq.topic")) == len(odd)
        lab.apply({"n": rabbitmq_federation.removed(made)})
        assert left_behind(lab, "n") == []


def left_behind(lab, broker):
    """What a node has of our links."""
    kinds = ("exchanges", "queues", "policies", "parameters/federation-upstream")
    found = [one["name"] for kind in kinds for one in lab.call(broker, "GET", f"/api/{kind}")]
    bound = [
        str(one)
        for one in lab.call(broker, "GET", "/api/bindings")
        if "broadloom" in one["source"] + one["destination"]
    ]
    return [name for name in found if "broadloom" in name] + bound


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


def applied(lab, old, new):
    """A change from one wiring to another by the steps of `deploy apply`, and what takes them."""
    change = RabbitChange(*(Deployment(wiring, lab.settings(), {}) for wiring in (old, new)))
    return change, RabbitControl(change, lab.call, 60)


class KilledError(Exception):
    """The process is gone."""


class KilledControl:
    """A control whose process is killed after some calls of the API."""

    def __init__(self, lab, change, calls):
        self.lab = lab
        self.left = calls
        self.inner = RabbitControl(change, self.call, 60)

    def call(self, *words):
        """Call the API, or be killed."""
        if self.left == 0:
            raise KilledError
        self.left -= 1
        return self.lab.call(*words)

    def take(self, step):
        """Take a step."""
        self.inner.take(step)


def lab_fleet(lab):
    """The fleet of the nodes, with their management APIs."""
    login = FleetLogin("guest", password_env="RABBIT_TEST_PASSWORD")
    return bl.Fleet(
        [
            FleetBroker(
                name,
                f"{HOST}:{mqtt}",
                kind="rabbitmq",
                tls=None,
                subscriptions=f"http://{HOST}:{api}",
                api_login=login,
            )
            for name, (_, api, mqtt, _) in lab._ports.items()
        ]
    )


def test_a_change_under_load_loses_and_doubles_nothing_and_leaves_nothing_behind(tmp_path, monkeypatch):
    """One broker joins, one leaves and trees move; then killed and resumed, and rolled back from anywhere."""
    monkeypatch.setenv("RABBIT_TEST_PASSWORD", "guest")
    names = tuple("abcd")
    x, y, both = ("x",), ("y",), ("x", "y")
    wants = {"a": x, "b": both, "c": both, "d": x}
    old = Wiring(names, wants, {}, (WiredLink("a", "b", x, x), WiredLink("b", "c", both, both)))
    new = Wiring(
        names, wants, {}, (WiredLink("b", "c", y, y), WiredLink("b", "d", x, x), WiredLink("c", "d", x, x))
    )
    stable = Wiring(names, {"b": both, "c": both}, {}, ())
    tally = DeliveryTally(stable)
    with RabbitLab(stable) as lab:
        change, control = applied(lab, old, new)
        lab.apply(lab.calls(old))
        lab.wait_until_linked(old)
        control.check(change.steps())
        with LabClients(lab.ports, tally.receive) as clients:
            clients.subscribe({broker: list(stable.wants.get(broker, ())) for broker in names})
            random_ = random.Random(1)

            def there():
                sides = (change.old, change.new)
                counts = roll_out(*sides, target_named("rabbitmq"), lab_fleet(lab), tmp_path / "journal")
                assert (counts["steps"], counts["restarts"]) == (len(change.steps()), [])

            def killed_and_back():
                """From the new deployment to the old one and back, killed at random calls."""
                for turn, (one, two) in enumerate(((new, old), (old, new), (new, old), (old, new))):
                    again, _ = applied(lab, one, two)
                    journal = ChangeJournal(None)
                    back = turn % 2 == 1
                    calls = random_.randint(5, 60)
                    try:
                        apply_change(again, again.steps(), KilledControl(lab, again, calls), journal)
                    except KilledError:
                        apply_change(again, (), applied(lab, one, two)[1], journal, back=back)
                        if back:
                            apply_change(again, again.steps(), applied(lab, one, two)[1], ChangeJournal(None))

            counts = change_under_load(clients, tally, 300, [there, killed_and_back])
        after = counts["afterwards"]
        assert (counts["lost"], counts["doubled"], counts["unexpected"]) == (0, 0, 0), counts
        assert (after["missing"], after["duplicates"], after["unexpected"]) == (0, 0, 0), after
        assert left_behind(lab, "a") == []
        code = rabbitmq_federation.version(old, lab.settings())
        assert not [name for broker in names for name in left_behind(lab, broker) if code in name]
        none = Wiring(names, wants, {}, ())
        change, control = applied(lab, new, none)
        with pytest.raises(bl.InputError, match="give the plan in use"):
            applied(lab, old, none)[1].check(applied(lab, old, none)[0].steps())
        apply_change(change, change.steps(), control, ChangeJournal(None))
        assert [left_behind(lab, broker) for broker in names] == [[]] * 4


def test_a_live_change_with_a_broker_that_only_publishes():
    """Afterwards every message arrives once."""
    plan = bl.link(bl.Interest.from_lists([["x", "y"], ["x", "y"], ["x"], []]), algorithm="gm")
    sent = [Publication(3, "x", 1.0)]
    old = wire(plan, plan_trees(plan, sent), sent)
    other = WiredLink("1", "2", ("x",), ("x", "y"))  # any broker can publish y, too
    new = Wiring(old.brokers, old.wants, old.publishes, (old.links[0], other, old.links[2]))
    counts = rehearse_live_change(old, new)
    after = counts["afterwards"]
    assert (counts["lost"], counts["doubled"], counts["unexpected"]) == (0, 0, 0)
    assert (after["missing"], after["duplicates"], after["unexpected"]) == (0, 0, 0)
