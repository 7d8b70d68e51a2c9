"""Parsers of broker dumps: their rows, and truncated or damaged dumps."""

import io
import json
import struct
import tracemalloc
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadloom.formats import (
    FORMATS,
    PAGE,
    DumpPage,
    DumpRow,
    DumpText,
    dump_problem,
    dump_rows,
    missing_pages_note,
)
from broadloom.formats.dump_rows import entries
from broadloom.formats.mosquitto_db import MAGIC

BY_NAME = {form.name: form for form in FORMATS}

EMQX = json.dumps(
    {
        "data": [
            {"node": "e1", "clientid": "c1", "topic": "t/1"},
            {"node": "e1", "clientid": "c2", "topic": "#"},
        ]
    }
)
RABBITMQ = json.dumps(
    {
        "rabbit_version": "3.10.8",
        "bindings": [
            {"source": "amq.topic", "destination": "mqtt-subscription-c1qos1", "routing_key": "t.1"},
            {
                "source": "amq.topic",
                "destination": "jobs",
                "destination_type": "queue",
                "routing_key": "t.*.#",
            },
            {
                "source": "x",
                "destination": "tco.link.0-1",
                "destination_type": "exchange",
                "routing_key": "t.1",
            },
            {"source": "x", "destination": "y", "destination_type": "exchange", "routing_key": "t.1"},
        ],
    }
)
CONNZ = json.dumps(
    {
        "server_id": "N",
        "connections": [
            {"cid": 7, "name": "c1", "subscriptions_list_detail": [{"subject": "t.1", "qgroup": "g"}]},
            {"cid": 8, "subscriptions_list": ["t.>", "_INBOX.x.*", "a/b"]},
        ],
    }
)
SUBSZ = json.dumps(
    {
        "subscriptions_list": [
            {"account": "$G", "subject": "t.1", "cid": 7},
            {"account": "$SYS", "subject": "x", "cid": 1},
        ]
    }
)
VERNEMQ = """\
+---------+-----+----+
|client_id|topic|node|
+---------+-----+----+
|c1       |t/1  |v1  |
|c2       |t/+  |v1  |
+---------+-----+----+
"""
KAFKA = """
Consumer group 'idle' has no active members.

GROUP   TOPIC  PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID
billing orders 0         5              5              0   c-1         /h   c
billing orders 1         5              5              0   c-1         /h   c
billing broken
"""
MOSQUITTO = """\
1700000000: mosquitto version 2.0.11 starting
1700000001: New client connected from 10.0.0.1:5 as c1 (p2, c1, k60).
1700000001: c1 1 t/1
1700000001: c1 0 $share/g/t/2
1700000002: c2 0 t/3
1700000003: Received UNSUBSCRIBE from c2
1700000003: \tt/3
1700000004: c2 0 t/3
1700000005: Client c1 disconnected.
garbage
"""


def parsed(name, text):
    return [(row.client, row.filter, row.reason) for row in BY_NAME[name].rows(text.encode())]


def test_mosquitto_keeps_sessions_of_mqtt_5_that_can_outlive_their_connection():
    """As mosquitto 2.0 logs a client with a session expiry, one that expires, and one of MQTT 3.1.1."""
    lines = []
    for client, protocol in (("keeper", 5), ("short", 5), ("old", 2)):
        lines += [
            f"New client connected from 10.0.0.1:5 as {client} (p{protocol}, c1, k60).",
            f"{client} 0 t/{client}",
            f"Client {client} disconnected.",
        ]
    lines.append("Expiring client short due to timeout.")
    text = "".join(f"1700000000: {line}\n" for line in lines)
    ended = "session ended later"
    assert parsed("mosquitto", text) == [
        ("keeper", "t/keeper", None),
        ("short", "t/short", ended),
        ("old", "t/old", ended),
    ]
    again = "1700000001: New client connected from 10.0.0.1:5 as keeper (p5, c1, k60).\n"
    assert parsed("mosquitto", text + again)[0] == ("keeper", "t/keeper", ended)


def test_emqx():
    assert parsed("emqx", EMQX) == [("c1", "t/1", None), ("c2", "#", None)]


def test_emqx_pages_one_after_the_other():
    assert len(parsed("emqx", f"{EMQX}\n{EMQX}")) == 4


