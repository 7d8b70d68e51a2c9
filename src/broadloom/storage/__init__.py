"""Atomic folders, journals, JSON and TOML documents; `broadloom.storage.tables` holds the canonical tables.

The tables are not exported here, because they load pyarrow.
"""

from broadloom.storage.documents import read_plan_json, read_toml, to_json_value
from broadloom.storage.folders import new_folder
from broadloom.storage.journal import append_record, lock_folder, read_records, start_journal

__all__ = [
    "append_record",
    "lock_folder",
    "new_folder",
    "read_plan_json",
    "read_records",
    "read_toml",
    "start_journal",
    "to_json_value",
]
