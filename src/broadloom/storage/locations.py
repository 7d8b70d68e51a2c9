"""Locations: local paths, and paths in remote stores that are named by URIs (`s3a://bucket/out`, `hdfs:`).

A remote store has no rename that is atomic, so a folder there is committed by a manifest: its files are in a
subfolder with a new name (`data-...`), and the file `_SUCCESS`, which is written last and at once, names that
subfolder and lists its files. Readers trust only this list.

PyArrow is loaded at the first use of a remote store, so that local work starts without it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, total_ordering
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from broadloom.checks import check_path
from broadloom.errors import BroadloomError, InputError, MissingExtraError, StorageError, error_from_os

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

MANIFEST = "_SUCCESS"
_DATA = "data-"
_BLOCK_BYTES = 8 * 2**20
_FORMAT = 1

# A scheme has two letters at least: one letter is a drive of Windows. `Path` makes one slash of two.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
# Stores that PyArrow reads itself; all others need fsspec and its package for the scheme.
_S3 = ("s3", "s3a", "s3n")
_AZURE = ("abfs", "abfss")
_HADOOP = ("hdfs", "viewfs")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs"}

_settings: dict[str, str] = {}


def use_store_settings(settings: Mapping[str, str]) -> None:
    """Use the settings of Hadoop's file systems (`spark.hadoop.fs.s3a.endpoint`, ...) in this process too."""
    found = {
        name.removeprefix("spark.hadoop."): value
        for name, value in settings.items()
        if name.startswith("spark.hadoop.fs.")
    }
    if not found.items() <= _settings.items():
        _settings.update(found)
        _store.cache_clear()


def store_settings() -> dict[str, str]:
    """The settings in use, as `use_store_settings` takes them in another process."""
    return {f"spark.hadoop.{name}": value for name, value in _settings.items()}


def is_remote(path: object) -> bool:
    """Whether a path or text is a URI of a remote store.

    Examples:
        >>> is_remote("s3a://bucket/out"), is_remote(Path("s3a://bucket/out")), is_remote("file:///tmp/out")
        (True, True, False)
        >>> is_remote("logs/12:30.csv"), is_remote("C:/logs")
        (False, False)
    """
    if isinstance(path, RemotePath):
        return True
    found = _URI.fullmatch(str(path))
    return found is not None and found[1].lower() != "file"


def as_path(path: str | Path | RemotePath, name: str = "the path") -> Path:
    """A path that can be used like a `Path`: a local one, or a `RemotePath` for a URI of a remote store.

    Raises:
        InputError: `path` is not a path; `name` is its name in the message.

    Examples:
        >>> as_path("file:///tmp/out")
        PosixPath('/tmp/out')
        >>> str(as_path(Path("s3a://bucket/out")))
        's3a://bucket/out'
    """
    if isinstance(path, RemotePath):
        return cast("Path", path)
    checked = check_path(path, name)
    found = _URI.fullmatch(str(path))
    if found is None:
        return checked
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return Path("/", rest)
    return cast("Path", RemotePath(f"{scheme}://{rest.rstrip('/')}"))


def local_path(path: str | Path, name: str = "the path") -> Path:
    """The path of a file or folder that must be on this machine.

    Raises:
        InputError: `path` is not a path, or is a URI of a remote store; `name` is its name in the message.

    Examples:
        >>> local_path("fleet.toml"), local_path("file:///etc/fleet.toml")
        (PosixPath('fleet.toml'), PosixPath('/etc/fleet.toml'))
        >>> local_path(Path("s3a://bucket/fleet.toml"), "the fleet file")
        Traceback (most recent call last):
        broadloom.errors.InputError: the fleet file is s3a://bucket/fleet.toml; give a path on this machine
    """
    location = as_path(path, name)
    if isinstance(location, RemotePath):
        raise InputError(f"{name} is {location}; give a path on this machine")
    return location


class FileFacts(NamedTuple):
    """Size in bytes and time of the last change of a remote file, with the names of `os.stat_result`."""

    st_size: int
    st_mtime_ns: int


