"""Kinds of errors: each condition outside of the input is told apart from bad input."""

import shutil

import pytest

import broadloom as bl
from broadloom import InputError, StorageError
from broadloom.errors import error_from_os
from broadloom.model import RowLedger, TableAccount
from broadloom.storage import create_journal, lock_folder


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("lnk", "no stage 'lnk' (did you mean 'link'?); there are link, assign, maintain"),
        ("typo", "no stage 'typo'; there are link, assign, maintain"),
        (3, "the stage is 3; give one of link, assign, maintain"),
    ],
)
def test_an_unknown_stage_is_refused(stage, message):
    with pytest.raises(InputError) as raised:
        bl.algorithms(stage)
    assert str(raised.value) == message


def test_a_failed_copy_of_a_folder_is_a_storage_error_with_the_first_reason():
    error = shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'"), ("c", "d", "other")])
    converted = error_from_os("cannot write /plans", error)
    assert isinstance(converted, StorageError)
    assert str(converted) == "cannot write /plans: [Errno 28] No space left on device: 'b'"


def test_a_journal_that_cannot_be_written_is_a_storage_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(StorageError, match="cannot be written: No space left on device"):
        create_journal(tmp_path / "journal")


def test_a_lock_on_a_missing_folder_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be opened: No such file"):
        lock_folder(tmp_path / "missing")


@pytest.mark.parametrize("text", ["{", "[]", '{"tables": [{"rows": 1}], "notes": []}'])
def test_a_damaged_ledger_is_an_input_error(tmp_path, text):
    RowLedger((TableAccount("nodes", 5, 3, 1, {"no node": 1}, 3),)).save(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    with pytest.raises(InputError, match="is damaged, or was edited"):
        RowLedger.load(tmp_path)


def test_an_edited_ledger_that_does_not_add_up_is_an_input_error(tmp_path):
    RowLedger((TableAccount("nodes", 5, 3, 1, {"no node": 1}, 3),)).save(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text().replace('"rows": 5', '"rows": 6'))
    with pytest.raises(InputError, match="do not add up"):
        RowLedger.load(tmp_path)
