"""The fleet file: what is read, what is refused and how, and that what is written reads back the same."""

import os
import ssl
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom.deployment import FleetBroker, FleetLinks, FleetLogin, FleetTls
from broadloom.mqtt import Address

DESIGN = """
[defaults]
kind = "mosquitto"
tls = { ca = "ca.crt" }
login = { user = "broadloom", password_file = "secrets/broadloom" }

[brokers.rome]
address = "mqtt.rome.example.org:8883"
site = "eu-south-1"
position = [41.9, 12.5]
subscriptions = "/var/lib/mosquitto/mosquitto.db"
capacity = 50_000

[brokers.oslo]
address = "10.0.0.7"
tls = false
login = false
subscriptions = "http://10.0.0.7:8222"
kind = "nats"

[brokers."new york"]
address = "[2001:db8::1]"
tls = { certificate = "a.crt", key = "a.key" }
login = { user = "guest", password_env = "GUEST" }

[links]
carry = ["sensors/#", "alarms/#"]
publishers = "observed"
max_degree = 8
"""


def load(folder: Path, text: str) -> bl.Fleet:
    (folder / "fleet.toml").write_text(text)
    return bl.Fleet.load(folder / "fleet.toml")


def test_every_field_is_read_and_defaults_apply_unless_replaced(tmp_path):
    fleet = load(tmp_path, DESIGN)
    rome, oslo, new_york = fleet.brokers.values()
    assert rome == FleetBroker(
        "rome",
        "mqtt.rome.example.org:8883",
        tls=FleetTls(str(tmp_path / "ca.crt")),
        login=FleetLogin("broadloom", str(tmp_path / "secrets/broadloom")),
        site="eu-south-1",
        position=(41.9, 12.5),
        subscriptions="/var/lib/mosquitto/mosquitto.db",
        capacity=50_000,
    )
    assert (oslo.tls, oslo.login, oslo.kind, oslo.subscriptions) == (
        None,
        None,
        "nats",
        "http://10.0.0.7:8222",
    )
    assert new_york.tls == FleetTls(None, str(tmp_path / "a.crt"), str(tmp_path / "a.key"))
    assert new_york.login == FleetLogin("guest", password_env="GUEST")
    assert fleet.links == FleetLinks(("sensors/#", "alarms/#"), "observed", 8)
    assert fleet.path == tmp_path / "fleet.toml"


def test_a_short_file_has_safe_defaults(tmp_path):
    """TLS with the system's certificates, no login, everything carried from everywhere."""
    fleet = load(tmp_path, '[brokers.rome]\naddress = "rome.example.org"')
    assert fleet.brokers["rome"].tls == FleetTls()
    assert fleet.brokers["rome"].tls_context().verify_mode == ssl.CERT_REQUIRED
    assert fleet.brokers["rome"].mqtt_login().tls().verify_mode == ssl.CERT_REQUIRED
    assert fleet.brokers["rome"].login is None
    assert fleet.links == FleetLinks(("#",), "anywhere", None)


@pytest.mark.parametrize(
    ("settings", "port"),
    [("", 8883), ("tls = false", 1883), ('kind = "nats"', 4222), ('kind = "rabbitmq"\ntls = false', 1883)],
)
def test_an_address_without_a_port_has_that_of_its_kind(tmp_path, settings, port):
    fleet = load(tmp_path, f'[brokers.rome]\naddress = "rome.example.org"\n{settings}')
    assert fleet.brokers["rome"].host_and_port() == Address("rome.example.org", port)


