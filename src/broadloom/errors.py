"""Exception classes, by cause.

BroadloomError
    InputError          a value, row, file or option is wrong
    MissingExtraError   an optional package or program is not installed
    StorageError        a disk or a storage system failed
    UnreachableError    a broker, an agent or a cluster did not answer
    InternalError       a result broke a promise of Broadloom: a bug

The command line prints the first four kinds as one line. Its exit code is 2 for an `InputError` or a
`MissingExtraError`, and 3 for a `StorageError` or an `UnreachableError`, after which a retry can succeed.
"""

import shutil


class BroadloomError(Exception):
    """Base of all errors that Broadloom raises on purpose.

    Examples:
        >>> try:
        ...     raise InputError("k is 0; give a number from 1")
        ... except BroadloomError as error:
        ...     print(error)
        k is 0; give a number from 1
    """


class InputError(BroadloomError, ValueError):
    """A value, row, file or option is wrong.

    The message says what is wrong, where (row, node, field), and what would be right.

    Examples:
        >>> raise InputError("latency row 3: rtt_ms is -4.0; give a number above 0")
        Traceback (most recent call last):
        broadloom.errors.InputError: latency row 3: rtt_ms is -4.0; give a number above 0
    """


class MissingExtraError(BroadloomError, ImportError):
    """An optional package or program is not installed; the message says how to install it.

    Examples:
        >>> raise missing_extra("paho-mqtt", "deploy")
        Traceback (most recent call last):
        broadloom.errors.MissingExtraError: paho-mqtt is not installed; run: pip install "broadloom[deploy]"
    """


class StorageError(BroadloomError, OSError):
    """A file could not be read or written, for example because of a full disk or missing permissions.

    Examples:
        >>> raise StorageError("edges.parquet: no space left on the disk; free some and try again")
        Traceback (most recent call last):
        broadloom.errors.StorageError: edges.parquet: no space left on the disk; free some and try again
    """


class UnreachableError(BroadloomError, ConnectionError):
    """A broker, an agent or a cluster did not answer, or ended the connection.

    Examples:
        >>> raise UnreachableError("rome:8883 refused the connection; is the broker running?")
        Traceback (most recent call last):
        broadloom.errors.UnreachableError: rome:8883 refused the connection; is the broker running?
    """


class InternalError(BroadloomError, RuntimeError):
    """A result broke a promise of Broadloom: a bug, to be reported with the traceback.

    Checks of results raise this instead of using `assert`, which `python -O` removes.

    Examples:
        >>> raise InternalError("gm left topic 'alarms' disconnected; please report this")
        Traceback (most recent call last):
        broadloom.errors.InternalError: gm left topic 'alarms' disconnected; please report this
    """


def missing_extra(package: str, extra: str, reason: str = "") -> MissingExtraError:
    """The error for a package of an extra that is not installed; all such messages have this form.

    Args:
        package: the name of the package on the package index, or of what it contains.
        extra: the extra of Broadloom that installs it.
        reason: what needs the package, or where it was searched.

    Examples:
        >>> print(missing_extra("OR-tools", "lp", "slp1 and slp need it"))
        OR-tools is not installed (slp1 and slp need it); run: pip install "broadloom[lp]"
    """
    why = f" ({reason})" if reason else ""
    # Double quotes: the command prompt of Windows does not know single ones.
    return MissingExtraError(f'{package} is not installed{why}; run: pip install "broadloom[{extra}]"')


def error_from_os(action: str, error: OSError) -> InputError | StorageError:
    """Convert an `OSError` to an error with the message "<action>: <reason>".

    Returns:
        An `InputError` if a path does not exist or is of the wrong kind, or if the error has no number, which
        means that a library found the content damaged; otherwise a `StorageError`. A copy of a folder that
        failed (`shutil.Error`) is a `StorageError` with the reason of its first file. A `StorageError` is
        returned as it is: it names the file already.

    Examples:
        >>> error_from_os("edges.csv cannot be read", FileNotFoundError(2, "No such file or directory"))
        InputError('edges.csv cannot be read: No such file or directory')
        >>> error_from_os("cannot write /plans", OSError(28, "No space left on device"))
        StorageError('cannot write /plans: No space left on device')
    """
    if isinstance(error, StorageError):
        return error
    if isinstance(error, shutil.Error):
        return StorageError(f"{action}: {error.args[0][0][-1]}")
    wrong_path = isinstance(
        error, (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
    )
    kind = InputError if wrong_path or error.errno is None else StorageError
    return kind(f"{action}: {error.strerror or ' '.join(str(error).split())}")
