"""The file that says what a run does: sources in, the plan out, and each step's options."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broadloom.errors import InputError
from broadloom.linking import ALGORITHMS
from broadloom.model import ASSIGNMENT_LIMITS, find_algorithm
from broadloom.pipeline.ingest.sources import Source, check_choices
from broadloom.pipeline.session import Engine
from broadloom.storage import read_toml

# What may stand in each part of the file, and of what type it is.
_KNOWN: dict[str, dict[str, type | tuple[type, ...]]] = {
    "spark": {"master": str, "remote": str, "conf": dict},
    "ingest": {"wildcards": str, "symmetric": str},
    "assign": {
        "algorithm": str,
        "seed": int,
        **dict.fromkeys(ASSIGNMENT_LIMITS, (int, float)),
        "engine": str,
        "options": dict,
    },
    "interest": {"cells": int},
    "link": {
        "algorithm": str,
        "seed": int,
        "weights": str,
        "missing": str,
        "floor": (int, float),
        "inner": (int, float),
        "outer": (int, float),
        "engine": str,
        "options": dict,
    },
    "report": {"title": str},
}


# The algorithm of each step that runs on Spark as well; it is the default.
ON_SPARK = {"assign": "broadloom", "link": "dcmaw"}


@dataclass(frozen=True)
class Config:
    """What a run does.

    Attributes:
        sources: where rows come from; relative paths are from the file's folder.
        output: the folder for everything that the run makes.
        spark: the section of that name: master, remote, conf.
        ingest: wildcards, symmetric.
        assign: algorithm, seed, the limits of an assignment, engine, and the algorithm's own under options.
        interest: cells, about how many topics the content that subscribers want is cut into.
        link: algorithm, seed, weights and their options, engine, and the algorithm's own under options; an
            engine is "process" (default) or "spark".
        report: title.
    """

    sources: tuple[Source, ...]
    output: Path
    spark: Mapping[str, Any] = field(default_factory=dict)
    ingest: Mapping[str, Any] = field(default_factory=dict)
    assign: Mapping[str, Any] = field(default_factory=dict)
    interest: Mapping[str, Any] = field(default_factory=dict)
    link: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a configuration file.

        Raises:
            InputError: it cannot be read, is not TOML, or has something that is not known.
        """
        place = Path(path)
        given = read_toml(place)
        _check(given, {"sources": list, "output": str} | dict.fromkeys(_KNOWN, dict), str(place))
        for name in ("sources", "output"):
            if not given.get(name):
                raise InputError(f"{place} has no {name}; give sources (a list) and output (a folder)")
        for section, known in _KNOWN.items():
            _check(given.get(section, {}), known, f"{place} [{section}]")
        for section, algorithm in ON_SPARK.items():
            _check_engine(given.get(section, {}), algorithm, f"{place} [{section}]")
        find_algorithm(given.get("link", {}).get("algorithm", "dcmaw"), ALGORITHMS)
        check_choices(**given.get("ingest", {}))
        sources = tuple(_source(one, place) for one in given["sources"])
        sections = {section: given.get(section, {}) for section in _KNOWN}
        return cls(sources, place.absolute().parent / given["output"], **sections)

    def engine(self, master: str | None = None, remote: str | None = None, **conf: str) -> Engine:
        """Where Spark runs: as the file says, unless it is said here."""
        settings = {name: str(value) for name, value in self.spark.get("conf", {}).items()} | conf
        if master or remote:
            return Engine(master, remote, settings)
        return Engine(self.spark.get("master"), self.spark.get("remote"), settings)


def _check_engine(section: Mapping[str, Any], on_spark: str, where: str) -> None:
    engine, algorithm = section.get("engine", "process"), section.get("algorithm", on_spark)
    if engine not in ("process", "spark"):
        raise InputError(f"{where}: no engine {engine!r}; there are process, spark")
    if engine == "spark" and algorithm != on_spark:
        raise InputError(f"{where}: {algorithm} does not run on Spark; {on_spark} does")


def _source(given: Any, place: Path) -> Source:
    """A source from a text, with its path seen from the file's folder."""
    if not isinstance(given, str):
        raise InputError(f"{place}: source {given!r} is not a text like 'raw/' or 'emqx=dump.json'")
    source = Source.parse(given)
    return Source(str(place.parent / source.path), source.kind, source.node)


def _check(given: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(name, list(known), n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise InputError(f"{where}: {name!r} is not known{hint}; there are {', '.join(known)}")
        if not isinstance(value, known[name]) or (isinstance(value, bool)):
            kinds = known[name] if isinstance(known[name], tuple) else (known[name],)
            words = " or ".join(kind.__name__ for kind in kinds)  # type: ignore[union-attr]
            raise InputError(f"{where}: {name} is {value!r}; expected {words}")