def test_passwords_come_from_files_and_variables(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("open sesame\n")
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("GUEST", "swordfish")
    text = '[brokers.{0}]\naddress = "{0}"\nlogin = {{ user = "u", {1} }}\n'
    fleet = load(
        tmp_path, text.format("a", 'password_file = "secret"') + text.format("b", 'password_env = "GUEST"')
    )
    assert [broker.mqtt_login().password for broker in fleet.brokers.values()] == ["open sesame", "swordfish"]
    assert "sesame" not in repr(fleet.brokers["a"]) + repr(fleet.brokers["a"].endpoint().login)
    monkeypatch.delenv("GUEST")
    with pytest.raises(bl.InputError, match="variable GUEST is not set"):
        fleet.brokers["b"].mqtt_login()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such bits")
def test_a_password_that_others_can_read_is_refused(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o644)
    login = 'login = { user = "u", password_file = "secret" }'
    fleet = load(tmp_path, f'[brokers.a]\naddress = "a"\n{login}')
    with pytest.raises(bl.InputError, match="chmod 600"):
        fleet.brokers["a"].mqtt_login()


BROKER = '[brokers.rome]\naddress = "rome"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no brokers; add a section"),
        ("[brokers]", "has no brokers"),
        ("brokers = 3", r"\[brokers\] is not a section"),
        ("[brokers]\nrome = 3", r"\[brokers.rome\] is not a section"),
        ("[brokers.rome]", r'\[brokers.rome\] has no address; give address = "host:port"'),
        ("[brokerz.rome]", r"unknown name 'brokerz' \(did you mean 'brokers'\?\)"),
        (
            '[brokers.rome]\nadress = "a"',
            r"\[brokers.rome\]: unknown name 'adress' \(did you mean 'address'\?\)",
        ),
        ('[brokers.rome]\naddress = "a b"', r"\[brokers.rome\]: address is 'a b'; give host or host:port"),
        ("[brokers.rome]\naddress = 1883", r"\[brokers.rome\]: address is 1883"),
        ('[brokers.rome]\naddress = "a:99999"', "address is 'a:99999'"),
        (BROKER + 'kind = "mosquito"', r"\[brokers.rome\]: kind is 'mosquito'; give one of mosquitto, emqx"),
        ('[defaults]\nkind = "x"\n' + BROKER, r"\[defaults\]: kind is 'x'"),
        ('[defaults]\nsite = "x"\n' + BROKER, r"\[defaults\]: unknown name 'site'"),
        (BROKER + 'tls = "no"', r"\[brokers.rome\]: tls is 'no'; give true, false, or a table"),
        (BROKER + 'tls = { cafile = "x" }', r"\[brokers.rome\] tls: unknown name 'cafile'"),
        (BROKER + 'tls = { certificate = "x" }', "give both, or neither"),
        (BROKER + "tls = { ca = 3 }", r"\[brokers.rome\]: tls.ca is 3"),
        (BROKER + 'login = { password_env = "X" }', r"\[brokers.rome\] login has no user"),
        (BROKER + 'login = { user = "u" }', "either password_file or password_env"),
        (BROKER + 'login = { user = "u", password_env = "A", password_file = "b" }', "either password_file"),
        (BROKER + 'login = { user = "u\\n", password_env = "A" }', "login.user is"),
        (BROKER + "position = [91, 0]", r"\[brokers.rome\]: the latitude in position is 91"),
        (BROKER + "position = [1, nan]", "the longitude in position is nan"),
        (BROKER + "position = [1]", "give latitude and longitude"),
        (BROKER + "capacity = 0", r"\[brokers.rome\]: capacity is 0; give a finite number above 0"),
        (BROKER + "site = 3", r"\[brokers.rome\]: site is 3"),
        (BROKER + 'subscriptions = "ftp://x"', r"\[brokers.rome\]: subscriptions is 'ftp://x'"),
        (BROKER + 'subscriptions = "http://[::"', "subscriptions is"),
        (BROKER + "subscriptions = []", "subscriptions is empty"),
        (BROKER + 'subscriptions = ["a.log", 3]', "subscriptions is 3"),
        (BROKER + "config = 3", "config is 3"),
        (BROKER + "[links]\ncarry = []", r"\[links\]: carry is empty"),
        (BROKER + '[links]\ncarry = "a/#"', r"\[links\]: carry are 'a/#'; give a list"),
        (BROKER + '[links]\ncarry = ["a#"]', r"\[links\]: carry has 'a#'"),
        (BROKER + '[links]\ncarry = ["$SYS/#"]', r"topics that begin with \$ stay at their broker"),
        (BROKER + '[links]\npublishers = "all"', r"\[links\]: publishers is 'all'"),
        (BROKER + "[links]\nmax_degree = 0", r"\[links\]: max_degree is 0"),
        (BROKER + "[links]\nmax_degre = 0", "did you mean 'max_degree'"),
        (BROKER + "[live]\nabsnt = 0", "did you mean 'absent'"),
        (BROKER + '[live]\nabsent = "wait"', r"\[live\]: absent is 'wait'; give one of keep, drop"),
        (
            BROKER + '[live]\ncontroller = "me:you"',
            r"\[live\]: controller is 'me:you'; give host or host:port",
        ),
        (BROKER + '[live]\ncontroller = "me:secret@host"', "controller contains a login"),
        (BROKER + "[live]\nkey_file = 3", r"\[live\]: key_file is 3"),
        (BROKER + "[live]\npatience = 0", r"\[live\]: patience is 0"),
        (
            BROKER + "[live]\nwindow = 16385",
            r"\[live\]: window is 16385; give a whole number from 1 to 16384",
        ),
        (BROKER + "[live]\nhop_bytes = 0", r"\[live\]: hop_bytes is 0"),
        (BROKER + "[live]\nagent_bytes = 1.5", r"\[live\]: agent_bytes is 1.5"),
        (BROKER + '[live]\ntls = { key = "x" }', r"\[live\]: tls has one of certificate and key"),
        (BROKER + '[live]\nkey = "a secret"', r"\[live\]: unknown name 'key'"),
        ('[brokers."a\\nb"]\naddress = "a"', r"\[brokers\]: a broker's name is 'a\\nb'"),
        ('[brokers.""]\naddress = "a"', "a broker's name is ''"),
        (
            '[brokers.a]\naddress = "X:1"\n[brokers.b]\naddress = "x:1"',
            "'a' and 'b' have the same address x:1",
        ),
        ("not toml", "is not TOML"),
    ],
)
def test_an_error_names_the_file_the_section_and_what_would_be_right(tmp_path, text, message):
    with pytest.raises(bl.InputError, match=message) as caught:
        load(tmp_path, text)
    assert str(tmp_path / "fleet.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'login = { user = "u", password = "tops3cret" }',
        'password = "tops3cret"',
        'login = { user = "u", token = "tops3cret" }',
        'login = "u:tops3cret"',
        'login = { user = "u", password_env = "tops3cret!" }',
        'address = "u:tops3cret@host"',
        'subscriptions = "http://u:tops3cret@host"',
        'api_login = { user = "u", PASSWORD = "tops3cret" }',
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path, text):
    address = "" if text.startswith("address") else 'address = "rome"\n'
    with pytest.raises(bl.InputError, match=r"\[brokers.rome\]") as caught:
        load(tmp_path, f"[brokers.rome]\n{address}{text}")
    assert "tops3cret" not in str(caught.value)


