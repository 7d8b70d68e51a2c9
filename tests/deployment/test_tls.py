"""Exported TLS references on real mosquitto brokers, with a private authority per test."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace

import pytest

import broadloom as bl
from broadloom import UnreachableError
from broadloom.agents.links.embedded_links import EmbeddedLinks, LinkConfig, address_endpoints
from broadloom.agents.moves.move_service import AgentConfig
from broadloom.deployment import (
    FleetBroker,
    FleetLogin,
    Settings,
    WiredLink,
    Wiring,
    fleet_settings,
    sample_messages,
)
from broadloom.deployment.rehearsal.delivery_counts import DeliveryTally, LabClients, publish_all, settle
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, MosquittoLab, free_ports, killed_with_parent
from broadloom.deployment.rehearsal.rehearsals import connect, outcome
from broadloom.deployment.targets import mosquitto_bridges, nats_leafnodes
from broadloom.mqtt.endpoint import Address, Login
from certificates import authority

pytestmark = [pytest.mark.needs("mosquitto", "openssl"), pytest.mark.xdist_group("mosquitto")]

X = ("x",)
ROW = Wiring(
    tuple("abc"), dict.fromkeys("abc", X), {}, (WiredLink("a", "b", X, X), WiredLink("b", "c", X, X))
)
LISTEN = """\
per_listener_settings false
allow_anonymous true
user root
persistence_location {folder}/
log_dest stderr
log_type all
listener {plain} {host}
listener {tls} {host}
cafile {certificates}/ca.crt
certfile {certificates}/broker.crt
keyfile {certificates}/broker.key
require_certificate true
include_dir {folder}/links
"""


class TlsLab(MosquittoLab):
    """Brokers that accept links over TLS only, and include the exported file unchanged."""

    def __init__(self, wiring, certificates, presented=None):
        super().__init__(wiring)
        self.certificates, self.presented = certificates, presented or certificates
        self.tls_ports = dict(zip(wiring.brokers, free_ports(len(wiring.brokers)), strict=True))

    def configure(self, broker, wiring):
        """Write the broker's own file, and the exported one that it includes."""
        folder = self._folder_of(broker)
        (folder / "links").mkdir(parents=True, exist_ok=True)
        ports = {"plain": self.ports[broker], "tls": self.tls_ports[broker]}
        text = LISTEN.format(folder=folder, host=HOST, certificates=self.certificates, **ports)
        (folder / "mosquitto.conf").write_text(text)
        addresses = {name: f"{HOST}:{port}" for name, port in self.tls_ports.items()}
        exported = mosquitto_bridges.files(
            wiring, Settings(addresses=addresses, certificates=str(self.presented))
        )
        (folder / "links" / "broker.conf").write_text(exported[f"broker-{broker}.conf"])


def test_links_authenticate_by_the_exported_certificates(tmp_path):
    """Every delivery once, over links as planned, on brokers that accept no link without a certificate."""
    tally, messages = DeliveryTally(ROW), sample_messages(ROW, 5)
    with (
        TlsLab(ROW, authority(tmp_path / "certs")) as brokers,
        LabClients(brokers.ports, tally.receive) as clients,
    ):
        connect(brokers, clients, ROW)
        publish_all(clients, tally, messages)
        settle(clients, tally)
        counted = outcome(brokers, tally, messages)
    assert counted.ok, counted.record()
    assert counted.counts["expected"] == 45


def test_a_link_with_certificates_of_another_authority_is_refused(tmp_path):
    own, other = authority(tmp_path / "own"), authority(tmp_path / "other")
    with (
        TlsLab(ROW, own, presented=other) as brokers,
        pytest.raises(UnreachableError, match="2 links are not up"),
    ):
        brokers.wait_until_linked(ROW, 2)


def test_embedded_links_authenticate_by_certificates(tmp_path):
    """By the authority and the certificate of a login, as in `[links.login]` of an agent."""
    folder = authority(tmp_path / "certificates")
    proof = str(folder / "broker.crt"), str(folder / "broker.key")
    login = Login(ca=str(folder / "ca.crt"), certificate=proof)
    plan = bl.link(bl.Interest.from_lists([X, X], node_ids=["a", "b"]), algorithm="gm")
    with TlsLab(Wiring(("a", "b"), {}, {}, ()), folder) as brokers:
        addresses = {name: Address(HOST, port) for name, port in brokers.tls_ports.items()}
        embedded = EmbeddedLinks(plan, X, address_endpoints(addresses, login, 500), tmp_path / "links")
        embedded.start()
        try:
            end = time.monotonic() + 60
            while not embedded.links.carried("a", X) or embedded.down():
                assert time.monotonic() < end
                time.sleep(0.02)
        finally:
            embedded.stop()


