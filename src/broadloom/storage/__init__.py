"""Atomic folders, locations (paths and URIs), journals, JSON and TOML documents.

The canonical tables are in `broadloom.storage.tables`, not exported here, because they load pyarrow.
"""

from broadloom.folder_locks import BINARY, forget_lock, lock_handle
from broadloom.storage.documents import (
    MOST_UNPACKED,
    read_plan_json,
    read_toml,
    to_json_value,
    unpack,
    write_file,
)
from broadloom.storage.folders import (
    lock_folder,
    lock_private_folder,
    new_folder,
    private_folder,
    remove_path,
    scratch_folder,
    share_folder,
)
from broadloom.storage.locations import (
    MANIFEST,
    RemotePath,
    as_path,
    committed,
    copy_remote,
    is_committed,
    is_hidden,
    is_remote,
    local_folders,
    local_path,
    store_settings,
    use_store_settings,
)
from broadloom.storage.record_journal import (
    JournalDamageError,
    JournalInUseError,
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
    "MANIFEST",
    "MOST_UNPACKED",
    "JournalDamageError",
    "JournalInUseError",
    "JournalRecord",
    "JournalRepair",
    "RecordJournal",
    "RemotePath",
    "as_path",
    "check_journal",
    "committed",
    "copy_remote",
    "create_journal",
    "delete_journal",
    "forget_lock",
    "is_committed",
    "is_hidden",
    "is_remote",
    "local_folders",
    "local_path",
    "lock_folder",
    "lock_handle",
    "lock_private_folder",
    "new_folder",
    "private_folder",
    "read_plan_json",
    "read_toml",
    "remove_path",
    "repair_journal",
    "scratch_folder",
    "share_folder",
    "store_settings",
    "to_json_value",
    "unpack",
    "use_store_settings",
    "write_file",
]