def test_rabbitmq():
    assert parsed("rabbitmq", RABBITMQ) == [
        ("c1", "t/1", None),
        ("jobs", "t/+/#", None),
        ("tco.link.0-1", "t.1", "our own link"),
        ("y", "t.1", "binding between exchanges"),
    ]


def test_nats():
    assert parsed("nats", CONNZ) == [
        ("c1", "t/1", None),
        ("8", "t/#", None),
        ("8", "_INBOX.x.*", "inbox of a reply"),
        ("8", None, "not a topic filter"),
    ]
    assert parsed("nats", SUBSZ) == [("7", "t/1", None), ("1", "x", "topic of the broker itself")]


@pytest.mark.parametrize("listed", ["subscriptions_list", "subscriptions_list_detail", "subscriptions"])
def test_leaf_nodes_of_nats_are_no_clients(listed):
    """They subscribe to what clients of other servers want."""
    content = {
        "subscriptions_list": ["t.1"],
        "subscriptions_list_detail": [{"subject": "t.1", "account": "$G"}],
        "subscriptions": 1,
    }[listed]
    page = {"connections": [{"cid": 7, "kind": "Leafnode", "name": "oslo", listed: content}], "total": 1}
    assert [row[2:] for row in BY_NAME["nats"].rows(json.dumps(page).encode()) if row.reason != PAGE] == [
        ("oslo", None if listed == "subscriptions" else "t/1", "leaf node of NATS, not a client")
    ]


def test_inboxes_of_leaf_nodes_keep_their_reason():
    page = {"connections": [{"kind": "Leafnode", "name": "oslo", "subscriptions_list": ["_INBOX.x"]}]}
    reasons = [row.reason for row in BY_NAME["nats"].rows(json.dumps(page).encode()) if row.reason != PAGE]
    assert reasons == ["inbox of a reply"]


def test_vernemq_table_and_json():
    rows = [("c1", "t/1", None), ("c2", "t/+", None)]
    assert parsed("vernemq", VERNEMQ) == rows
    table = [{"client_id": client, "topic": topic, "node": "v1"} for client, topic, _ in rows]
    assert parsed("vernemq", json.dumps({"table": table, "type": "table"})) == rows


def test_kafka():
    orders = ("billing", "orders", None)
    assert parsed("kafka", KAFKA) == [orders, orders, (None, None, "wrong number of fields")]


def test_mosquitto_rows_are_the_subscriptions_at_the_end_of_the_log():
    assert parsed("mosquitto", MOSQUITTO) == [
        ("c1", "t/1", "session ended later"),
        ("c1", "$share/g/t/2", "session ended later"),
        ("c2", "t/3", "unsubscribed later"),
        ("c2", "t/3", None),
        (None, None, "wrong number of fields"),
    ]