@total_ordering
class RemotePath:
    """A path in a remote store, with those methods of `pathlib.Path` that Broadloom uses.

    Attributes:
        uri: the URI, without a slash at its end.
        listing: the files below this path with their sizes, relative to it, if they are known from a
            manifest; then no other files are seen.
        is_draft: whether the path is in a folder that is being written, and has no manifest yet.
    """

    def __init__(self, uri: str, listing: Mapping[str, int] | None = None, is_draft: bool = False) -> None:
        self.uri = uri
        self.listing = listing
        self.is_draft = is_draft

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"RemotePath({self.uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.uri == other.uri

    def __lt__(self, other: object) -> bool:
        return self.uri < str(other)

    def __hash__(self) -> int:
        return hash(self.uri)

    def __truediv__(self, name: object) -> RemotePath:
        inner = str(name)
        below = None
        if self.listing is not None:
            start = f"{inner}/"
            below = {
                file.removeprefix(start): size
                for file, size in self.listing.items()
                if file.startswith(start)
            }
            if inner in self.listing:
                below[""] = self.listing[inner]
        return RemotePath(f"{self.uri}/{inner}", below, self.is_draft)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.uri)

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return PurePosixPath(self.name).suffix

    @property
    def suffixes(self) -> list[str]:
        """All endings of the name."""
        return PurePosixPath(self.name).suffixes

    @property
    def stem(self) -> str:
        """The name without its ending."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> RemotePath:
        """The folder of the path."""
        return RemotePath(posixpath.dirname(self.uri))

    @property
    def filesystem(self) -> FileSystem:
        """The store, as a file system of PyArrow."""
        return _store(self.uri.partition("://")[0], self._authority)

    @property
    def store_path(self) -> str:
        """The path inside of the store."""
        scheme, _, rest = self.uri.partition("://")
        if scheme in _HADOOP or scheme == "webhdfs":
            return "/" + rest.partition("/")[2]
        if scheme in _AZURE:
            container, _, inner = rest.partition("/")
            return f"{container.partition('@')[0]}/{inner}"
        return rest

    @property
    def _authority(self) -> str:
        return self.uri.partition("://")[2].partition("/")[0]

    def absolute(self) -> RemotePath:
        """The path itself."""
        return self

    def resolve(self) -> RemotePath:
        """The path itself."""
        return self

    def exists(self) -> bool:
        """Whether there is a file or a folder."""
        return bool(self.listing) if self.listing is not None else self._info().type.name != "NotFound"

    def is_file(self) -> bool:
        """Whether this is a file."""
        return "" in self.listing if self.listing is not None else self._info().type.name == "File"

    def is_dir(self) -> bool:
        """Whether this is a folder."""
        return self.exists() and not self.is_file()

    def stat(self) -> FileFacts:
        """The size of a file, and the time of its last change."""
        info = self._info()
        if info.type.name != "File":
            raise InputError(f"{self}: no such file")
        return FileFacts(info.size, info.mtime_ns or 0)

    def files(self) -> Iterator[RemotePath]:
        """All files below this folder, sorted; the file itself if it is one."""
        if self.listing is not None:
            yield from (self / name if name else self for name in sorted(self.listing))
            return
        if self.is_file():
            yield self
            return
        yield from (RemotePath(f"{self.uri}/{name}") for name in sorted(self._files()))

    def iterdir(self) -> Iterator[RemotePath]:
        """The entries of this folder."""
        names = self.listing if self.listing is not None else self._files()
        yield from (self / name for name in sorted({name.partition("/")[0] for name in names if name}))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """The files below this folder whose path fits a pattern; a star does not cross a slash."""
        wanted = pattern.split("/")
        for name in sorted(self._files()):
            parts = name.split("/")
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted)):
                yield RemotePath(f"{self.uri}/{name}")

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open a file for reading ("rb") or writing ("wb"); a written file appears when it is closed."""
        with named_store_errors(self, "read" if mode == "rb" else "written"):
            if mode == "rb":
                return cast("IO[bytes]", self.filesystem.open_input_file(self.store_path))
            return cast("IO[bytes]", self.filesystem.open_output_stream(self.store_path))

    def read_bytes(self) -> bytes:
        """The content of a file."""
        with named_store_errors(self, "read"), self.open() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """The content of a file as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes) -> None:
        """Write a file, which appears at once."""
        with named_store_errors(self, "written"), self.open("wb") as file:
            file.write(content)

    def write_text(self, content: str, encoding: str = "utf-8") -> None:
        """Write a text file."""
        self.write_bytes(content.encode(encoding))

    def mkdir(self, **_options: bool) -> None:
        """Do nothing: folders of a store appear with their files, except in Hadoop's stores."""
        if self.uri.partition("://")[0] in (*_HADOOP, "webhdfs"):
            with named_store_errors(self, "written"):
                self.filesystem.create_dir(self.store_path, recursive=True)

    def remove(self) -> None:
        """Delete the file or folder, if there is one."""
        with named_store_errors(self, "deleted"):
            kind = self._info().type.name
            if kind == "File":
                self.filesystem.delete_file(self.store_path)
            elif kind == "Directory":
                self.filesystem.delete_dir(self.store_path)

    def _info(self) -> Any:
        with named_store_errors(self, "read"):
            return self.filesystem.get_file_info(self.store_path)

    def _files(self) -> dict[str, int]:
        """The files below this folder, by their relative path, with their sizes."""
        from pyarrow.fs import FileSelector

        with named_store_errors(self, "read"):
            selector = FileSelector(self.store_path, allow_not_found=True, recursive=True)
            found = self.filesystem.get_file_info(selector)
        root = self.store_path.strip("/") + "/"
        return {one.path.strip("/").removeprefix(root): one.size for one in found if one.type.name == "File"}


