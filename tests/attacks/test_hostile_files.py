"""Files of somebody who chooses their content: bombs, deep nesting, endless lines."""

import gzip
import tracemalloc

import pytest

from broadloom.errors import InputError
from broadloom.maintenance.event_feed import events_of, fault_of
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
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"data":' + "[" * 100_000,
        "x" * 5_000_000,
        '["' + "\\u0000" * 100_000,
    ],
    ids=["deep list", "deep object", "deep page", "endless line", "endless string"],
)
def test_deep_and_endless_texts_are_rows_with_a_reason_or_one_error(text):
    for form in TEXTS:
        try:
            rows = list(form.FORMAT.parse(text))
        except InputError:
            continue
        assert len(rows) < 10
    try:
        events = events_of("events.jsonl", text.encode())
    except InputError:
        return
    assert all(fault_of(event) for event in events)
