"""Commands and data in the documentation are right: verbs and options exist, TOML and JSON can be read."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import cli_reference

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = dict(cli_reference.commands())
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks(page):
    """The fenced blocks of a page: language and text."""
    return [(language, text) for _, language, text in FENCE.findall(page.read_text())]


def commands(text):
    """The lines of a block that run Broadloom, with continued lines joined and comments removed."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|;|\|", line):
            words = part.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if re.match(r"broadloom [a-z]", words):
                yield shlex.split(words, comments=True)


def options_of(command):
    """The names of the options of a command."""
    names = {"--help"}
    for one in command.params:
        if one.param_type_name == "option":
            names |= {*one.opts, *one.secondary_opts}
    return names


def fault(words):
    """What is wrong with a command; None: nothing."""
    name = next((one for one in (" ".join(words[1:3]), words[1]) if one in COMMANDS), None)
    if name is None:
        is_group = words[1] in cli_reference.verbs() and words[2:3] in ([], ["--help"])
        return None if is_group else f"no command {words[1]!r}"
    given = [one.split("=")[0] for one in words if re.match(r"--[a-z]|-[a-zA-Z]$", one)]
    unknown = [one for one in given if one not in options_of(COMMANDS[name])]
    return f"{name} has no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_have_existing_verbs_and_options(page):
    found = [(words, fault(words)) for _, text in blocks(page) for words in commands(text)]
    assert [f"{' '.join(words)}: {why}" for words, why in found if why] == []


def test_the_check_finds_commands_and_their_faults():
    assert sum(1 for page in PAGES for _, text in blocks(page) for _ in commands(text)) > 100
    assert fault(["broadloom", "link", "tables", "-o", "plan"]) is None
    assert fault(["broadloom", "deploy", "diff", "a", "b", "--rehearse"]) is None
    assert fault(["broadloom", "knit", "tables"]) == "no command 'knit'"
    assert fault(["broadloom", "link", "tables", "--seeds=3"]) == "link has no option --seeds"


def test_toml_and_json_can_be_read():
    read = {"toml": tomllib.loads, "json": json.loads}
    found = 0
    for page in PAGES:
        for language, text in blocks(page):
            if language in read:
                read[language](text)
                found += 1
    assert found > 5