def test_a_missing_file_says_how_to_write_one(tmp_path):
    with pytest.raises(bl.InputError, match="does not exist; write it with: broadloom init"):
        bl.Fleet.load(tmp_path / "fleet.toml")


def test_an_existing_file_is_replaced_only_on_request(tmp_path):
    one, two = (bl.Fleet([FleetBroker(name, name)]) for name in ("a", "b"))
    one.save(tmp_path / "fleet.toml")
    with pytest.raises(bl.InputError, match="exists"):
        two.save(tmp_path / "fleet.toml")
    assert bl.Fleet.load(tmp_path / "fleet.toml") == one
    two.save(tmp_path / "fleet.toml", overwrite=True)
    assert bl.Fleet.load(tmp_path / "fleet.toml") == two


def test_paths_below_the_folder_are_written_relative_to_it(tmp_path):
    """So the folder can be moved."""
    tls = FleetTls(str(tmp_path / "ca.crt"))
    bl.Fleet([FleetBroker("a", "a", tls=tls, subscriptions="/var/log/m.log")]).save(tmp_path / "fleet.toml")
    content = tomllib.loads((tmp_path / "fleet.toml").read_text())
    assert content["defaults"]["tls"] == {"ca": "ca.crt"}
    assert content["brokers"]["a"]["subscriptions"] == "/var/log/m.log"


def test_nodes_have_only_columns_that_are_known(tmp_path):
    fleet = load(tmp_path, DESIGN)
    table = fleet.nodes_table()
    assert table.column_names == ["node", "kind", "address", "site", "lat", "lon", "capacity"]
    assert table.column("address").to_pylist() == [
        "mqtt.rome.example.org:8883",
        "10.0.0.7:4222",
        "[2001:db8::1]:8883",
    ]
    assert table.column("lat").to_pylist() == [41.9, None, None]
    assert bl.Fleet([FleetBroker("a", "a")]).nodes_table().column_names == ["node", "kind", "address"]


