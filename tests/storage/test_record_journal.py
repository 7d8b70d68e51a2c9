"""Journal of records: what is acknowledged is read again, and damage is never taken for fewer records."""

import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadloom.errors import BroadloomError, InputError, StorageError
from broadloom.storage import (
    JournalDamageError,
    RecordJournal,
    check_journal,
    delete_journal,
    repair_journal,
)
from broadloom.storage.record_journal import own_journal

BODIES = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=20), max_size=3)
RECORDS = st.lists(st.tuples(st.text(max_size=8), BODIES), max_size=6)


def plain(journal):
    return [(one.kind, one.body) for one in journal.records()]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.booleans(), RECORDS), max_size=8))
def test_a_journal_returns_what_was_written_over_restarts(tmp_path_factory, steps):
    """Appends and replacements, with a restart after each; positions rise for ever."""
    path = tmp_path_factory.mktemp("journal") / "records"
    expected, last = [], 0
    for replaced, records in steps:
        with RecordJournal(path) as journal:
            assert plain(journal) == expected
            assert journal.position == last
            last += len(records)
            assert (journal.replace if replaced else journal.append_all)(records) == last
        if records:
            expected = records if replaced else expected + records
    assert check_journal(path) == len(expected) if path.exists() else not steps


def written(path, count=12):
    records = [("step", {"number": number, "text": "x" * 200}) for number in range(count)]
    with RecordJournal(path) as journal:
        journal.append("old", {})
        journal.replace(records[:2])
        for record in records[2:]:
            journal.append(*record)
    return records


def test_each_flipped_bit_is_found_or_harmless(tmp_path):
    """Never fewer or other records without an error; a repair keeps a prefix of them."""
    path = tmp_path / "records"
    records = written(path)
    data = path.read_bytes()
    flipped = tmp_path / "flipped"
    found = 0
    for offset in range(len(data)):
        if not data[offset] and not any(data[max(0, offset - 40) : offset + 40]):
            continue  # in the middle of unused space
        changed = bytearray(data)
        changed[offset] ^= 1 << (offset % 8)
        flipped.write_bytes(changed)
        try:
            with RecordJournal(flipped) as journal:
                assert plain(journal) == records, offset
                if offset % 20 == 0:
                    journal.append("more", {})
                    assert plain(journal) == [*records, ("more", {})]
        except (InputError, StorageError) as error:
            found += 1
            if offset % 50 == 0 and isinstance(error, JournalDamageError):
                repaired = repair_journal(flipped)
                assert repaired.copy.read_bytes()[: len(changed)] == changed
                with RecordJournal(flipped) as journal:
                    assert plain(journal) == records[: repaired.kept]
                repaired.copy.unlink()
    assert found > 1_000


def test_flipped_bits_in_the_file_that_undoes_a_transaction_are_harmless(tmp_path):
    """SQLite keeps that file after each transaction, with an empty header."""
    path = tmp_path / "records"
    records = written(path)
    data = own_journal(path).read_bytes()
    assert data
    for offset in [*range(40), *range(40, 4700, 60)]:
        changed = bytearray(data)
        changed[offset] ^= 1 << (offset % 8)
        own_journal(path).write_bytes(changed)
        with RecordJournal(path) as journal:
            assert plain(journal) == records, offset


def test_a_file_left_over_from_a_deleted_journal_does_not_change_a_new_one(tmp_path):
    path = tmp_path / "records"
    written(path)
    own_journal(path).write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(4096))
    path.unlink()
    with RecordJournal(path) as journal:
        assert plain(journal) == []
    delete_journal(path)
    assert list(tmp_path.iterdir()) == []


def test_a_journal_of_an_earlier_version_is_neither_read_nor_repaired(tmp_path):
    path = tmp_path / "moves"
    path.write_bytes(b"broadloom moves 1\n")
    for use in (RecordJournal, repair_journal):
        with pytest.raises(InputError, match="earlier version of broadloom"):
            use(path)
    assert path.read_bytes() == b"broadloom moves 1\n"


@pytest.mark.parametrize("data", [b'{"algorithm": "gm"}\n', b"PAR1" + bytes(100), bytes(range(1, 200))])
def test_a_file_that_is_not_a_journal_is_not_repaired(tmp_path, data):
    path = tmp_path / "plan.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"plan\.json is not a journal; give the file"):
        repair_journal(path)
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("size", [0, 1, 100, 4095, 4096, 8192, -1, -4096])
def test_a_shorter_file_is_refused(tmp_path, size):
    path = tmp_path / "records"
    written(path)
    data = path.read_bytes()
    path.write_bytes(data[:size])
    with pytest.raises(BroadloomError, match=r"damaged|cannot be"):
        RecordJournal(path)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM records WHERE position = 5", "position 5 is missing"),
        ("DELETE FROM records WHERE position > 9", "position 10 is missing"),
        ("DELETE FROM records", "position 2 is missing"),
        ("UPDATE records SET kind = 'other' WHERE position = 7", "position 7"),
        ("UPDATE head SET last = last - 1", "first and last"),
        ("DELETE FROM head", "first and last"),
        ("DROP TABLE records", "its tables"),
        ("INSERT INTO records SELECT position + 50, kind, body, checksum FROM records", "position 14"),
        ("PRAGMA user_version = 7", "header"),
    ],
)
def test_damage_is_named_and_repaired(tmp_path, statement, reason):
    path = tmp_path / "records"
    records = written(path)
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    with pytest.raises(JournalDamageError, match=reason):
        RecordJournal(path)
    repaired = repair_journal(path)
    assert repaired.lost_from is not None
    with RecordJournal(path) as journal:
        assert plain(journal) == records[: repaired.kept]
        journal.append("more", {})
    assert repair_journal(path).copy is None


def test_an_interrupted_transaction_is_rolled_back(tmp_path):
    """A process that dies within a write leaves the records that were acknowledged."""
    path = tmp_path / "records"
    records = written(path)
    code = f"""
import os, sqlite3
database = sqlite3.connect({str(path)!r}, isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("PRAGMA cache_spill = 1")
database.execute("BEGIN")
for position in range(100, 400):
    database.execute("INSERT INTO records VALUES (?, 'x', zeroblob(1000), zeroblob(16))", (position,))
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert path.with_name("records-journal").stat().st_size > 0
    with RecordJournal(path) as journal:
        assert plain(journal) == records


def test_a_journal_is_open_once(tmp_path):
    path = tmp_path / "records"
    with RecordJournal(path):
        with pytest.raises(InputError, match="open already"):
            RecordJournal(path)
        with pytest.raises(InputError, match="open already"):
            repair_journal(path)
    RecordJournal(path).close()


def test_a_write_that_fails_changes_nothing(tmp_path):
    """A full disk is an error, and the journal goes on when there is space again."""
    path = tmp_path / "records"
    with RecordJournal(path) as journal:
        journal.append("first", {})
        pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
        journal._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match="full"):
            journal.append("second", {"text": "x" * 100_000})
        assert plain(journal) == [("first", {})]
        journal._database.execute("PRAGMA max_page_count = 1000000")
        assert journal.append("second", {}) == 2


def test_a_file_that_is_not_a_journal_is_refused(tmp_path):
    path = tmp_path / "records"
    path.write_text("hello, I am a text\n" * 500)
    with pytest.raises(JournalDamageError, match="damaged"):
        RecordJournal(path)
    with pytest.raises(InputError, match="does not exist"):
        check_journal(tmp_path / "missing")