SAMPLES = {
    "emqx": EMQX,
    "rabbitmq": RABBITMQ,
    "nats": CONNZ,
    "vernemq": VERNEMQ,
    "kafka": KAFKA,
    "mosquitto": MOSQUITTO,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_beginning_is_recognised(name):
    first = next(form for form in FORMATS if form.looks_like(SAMPLES[name]))
    assert first.name == name


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_truncated_anywhere_keeps_its_complete_rows(name):
    """Complete rows before the cut do not change, and the remainder is a bad row."""
    data = SAMPLES[name].encode()
    whole = [row for row in BY_NAME[name].rows(data) if row.reason is None]
    for end in range(len(data)):
        cut = list(BY_NAME[name].rows(data[:end]))
        if name not in ("mosquitto", "nats"):  # a later line, or a later row of a connection, can undo these
            good = [row for row in cut if row.reason is None]
            assert good[: len(good) - 1] == whole[: max(len(good) - 1, 0)]
        if name in ("emqx", "rabbitmq", "nats") and data[:end].strip():
            assert any(row.reason not in (None, PAGE) for row in cut) or end > len(data) - 2


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_that_are_not_utf8_affect_only_their_row(name):
    data = SAMPLES[name].replace("t/1", "t/@").replace("t.1", "t.@").replace("orders 0", "ord@rs 0").encode()
    rows = list(BY_NAME[name].rows(data.replace(b"@", b"\xe9")))
    assert [row.reason for row in rows].count("not UTF-8") >= 1
    assert len(rows) == len(list(BY_NAME[name].rows(data)))
    assert all(row.raw.encode() for row in rows)


def test_entries_of_text_that_is_not_a_document():
    assert [row.reason for row in entries(DumpText.of('{"other": 1}'), "data")] == [
        "not the document that was expected"
    ]
    assert [row.reason for row in entries(DumpText.of("nonsense"), "data")] == ["cut in the middle"]
    assert [row.reason for row in entries(DumpText.of('{"data": [3]}'), "data")] == ["not a JSON object"]
    assert list(entries(DumpText.of(""), "data")) == []
    deep = "[" * 100_000
    assert [row.reason for row in entries(DumpText.of(deep), "data")] == ["cut in the middle"]


def test_missing_pages_are_found_by_start_total_and_more():
    """A later page of another list, a total that changed meanwhile, and no total at all."""
    assert missing_pages_note("x", []) is None
    assert missing_pages_note("x", [DumpPage(0, 2, 2, False), DumpPage(0, 3, 3, False)]) is None
    assert "4 of 5" in missing_pages_note("x", [DumpPage(0, 2, 2, False), DumpPage(0, 2, 3, False)])
    assert missing_pages_note("x", [DumpPage(0, 2, 3, True), DumpPage(2, 2, 4, False)]) is None
    assert "1 of 4" in missing_pages_note("x", [DumpPage(3, 1, 4, False)])
    assert "more follow" in missing_pages_note("x", [DumpPage(0, 2, None, True)])
    assert missing_pages_note("x", [DumpPage(0, 2, None, True), DumpPage(2, 1, None, False)]) is None


@pytest.mark.parametrize("meta", [None, [], {"page": 0, "limit": "x"}, {"page": True, "count": -1}])
def test_metadata_of_another_shape_is_not_a_page(meta):
    text = json.dumps({"data": [{"clientid": "c", "topic": "t"}], "meta": meta})
    pages = [DumpPage.loads(row.raw) for row in BY_NAME["emqx"].rows(text.encode()) if row.reason == PAGE]
    assert pages == ([DumpPage(0, 1, None, False)] if meta else [])


def page(*names):
    return json.dumps({"data": [{"node": "e1", "clientid": name, "topic": "t"} for name in names]})


@pytest.mark.parametrize("between", ["", "\n"])
def test_rows_after_a_broken_entry_are_kept(between):
    """A truncated page, or one broken entry, loses only itself."""
    whole, cut = page("c3", "c4"), page("c1", "c2")[:-30]
    rows = list(BY_NAME["emqx"].rows((cut + between + whole).encode()))
    assert [row.client for row in rows if row.reason is None] == ["c1", "c3", "c4"]
    assert sum(row.reason == "cut in the middle" for row in rows) == 1
    broken = page("c1", "c2", "c3").replace('"c2",', '"c2"')
    rows = list(BY_NAME["emqx"].rows(broken.encode()))
    assert [row.client for row in rows if row.reason is None] == ["c1", "c3"]


def test_mosquitto_with_dates_and_with_messages_that_look_like_subscriptions():
    log = "2024-01-01 10:00:00: c1 1 t/1\n2024-01-01T10:00:01+0100: c2 0 t/2\n"
    log += "2024-01-01 10:00:02: Received PUBLISH from c1 (d0, q1, r0, m1, 'room 1 temp', ... (5 bytes))\n"
    rows = list(BY_NAME["mosquitto"].rows(log.encode()))
    assert [(row.client, row.filter, row.reason) for row in rows] == [
        ("c1", "t/1", None),
        ("c2", "t/2", None),
    ]


def test_rabbitmq_bindings_of_other_exchanges_are_refused():
    bindings = [
        {"source": source, "destination": "q", "destination_type": "queue", "routing_key": "t.1"}
        for source in ("", "amq.direct", "mine", "amq.topic", "events")
    ]
    exchanges = [{"name": "mine", "type": "fanout"}, {"name": "events", "type": "topic"}]
    text = json.dumps({"rabbit_version": "3", "exchanges": exchanges, "bindings": bindings})
    rows = list(BY_NAME["rabbitmq"].rows(text.encode()))
    assert [row.reason is None for row in rows] == [False, False, False, True, True]


def test_nats_connections_that_only_count_their_subscriptions_are_refused():
    text = json.dumps({"server_id": "N", "connections": [{"cid": 1, "subscriptions": 3}, {"cid": 2}]})
    (row,) = BY_NAME["nats"].rows(text.encode())
    assert "subs=detail" in row.reason


def problem(name, text):
    return dump_problem(BY_NAME[name], io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "mosquitto",
            MOSQUITTO.partition("1700000001: c1 1")[0],
            "1 connections and no subscription in the log",
        ),
        (
            "mosquitto",
            "1700000000: mosquitto version 2.0.11 starting\r\n",
            "0 connections .*; if clients have connected since .*`log_type ...` for each of error, ",
        ),
        (
            "nats",
            '{"connections": [{"cid": 7, "subscriptions": 3}]}',
            "1 connections only count .*subs=detail",
        ),
        ("nats", '{"server_id": "N", "connections": []}', "no connection has a subscription; .*subs=detail"),
        ("rabbitmq", '{"rabbit_version": "3", "queues": []}', "no queue is bound .*; .* GET /api/bindings"),
        ("rabbitmq", '{"bindings": []}', "no queue is bound to a topic exchange; "),
        ("emqx", '{"data": [], "meta": {"page": 1, "count": 0}}', "the list is empty; fetch all pages of "),
        ("vernemq", "+---+\n|client_id|\n|c1|\n", "no row has a client and a topic .*; .*--limit"),
        ("kafka", "GROUP TOPIC PARTITION\n", "no consumer group reads a topic; .*--all-groups"),
    ],
)
def test_a_dump_without_subscriptions_names_the_missing_setting(name, text, words):
    import re

    found = problem(name, text)
    assert found.empty
    assert re.search(words, found.text)
    assert "\n" not in found.text