LINE = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8)
FILES = st.builds("/tmp/{}".format, LINE.filter(lambda text: "/" not in text and text not in (".", "..")))
OPTIONAL_FILES = st.none() | FILES
LOGINS = st.builds(FleetLogin, LINE, FILES) | st.builds(FleetLogin, LINE, password_env=st.just("SECRET"))
TLS = st.builds(FleetTls, OPTIONAL_FILES) | st.builds(FleetTls, OPTIONAL_FILES, FILES, FILES)
BROKERS = st.builds(
    FleetBroker,
    LINE,
    st.integers(1, 2**32 - 1).map(lambda n: f"10.{n >> 16}.example.org:{n % 65_000 + 1}"),
    kind=st.sampled_from(("mosquitto", "emqx", "nats", "rabbitmq")),
    tls=st.none() | TLS,
    login=st.none() | LOGINS,
    site=st.none() | LINE,
    position=st.none() | st.tuples(st.floats(-90, 90), st.floats(-180, 180)),
    capacity=st.none() | st.integers(1, 10**9) | st.floats(1e-3, 1e9),
    subscriptions=OPTIONAL_FILES
    | st.just("https://10.0.0.7:18083/api")
    | st.just(("/var/lib/mosquitto.db", "https://10.0.0.7:18083/api")),
    api_login=st.none() | LOGINS,
    config=OPTIONAL_FILES,
)
LINKS = st.builds(
    FleetLinks,
    st.lists(LINE.filter(lambda text: not set("#+$") & set(text)), min_size=1, max_size=3).map(tuple),
    st.sampled_from(("anywhere", "observed")),
    st.none() | st.integers(1, 99),
)


@given(st.lists(BROKERS, min_size=1, max_size=5, unique_by=(lambda b: b.name, lambda b: b.address)), LINKS)
def test_what_is_written_reads_back_the_same(tmp_path_factory, brokers, links):
    fleet = bl.Fleet(brokers, links)
    file = tmp_path_factory.mktemp("fleet") / "fleet.toml"
    fleet.save(file)
    assert bl.Fleet.load(file) == fleet
    assert hash(bl.Fleet.load(file)) == hash(fleet)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LINE, inner, max_size=3),
    max_leaves=5,
)
NAMES = (
    "kind",
    "address",
    "tls",
    "login",
    "site",
    "position",
    "capacity",
    "subscriptions",
    "config",
    "api_login",
)


@given(st.sampled_from(NAMES), VALUES)
def test_any_value_is_read_or_refused_in_one_line(name, value):
    """No value of any type raises anything but an `InputError`."""
    from broadloom.deployment import fleet_file

    content = {"brokers": {"rome": {"address": "rome", name: value}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_file, "read_toml", lambda _: content)
        message = ""
        try:
            fleet_file._FleetReader(Path("fleet.toml")).fleet()
        except bl.InputError as error:
            message = str(error)
    assert not message or message.startswith("fleet.toml [brokers.rome]")


LIVE = """
[live]
controller = "controller.example.org"
listen = "0.0.0.0:9000"
tls = { ca = "ca.crt", certificate = "c.crt", key = "c.key" }
key_file = "secrets/fleet.key"
absent = "drop"
patience = 5
window = 100
hop_bytes = 1_000_000
agent_bytes = 2_000_000
"""


def test_the_live_section_is_read_and_written(tmp_path):
    fleet = load(tmp_path, DESIGN + LIVE)
    live = fleet.live
    assert live.address() == Address("controller.example.org", 8790)
    assert live.listen_address() == Address("0.0.0.0", 9000)
    assert live.server_files() == (str(tmp_path / "c.crt"), str(tmp_path / "c.key"))
    assert live.key_file == str(tmp_path / "secrets/fleet.key")
    numbers = (live.absent, live.patience, live.window, live.hop_bytes, live.agent_bytes)
    assert numbers == ("drop", 5, 100, 1_000_000, 2_000_000)
    fleet.save(tmp_path / "again.toml")
    assert bl.Fleet.load(tmp_path / "again.toml") == fleet


@pytest.mark.parametrize(
    ("section", "uses_tls"),
    [
        ("", False),
        ('controller = "localhost:1"', False),
        ('controller = "10.0.0.1"', True),
        ('controller = "127.0.0.1"\nlisten = "0.0.0.0"', True),
        ('controller = "10.0.0.1"\ntls = false', False),
        ('controller = "127.0.0.1"\ntls = true', True),
    ],
)
def test_the_controller_uses_tls_unless_on_loopback_or_told_otherwise(tmp_path, section, uses_tls):
    fleet = load(tmp_path, f"{BROKER}[live]\n{section}")
    assert fleet.live.uses_tls == uses_tls
    fleet.save(tmp_path / "again.toml")
    assert bl.Fleet.load(tmp_path / "again.toml").live == fleet.live
    if uses_tls:
        with pytest.raises(bl.InputError, match="needs a certificate"):
            fleet.live.server_files()


def test_a_fleet_without_a_key_says_how_to_make_one(tmp_path):
    with pytest.raises(bl.InputError, match="broadloom init --key-file"):
        load(tmp_path, BROKER).live.key()


def test_the_key_of_a_fleet_comes_from_a_file_or_a_variable(tmp_path, monkeypatch):
    live = load(tmp_path, BROKER + '[live]\nkey_env = "FLEET_KEY"').live
    with pytest.raises(bl.InputError, match="FLEET_KEY is not set"):
        live.key()
    monkeypatch.setenv("FLEET_KEY", "from the variable")
    assert live.key() == "from the variable"
    (tmp_path / "key").write_text("from the file\n")
    (tmp_path / "key").chmod(0o600)
    assert load(tmp_path, BROKER + '[live]\nkey_file = "key"').live.key() == "from the file"
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(bl.InputError, match="other users can read"):
        load(tmp_path, BROKER + '[live]\nkey_file = "key"').live.key()
    with pytest.raises(bl.InputError, match="give one of them"):
        load(tmp_path, BROKER + '[live]\nkey_file = "key"\nkey_env = "A"')
    with pytest.raises(bl.InputError, match="key_env is not the name") as error:
        load(tmp_path, BROKER + '[live]\nkey_env = "s3cret!"')
    assert "s3cret" not in str(error.value)


def test_a_broker_that_joins_is_like_most_others():
    brokers = [
        FleetBroker("rome", "10.0.0.1", tls=None, login=FleetLogin("u", password_env="A")),
        FleetBroker("oslo", "10.0.0.2", tls=None, login=FleetLogin("u", password_env="A")),
        FleetBroker("bern", "10.0.0.3", "emqx"),
    ]
    joined = bl.Fleet(brokers).joined("kiev", "10.0.0.4:1884")
    assert (joined.kind, joined.tls, joined.login) == ("mosquitto", None, brokers[0].login)
    assert joined.host_and_port() == Address("10.0.0.4", 1884)


def test_init_writes_a_key_that_only_its_owner_can_read(tmp_path, run):
    key = tmp_path / "secrets" / "fleet.key"
    output = tmp_path / "fleet.toml"
    arguments = (
        "init",
        "--broker",
        "rome=10.0.0.1",
        "--controller",
        "10.0.0.9",
        "--key-file",
        key,
        "-o",
        output,
    )
    code, said, _ = run(*arguments)
    assert code == 0
    assert "copy it to each machine" in said
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_text().strip()) >= 32
    assert key.read_text().strip() not in said + output.read_text()
    fleet = bl.Fleet.load(output)
    assert (fleet.live.controller, fleet.live.key_file) == ("10.0.0.9", str(key))
    code, _, said = run(*arguments, "--force")
    assert code == 2, "a key that agents use is not replaced"
    assert "exists" in said


DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = [
    (page, text.split("```")[0])
    for page in ("deploy.md", "fleet.md", "live.md")
    for text in (DOCS / page).read_text().split("```toml\n")[1:]
]


@pytest.mark.parametrize(("page", "text"), EXAMPLES, ids=lambda value: value[:20].splitlines()[0])
def test_the_fleet_files_of_the_pages_are_read(page, text, tmp_path):
    """Those that show only a section get a broker."""
    content = tomllib.loads(text)
    assert content.keys() <= {"defaults", "brokers", "links", "live"}, page
    if "brokers" not in content:
        text += '\n[brokers.rome]\naddress = "10.0.0.1"\n'
    fleet = load(tmp_path, text)
    assert list(fleet.brokers) == list(tomllib.loads(text)["brokers"])


def test_a_path_of_a_broker_replaces_the_default_commands_for_its_file_and_the_reverse(tmp_path):
    by_command = """
[defaults.hooks]
install = "scp {file} {host}:"
remove = "ssh {host} rm links.conf"
stop = "halt"
[brokers.rome]
address = "10.0.0.1"
hooks = { path = "links.conf" }
[brokers.oslo]
address = "10.0.0.2"
"""
    fleet = load(tmp_path, by_command)
    rome, oslo = (fleet.brokers[name].hooks for name in ("rome", "oslo"))
    assert (rome.path, rome.install, rome.remove) == (str(tmp_path / "links.conf"), None, None)
    assert (oslo.path, oslo.remove) == (None, ("ssh", "{host}", "rm", "links.conf"))
    assert rome.stop == oslo.stop == ("halt",)
    by_path = """
[defaults.hooks]
path = "links.conf"
[brokers.rome]
address = "10.0.0.1"
hooks = { install = "scp {file} {host}:", remove = "ssh {host} rm links.conf" }
"""
    rome = load(tmp_path, by_path).brokers["rome"].hooks
    assert (rome.path, rome.install) == (None, ("scp", "{file}", "{host}:"))
