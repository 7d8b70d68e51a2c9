"""Commands of an operator by which a change reaches a broker, from the fleet file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from broadloom.checks import check_positive, shown
from broadloom.errors import InputError, MissingExtraError, UnreachableError

COMMANDS = ("install", "remove", "stop", "start", "reload")
FILE = "file"  # what only an install command has
PLACES = ("broker", "host", "uri_host", "port", FILE)
_PLACE = re.compile(r"\{(\w*)\}")
_HARMLESS = re.compile(r"[A-Za-z0-9_./:\[][A-Za-z0-9_.:@%+,/\[\]-]*")  # IPv6 hosts have brackets or not


@dataclass(frozen=True)
class FleetHooks:
    """How `deploy apply` changes a broker: where its links are written, and the operator's own commands.

    A command is a text, or a list of words; Broadloom starts it without a shell. `{broker}`, `{host}` and
    `{port}` in its words stand for the broker's name and its address, `{uri_host}` for the host with brackets
    if it is an IPv6 address, and `{file}`, in `install`, for the file with the broker's links.

    Attributes:
        path: where to write the broker's links, on this machine.
        install: a command that takes `{file}` to the broker, if it is on another machine.
        remove: a command that removes that file there.
        stop: a command that stops the broker, and ends when it has stopped.
        start: a command that starts it.
        reload: a command that has it read its configuration again.
        seconds: the most seconds for each command.

    Examples:
        >>> FleetHooks(stop="ssh {host} systemctl stop mosquitto").stop
        ('ssh', '{host}', 'systemctl', 'stop', 'mosquitto')
        >>> FleetHooks(stop="ssh {hots} halt")
        Traceback (most recent call last):
        broadloom.errors.InputError: hooks.stop has {hots}; there are {broker}, {host}, {uri_host}, {port}
    """

    path: str | None = None
    install: str | tuple[str, ...] | None = None
    remove: str | tuple[str, ...] | None = None
    stop: str | tuple[str, ...] | None = None
    start: str | tuple[str, ...] | None = None
    reload: str | tuple[str, ...] | None = None
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.path is not None and (not isinstance(self.path, str) or not self.path.isprintable()):
            raise InputError(f"hooks.path is {shown(self.path)}; give the path of a file")
        for name in COMMANDS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _words(value, f"hooks.{name}"))
        check_positive(self.seconds, "hooks.seconds")
        if self.path is not None and self.install is not None:
            raise InputError("hooks has path and install; give path if this machine has the broker's files")

    def run(self, name: str, values: Mapping[str, str]) -> None:
        """Run a command.

        Args:
            name: which one.
            values: what its places stand for.

        Raises:
            InputError: the fleet file has no such command.
            MissingExtraError: its program is not installed.
            UnreachableError: it fails, or does not end in time.
        """
        words = getattr(self, name)
        broker = values["broker"]
        if words is None:
            raise InputError(f'broker {broker!r} has no {name} command; give hooks = {{ {name} = "..." }}')
        command = _filled(words, values)
        what = f"the {name} command of broker {broker!r}"
        # Files, not pipes: a process that the command leaves behind can keep them open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                code = _run(command, self.seconds, out, err)
            except subprocess.TimeoutExpired as error:
                raise UnreachableError(f"{what} has not ended in {self.seconds:g} s: {words[0]}") from error
            except OSError as error:
                raise MissingExtraError(f"{what} cannot be run: {words[0]}: {error.strerror}") from error
            if code:
                said = (_text_of(err) or _text_of(out) or "no output").splitlines()[-1]
                raise UnreachableError(f"{what} ended with {code}: {said}")

    def check(self, name: str, values: Mapping[str, str]) -> None:
        """Check that a command can be run, if there is one.

        Raises:
            InputError: a value could mean more than a word.
            MissingExtraError: its program is not found.
        """
        command = _filled(getattr(self, name) or (), values)
        if command and shutil.which(command[0]) is None:
            raise MissingExtraError(
                f"the {name} command of broker {values['broker']!r} cannot be run: {command[0]} is not "
                "found; install it, or give its path"
            )

    def shown(self, name: str, values: Mapping[str, str]) -> str:
        """A command as one would type it."""
        return shlex.join(_filled(getattr(self, name) or (), values))


def _run(command: list[str], seconds: float, out: IO[bytes], err: IO[bytes]) -> int:
    """Run a command and return its exit code; if it is not done in time, nothing of it goes on."""
    process = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
    )
    try:
        return process.wait(seconds)
    except BaseException:
        if sys.platform == "win32":
            process.kill()
        else:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _text_of(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace").strip()


def _filled(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """The words of a command with its places filled.

    Raises:
        InputError: a value could mean more than a word to the program, or to a shell on another machine.
    """

    def value(found: re.Match[str]) -> str:
        text = values[found[1]]
        if not _HARMLESS.fullmatch(text):
            raise InputError(
                f"{{{found[1]}}} of a command would be {text!r}, which a shell can read as more than a word; "
                "write the command of this broker without it"
            )
        return text

    return [_PLACE.sub(value, word) for word in words]


def _words(value: object, name: str) -> tuple[str, ...]:
    """The words of a command."""
    if isinstance(value, str):
        try:
            words = tuple(shlex.split(value))
        except ValueError as error:
            raise InputError(f"{name} is {shown(value)}: {error}; close the quote") from error
    elif isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        words = tuple(value)
    else:
        raise InputError(f"{name} is {shown(value)}; give a command as a text, or as a list of words")
    if not words or not words[0]:
        raise InputError(f"{name} is empty; give a command, or leave it out")
    places = [place for place in PLACES if place != FILE or name == "hooks.install"]
    for place in _PLACE.findall(" ".join(words)):
        if place not in places:
            known = ", ".join(f"{{{one}}}" for one in places)
            raise InputError(f"{name} has {{{place}}}; there are {known}")
    return words
