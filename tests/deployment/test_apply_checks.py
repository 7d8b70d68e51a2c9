"""What `deploy apply` checks and refuses before a change, and what its journal knows after one."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from test_apply import PretendBrokers, deployed_unchecked

import broadloom as bl
from broadloom.deployment import (
    Deployment,
    FleetBroker,
    FleetHooks,
    FleetLogin,
    FleetTls,
    WiredLink,
    Wiring,
)
from broadloom.deployment.apply import ChangeJournal, DeploymentChange, access_note, apply_change
from broadloom.deployment.deployment_inputs import Settings
from broadloom.deployment.fleet_control import FleetControl
from broadloom.errors import InputError, UnreachableError
from fleet_lab import wait_until

X = ("x",)
AB, BC, AC = (WiredLink(u, v, X, X) for u, v in ("ab", "bc", "ac"))


def wired(*links):
    return Wiring(tuple("abc"), dict.fromkeys("abc", X), {}, links)


ONE, TWO, THREE = (deployed_unchecked(wired(*links)) for links in ((AB,), (AB, BC), (AB, AC)))


def carried_out(old, new, path, back=False):
    """The counts of a change of pretended brokers."""
    change = DeploymentChange(old, new)
    journal = ChangeJournal(path)
    try:
        return apply_change(change, change.steps(), PretendBrokers(change), journal, back=back)
    finally:
        journal.close()


def test_a_complete_change_is_not_applied_again_and_another_must_begin_where_it_led(tmp_path):
    path = tmp_path / "fleet.apply"
    assert carried_out(ONE, TWO, path)["taken"] > 0
    again = carried_out(ONE, TWO, path)
    assert again["already_applied"]
    assert (again["taken"], again["restarts"]) == (0, [])
    with pytest.raises(InputError, match="other links than those of the old plan; give the plan in use"):
        carried_out(ONE, THREE, path)
    assert not carried_out(TWO, THREE, path)["already_applied"]
    assert carried_out(THREE, ONE, path)["taken"] > 0


def test_after_a_rollback_the_old_links_are_in_use(tmp_path):
    path = tmp_path / "fleet.apply"
    change = DeploymentChange(ONE, TWO)
    journal = ChangeJournal(path)
    brokers = PretendBrokers(change, killed_at=3)
    with pytest.raises(KeyboardInterrupt):
        apply_change(change, change.steps(), brokers, journal)
    apply_change(change, (), brokers, journal, back=True)
    journal.close()
    assert carried_out(ONE, TWO, path)["taken"] > 0


BASE = FleetBroker("a", "10.0.0.1", kind="nats")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tls", None),
        ("tls", FleetTls("ca.crt")),
        ("login", FleetLogin("links", "secrets/a")),
        ("account", "APP"),
        ("leaf_listen", "10.0.0.1:7500"),
    ],
)
def test_a_change_knows_the_access_of_links_and_says_if_only_that_has_changed(field, value, tmp_path):
    def sides(broker):
        settings = Settings(brokers={"a": broker})
        return [Deployment(one.wiring, settings, one.files) for one in (ONE, TWO)]

    change = DeploymentChange(*sides(BASE))
    other = DeploymentChange(*sides(replace(BASE, **{field: value})))
    assert change.digest() != other.digest()
    journal = ChangeJournal(tmp_path / "fleet.apply")
    brokers = PretendBrokers(change, killed_at=3)
    with pytest.raises(KeyboardInterrupt):
        apply_change(change, change.steps(), brokers, journal)
    with pytest.raises(InputError, match=f"the fleet file has changed since this change began .{field} of"):
        apply_change(other, other.steps(), PretendBrokers(other), journal)
    apply_change(change, change.steps(), brokers, journal)
    with pytest.raises(
        InputError, match=f"applied already, but the fleet file has changed since .{field} of"
    ):
        apply_change(other, other.steps(), PretendBrokers(other), journal)
    following = DeploymentChange(other.new, other.old)
    assert f"{field} of broker 'a'" in access_note(following, journal)[0]
    assert access_note(DeploymentChange(change.new, change.old), journal) == []


def test_a_code_of_a_change_contains_no_secret(monkeypatch):
    """Another password does not change it: it refers to the password."""
    login = FleetLogin("links", password_env="LINKS")
    codes = set()
    for password in ("hunter-1", "hunter-2"):
        monkeypatch.setenv("LINKS", password)
        settings = Settings(brokers={"a": replace(BASE, login=login)}, passwords={"a": password})
        change = DeploymentChange(*(Deployment(one.wiring, settings, one.files) for one in (ONE, TWO)))
        codes.add(change.digest())
        assert password not in repr(change.states())
    assert len(codes) == 1


def test_kept_messages_are_not_readable_after_the_change(tmp_path):
    """Neither in the journal, nor in what SQLite leaves next to it."""
    path = tmp_path / "fleet.apply"
    journal = ChangeJournal(path)
    change = DeploymentChange(ONE, TWO)
    journal.begin(change, change.steps())
    for number in range(50):
        journal.keep("l.broadloom-a:b", [(f"secret-topic-{number}", 300 * b"payload")] * 10)
    assert b"secret-topic" in path.read_bytes()
    journal.end(change.states()[1])
    for file in tmp_path.iterdir():
        assert b"secret-topic" not in file.read_bytes(), file.name
    journal.close()
    for file in tmp_path.iterdir():
        assert b"secret-topic" not in file.read_bytes(), file.name


VALUES = {"broker": "a", "host": "::1", "uri_host": "[::1]", "port": "1883", "file": "/tmp/x/broadloom.conf"}


@pytest.mark.parametrize("name", ["remove", "stop", "start", "reload"])
def test_only_an_install_command_has_a_file(name):
    with pytest.raises(InputError, match=rf"hooks.{name} has {{file}}; there are {{broker}}, {{host}}"):
        FleetHooks(**{name: "ssh {host} rm {file}"})
    assert FleetHooks(install="scp {file} {host}:").install == ("scp", "{file}", "{host}:")


def test_an_ipv6_host_has_brackets_where_a_command_asks_for_them():
    hooks = FleetHooks(install="scp {file} {uri_host}:links.conf", stop="ssh {host} halt")
    assert hooks.shown("install", VALUES) == "scp /tmp/x/broadloom.conf '[::1]:links.conf'"
    assert hooks.shown("stop", VALUES) == "ssh ::1 halt"
    control = FleetControl(bl.Fleet([FleetBroker("a", "[::1]:1883")]), DeploymentChange(ONE, TWO))
    assert control._values(control._broker("a"), VALUES["file"]) == VALUES


def test_a_command_that_leaves_a_process_behind_ends_with_the_command(tmp_path):
    """That process has the output of the command open."""
    left = FleetHooks(start=("sh", "-c", "sleep 300 & echo $! > $0/pid", str(tmp_path)), seconds=20)
    left.run("start", VALUES)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path):
    slow = FleetHooks(start=("sh", "-c", "sleep 300 & echo $! > $0/pid; wait", str(tmp_path)), seconds=1)
    with pytest.raises(UnreachableError, match="has not ended in 1 s: sh"):
        slow.run("start", VALUES)
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    wait_until(lambda: not status.exists() or status.read_text().split()[2] == "Z", "the child is ended")


def test_a_command_that_fails_says_its_last_line():
    with pytest.raises(UnreachableError, match="stop command of broker 'a' ended with 3: no such unit"):
        FleetHooks(stop=("sh", "-c", "echo stopping; echo no such unit >&2; exit 3")).run("stop", VALUES)
