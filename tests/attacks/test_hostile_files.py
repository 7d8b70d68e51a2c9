"""Files of somebody who chooses their content: bombs, deep nesting, endless lines."""

import gzip
import tracemalloc

import pytest

from broadloom.errors import InputError
from broadloom.maintenance.event_feed import events_of, fault_of
from broadloom.pipeline.ingest import RawSource, find_files, raw_sources
from broadloom.storage import unpack
from text_formats import TEXTS


def test_a_compressed_bomb_is_refused_before_it_fills_the_memory():
    bomb = gzip.compress(bytes(200_000_000))
    assert len(bomb) < 300_000
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="unpacks to more than 1,000,000 bytes"):
            unpack("a.gz", bomb, most=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "beginning", "repeated", "times", "reason"),
    [
        ("subscriptions.csv.gz", b"node,topic\n", b"\n", 200_000_000, "unpacks to more than"),
        ("dump.json.gz", b"[", b" ", 200_000_000, "unpacks to more than"),
        (
            "subscriptions.csv.gz",
            b"node,topic\nrome,a\n",
            b"\0",
            raw_sources.LONGEST_LINE + 1,
            "line 3 is longer than 16 MiB",
        ),
        (
            "nodes.jsonl.gz",
            b'{"node": "a"}\n{"node": "',
            b"b",
            100_000_000,
            "line 2 is longer than 16 MiB",
        ),
    ],
    ids=["line ends", "spaces", "endless row", "endless name"],
)
def test_a_compressed_bomb_for_spark_is_refused_before_it_starts(
    tmp_path, monkeypatch, name, beginning, repeated, times, reason
):
    if "unpacks" in reason:
        monkeypatch.setattr(raw_sources, "MOST_UNPACKED", 50_000_000)
    path = tmp_path / name
    path.write_bytes(gzip.compress(beginning + repeated * times, 6))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=reason) as error:
            find_files([RawSource(str(path))])
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)


def test_text_that_compresses_well_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_sources, "MOST_UNPACKED", 1_000)
    rows = b"".join(b"broker-%d,sensors/%d/temperature\n" % (n % 7, n) for n in range(10_000))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"node,topic\n" + rows))
    assert find_files([RawSource(str(tmp_path / "a.csv.gz"))])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"data":' + "[" * 100_000,
        '{"data":[' * 100_000,
        "x" * 5_000_000,
        '["' + "\\u0000" * 100_000,
    ],
    ids=["deep list", "deep object", "deep page", "deep pages", "endless line", "endless string"],
)
def test_deep_and_endless_texts_are_rows_with_a_reason_or_one_error(text):
    for form in TEXTS:
        try:
            rows = list(form.FORMAT.rows(text.encode()))
        except InputError:
            continue
        assert len(rows) < 10
    try:
        events = events_of("events.jsonl", text.encode())
    except InputError:
        return
    assert all(fault_of(event) for event in events)