@contextmanager
def named_store_errors(path: object, action: str) -> Iterator[None]:
    """Convert errors of a store to a `StorageError` that names the path."""
    try:
        yield
    except BroadloomError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        if error.errno:
            raise error_from_os(f"{path} cannot be {action}", error) from error
        raise StorageError(f"{path} cannot be {action}: {' '.join(str(error).split())}") from error


@cache
def _store(scheme: str, authority: str) -> FileSystem:
    """The store of a scheme and an authority (host, bucket or account), as a file system of PyArrow."""
    from pyarrow import fs

    uri = f"{scheme}://{authority}/"
    try:
        if scheme in _S3:
            return fs.S3FileSystem(**s3_options(_settings))
        if scheme == "gs":
            return fs.GcsFileSystem()
        if scheme in _AZURE:
            return fs.AzureFileSystem(**azure_options(authority, _settings))
        if scheme in _HADOOP:
            return fs.FileSystem.from_uri(uri)[0]
    except (OSError, AttributeError, ValueError, NotImplementedError) as error:
        if scheme in _HADOOP and re.search("libhdfs|libjvm", str(error)):
            first_line = str(error).partition("\n")[0]  # then follows each path that was tried
            raise MissingExtraError(
                f"{uri} needs libhdfs.so and Java; set HADOOP_HOME, JAVA_HOME and CLASSPATH ({first_line})"
            ) from error
        reason = " ".join(str(error).split())
        raise StorageError(f"PyArrow cannot open {uri}: {reason}") from error
    try:
        import fsspec
    except ImportError as error:
        packages = " and ".join(name for name in ("fsspec", _PACKAGES.get(scheme, "")) if name)
        raise MissingExtraError(f"{uri} needs {packages}; install it with pip") from error
    try:
        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.core.url_to_fs(uri, **fsspec_options())[0]))
    except (ValueError, ImportError) as error:
        raise InputError(
            f"{uri}: unknown scheme {scheme!r}; there are local paths, file, hdfs, s3a, gs, abfs, "
            f"and those of fsspec ({error})"
        ) from error
    except OSError as error:
        raise StorageError(f"fsspec cannot open {uri}: {error}") from error


def s3_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """The options of PyArrow's S3 store for settings of Hadoop's; without any, those of the environment.

    Examples:
        >>> s3_options({"fs.s3a.endpoint": "http://127.0.0.1:9000", "fs.s3a.access.key": "a"})
        {'endpoint_override': '127.0.0.1:9000', 'scheme': 'http', 'access_key': 'a'}
    """
    names = {
        "endpoint_override": "fs.s3a.endpoint",
        "region": "fs.s3a.endpoint.region",
        "access_key": "fs.s3a.access.key",
        "secret_key": "fs.s3a.secret.key",
        "session_token": "fs.s3a.session.token",
    }
    found: dict[str, Any] = {name: settings[key] for name, key in names.items() if settings.get(key)}
    if "endpoint_override" not in found:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        found |= {"endpoint_override": endpoint} if endpoint else {}
    if "endpoint_override" in found:
        scheme, separator, host = found["endpoint_override"].partition("://")
        secure = settings.get("fs.s3a.connection.ssl.enabled", "true") != "false"
        chosen = {
            "endpoint_override": host if separator else scheme,
            "scheme": scheme if separator else "https" if secure else "http",
        }
        found = chosen | {name: value for name, value in found.items() if name != "endpoint_override"}
    return found


