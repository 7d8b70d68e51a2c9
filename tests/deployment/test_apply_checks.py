"""What `deploy apply` checks and refuses before a change, and what its journal knows after one."""

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_apply import PretendBrokers, deployed_unchecked

import broadloom as bl
from broadloom.cli import main
from broadloom.cli.deploy_texts import apply_text
from broadloom.deployment import (
    Deployment,
    FleetBroker,
    FleetHooks,
    FleetLogin,
    FleetTls,
    WiredLink,
    Wiring,
    apply,
    call_api,
    fleet_control,
    roll_out,
    target_named,
)
from broadloom.deployment.apply import ChangeJournal, DeploymentChange, access_note, apply_change
from broadloom.deployment.broker_rights import BrokerRights, try_rights
from broadloom.deployment.deployment_inputs import Settings
from broadloom.deployment.fleet_control import FleetControl
from broadloom.deployment.fleet_targets import fleet_access
from broadloom.deployment.nats_control import NatsControl, NatsReloads
from broadloom.deployment.rabbitmq_control import RabbitChange, RabbitControl
from broadloom.deployment.targets import nats_leafnodes
from broadloom.errors import InputError, MissingExtraError, StorageError, UnreachableError
from broadloom.mqtt.paho import HeldMessage, publish_messages, stop_client
from fleet_lab import wait_until
from operator_sites import fleet_of, running_sites

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
        journal.keep("l.broadloom-a:b", [HeldMessage(f"secret-topic-{number}", 300 * b"payload")] * 10)
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
    with pytest.raises(UnreachableError, match=r"stop command of broker 'a' ended with 3: no such unit"):
        FleetHooks(stop=("sh", "-c", "echo stopping; echo no such unit >&2; exit 3")).run("stop", VALUES)


STOP = {"stop": "true", "start": "true"}


def fleet_with(**hooks):
    """A fleet of three brokers, which do not run; one has these hooks."""
    good = FleetHooks(install="true {file}", remove="true", **STOP, reload="true")
    return bl.Fleet(
        [
            FleetBroker(name, f"127.0.0.1:{port}", hooks=FleetHooks(**hooks) if name == "a" else good)
            for name, port in zip("abc", (1, 2, 3), strict=True)
        ]
    )


def checked(change, **hooks):
    FleetControl(fleet_with(**hooks), change).check_files(change.steps())


def test_a_change_checks_commands_and_folders_before_its_first_step(tmp_path, monkeypatch):
    change = DeploymentChange(ONE, THREE)  # a restarts
    links = tmp_path / "conf.d" / "broadloom.conf"
    links.parent.mkdir()
    links.write_text(ONE.texts()["a"])
    checked(change, path=str(links), **STOP)
    with pytest.raises(InputError, match="broker 'a' has no start command"):
        checked(change, path=str(links), stop="true")
    with pytest.raises(InputError, match="broker 'a' has no install command"):
        checked(change, **STOP)
    with pytest.raises(MissingExtraError, match=r"stop command of broker 'a'.* no-such-program is not found"):
        checked(change, path=str(links), stop="no-such-program {host}", start="true")
    with pytest.raises(InputError, match=r"conf.d/broadloom.conf is not a folder"):
        checked(change, path=str(links / "links.conf"), **STOP)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(StorageError, match="no right to write in"):
        checked(change, path=str(links), **STOP)


def test_a_temporary_folder_that_a_command_could_misread_is_refused_before_the_first_step(
    tmp_path, monkeypatch
):
    (tmp_path / "a; b").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a; b"))
    with pytest.raises(InputError, match=r"{file} of a command would be"):
        checked(DeploymentChange(ONE, THREE), install="scp {file} {host}:", remove="true", **STOP)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "11 of its 11 lines are missing, 0 others are there"),
        (THREE.texts()["a"], "0 of its 11 lines are missing, 11 others are there"),
        (ONE.texts()["a"] + "\nallow_anonymous true\n", "0 of its 11 lines are missing, 1 others are there"),
        (ONE.texts()["a"] + "\n# a comment\nremote_password other\n", None),
    ],
)
def test_a_file_that_is_not_that_of_the_old_plan_is_refused(text, message, tmp_path):
    links = tmp_path / "broadloom.conf"
    links.write_text(text)
    change = DeploymentChange(ONE, THREE)
    if message is None:
        checked(change, path=str(links), **STOP)
    else:
        with pytest.raises(InputError, match=f"broker 'a' is not the file of the old plan: {message}"):
            checked(change, path=str(links), **STOP)


