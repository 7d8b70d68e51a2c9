"""`broadloom init`: the fleet file from options alone, or from questions on a terminal."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import broadloom as bl
from broadloom.deployment import FleetLinks, FleetLogin, FleetTls
from broadloom.deployment.fleet_init import FleetOptions, FleetQuestions, save_passwords


def test_a_fleet_of_five_brokers_is_written_by_options_alone(tmp_path, run):
    """Two with passwords, one with TLS, the others in plain text."""
    brokers = [
        f"--broker={name}=10.0.0.{n}" for n, name in enumerate(("rome", "oslo", "bern", "wien", "riga"))
    ]
    logins = [f"--login=rome=u:{tmp_path}/secret", "--login=oslo=v:env:OSLO"]
    places = ["--site=rome=eu-south-1", "--position=rome=41.9,12.5", "--capacity=rome=50000"]
    sources = [
        f"--subscriptions=rome={tmp_path}/m.db",
        "--subscriptions=bern=a.log",
        "--subscriptions=bern=b.log",
    ]
    others = ["--config=rome=/etc/mosquitto/mosquitto.conf", "--carry=sensors/#", "--publishers=observed"]
    tls = ["--no-tls", f"--tls=bern={tmp_path}/ca.crt", "--max-degree=8"]
    file = tmp_path / "fleet.toml"
    code, out, err = run("init", *brokers, *logins, *places, *sources, *others, *tls, "-o", file)
    assert (code, err) == (0, "")
    assert out == f"{file}: 5 brokers\nnext: broadloom doctor {file}\n"
    fleet = bl.Fleet.load(file)
    rome, oslo, bern, wien, riga = fleet.brokers.values()
    assert rome.login == FleetLogin("u", f"{tmp_path}/secret")
    assert oslo.login == FleetLogin("v", password_env="OSLO")
    assert (bern.tls, bern.host_and_port().port) == (FleetTls(f"{tmp_path}/ca.crt"), 8883)
    assert bern.subscriptions == tuple(str(Path(name).absolute()) for name in ("a.log", "b.log"))
    assert all((one.tls, one.host_and_port().port) == (None, 1883) for one in (rome, oslo, wien, riga))
    assert (wien.login, riga.login) == (None, None)
    assert (rome.site, rome.position, rome.capacity) == ("eu-south-1", (41.9, 12.5), 50_000)
    assert (rome.subscriptions, rome.config) == (f"{tmp_path}/m.db", "/etc/mosquitto/mosquitto.conf")
    assert fleet.links == FleetLinks(("sensors/#",), "observed", 8)


def test_options_for_all_brokers_and_for_one(tmp_path, run):
    """One with a broker's name replaces the one for all."""
    given = ["--broker=a=a", "--broker=b=b", "--kind=emqx", "--kind=b=nats", "--ca", tmp_path / "ca.crt"]
    login = ["--user=u", "--password-env=SECRET", "--login=b=anonymous", "--tls=b=system"]
    given += ["--leaf-listen=b=10.0.0.7:7500", "--account=b=APP"]
    code, out, _ = run("init", *given, *login, "-o", tmp_path / "fleet.toml", "--json")
    assert code == 0
    record = {"output": str(tmp_path / "fleet.toml"), "brokers": ["a", "b"], "secrets": []}
    assert json.loads(out) == record
    a, b = bl.Fleet.load(tmp_path / "fleet.toml").brokers.values()
    assert (a.leaf_listen, b.leaf_listen) == (None, "10.0.0.7:7500")
    assert (a.account, b.account) == (None, "APP")
    assert (a.kind, a.tls, a.login) == (
        "emqx",
        FleetTls(str(tmp_path / "ca.crt")),
        FleetLogin("u", None, "SECRET"),
    )
    assert (b.kind, b.tls, b.login) == ("nats", FleetTls(), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--broker=rome"], "--broker is 'rome'; give NAME=HOST or NAME=HOST:PORT"),
        (["--broker=u:tops3cret@h"], "--broker contains a login; give NAME=HOST"),
        (["--broker=a=h", "--login=u:tops3cret=x"], "--login names an unknown broker; there are a"),
        (["--broker=a=h", "--broker=a=i"], "--broker names 'a' twice"),
        (["--broker=a=h h"], "broker 'a': address is 'h h'"),
        (["--broker=rome=h", "--site=roma=x"], "--site names broker 'roma' (did you mean 'rome'?)"),
        (["--broker=a=h", "--site=x"], "--site is 'x'; give NAME=VALUE"),
        (["--broker=a=h", "--kind=mosquito"], "broker 'a': kind is 'mosquito'"),
        (["--broker=a=h", "--kind=emqx", "--kind=nats"], "--kind is given twice for all brokers"),
        (["--broker=a=h", "--kind=a=emqx", "--kind=a=nats"], "--kind is given twice for broker 'a'"),
        (["--broker=a=h", "--login=tops3cret"], "--login: a login has another form; give USER:PASSWORD_FILE"),
        (["--broker=a=h", "--user=u"], "--user: login has no password, or two"),
        (["--broker=a=h", "--password-file=f"], "a password is given without --user"),
        (["--broker=a=h", "--ca=x", "--no-tls"], "--ca and --no-tls contradict each other"),
        (["--broker=a=h", "--position=a=north"], "--position: 'north' is not a number"),
        (["--broker=a=h", "--position=a=100,0"], "broker 'a': the latitude in position is 100"),
        (["--broker=a=h", "--carry=a#"], "carry has 'a#'"),
        (["--broker=a=h", "--publishers=all"], "publishers is 'all'"),
        (["--user=u", "--password-env=X"], "no --broker is given, but options about brokers"),
        ([], "standard input is not a terminal; give the brokers as --broker NAME=HOST:PORT"),
    ],
)
def test_a_wrong_option_is_one_line_and_writes_nothing(tmp_path, run, options, message):
    code, out, err = run("init", *options, "-o", tmp_path / "fleet.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert "tops3cret" not in err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_needs_force(tmp_path, run):
    file = tmp_path / "fleet.toml"
    assert run("init", "--broker=a=h", "-o", file)[0] == 0
    code, _, err = run("init", "--broker=b=h", "-o", file)
    assert (code, err) == (
        2,
        f"broadloom: {file} exists; give --force to replace it, or -o for another file\n",
    )
    assert run("init", "--broker=b=h", "-o", file, "--force", "--quiet")[:2] == (0, "")
    assert list(bl.Fleet.load(file).brokers) == ["b"]


def scripted(folder, *answers):
    """Questions that are answered from a list; a password is an answer that begins with `!`."""
    left = list(answers)
    told = []

    def ask(_):
        answer = left.pop(0)
        assert not answer.startswith("!"), answer
        return answer

    def ask_secret(_):
        return left.pop(0).removeprefix("!")

    questions = FleetQuestions(ask, ask_secret, told.append, folder)
    fleet = questions.fleet()
    assert left == []
    return fleet, questions.passwords, told


def test_answers_for_a_broker_are_the_defaults_of_the_next(tmp_path):
    ca = tmp_path / "ca.crt"
    fleet, passwords, _ = scripted(
        tmp_path,
        *("rome", "10.0.0.1", "", str(ca), "u", "!sesame", "/var/lib/m.db"),
        *("oslo", "10.0.0.2", "", "", "", "!", ""),
        *("bern", "10.0.0.3", "emqx", "no", "anonymous", "http://10.0.0.3:18083"),
        "",
    )
    rome, oslo, bern = fleet.brokers.values()
    assert rome.login == oslo.login == FleetLogin("u", str(tmp_path / "secrets" / "rome"))
    assert rome.tls == oslo.tls == FleetTls(str(ca))
    assert (bern.kind, bern.tls, bern.login) == ("emqx", None, None)
    assert (rome.subscriptions, bern.subscriptions) == ("/var/lib/m.db", "http://10.0.0.3:18083")
    assert passwords == {tmp_path / "secrets" / "rome": "sesame"}


def test_a_wrong_answer_is_asked_again(tmp_path):
    fleet, _, told = scripted(
        tmp_path,
        *("", "rome", "a b", "10.0.0.1", "mosquito", "mosquitto", "no", "", ""),
        *("oslo", "10.0.0.1", "", "", "", ""),  # the address of rome
        *("oslo", "10.0.0.2", "", "", "", ""),
        "",
    )
    assert list(fleet.brokers) == ["rome", "oslo"]
    assert [line.split(";")[0] for line in told[1:]] == [
        "address is 'a b'",
        "kind is 'mosquito'",
        "brokers 'rome' and 'oslo' have the same address 10.0.0.1:1883",
    ]


def test_passwords_are_readable_by_their_owner_only(tmp_path):
    file = tmp_path / "secrets" / "rome"
    save_passwords({file: "sesame"})
    assert FleetLogin("u", str(file)).password() == "sesame"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    with pytest.raises(bl.InputError, match="exists"):
        save_passwords({file: "other"})
    assert scripted(tmp_path, "rome", "h", "", "", "u", "!x", "", "")[1] == {
        tmp_path / "secrets" / "rome-2": "x"
    }


class Terminal:
    """`broadloom init` with a terminal as its standard input."""

    def __init__(self, folder):
        self.master, slave = os.openpty()
        command = [sys.executable, "-m", "broadloom.cli", "init"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(slave)

    def answer(self, question, text):
        """Wait for a question, and type the answer."""
        shown = b""
        while question.encode() not in shown:
            byte = self.process.stderr.read(1)
            assert byte, shown
            shown += byte
        os.write(self.master, f"{text}\n".encode())

    def end(self):
        """The exit code, standard output and the rest of standard error."""
        out, err = self.process.communicate(timeout=60)
        os.close(self.master)
        return self.process.returncode, out.decode(), err.decode()


def test_questions_on_a_terminal(tmp_path):
    """The password goes to a file of its own, and appears nowhere else."""
    terminal = Terminal(tmp_path)
    for question, text in (
        ("Name of the first broker: ", "rome"),
        ("Address", "10.0.0.1"),
        ("Kind", ""),
        ("TLS", "no"),
        ("User name [anonymous]: ", "broadloom"),
        ("Password: ", "tops3cret"),
        ("Subscriptions", ""),
        ("Name of the next broker (empty: no more): ", ""),
    ):
        terminal.answer(question, text)
    code, out, err = terminal.end()
    assert code == 0, err
    assert out.splitlines()[-1] == "next: broadloom doctor fleet.toml"
    assert bl.Fleet.load(tmp_path / "fleet.toml").brokers["rome"].mqtt_login().password == "tops3cret"
    assert "tops3cret" not in out + err + (tmp_path / "fleet.toml").read_text()


def test_an_interrupt_leaves_no_file(tmp_path):
    terminal = Terminal(tmp_path)
    terminal.answer("Name of the first broker: ", "rome")
    terminal.answer("Address", "10.0.0.1")
    terminal.process.send_signal(signal.SIGINT)
    code, out, err = terminal.end()
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_options_are_a_value_in_python():
    fleet = FleetOptions(["rome=h"], tls=["no"]).fleet()
    assert fleet.brokers["rome"].tls is None
