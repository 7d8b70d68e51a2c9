"""The reader of mosquitto.db against files that the installed mosquitto writes, damaged ones included."""

import io
import struct
from contextlib import suppress

import paho.mqtt.client as mqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broadloom import InputError
from broadloom.formats import FORMATS, mosquitto_db, mosquitto_log
from broadloom.formats.mosquitto_db import MAGIC, read_mosquitto_db
from broadloom.model import Reason
from fleet_lab import HOST, fleet_lab, wait_until

HEADER = len(MAGIC) + 8


def chunk(kind, body):
    """A chunk of versions 5 and 6."""
    return struct.pack(">II", kind, len(body)) + body


def saved_client(client, expires=0, interval=0xFFFFFFFF):
    """A client chunk of version 6, written by a little-endian machine."""
    fixed = struct.pack("<q", expires) + struct.pack(">IHHHHI", interval, 0, len(client), 1883, 0, 0)
    return chunk(6, fixed + client)


def saved_subscription(client, topic_filter, qos=1):
    """A subscription chunk."""
    return chunk(
        5, struct.pack(">IHHBBxx", 0, len(client), len(topic_filter), qos, 0) + client + topic_filter
    )


def file_of(*chunks, version=6):
    """A persistence file."""
    return MAGIC + struct.pack(">II", 0, version) + b"".join(chunks)


FILE = file_of(
    chunk(1, bytes(16)),
    saved_client(b"c1"),
    saved_client(b"c2", 1_000, 60),
    saved_subscription(b"c1", b"a/+"),
    saved_subscription(b"c2", b"b/#", 2),
    saved_subscription(b"c1", "ä".encode()),
)


@pytest.mark.needs("mosquitto", "mosquitto_sub")
@pytest.mark.xdist_group("mosquitto")
def test_a_file_of_the_installed_mosquitto_has_the_filters_of_its_persistent_sessions(tmp_path):
    """Of MQTT 3.1.1 and 5, connected and absent, with any QoS, long names and messages between the chunks."""
    long = "x" * 200
    with fleet_lab(tmp_path, rome="") as lab:
        rome = lab.brokers["rome"]
        lab.subscribe("rome", "three", "a/+/b", "a/#", options=("-c",))
        lab.subscribe("rome", "five", "gone/#", options=("-c", "-V", "5", "-x", "7200"))
        lab.subscribe("rome", "clean", "not/kept")
        lab.subscribe("rome", "name with spaces", f"{long}/ü/#", options=("-c",))
        gone = Properties(PacketTypes.CONNECT)
        gone.SessionExpiryInterval = 3600
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "paho-five", protocol=mqtt.MQTTv5)
        client.connect(HOST, rome.port, clean_start=False, properties=gone)
        client.loop_start()
        client.on_subscribe = lambda *_: client.unsubscribe("left")
        client.subscribe([("kept/+", 2), ("left", 0)])
        rome.wait_for("Sending UNSUBACK to paho-five")
        client.disconnect()
        client.loop_stop()
        lab.stop_client(1)
        rome.wait_for("Client five")
        rome.wait_for("Client paho-five disconnected")
        for number in range(20):
            lab.publish("rome", f"a/{number}/b", "y" * 500, "-r")
        rome.save("kept/+")
        wait_until(lambda: b"left" not in rome.saved.read_bytes(), "a file after the client has left")
        found = read_mosquitto_db(rome.saved.read_bytes())
    assert (found.version, found.damage) == (6, None)
    assert sorted(found.subscriptions) == [
        ("five", "gone/#", 1),
        ("name with spaces", f"{long}/ü/#", 1),
        ("paho-five", "kept/+", 2),
        ("three", "a/#", 1),
        ("three", "a/+/b", 1),
    ]
    now = rome.saved.stat().st_mtime
    assert found.expires["three"] == 0
    assert now + 3500 < found.expires["paho-five"] < now + 3700
    rows = list(mosquitto_db.parse(io.BytesIO(rome.saved.read_bytes()), now + 4000))
    assert [row.client for row in rows if row.reason == Reason.EXPIRED] == ["paho-five"]


def test_expired_sessions_have_a_reason():
    rows = {row.filter: row.reason for row in mosquitto_db.parse(io.BytesIO(FILE), now=2_000)}
    assert rows == {"a/+": None, "b/#": Reason.EXPIRED, "ä": None}
    assert {row.reason for row in mosquitto_db.parse(io.BytesIO(FILE), now=500)} == {None}


@pytest.mark.parametrize("version", [0, 4, 7, 2**32 - 1])
def test_an_unknown_version_is_refused_with_advice(version):
    text = rf"has version {version}, and 5 and 6 are known .*; use the broker's log \(log_type subscribe\)"
    with pytest.raises(InputError, match=text):
        read_mosquitto_db(file_of(version=version))
    (row,) = mosquitto_db.FORMAT.rows(file_of(version=version))
    assert row.reason == f"version {version} of mosquitto.db is unknown: use the log"


@pytest.mark.parametrize("size", range(HEADER, len(FILE)))
def test_a_truncated_file_keeps_whole_chunks_and_says_where_it_ends(size):
    """The subscriptions before the cut, and a damage unless the cut is between two chunks."""
    found = read_mosquitto_db(FILE[:size])
    whole = read_mosquitto_db(FILE)
    assert found.subscriptions == whole.subscriptions[: len(found.subscriptions)]
    ends = [HEADER]
    while ends[-1] < len(FILE):
        ends.append(ends[-1] + 8 + struct.unpack_from(">I", FILE, ends[-1] + 4)[0])
    assert (found.damage is None) == (size in ends)


@given(
    st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), max_size=8),
    st.integers(0, len(FILE)),
    st.binary(max_size=20),
)
def test_a_damaged_file_is_refused_or_read_in_part(changes, size, tail):
    """Any change of bytes gives an InputError, or rows; never another error."""
    data = bytearray(FILE)
    for at, value in changes:
        data[at] = value
    damaged = bytes(data[:size]) + tail
    with suppress(InputError):
        read_mosquitto_db(damaged)
    for row in mosquitto_db.FORMAT.rows(damaged):
        assert row.reason is not None or row.filter is not None


@given(st.binary(max_size=200))
def test_any_bytes_after_the_header_are_read(data):
    read_mosquitto_db(file_of(data))


def test_the_format_is_recognised_by_its_beginning():
    head = FILE.decode("utf-8", "replace")
    assert next(form for form in FORMATS if form.looks_like(head)).name == "mosquitto-db"


def test_a_log_ends_subscriptions_by_unsubscribe_lines_and_by_a_restart():
    """With `log_type unsubscribe`, and clean sessions when the broker starts again."""
    lines = [
        "1: mosquitto version 2.0.11 starting",
        "1: New client connected from 10.0.0.1:5 as a b (p2, c1, k60).",
        "2: a b 1 x/# y",
        "2: a b 0 z",
        "3: a b x/# y",
        "4: keeps 1 k",
        "5: mosquitto version 2.0.11 starting",
    ]
    rows = {row.filter: row.reason for row in mosquitto_log.FORMAT.rows(("\n".join(lines) + "\n").encode())}
    assert rows == {"x/# y": Reason.UNSUBSCRIBED, "z": Reason.ENDED, "k": None}