def azure_options(authority: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """The options of PyArrow's Azure store.

    Examples:
        >>> azure_options("data@shop.dfs.core.windows.net", {})
        {'account_name': 'shop'}
    """
    host = authority.partition("@")[2] or authority
    key = settings.get(f"fs.azure.account.key.{host}")
    return {"account_name": host.partition(".")[0]} | ({"account_key": key} if key else {})


def fsspec_options() -> dict[str, Any]:
    """The options of stores of fsspec, from the environment: BROADLOOM_FSSPEC, a JSON object."""
    text = os.environ.get("BROADLOOM_FSSPEC", "{}")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"BROADLOOM_FSSPEC is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError("BROADLOOM_FSSPEC is not a JSON object")
    return found


class _Manifest(NamedTuple):
    """The record that commits a remote folder: the name of its data, and the files there with their sizes."""

    data: str
    files: dict[str, int]


def _manifest(folder: RemotePath) -> _Manifest | None:
    """The manifest of a remote folder; None if it has none that Broadloom wrote."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text())
        files = {str(name): int(size) for name, size in record["files"].items()}
        found = _Manifest(str(record["data"]), files)
        version = record["format"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if version != _FORMAT:
        raise InputError(f"{path} has format {version}; this version of Broadloom reads format {_FORMAT}")
    return found


def committed(path: str | Path) -> Path:
    """A folder as its readers see it: a remote one as its manifest lists it, a local one unchanged.

    Raises:
        InputError: a remote folder has no manifest.
    """
    folder = as_path(path)
    if not isinstance(folder, RemotePath) or folder.listing is not None or folder.is_draft:
        return folder
    manifest = _manifest(folder)
    if manifest is None:
        raise InputError(
            f"{folder} has no {MANIFEST} that lists its files; it does not exist or is incomplete"
        )
    data = folder / manifest.data
    return cast("Path", RemotePath(data.uri, manifest.files))


def is_committed(path: str | Path) -> bool:
    """Whether a folder exists; a remote one must have a manifest."""
    folder = as_path(path)
    return _manifest(folder) is not None if isinstance(folder, RemotePath) else folder.exists()


def is_hidden(name: str) -> bool:
    """Whether Spark and Hadoop ignore a file or folder of this name, such as `_temporary` and `.part.crc`.

    Examples:
        >>> [is_hidden(name) for name in ("_temporary", ".a.crc", "_id=3", "part-0.csv", "a.csv._COPYING_")]
        [True, True, False, False, True]
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def copy_remote(source: RemotePath, target: Path) -> None:
    """Copy a remote file or folder; the target is remote, or a local path."""
    where = as_path(target)
    for one in source.files():
        inner = one.uri.removeprefix(source.uri).lstrip("/")
        copy = where / inner if inner else where
        if isinstance(copy, RemotePath):
            same = copy.filesystem is one.filesystem
            with named_store_errors(copy, "written"):
                if same and one.uri.partition("://")[0] in (*_S3, *_AZURE, "gs"):
                    copy.filesystem.copy_file(one.store_path, copy.store_path)
                    continue
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
        with one.open() as read, copy.open("wb") as written:
            while block := read.read(_BLOCK_BYTES):
                written.write(block)


@contextmanager
def local_folders(folders: Sequence[Path], inner: Sequence[str]) -> Iterator[list[Path]]:
    """Local folders with the content of folders, for the block: remote ones are copied.

    A remote folder that is not committed itself has folders with the names `inner`, as that of a run has.
    """
    with tempfile.TemporaryDirectory(prefix="broadloom-") as scratch:
        found = []
        for number, path in enumerate(folders):
            folder = as_path(path)
            if not isinstance(folder, RemotePath):
                found.append(folder)
                continue
            target = Path(scratch, str(number), folder.name)
            parts = [folder] if is_committed(folder) else [folder / name for name in inner]
            copied = [part for part in parts if is_committed(as_path(part))]
            if not copied:
                committed(folder)  # raises
            for part in copied:
                below = target if part is folder else target / part.name
                copy_remote(cast("RemotePath", committed(as_path(part))), below)
            found.append(target)
        yield found


@contextmanager
def new_remote_folder(folder: RemotePath, overwrite: bool = False) -> Iterator[RemotePath]:
    """As `new_folder`, in a remote store: the block writes the data, and then a manifest commits it.

    Only one process at a time can write to a folder: data of others, and of processes that died, is removed.
    """
    if folder.is_draft:
        yield folder
        return
    before = _manifest(folder)
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(name for name in names if name != MANIFEST and not name.startswith(_DATA))
    if foreign:
        raise InputError(f"{folder} holds {foreign[0]!r}, which is not Broadloom's; choose another folder")
    if before is not None and not overwrite:
        raise InputError(f"{folder} exists already; choose another, or replace it (--force, overwrite=True)")
    data = RemotePath(f"{folder}/{_DATA}{secrets.token_hex(8)}", is_draft=True)
    try:
        data.mkdir()
        yield data
        files = {
            name: size for name, size in data._files().items() if not any(map(is_hidden, name.split("/")))
        }
        record = {"format": _FORMAT, "data": data.name, "files": dict(sorted(files.items()))}
        (folder / MANIFEST).write_text(json.dumps(record, indent=1) + "\n")
    except BaseException:
        _remove_quietly(data)
        raise
    for entry in folder.iterdir():
        if entry.name not in (MANIFEST, data.name):
            _remove_quietly(entry)


def _remove_quietly(path: RemotePath) -> None:
    """Delete what is left of a folder; what cannot be deleted is never read, because no manifest lists it."""
    try:
        path.remove()
    except (InputError, StorageError):
        return