def test_a_missing_file_of_the_old_plan_is_named_as_missing(tmp_path):
    """It was installed by hand, under another name."""
    with pytest.raises(InputError, match=r"broadloom.conf of broker 'a' does not exist, and the old"):
        checked(DeploymentChange(ONE, THREE), path=str(tmp_path / "broadloom.conf"), **STOP)


@pytest.mark.parametrize(
    ("client", "state", "is_refused"),
    [
        ("r.broadloom-a:c", b"1", True),
        ("r.broadloom-a:b", b"1", False),  # in the old plan
        ("r.broadloom-a:c", b"0", False),
        ("r.broadloom-ab:c", b"1", False),  # of another broker
        ("own-bridge", b"1", False),
    ],
)
def test_a_link_that_the_old_plan_lacks_is_refused_before_the_first_step(
    client, state, is_refused, monkeypatch
):
    """Its file can be on another machine, and no link of the old plan can be missing."""
    states = {f"$SYS/broker/connection/{one}/state": b"1" for one in ("r.broadloom-a:b",)}
    states[f"$SYS/broker/connection/{client}/state"] = state
    rights = BrokerRights((), states)
    monkeypatch.setattr("broadloom.deployment.fleet_control.try_rights", lambda *_: rights)
    monkeypatch.setattr(FleetControl, "_require_answer", lambda *_: None)
    control = FleetControl(fleet_with(**STOP), DeploymentChange(ONE, THREE))
    if is_refused:
        with pytest.raises(
            InputError, match="links up that the old plan lacks, 1 in number, such as broadloom-a:c"
        ):
            control._check_broker("a")
    else:
        assert control._check_broker("a") == []


def test_all_brokers_of_all_steps_are_asked():
    change = DeploymentChange(ONE, THREE)
    control = FleetControl(fleet_with(**STOP), change)
    stopping = [step.brokers[0] for step in change.steps() if step.action == "stop"]
    assert stopping == ["a"]
    assert sorted(control._asked(change.steps())) == ["a", "b", "c"]


def test_nats_that_reloads_needs_a_place_for_its_file():
    change = NatsReloads(ONE, THREE)
    assert all(step.action != "stop" for step in change.steps())
    with pytest.raises(InputError, match="broker 'a' has no install command"):
        NatsControl(fleet_with(reload="true"), change, 1).check_files(change.steps())
    with pytest.raises(
        InputError, match=r'no reload command .* give hooks = { path = "...", reload = "..." }'
    ):
        NatsControl(fleet_with(install="true {file}"), change, 1).check_files(change.steps())
    NatsControl(fleet_with(install="true {file}", reload="true"), change, 1).check_files(change.steps())


@pytest.mark.parametrize("killed_at", [1, 3, 9])
def test_a_rollback_of_the_first_links_of_rabbitmq_leaves_nothing(killed_at):
    change = RabbitChange(deployed_unchecked(wired()), TWO)
    made, count = set(), 0

    def call(broker, method, path, body):  # noqa: ARG001
        nonlocal count
        count += 1
        if method == "PUT":
            made.add((broker, path))
        elif method == "DELETE":
            made.discard((broker, path))
        if count == killed_at:
            raise KeyboardInterrupt
        return []

    journal = ChangeJournal(None)
    control = RabbitControl(change, call, 1)
    with pytest.raises(KeyboardInterrupt):
        apply_change(change, change.steps(), control, journal)
    assert made
    apply_change(change, (), control, journal, back=True)
    assert not made