def test_a_dump_that_shows_subscriptions_has_no_problem():
    for name, text in (
        ("emqx", EMQX),
        ("rabbitmq", RABBITMQ),
        ("nats", CONNZ),
        ("nats", SUBSZ),
        ("vernemq", VERNEMQ),
        ("kafka", KAFKA),
        ("mosquitto", MOSQUITTO),
        ("mosquitto", "1700000001: c1 1 t\n1700000001: Client c1 disconnected.\n"),
    ):
        assert problem(name, text) is None, name


def test_a_list_of_vernemq_of_exactly_the_default_length_can_be_truncated():
    head = "|client_id|topic|\n"
    assert problem("vernemq", head + "|c|t|\n" * 99) is None
    found = problem("vernemq", head + "|c|t|\n" * 100)
    assert (found.empty, "--limit" in found.text) == (False, True)


JSON_VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["data", '"data": [', "]"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "a"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.lists(JSON_VALUES, max_size=4), st.integers(0, 400), st.sampled_from(["", "x", ",", '{"data": [']))
def test_entries_do_not_depend_on_where_the_text_is_divided(values, cut, text):
    """Valid documents, and documents with a cut and another text in their middle."""
    whole = "\n".join(
        json.dumps({"data": value, "meta": 1} if one % 2 else value) for one, value in enumerate(values)
    )
    for document in (whole, whole[:cut] + text + whole[cut:], whole[:cut]):

        def page(found, length):
            return DumpPage(0, length, len(found), more=False)

        rows = list(entries(DumpText.of(document), "data", page))
        with mock.patch.multiple(dump_rows, _BLOCK_BYTES=3, LONGEST_ENTRY=2_000):
            assert list(entries(DumpText.of(document), "data", page)) == rows


@given(st.lists(JSON_VALUES, max_size=4))
def test_entries_of_valid_documents_are_those_of_the_json_module(values):
    text = json.dumps({"more": values, "data": values, "meta": 1}) + json.dumps(values)
    rows = list(entries(DumpText.of(text), "data"))
    assert [row for row in rows if isinstance(row, dict)] == 2 * [
        one for one in values if isinstance(one, dict)
    ]
    refused = [row.reason for row in rows if isinstance(row, DumpRow)]
    assert refused == ["not a JSON object"] * (len(rows) - sum(isinstance(row, dict) for row in rows))


@pytest.mark.parametrize("name", SAMPLES)
def test_dumps_are_read_in_blocks_of_any_size(name):
    """Blocks divide lines, entries and characters; the text outside of ASCII has two and four bytes."""
    data = SAMPLES[name].replace("t/1", "t/\u00e9\U0001f600").replace("billing", "b\u00e9").encode() + b"\xff"
    rows = list(BY_NAME[name].rows(data))
    for size in (1, 2, 3, 7, 64):
        with mock.patch.object(dump_rows, "_BLOCK_BYTES", size):
            assert list(BY_NAME[name].rows(io.BytesIO(data))) == rows


