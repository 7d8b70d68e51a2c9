"""Generator of the reference of the command line: `python tools/cli_reference.py` writes docs/cli/*.md.

One page per verb (a group of verbs, as `deploy`, has one page), from the same text as `--help`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer

from broadloom.cli.app import app

FOLDER = Path(__file__).parents[1] / "docs" / "cli"

# The page that describes what a verb is for, and its title.
GUIDES = {
    "init": ("fleet.md", "Plan a fleet"),
    "doctor": ("fleet.md", "Plan a fleet"),
    "discover": ("fleet.md", "Plan a fleet"),
    "generate": ("compare.md", "Compare algorithms"),
    "devices": ("pipeline.md", "Run on a cluster"),
    "ingest": ("sources.md", "Sources"),
    "subscribers": ("compare.md", "Compare algorithms"),
    "assign": ("assign.md", "Assign subscribers"),
    "link": ("link.md", "Link brokers"),
    "maintain": ("maintain.md", "Maintain an overlay"),
    "market": ("market.md", "Assign users in a market"),
    "verify": ("compare.md", "Compare algorithms"),
    "measure": ("compare.md", "Compare algorithms"),
    "report": ("report.md", "Read the report"),
    "what-if": ("serve.md", "Ask what if"),
    "serve": ("serve.md", "Ask what if"),
    "run": ("pipeline.md", "Run on a cluster"),
    "deploy": ("deploy.md", "Deploy native bridges"),
    "controller": ("live.md", "Run the live plane"),
    "agent": ("live.md", "Run the live plane"),
    "status": ("live.md", "Run the live plane"),
    "migrate": ("migrate.md", "Move clients"),
    "repair": ("maintain.md", "Maintain an overlay"),
    "reproduce": ("papers.md", "Papers and evidence"),
    "algorithms": ("compare.md", "Compare algorithms"),
    "compile": ("cli.md#how-kernels-run", "How kernels run"),
}


@cache
def verbs() -> Mapping[str, Any]:
    """The verbs of the command line, in the order of `broadloom --help`."""
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that takes arguments, as `link` and `deploy export`."""
    for name, verb in verbs().items():
        if hasattr(verb, "commands"):
            yield from ((f"{name} {part}", command) for part, command in verb.commands.items())
        else:
            yield name, verb


def purposes() -> list[dict[str, str]]:
    """One row per command: the link to its page, and the first sentence of its help."""
    return [
        {
            "command": f"[`{name}`](cli/{name.split()[0]}.md{_anchor(name)})",
            "purpose": _escaped(command.help.split("\n\n")[0]),
        }
        for name, command in commands()
    ]


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    return {f"{name}.md": _page(name, verb) for name, verb in verbs().items()}


def parts(name: str, command: Any) -> dict[str, Any]:
    """The parts of the help of a command: usage, paragraphs, example, rows of arguments and of options."""
    context = command.make_context(f"broadloom {name}", [], resilient_parsing=True)
    rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for one in command.get_params(context):
        record = one.get_help_record(context)
        if record and record[0] != "--help":
            rows[one.param_type_name].append(record)
    paragraphs = [" ".join(text.split()) for text in command.help.split("\n\n")]
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    return {"usage": usage, "paragraphs": paragraphs, **rows}


def _page(name: str, verb: Any) -> str:
    target, title = GUIDES[name]
    guide = f"\nGuide: [{title}](../{target}).\n"
    if not hasattr(verb, "commands"):
        return f"# broadloom {name}\n\n{_section(name, verb)}{guide}"
    sections = (
        f"\n## broadloom {name} {part}\n\n{_section(f'{name} {part}', command)}"
        for part, command in verb.commands.items()
    )
    return f"# broadloom {name}\n\n{_escaped(verb.help)}\n{guide}{''.join(sections)}"


def _section(name: str, command: Any) -> str:
    found = parts(name, command)
    texts = [text for text in found["paragraphs"] if not text.startswith("Example: ")]
    examples = [
        text.removeprefix("Example: ") for text in found["paragraphs"] if text.startswith("Example: ")
    ]
    lines = [*(f"{_escaped(text)}\n" for text in texts), f"```\n{found['usage']}\n```\n"]
    lines += [f"Example:\n\n```\n{text}\n```\n" for text in examples]
    for kind in ("argument", "option"):
        if found[kind]:
            rows = [f"| `{left}` | {_escaped(right)} |" for left, right in found[kind]]
            lines.append("\n".join([f"| {kind} | meaning |", "| --- | --- |", *rows]) + "\n")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text in which Markdown takes no character for markup, except in backquotes."""
    plain = " ".join(text.split())
    return "".join(
        part if number % 2 else re.sub(r"([*<|])", r"\\\1", part)
        for number, part in enumerate(re.split(r"(`[^`]*`)", plain))
    )


def _anchor(name: str) -> str:
    return "" if " " not in name else "#broadloom-" + name.replace(" ", "-")


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    for old in {path.name for path in FOLDER.glob("*.md")} - set(pages()):
        (FOLDER / old).unlink()


if __name__ == "__main__":
    sys.exit(main())
