"""Routers in front of brokers: HAProxy accepts the exported configuration and routes clients by the map."""

from __future__ import annotations

import json
import socket
import subprocess
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom.deployment import Fleet, FleetBroker
from broadloom.deployment.targets import haproxy_router
from broadloom.deployment.targets.haproxy_router import (
    _CONFIG,
    RouterSettings,
    files,
    map_key,
    map_text,
    moving_to,
    read_map,
    served_by,
)
from routed import HOST, LIMIT, RoutedBrokers, wait_for

FLEET = """\
[brokers.rome]
address = "10.0.0.1:8883"
tls = { ca = "/etc/ssl/certs/ca-certificates.crt" }
[brokers."eu/1"]
address = "127.0.0.1:1883"
tls = false
"""


@given(st.dictionaries(st.text(min_size=1), st.sampled_from(["rome", "oslo"])))
def test_every_client_id_survives_the_map_file(homes):
    """Whatever characters a client id has, the file has one line per client."""
    text = map_text({client: served_by(home) for client, home in homes.items() if _is_utf8(client)})
    assert read_map(text) == {
        map_key(client): served_by(home) for client, home in homes.items() if _is_utf8(client)
    }


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def test_two_brokers_never_have_the_same_backend():
    names = ["a", "a:2F", "a/", "a%2F", "a~", "a:7E", "a 1", "a:201"]
    assert max(Counter(served_by(name) for name in names).values()) == 1
    assert not {served_by(name) for name in names} & {moving_to(name) for name in names}


