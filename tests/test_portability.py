"""Windows and macOS: every module can be imported, and folders are saved and locked, without what they lack.

Each test runs in a process of its own, which imitates the other system: its missing modules cannot be
imported, its missing functions are deleted, and `sys.platform` has its value. Libraries are imported before
that, so that only Broadloom sees the imitation.
"""

import subprocess
import sys

import pytest

IMITATION = '''
import fcntl, importlib, importlib.abc, importlib.util, io, os, pkgutil, sys, types
from pathlib import Path
import broadloom

# What a system lacks, as the documentation of Python says.
MODULES = {"win32": {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}, "darwin": set()}
BOTH = {"sched_getaffinity", "posix_fallocate", "posix_fadvise", "O_DIRECT", "copy_file_range"}
POSIX = {
    "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DSYNC", "O_SYNC", "WNOHANG", "chown", "fchown",
    "fork", "fchmod", "fdatasync", "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "mkfifo",
    "pread", "pwrite", "setsid", "statvfs", "sync", "sysconf", "uname", "wait3", "wait4",
}
NAMES = {"win32": BOTH | POSIX, "darwin": BOTH}
SIGNALS = {"SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGQUIT"}


class Missing(importlib.abc.MetaPathFinder):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def module_names():
    spark = importlib.util.find_spec("pyspark") is not None
    for found in pkgutil.walk_packages(broadloom.__path__, "broadloom."):
        if found.name.endswith("__main__"):
            continue
        source = Path(importlib.util.find_spec(found.name).origin).read_text()
        if spark or "\\nfrom pyspark" not in source:
            yield found.name


def imitate(system):
    """Import everything, forget Broadloom's modules, and take away what the system lacks."""
    for name in list(module_names()):
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "broadloom"]:
        del sys.modules[name]
    for name in MODULES[system]:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing(MODULES[system]))
    for name in NAMES[system] & set(dir(os)):
        delattr(os, name)
    sys.platform = system
    if system == "win32":
        import signal
        for name in SIGNALS:
            delattr(signal, name)
        sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2)
        os.O_BINARY = 0x8000_0000
        os.open, os.rename = open_file, rename
        import shutil
        shutil._use_fd_functions = False  # as on Windows: it opens no folder


def locking(handle, mode, count):
    """Windows locks bytes of a file; a handle that cannot lock them gets an error of access."""
    assert count == 1
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if mode == 2 else 0))
    except BlockingIOError as error:
        raise PermissionError(13, "Permission denied") from error


def open_file(path, flags, mode=0o777, *, real=os.open, dir_fd=None):
    """Windows opens no folder."""
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    if sys._getframe(1).f_globals["__name__"].startswith("broadloom"):
        assert flags & os.O_BINARY, f"{path} would be opened as a text"
    return real(path, flags & ~os.O_BINARY, mode)


def rename(old, new, real=os.rename):
    """Windows replaces nothing by a rename."""
    if os.path.exists(new):
        raise FileExistsError(183, "Cannot create a file when that file already exists", str(new))
    real(old, new)
'''
IMPORT_ALL = """
imitate(sys.argv[1])
import broadloom
names = list(module_names())
assert len(names) > 150, names
for name in names:
    importlib.import_module(name)
try:
    broadloom.cli.main(["--version"])
except SystemExit as end:
    assert end.code == 0
"""
USE_FOLDERS = """
imitate("win32")
import broadloom as bl
from broadloom.storage import RecordJournal, create_journal, lock_folder, new_folder

for text in ("old", "new"):
    with new_folder(Path("made"), overwrite=True) as scratch:
        (scratch / "x.json").write_text(text)
assert Path("made/x.json").read_text() == "new"
assert [path.name for path in Path().iterdir()] == ["made"], "scratch folders and locks are removed"
Path(".made.1.new").mkdir()  # a process died here
with new_folder(Path("made"), overwrite=True) as scratch:
    assert not Path(".made.1.new").exists()

lock = lock_folder(Path("made"))
try:
    lock_folder(Path("made"))
except bl.InputError as error:
    assert "made is open already" in str(error)
else:
    raise AssertionError("locked twice")
os.close(lock)
os.close(lock_folder(Path("made")))
try:
    lock_folder(Path("nowhere"))
except bl.InputError as error:
    assert "nowhere cannot be opened" in str(error)

for _ in range(2):
    create_journal(Path("journal"))
with RecordJournal(Path("journal")) as journal:
    journal.append("one", {})
with RecordJournal(Path("journal")) as journal:
    assert len(journal) == 1

live = bl.maintain(bl.Interest.from_lists([["a", "b"], ["a"], ["b"]]))
live.save("live")
live.close()
again = bl.Live.load("live")
again.join(["a", "b"])
again.close()
"""


def _run(code: str, *arguments: str, folder) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMITATION + code, *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_every_module_is_imported_without_what_other_systems_lack(system, tmp_path):
    _run(IMPORT_ALL, system, folder=tmp_path)


def test_folders_and_journals_work_as_windows_locks_and_renames(tmp_path):
    _run(USE_FOLDERS, folder=tmp_path)