def test_a_separate_login_of_links_inherits_the_tls_of_the_agent(tmp_path, caplog):
    """Its password is not sent in clear text by accident; in plain text, a warning omits the password."""
    authority(tmp_path / "own")
    authority(tmp_path / "other")
    (tmp_path / "secret").write_text("never shown")
    (tmp_path / "secret").chmod(0o600)
    tls = 'ca = "own/ca.crt"\ncertificate = "own/broker.crt"\nkey = "own/broker.key"'

    def login(of_agent, of_links):
        (tmp_path / "agent.toml").write_text(
            f'token_file = "secret"\nauthentication = "broker"\n[login]\n{of_agent}\n'
            '[brokers.a]\naddress = "a:1"\n'
            f'[links]\ntopics = ["t"]\n[links.login]\nuser = "links"\npassword_file = "secret"\n{of_links}'
        )
        return LinkConfig.of(AgentConfig.load(tmp_path / "agent.toml")).login

    own, other = (tmp_path / name for name in ("own", "other"))
    proof = str(own / "broker.crt"), str(own / "broker.key")
    inherited = login(tls, "")
    assert inherited == Login("links", "never shown", str(own / "ca.crt"), proof)
    assert address_endpoints({"a": Address("a", 1)}, inherited, 500)("a").tls is not None
    assert login(tls, 'ca = "other/ca.crt"') == replace(inherited, ca=str(other / "ca.crt"))
    changed = login(tls, tls.split("\n", 1)[1].replace("own/", "other/"))
    assert changed.certificate == (str(other / "broker.crt"), str(other / "broker.key"))
    assert changed.ca == inherited.ca
    assert not caplog.records
    assert login("", "").ca == ""  # the certificates that the system trusts
    assert not caplog.records
    assert login("plain = true", "").ca is None
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "[links.login]: the password is sent unencrypted, because plain is true" in warning
    assert "never shown" not in warning


def test_sessions_change_over_tls(run, tmp_path):
    certificates = authority(tmp_path / "certs")
    with TlsLab(ROW, certificates) as brokers:
        here = f"{HOST}:{brokers.tls_ports['c']}"
        session = ("deploy", "session", here, "link", "--open=x", "--certificates")
        assert run(*session, certificates)[0] == 0
        stranger = [sys.executable, "-m", "broadloom.cli", *session, str(authority(tmp_path / "other"))]
        done = subprocess.run(stranger, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert f"cannot change the session 'link' at {here}: " in done.stderr


@pytest.mark.needs("nats-server")
@pytest.mark.parametrize("credentials", [False, True])
def test_leaf_links_of_nats_authenticate_by_certificates(tmp_path, credentials):
    """Also with a login in addition to the certificate; the listening end reports that the link is up."""
    certificates = authority(tmp_path / "certs")
    client_a, client_b, leaf, other, monitor = free_ports(5)
    wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", X, X),))
    addresses = {"a": f"{HOST}:{other}", "b": f"{HOST}:{leaf}"}
    written = nats_leafnodes.files(
        wiring, Settings("{broker}", addresses, True, str(certificates), credentials)
    )
    variables = {"BROADLOOM_PASSWORD": "p", "BROADLOOM_URL_b": f"tls://BROADLOOM:p@{HOST}:{leaf}"}
    processes = []
    try:
        for broker, port in (("b", client_b), ("a", client_a)):
            (tmp_path / f"{broker}.conf").write_text(written[f"broker-{broker}.conf"])
            own = ["-c", str(tmp_path / f"{broker}.conf"), "-a", HOST, "-p", str(port)]
            own += ["-m", str(monitor)] if broker == "b" else []
            log = (tmp_path / f"{broker}.log").open("wb")
            with log:
                command = [*killed_with_parent(), "nats-server", *own]
                processes.append(subprocess.Popen(command, stderr=log, env={**os.environ, **variables}))
        assert leaf_links(monitor, 1) == 1, [log.read_text() for log in tmp_path.glob("*.log")]
    finally:
        for process in processes:
            process.terminate()
            process.wait()


@pytest.mark.needs("nats-server")
def test_leaf_links_of_a_fleet_log_in_and_listen_at_one_address_only(tmp_path):
    """With a password full of characters that mean something elsewhere; other addresses refuse clients."""
    secret = tmp_path / "secret"
    secret.write_text('p@s:s/w$HOME "o\\r}d #x')
    secret.chmod(0o600)
    client_a, client_b, leaf, monitor = free_ports(4)
    login = FleetLogin("li nk's", str(secret))
    fleet = bl.Fleet(
        [
            FleetBroker("a", f"{HOST}:{client_a}", "nats", tls=None),
            FleetBroker(
                "b", f"{HOST}:{client_b}", "nats", tls=None, login=login, leaf_listen=f"{HOST}:{leaf}"
            ),
        ]
    )
    plan = bl.link(bl.Interest.from_lists([X, X], node_ids=["a", "b"]), algorithm="gm")
    wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", X, X),))
    written = nats_leafnodes.files(wiring, fleet_settings(fleet, plan, with_secrets=True))
    processes = []
    try:
        for broker, port in (("b", client_b), ("a", client_a)):
            (tmp_path / f"{broker}.conf").write_text(written[f"broker-{broker}.conf"])
            own = ["-c", str(tmp_path / f"{broker}.conf"), "-a", HOST, "-p", str(port)]
            own += ["-m", str(monitor)] if broker == "b" else []
            with (tmp_path / f"{broker}.log").open("wb") as log:
                processes.append(subprocess.Popen([*killed_with_parent(), "nats-server", *own], stderr=log))
        assert leaf_links(monitor, 1) == 1, [log.read_text() for log in tmp_path.glob("*.log")]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", leaf), 5)
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def leaf_links(monitor, wanted):
    """The number of leaf links of a server, once it has as many as wanted, or after a minute."""
    found, end = 0, time.monotonic() + 60
    while found != wanted and time.monotonic() < end:
        time.sleep(0.1)
        with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{monitor}/leafz") as answer:
            found = json.loads(answer.read())["leafnodes"]
    return found