@pytest.mark.needs("haproxy", "openssl")
def test_haproxy_accepts_the_exported_configuration(run, tmp_path):
    """By the command line, with TLS, which is the default, and with plain text, which must be asked for."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    out = tmp_path / "routers"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=router"),
            *("-days", "1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    (tmp_path / "server.pem").write_bytes(
        (tmp_path / "cert.pem").read_bytes() + (tmp_path / "key.pem").read_bytes()
    )
    (tmp_path / "clients.map").write_text(map_text({"c 1": served_by("eu/1")}))
    export = ("deploy", "export", "--to", "haproxy", "--fleet", tmp_path / "fleet.toml", "-o", out)
    code, text, err = run(*export)
    assert code == 0, err
    assert "3 files for haproxy, and deployment.json -> " in text
    assert len(list(out.iterdir())) == 4
    for options, plain in (((), False), (("--no-tls",), True)):
        code, text, err = run(*export, "--certificates", tmp_path, "--force", "--json", *options)
        assert code == 0, err
        assert bool(json.loads(text)["notes"]) == plain
        for name in ("router-rome.cfg", "router-eu%2F1.cfg"):
            config = (out / name).read_text()
            assert ("ssl crt" in config) != plain
            # The socket's folder exists only on a machine of a router.
            (tmp_path / "checked.cfg").write_text(config.replace("/run/haproxy/", f"{tmp_path}/"))
            checked = subprocess.run(
                ["haproxy", "-c", "-f", tmp_path / "checked.cfg"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert checked.returncode == 0, checked.stderr


def test_mistakes_of_an_export_are_named_in_one_line(run, tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET)
    for arguments, message in (
        (("--to", "haproxy"), "takes a fleet and no plan"),
        ((tmp_path, "--to", "haproxy", "--fleet", tmp_path / "fleet.toml"), "takes a fleet and no plan"),
        (("--to", "haproxy", "--fleet", tmp_path / "fleet.toml", "--relay", "here"), "relay is 'here'"),
        (
            ("--to", "haproxy", "--fleet", tmp_path / "fleet.toml", "--relay", "10.0.0.9:8781"),
            "relay is '10.0.0.9:8781', on another machine, so it must have TLS; give relay_ca",
        ),
        ((tmp_path, "--relay", "h:1"), "are for --to haproxy"),
        ((), "the folder of a plan is missing"),
    ):
        code, _, err = run("deploy", "export", *arguments, "-o", tmp_path / "out")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    nats = Fleet([FleetBroker("n", "10.0.0.1", kind="nats")])
    with pytest.raises(bl.InputError, match="is a NATS server"):
        files(nats, RouterSettings())
    with pytest.raises(bl.InputError, match=r"'r' has the address 10\.0\.0\.1 and TLS"):
        files(Fleet([FleetBroker("r", "10.0.0.1")]), RouterSettings())


def test_the_name_of_the_relay_is_compared_with_its_certificate():
    """An IP address cannot be; see the guide."""
    fleet = Fleet([FleetBroker("r", "r.example.org")])
    for relay, name in (("relay.example.org:1", " verifyhost relay.example.org "), ("10.0.0.9:1", None)):
        config = files(fleet, RouterSettings(relay=relay, relay_ca="/ca.crt"))["router-r.cfg"]
        (line,) = (line for line in config.splitlines() if "server relay" in line)
        assert "ssl verify required ca-file /ca.crt" in line
        assert ("verifyhost" in line) == (name is not None)
        assert name is None or name in line


def test_the_authority_of_the_relay_is_in_the_folder_of_the_map():
    """HAProxy is started in another folder than the one of the export."""
    fleet = Fleet([FleetBroker("r", "r.example.org")])
    for authority, file in (("ca.crt", "/pki/ca.crt"), ("/ca.crt", "/ca.crt"), ("@system-ca", "@system-ca")):
        config = files(fleet, RouterSettings(relay_ca=authority, folder="/pki"))["router-r.cfg"]
        assert f"ca-file {file} no-check-ssl" in config


@pytest.mark.needs("haproxy", "mosquitto", "mosquitto_pub")
@pytest.mark.xdist_group("mosquitto")
def test_a_client_without_a_client_id_and_a_quiet_client_and_a_silent_connection(tmp_path, monkeypatch):
    """The first goes to the router's own broker; the second lives by its keep-alive; the third is ended."""
    short = _CONFIG.replace("15s", "1s")
    assert short.count("1s") == 2
    monkeypatch.setattr(haproxy_router, "_CONFIG", short)
    with RoutedBrokers(tmp_path, ("a", "b")) as system:
        command = ["mosquitto_pub", "-h", HOST, "-p", str(system.port), "-q", "1", "-t", "t/x", "-m", "x"]
        for version in ("mqttv311", "5"):
            subprocess.run([*command, "-V", version], check=True)
        with (
            socket.create_connection((HOST, system.port)) as quiet,
            socket.create_connection((HOST, system.port)) as silent,
        ):
            quiet.settimeout(LIMIT)
            silent.settimeout(LIMIT)
            quiet.sendall(b"\x10\x0e\0\4MQTT\4\2\0\x3c\0\2c1")  # CONNECT, with a keep-alive of 60 s
            assert quiet.recv(10) == b"\x20\2\0\0"
            assert silent.recv(10) == b""  # ended, after a second
            silent.close()
            with socket.create_connection((HOST, system.port)) as later:  # two seconds without a packet
                later.settimeout(LIMIT)
                assert later.recv(10) == b""
            quiet.sendall(b"\xc0\0")
            assert quiet.recv(10) == b"\xd0\0"


@pytest.mark.needs("haproxy", "mosquitto", "mosquitto_pub")
@pytest.mark.xdist_group("mosquitto")
def test_the_map_decides_the_broker_of_each_client_also_after_a_reload(tmp_path):
    """Clients go where the map says, as it is changed; others go to the router's own broker."""
    with RoutedBrokers(tmp_path, ("a", "b")) as system:
        odd = "m 1/ü+#~_.-x"
        system.router.send({odd: served_by("b")})
        for client in (odd, "other"):
            assert system.publish(client) == 0
        assert wait_for(lambda: system.connected(odd) == ["b"] and system.connected("other") == ["a"])
        system.router.send({"other": moving_to("b")})  # the relay does not run, so b itself serves it
        assert system.publish("other") == 0
        assert wait_for(lambda: system.connected("other") == ["a", "b"])
        system.kill_router()
        system.start_router()
        assert system.publish("other") == 0
        assert wait_for(lambda: system.connected("other") == ["a", "b", "b"])