@pytest.mark.parametrize(
    ("names", "is_up"),
    [(["B"], True), (["own"], False), (["own", "B"], True), ([None], True), ([], False)],
)
def test_a_leaf_node_of_the_operator_is_not_a_link(names, is_up, monkeypatch):
    leafs = [{"ip": "10.0.0.1"} if name is None else {"name": name} for name in names]

    def ask(_, broker, path):
        return {"leafs": leafs} if path == "/leafz" else {"server_name": broker.upper()}

    monkeypatch.setattr(NatsControl, "_ask", ask)
    control = NatsControl(fleet_with(**STOP), NatsReloads(ONE, THREE), 1)
    assert control._has_links("a", ["b"]) is is_up


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nats", 'has no monitoring port in the fleet file; give subscriptions = "http://10.0.0.1:8222"'),
        ("rabbitmq", 'no admin API .* give subscriptions = "http://10.0.0.1:15672" and api_login'),
        ("emqx", 'no admin API .* give subscriptions = "http://10.0.0.1:18083" and api_login'),
    ],
)
def test_a_missing_api_is_named_by_the_kind_of_broker(kind, message):
    with pytest.raises(InputError, match=f"{message}$"):
        call_api(FleetBroker("a", "10.0.0.1", kind=kind), "GET", "/varz")


def test_an_api_that_answers_with_a_page_is_not_an_api(monkeypatch):
    monkeypatch.setattr(
        "broadloom.deployment.broker_api.request_from", lambda *_: (b"<!doctype html><title>x", None)
    )
    broker = FleetBroker("a", "10.0.0.1", kind="nats", subscriptions="http://10.0.0.1:80")
    with pytest.raises(UnreachableError, match=r"http://10.0.0.1:80/varz does not answer with JSON; is this"):
        call_api(broker, "GET", "/varz")


def test_brokers_with_the_same_file_are_refused(tmp_path):
    hooks = FleetHooks(path=str(tmp_path / "links.conf"), **STOP)
    brokers = [FleetBroker(name, f"127.0.0.1:{port}", hooks=hooks) for port, name in enumerate("abc", 1)]
    change = DeploymentChange(deployed_unchecked(wired()), TWO)
    assert {step.brokers for step in change.steps() if step.action == "stop"} == {("a",), ("b",)}
    with pytest.raises(InputError, match=r"brokers '.' and '.' have the same hooks.path .*links.conf"):
        FleetControl(bl.Fleet(brokers), change).check_files(change.steps())


class ReloadingBrokers(NatsControl):
    """NATS brokers that read their file when they reload."""

    def __init__(self, change, killed_at):
        super().__init__(fleet_with(**STOP), change)
        self.killed_at = killed_at
        self.calls = 0
        self.files = {broker: self.text_of(broker, "old") for broker in "abc"}
        self.read = dict(self.files)

    def install(self, broker, side):
        """Write the file."""
        self.files[broker] = self.text_of(broker, side)
        self.calls += 1
        if self.calls == self.killed_at:
            raise KeyboardInterrupt

    def reload_all(self, step):
        """Read the files."""
        for broker in step.brokers:
            self.install(broker, step.side)
            self.read[broker] = self.files[broker]

    def _wait_for(self, wiring, brokers):
        """Links are up at once."""


def test_a_rollback_of_nats_leaves_no_new_file():
    change = NatsReloads(deployed_unchecked(wired(AB)), deployed_unchecked(wired(AB, BC)))
    for killed_at in itertools.count(1):
        brokers, journal = ReloadingBrokers(change, killed_at), ChangeJournal(None)
        before = dict(brokers.files)
        try:
            apply_change(change, change.steps(), brokers, journal)
            break
        except KeyboardInterrupt:
            apply_change(change, (), brokers, journal, back=True)
        assert brokers.files == brokers.read == before, killed_at
    assert killed_at > 2


class FailingBrokers(PretendBrokers):
    """Brokers of which one step fails."""

    def __init__(self, change, failing, error):
        super().__init__(change)
        self.failing, self.error = failing, error

    def install(self, broker, side):
        """Fail."""
        if self.failing == "install":
            raise self.error
        super().install(broker, side)

    def start(self, broker):
        """Fail."""
        if self.failing == "start":
            raise self.error
        super().start(broker)


@pytest.mark.parametrize("kind", [InputError, MissingExtraError, StorageError, UnreachableError])
@pytest.mark.parametrize("failing", ["install", "start"])
def test_an_error_of_a_step_says_which_step_what_is_stopped_and_how_to_go_on(kind, failing):
    change = DeploymentChange(ONE, THREE)
    number = next(i for i, step in enumerate(change.steps(), 1) if step.action == failing)
    brokers = FailingBrokers(change, failing, kind("the reason"))
    journal = ChangeJournal(None)
    with pytest.raises(kind) as caught:
        apply_change(change, change.steps(), brokers, journal)
    assert type(caught.value) is kind
    text = str(caught.value)
    assert text.startswith(f"step {number} of {len(change.steps())} ({failing}")
    assert "the reason; stopped now: a; mend it and run the same command again" in text
    assert "--roll-back" in text
    with pytest.raises(kind) as caught:
        apply_change(change, (), brokers, journal, back=True)
    assert "stopped now: a; mend it and run the same command again" in str(caught.value)
    assert "--roll-back" not in str(caught.value)