def test_a_broken_text_longer_than_an_entry_hides_nothing_after_it():
    """An entry that is too long, and text without an entry, become several bad rows."""
    entry = '{"clientid": "c", "topic": "t"}'
    between = ["x" * 250, json.dumps({"a": "y" * 250}), "[" * 250, '{"data": [' + "{" * 250, ", " * 150]
    for text in between:
        document = f'{{"data": [{entry}, {text}, {entry}]}}'
        with mock.patch.multiple(dump_rows, _BLOCK_BYTES=10, LONGEST_ENTRY=100):
            rows = list(BY_NAME["emqx"].rows(document.encode()))
        assert [row.client for row in rows if row.reason is None] == ["c", "c"]
        assert all(len(row.raw) <= 400 for row in rows)


def many(name):
    """A dump of a megabyte or more with many rows, and its number of rows."""
    count = 5_000
    if name == "mosquitto-db":
        subscription = struct.pack(">IHHBBxx", 0, 2, 3, 1, 0) + b"c1t/+"
        chunks = (
            struct.pack(">II", 5, len(subscription)) + subscription + struct.pack(">II", 2, 250) + bytes(250)
        )
        return MAGIC + struct.pack(">II", 0, 6) + chunks * count, count
    if name == "mosquitto":
        session = "1700000000: New client connected from 10.0.0.1:5 as c{0} (p2, c1, k60).\n"
        session += (
            "1700000001: c{0} 1 t/1\n1700000002: Client c{0} disconnected.\n"
            + 3 * "1700000003: Sending PINGRESP to c{0}\n"
        )
        return "".join(session.format(number) for number in range(count)).encode(), count
    row = {
        "emqx": {"node": "e1", "clientid": "c1", "topic": "t/1", "more": "x" * 200},
        "rabbitmq": {"source": "amq.topic", "destination": "q", "routing_key": "t", "more": "x" * 200},
        "nats": {"cid": 1, "subscriptions_list": ["t.1"], "more": "x" * 200},
        "vernemq": "|c1       |t/1  |v1  |" + " " * 200,
        "kafka": "billing orders 0" + " 5" * 100,
    }[name]
    if isinstance(row, str):
        head = SAMPLES[name].lstrip().splitlines()
        start = next(number for number, line in enumerate(head) if "TOPIC" in line or "topic" in line)
        return ("\n".join([head[start], *[row] * count])).encode(), count
    key = {"emqx": "data", "rabbitmq": "bindings", "nats": "connections"}[name]
    return json.dumps({"exchanges": [row] * 10, key: [row] * count, "meta": {"page": 1}}).encode(), count


@pytest.mark.parametrize("name", BY_NAME)
def test_the_memory_for_a_dump_does_not_grow_with_it(name, tmp_path):
    data, count = many(name)
    assert len(data) > 1_000_000
    path = tmp_path / "dump"
    path.write_bytes(data)
    with mock.patch.multiple(dump_rows, _BLOCK_BYTES=10_000, LONGEST_ENTRY=20_000), path.open("rb") as file:
        tracemalloc.start()
        try:
            assert sum(row.reason != PAGE for row in BY_NAME[name].rows(file)) == count
            assert tracemalloc.get_traced_memory()[1] < len(data) / 3
        finally:
            tracemalloc.stop()


def test_a_log_that_grows_while_it_is_read_has_the_rows_of_its_first_reading(tmp_path):
    """The log of a running broker is read twice: a later line can end a subscription."""
    path = tmp_path / "rome.log"
    path.write_text("1700000000: c1 1 t/1\n17000")

    class Growing(io.FileIO):
        def seek(self, position, whence=io.SEEK_SET):
            with path.open("a") as log:
                log.write("00001: c2 1 t/2\n17000")
            return super().seek(position, whence)

    with Growing(path) as file:
        rows = [(row.client, row.filter, row.reason) for row in BY_NAME["mosquitto"].rows(file)]
    assert rows == [("c1", "t/1", None), ("c2", "t/2", None), (None, None, "cut in the middle")]
