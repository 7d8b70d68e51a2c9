"""Atomic folders, journals, JSON and TOML documents; `broadloom.storage.tables` holds the canonical tables.

The tables are not exported here, because they load pyarrow.
"""

from broadloom.folder_locks import BINARY, forget_lock, lock_handle
from broadloom.storage.documents import read_plan_json, read_toml, to_json_value, write_file
from broadloom.storage.folders import lock_folder, new_folder
from broadloom.storage.record_journal import (
    JournalDamageError,
    JournalRecord,
    JournalRepair,
    RecordJournal,
    check_journal,
    create_journal,
    delete_journal,
    repair_journal,
)

__all__ = [
    "BINARY",
    "JournalDamageError",
    "JournalRecord",
    "JournalRepair",
    "RecordJournal",
    "check_journal",
    "create_journal",
    "delete_journal",
    "forget_lock",
    "lock_folder",
    "lock_handle",
    "new_folder",
    "read_plan_json",
    "read_toml",
    "repair_journal",
    "to_json_value",
    "write_file",
]