def test_an_interruption_says_which_step_what_is_stopped_and_how_to_go_on():
    change = DeploymentChange(ONE, THREE)
    total = len(change.steps())
    number = next(i for i, step in enumerate(change.steps(), 1) if step.action == "stop")
    for killed_at in (1, 2):  # before and after it has stopped
        with pytest.raises(KeyboardInterrupt) as caught:
            apply_change(change, change.steps(), PretendBrokers(change, killed_at), ChangeJournal(None))
        assert str(caught.value) == (
            f"interrupted at step {number} of {total} (stop a); stopped now: a; run the same command again, "
            "or go back with --roll-back"
        )


def test_ctrl_c_during_a_change_prints_its_step_and_exits_with_130(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        change = DeploymentChange(ONE, THREE)
        apply_change(change, change.steps(), PretendBrokers(change, 1), ChangeJournal(None))

    fleet_with(**STOP).save(tmp_path / "fleet.toml")
    monkeypatch.setattr("broadloom.cli.deploy.both_deployments", lambda *_, **__: (None, ONE, THREE))
    monkeypatch.setattr("broadloom.deployment.roll_out", interrupted)
    with pytest.raises(SystemExit) as caught:
        main(["deploy", "apply", "old", "new", "--fleet", str(tmp_path / "fleet.toml"), "--quiet"])
    assert caught.value.code == 130
    text = capsys.readouterr().err
    assert text.startswith("broadloom: interrupted at step")
    assert "unchanged" not in text


def dry_run(old, new, folder, **options):
    fleet = bl.Fleet(list(fleet_with(path=str(folder / "a.conf"), **STOP).brokers.values()))
    journal = folder / "fleet.apply"
    return roll_out(old, new, target_named("mosquitto"), fleet, journal, dry_run=True, **options)


def test_a_dry_run_refuses_what_the_run_would_and_shows_commands_and_paths(tmp_path):
    with pytest.raises(InputError, match="nothing to roll back"):
        dry_run(ONE, THREE, tmp_path, back=True)
    with pytest.raises(InputError, match="does not exist, and the old plan has"):
        dry_run(ONE, THREE, tmp_path)
    (tmp_path / "a.conf").write_text(ONE.texts()["a"])
    record = dry_run(ONE, THREE, tmp_path)
    commands = dict(zip(record["would"], record["commands"], strict=True))
    assert commands["stop a"] == ["true"]
    assert commands["install the new links of a"] == [f"write {tmp_path / 'a.conf'}"]
    assert f"      write {tmp_path / 'a.conf'}" in apply_text(record).splitlines()
    assert not (tmp_path / "fleet.apply").exists()
    carried_out(ONE, TWO, tmp_path / "fleet.apply")
    with pytest.raises(InputError, match="other links than those of the old plan"):
        dry_run(ONE, THREE, tmp_path)
    assert apply_text(dry_run(ONE, TWO, tmp_path)).startswith("already applied")


class WatchedBrokers(PretendBrokers):
    """Brokers that know which sessions watch them."""

    def __init__(self, change, killed_at=None):
        super().__init__(change, killed_at)
        self.watching = set()

    def watch(self, broker, filters):
        """A session begins."""
        super().watch(broker, filters)
        self.watching.add(broker)
        self._count()

    def end_watch(self, broker):
        """It ends."""
        super().end_watch(broker)
        self._count()
        self.watching.discard(broker)


@pytest.mark.parametrize("back", [False, True])
def test_a_change_that_is_killed_anywhere_leaves_no_session_that_watches(back):
    """The process that goes on does not have the sessions, and ends them all the same."""
    change = DeploymentChange(TWO, THREE)
    whole = WatchedBrokers(change)
    apply_change(change, change.steps(), whole, ChangeJournal(None))
    assert whole.calls > 10
    assert whole.watching == set()
    seen = 0
    for killed_at in range(1, whole.calls + 1):
        brokers, journal = WatchedBrokers(change, killed_at), ChangeJournal(None)
        with pytest.raises(KeyboardInterrupt):
            apply_change(change, change.steps(), brokers, journal)
        seen += bool(brokers.watching)
        apply_change(change, change.steps(), brokers, journal, back=back)
        assert brokers.watching == set()
    assert seen > 3


class CommandedBrokers(FleetControl):
    """Brokers that run if a file exists."""

    def _listens(self, name):
        return Path(self._broker(name).hooks.path).with_name("up").exists()

    def _require_answer(self, name, seconds):  # noqa: ARG002
        assert self._listens(name)


def test_a_broker_that_runs_already_is_started_again_with_its_new_file(tmp_path):
    """The operator has started it by hand while a change was interrupted: it has read the old file."""
    start = 'test -e "$0/up" || { touch "$0/up" && cp "$0/links.conf" "$0/read"; }'
    hooks = {
        "path": str(tmp_path / "links.conf"),
        "stop": ("rm", str(tmp_path / "up")),
        "start": ("sh", "-c", start, str(tmp_path)),
    }
    control = CommandedBrokers(fleet_with(**hooks), DeploymentChange(ONE, THREE))
    control.install("a", "old")
    control.start("a")
    control.install("a", "new")
    control.start("a")
    assert (tmp_path / "read").read_text() == THREE.texts()["a"]


def test_an_installed_file_keeps_its_owner_and_a_new_one_has_the_group_of_its_folder(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(
        "os.chown", lambda path, user, group: given.update({Path(path).parent: (user, group)})
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    old, new = tmp_path / "old" / "links.conf", tmp_path / "new" / "links.conf"
    for path in (old, new):
        path.parent.mkdir()
    old.write_text("before")
    real = Path.stat

    def stat(path, **options):
        found = real(path, **options)
        numbers = {old: (1234, 5678), new.parent: (7, 4321)}.get(path)
        return found if numbers is None else os.stat_result((*found[:4], *numbers, *found[6:]))

    monkeypatch.setattr(Path, "stat", stat)
    change = DeploymentChange(ONE, THREE)
    for path in (old, new):
        FleetControl(fleet_with(path=str(path), **STOP), change).install("a", "new")
        assert path.read_text() == THREE.texts()["a"]
    assert given == {old.parent: (1234, 5678), new.parent: (0, 4321)}


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_watch_counts_a_message_once_where_filters_overlap(tmp_path):
    """Also where a later watch adds a filter, and a message that comes twice counts twice."""
    with running_sites(tmp_path, "a") as sites:
        fleet = fleet_of(sites)
        control = FleetControl(fleet, DeploymentChange(ONE, TWO))
        one, two = HeldMessage("x/1", b"1"), HeldMessage("x/2", b"2")
        try:
            control.watch("a", ["x/#", "x/+", "+/1"])
            control.transit = 0.0
            control.record()
            publish_messages(*fleet_access(fleet, "a"), [one])
            control.watch("a", ["x/1", "x/2"])
            publish_messages(*fleet_access(fleet, "a"), [one, two])
            control._witnesses["a"].catch_up()
            assert control.recorded() == {"a": [one, one, two]}
            lacking = control.missing("a", [one[:2], one[:2], one[:2], two[:2], two[:2]], 0)
            assert lacking == [one[:2], two[:2]]
        finally:
            control.close()


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_watch_sees_the_retain_flag_and_not_what_was_retained_before(tmp_path):
    """A message that another has replaced since is published again without the flag."""
    with running_sites(tmp_path, "a") as sites:
        fleet = fleet_of(sites)
        control = FleetControl(fleet, DeploymentChange(ONE, TWO))
        control.transit = 0.0
        before, one, two = (HeldMessage("x", payload, retain=True) for payload in (b"0", b"1", b"2"))
        try:
            control.watch("a", ["y"])
            control.record()
            control.publish("a", [before])
            control.watch("a", ["x"])
            control.publish("a", [one, two])
            control._witnesses["a"].catch_up()
            assert control.recorded() == {"a": [one, two]}
            control.publish("a", [one, two])
            control._witnesses["a"].catch_up()
            assert control.recorded() == {"a": [one, two, one._replace(retain=False), two]}
        finally:
            control.close()


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_the_session_of_a_killed_watch_is_ended_by_the_process_that_goes_on(tmp_path):
    with running_sites(tmp_path, "a") as sites:
        fleet = fleet_of(sites)
        change = DeploymentChange(ONE, TWO)
        killed = FleetControl(fleet, change)
        killed.watch("a", ["x"])
        stop_client(killed._witnesses["a"]._client)  # and leaves the session, as a kill does
        address, login = fleet_access(fleet, "a")
        publish_messages(address, login, [HeldMessage("x", b"1")])
        FleetControl(fleet, change).end_watch("a")
        sites["a"].run("stop")
        stored = (sites["a"].folder / "mosquitto.db").read_bytes()
        assert b"broadloom-apply-watch-a" not in stored


@pytest.mark.parametrize(
    ("access", "is_open"),
    [
        ({}, True),
        ({"tls": FleetTls("ca.crt")}, True),
        ({"login": FleetLogin("links", password_env="LINKS")}, False),
        ({"tls": FleetTls("ca.crt", "a.crt", "a.key")}, False),
    ],
)
def test_nats_listeners_that_anyone_can_link_to_are_named(access, is_open):
    brokers = {
        name: FleetBroker(name, f"10.0.0.{n}", kind="nats", leaf_listen=f"10.0.0.{n}:7500", **access)
        for n, name in enumerate("abc", 7)
    }
    settings = Settings(brokers=brokers)
    change = NatsReloads(*(Deployment(one.wiring, settings, one.files) for one in (ONE, TWO)))
    notes = NatsControl(bl.Fleet(list(brokers.values())), change, 1).notes()
    text = "anyone who can reach 10.0.0.7:7500 can link to broker 'a' (and 2 more)"
    assert any(note.startswith(text) for note in notes) == is_open
    assert brokers["a"].has_open_links == is_open


def test_a_file_of_nats_has_the_passwords_of_the_old_plan_or_references_to_them(tmp_path):
    path = tmp_path / "broadloom.conf"
    hooks = FleetHooks(path=str(path), reload="true")
    login = FleetLogin("links", password_env="LINKS")
    brokers = {
        name: FleetBroker(
            name, f"10.0.0.{n}", "nats", login=login, hooks=hooks if name == "a" else FleetHooks()
        )
        for n, name in enumerate("abc", 1)
    }
    settings = Settings(brokers=brokers, passwords=dict.fromkeys("abc", "sesame"))
    references = replace(settings, passwords={})
    sides = [Deployment(one.wiring, settings, one.files) for one in (ONE, THREE)]
    control = NatsControl(bl.Fleet(list(brokers.values())), NatsReloads(*sides), 1)
    for chosen in (settings, references):
        path.write_text(nats_leafnodes.files(ONE.wiring, chosen)["broker-a.conf"])
        assert ("sesame" in path.read_text()) == (chosen is settings)
        control._check_old_file(brokers["a"])
    path.write_text(nats_leafnodes.files(THREE.wiring, settings)["broker-a.conf"])
    with pytest.raises(InputError, match="is not the file of the old plan") as caught:
        control._check_old_file(brokers["a"])
    assert "sesame" not in str(caught.value)


def test_a_journal_that_cannot_be_written_is_reported_with_the_stopped_brokers(tmp_path, monkeypatch):
    """The step was taken and is not recorded; the same command takes it again."""
    change = DeploymentChange(ONE, TWO)
    journal = ChangeJournal(tmp_path / "fleet.apply")
    brokers = PretendBrokers(change)
    write = journal.step_done

    def full(began):
        if change.steps()[journal.done].action == "stop":
            raise StorageError("the disk is full")
        write(began)

    monkeypatch.setattr(journal, "step_done", full)
    with pytest.raises(StorageError, match=r"stop b.*the disk is full; stopped now: b; mend it and run"):
        apply_change(change, change.steps(), brokers, journal)
    monkeypatch.undo()
    apply_change(change, change.steps(), brokers, journal)
    journal.close()
    assert all(brokers.up.values())


def test_a_change_that_changes_nothing_is_no_evidence_about_links(tmp_path):
    """No broker was asked whether it has these links, so the next change is not taken for applied."""
    path = tmp_path / "fleet.apply"
    empty = deployed_unchecked(wired())
    assert carried_out(empty, empty, path)["steps"] == 0
    assert carried_out(ONE, empty, path)["taken"] > 0


def test_a_second_apply_of_the_same_fleet_is_refused_while_the_first_one_runs(tmp_path):
    path = tmp_path / "fleet.apply"
    first = ChangeJournal(path)
    with pytest.raises(InputError, match="another `deploy apply` of this fleet is running"):
        dry_run(ONE, TWO, tmp_path)
    first.close()


RIGHTS = ("topic readwrite $broadloom/#", "topic read $SYS/broker/connection/#", "topic write x")


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_rights_that_a_login_lacks_are_named_before_the_first_step(tmp_path):
    """Each rule that a change needs is left out once; at last there are all of them, and the link is down."""
    with running_sites(tmp_path, "ab") as sites:
        a = sites["a"]
        with (a.folder / "mosquitto.conf").open("a") as file:
            file.write(f"acl_file {a.folder}/acl\n")
        fleet = fleet_of(sites)
        settings = Settings(tls=False, addresses={name: str(fleet.brokers[name].address) for name in "ab"})
        sides = []
        for links in ((AB,), ()):
            wiring = Wiring(tuple("ab"), dict.fromkeys("ab", X), {}, links)
            sides.append(Deployment(wiring, settings, target_named("mosquitto").files(wiring, settings)))
        a.links.write_text(sides[0].texts()["a"])
        control = FleetControl(fleet, DeploymentChange(*sides), 5)
        steps = DeploymentChange(*sides).steps()
        for lacking in (*RIGHTS, None):
            (a.folder / "acl").write_text("".join(f"{rule}\n" for rule in RIGHTS if rule != lacking))
            a.run("stop")
            if lacking is None:
                sites["b"].run("stop")  # so that the link stays down
            a.run("start")
            control._require_answer("a", 5)
            if lacking is None:
                assert "link of 'a' to 'b' is down" in control._check_broker("a")[0]
                continue
            with pytest.raises(InputError) as caught:
                control.check(steps)
            if "$SYS" in lacking:
                reason = (
                    "shows no link, and the old plan has 1 that it opens; give the plan in use first, or "
                )
                reason += "give its login the right"
            else:
                reason = (
                    "denies anonymous clients what a change needs; give these rights, in its acl_file for "
                )
                reason += "instance"
            assert str(caught.value) == f"broker 'a' {reason}: {lacking}"


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
@pytest.mark.parametrize("limit", ["max_inflight_messages 1", "max_qos 1"])
def test_limits_of_a_broker_are_not_taken_for_missing_rights(limit, tmp_path):
    """Rights to write are tried by messages that stay unfinished, or not at all."""
    with running_sites(tmp_path, "a") as sites:
        a = sites["a"]
        with (a.folder / "mosquitto.conf").open("a") as file:
            file.write(f"{limit}\n")
        fleet = fleet_of(sites)
        control = FleetControl(fleet, DeploymentChange(ONE, TWO))
        control._require_answer("a", 60)
        control.stop("a")
        control.start("a")
        assert try_rights(fleet.brokers["a"], [f"x/{n}" for n in range(30)]).lacking == ()


def test_a_nats_file_of_the_operator_is_not_replaced_by_the_first_links(tmp_path):
    path = tmp_path / "nats-server.conf"
    brokers = {
        name: FleetBroker(
            name, f"10.0.0.{n}", "nats", hooks=FleetHooks(path=str(path)) if name == "a" else FleetHooks()
        )
        for n, name in enumerate("abc", 1)
    }
    settings = Settings(brokers=brokers)
    sides = [
        Deployment(Wiring((), {}, {}, ()), settings, {}),
        Deployment(ONE.wiring, settings, nats_leafnodes.files(ONE.wiring, settings)),
    ]
    change = NatsReloads(*sides)
    control = NatsControl(bl.Fleet(list(brokers.values())), change, 1)
    control._check_old_file(brokers["a"])  # there is none
    listening = nats_leafnodes.listening_file(Wiring((), {}, {}, ()), "a", settings)
    for text in ("", "# prepared\n", nats_leafnodes.NO_LINKS, listening):
        path.write_text(text)
        control._check_old_file(brokers["a"])
    path.write_text("port: 4222\njetstream {}\n")
    with pytest.raises(InputError, match="0 of its 0 lines are missing, 2 others are there"):
        control._check_old_file(brokers["a"])


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signals_that_end_apply_say_where_it_stopped_even_without_a_terminal(
    name, tmp_path, monkeypatch, request
):
    """What was recorded in the step under way is kept, as after Ctrl-C."""
    change = DeploymentChange(ONE, THREE)
    journal = ChangeJournal(None)
    said = []

    class SignalledBrokers(PretendBrokers):
        def recorded(self):
            return {"b": [HeldMessage("x", b"1")]}

        def stop(self, broker):
            signal.raise_signal(getattr(signal, name))
            super().stop(broker)

    def gone(text, error=False):  # noqa: ARG001
        said.append(text)
        raise BrokenPipeError

    def rolled_out(*_, report, **__):
        apply_change(change, change.steps(), SignalledBrokers(change), journal, report=report)

    fleet_with(**STOP).save(tmp_path / "fleet.toml")
    monkeypatch.setattr("broadloom.cli.deploy.say", gone)
    monkeypatch.setattr("broadloom.cli.deploy.both_deployments", lambda *_, **__: (None, ONE, THREE))
    monkeypatch.setattr("broadloom.deployment.roll_out", rolled_out)
    inherited = signal.signal(getattr(signal, name), signal.SIG_DFL)  # under nohup it is ignored
    request.addfinalizer(lambda: signal.signal(getattr(signal, name), inherited))
    before = signal.getsignal(getattr(signal, name))
    with pytest.raises(SystemExit) as caught:
        main(["deploy", "apply", "old", "new", "--fleet", str(tmp_path / "fleet.toml")])
    assert caught.value.code == 130
    assert said[-1].startswith("broadloom: interrupted at step")
    assert "stopped now: a" in said[-1]
    assert journal.seen == {"b": [HeldMessage("x", b"1")]}
    assert signal.getsignal(getattr(signal, name)) == before


def test_recorded_messages_keep_their_order_in_the_journal(tmp_path):
    """So that the process that goes on knows which retained message was the last."""
    on, off = (HeldMessage("lamp", payload, retain=True) for payload in (b"on", b"off"))
    journal = ChangeJournal(tmp_path / "fleet.apply")
    journal.keep_seen({"a": [on]})
    journal.keep_seen({"a": [on, off, on]})
    journal.keep_seen({"a": [on, off, on]})
    journal.close()
    again = ChangeJournal(tmp_path / "fleet.apply")
    assert again.seen == {"a": [on, off, on]}
    assert again.seen_earlier == {"a": {("lamp", b"on"): 2, ("lamp", b"off"): 1}}
    again.close()


def test_a_batch_does_not_begin_if_a_change_has_recorded_too_much(monkeypatch):
    monkeypatch.setattr(apply, "MOST_RECORDED", 3)
    change = DeploymentChange(TWO, THREE)
    journal = ChangeJournal(None)
    journal.keep_seen({"a": [HeldMessage("x", b"1234")]})
    brokers = PretendBrokers(change)
    with pytest.raises(StorageError, match=r"recorded messages of 4 bytes, more than 3; change fewer"):
        apply_change(change, change.steps(), brokers, journal)
    assert all(brokers.up.values())
    apply_change(change, (), brokers, journal, back=True)


def test_a_lost_connection_does_not_end_the_wait_for_links(monkeypatch):
    """Nor does a broker that refuses connections for a moment."""
    fleet = fleet_with(**STOP)
    control = FleetControl(fleet, DeploymentChange(ONE, TWO), 60)
    connections = []

    def connect(client, *_, **__):
        connections.append(client)
        if len(connections) == 2:
            raise ConnectionRefusedError

    def loop_until(client, done, _seconds):
        if len(connections) == 3:
            state = fleet_control.STATE.format(fleet_control.remote_id(AB))
            client.on_message(client, None, SimpleNamespace(topic=state, payload=b"1"))
        return done()

    monkeypatch.setattr(fleet_control, "connect", connect)
    monkeypatch.setattr(fleet_control, "loop_until", loop_until)
    control.wait([AB])
    assert len(connections) == 3
