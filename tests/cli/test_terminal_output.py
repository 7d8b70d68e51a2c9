"""Terminal output: no escape sequence of a name, a topic or an error reaches the terminal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

import broadloom as bl
from broadloom.checks import visible_text
from broadloom.cli.common import say, show
from broadloom.cli.deploy_texts import comparison_table
from broadloom.deployment.rehearsal.rehearsals import ALTERNATIVES, OURS
from hostile_texts import SEQUENCES, is_harmless


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_texts_tables_and_lines_show_escape_sequences(sequence, capsys):
    table = Table(f"name {sequence}", box=None)
    table.add_row(f"rome{sequence}x")
    show({"broker": sequence}, f"link to {sequence}", as_json=False, quiet=False, table=table)
    say(f"MISSING at {sequence}", error=True)
    out, err = capsys.readouterr()
    assert is_harmless(out)
    assert is_harmless(err)
    assert "link to" in out
    assert "x" in out
    show({"broker": sequence}, "", as_json=True, quiet=False)
    printed = capsys.readouterr().out
    assert is_harmless(printed)
    assert json.loads(printed) == {"broker": sequence}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_errors_show_escape_sequences(sequence, run, tmp_path):
    """In the name of a file, of an option, and of a verb."""
    for arguments in (
        ("verify", tmp_path / f"plan{sequence}"),
        ("deploy", "export", tmp_path / sequence.replace("/", ""), "--to", sequence, "-o", tmp_path / "x"),
        ("verify", f"--{sequence}"),
        (f"verb{sequence}",),
        ("doctor", tmp_path / f"{sequence.replace('/', '')}.toml"),
    ):
        code, out, err = run(*arguments)
        assert code == 2
        assert is_harmless(out)
        assert is_harmless(err)
        assert err.count("\n") == 1


def test_topics_of_clients_reach_no_terminal_as_they_are(run, tmp_path):
    """A client can subscribe to any text; all verbs that print topics show it."""
    topics = [f"t/{sequence}".replace("#", "") for sequence in SEQUENCES]
    for name, count in (("old", len(topics) - 1), ("new", len(topics))):
        interest = bl.Interest.from_lists([topics[:count]] * 2, node_ids=["rome", "oslo"])
        plan = bl.link(interest, algorithm="gm")
        plan.save(tmp_path / name)
    old, new = tmp_path / "old", tmp_path / "new"
    for verb in (
        ("verify", new),
        ("measure", new),
        ("deploy", "check", new, "--to", "mosquitto"),
        ("deploy", "export", new, "--to", "mosquitto", "-o", tmp_path / "conf"),
        ("deploy", "diff", old, new),
        ("what-if", new, "--fail", "rome"),
    ):
        for more in ((), ("--json",)):
            _, out, err = run(*verb, *more)
            assert is_harmless(out), verb
            assert is_harmless(err), verb
    assert not (tmp_path / "conf").exists()


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_ids_with_escape_sequences_are_refused(sequence, run, tmp_path):
    (tmp_path / "subscriptions.csv").write_text(f'node,topic\n"rome{sequence}",x\noslo,x\n', newline="")
    code, out, err = run("link", tmp_path, "-o", tmp_path / "plan")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert is_harmless(err)


@given(st.text())
def test_any_text_becomes_harmless_and_a_harmless_one_stays(text):
    shown = visible_text(text)
    assert is_harmless(shown)
    if is_harmless(text):
        assert shown == text


def test_the_table_of_wirings_fits_into_80_columns_without_cutting_anything(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    numbers = {"messages_on_links": 1_234_567, "bytes_on_links": 123_456_789, "mean_hops": 12.34}
    numbers |= {"max_hops": 12, "mean_delay": 123.4, "max_delay": 1_234.0, "links": 1_234}
    rows = [{"wiring": name, **numbers} for name in (OURS, *ALTERNATIVES)]
    show({}, "rehearsed", as_json=False, quiet=False, table=comparison_table(rows))
    out = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    assert max(map(len, out.splitlines())) <= 80
    words = out.split()
    assert {"messages", "bytes", "hops", "delay"} <= set(words)
    for value in ("1234567", "123456789", "12.34", "123.4", "1,234"):
        assert words.count(value) == len(rows)
