"""Numbers as Prometheus reads them, in its text format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

KIND = "text/plain; version=0.0.4; charset=utf-8"
# A name, gauge or counter, what it is, and its values by their labels.
Family = tuple[str, str, str, Sequence[tuple[str, float]]]


def exposition(prefix: str, families: Iterable[Family]) -> str:
    """All numbers, each name with a prefix.

    Examples:
        >>> print(exposition("broadloom_live", [("up", "gauge", "who is there", [(labels(broker="a"), 1)])]))
        # HELP broadloom_live_up who is there
        # TYPE broadloom_live_up gauge
        broadloom_live_up{broker="a"} 1
        <BLANKLINE>
    """
    lines: list[str] = []
    for name, kind, told, values in families:
        lines += [f"# HELP {prefix}_{name} {told}", f"# TYPE {prefix}_{name} {kind}"]
        lines += [f"{prefix}_{name}{where} {value}" for where, value in values]
    return "\n".join(lines) + "\n"


def labels(**values: str) -> str:
    r"""Labels as they stand behind a name.

    Examples:
        >>> print(labels(broker='a "quoted" one'))
        {broker="a \"quoted\" one"}
    """
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())
    return f"{{{told}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
