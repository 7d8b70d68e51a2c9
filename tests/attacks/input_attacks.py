"""Attacks without a running fleet: names, files, and what a local user can try on a machine.

`ATTACKS` lists them. The tests run each in its short form; `benchmarks/attacks.py` runs the long form and
writes the table of the documentation. Of each attempt the outcome is counted: it is *refused*, it is
*harmless* (the text or the file stays a value, or is escaped), or something is *wrong*: it was executed, it
changed the meaning of something else, or it showed what it must not.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow as pa

import broadloom as bl
from broadloom.agents.links.stamps import FleetKey
from broadloom.cli import main
from broadloom.console import WhatIfSession
from broadloom.console.server import ConsoleServer
from broadloom.deployment import TARGETS
from broadloom.errors import BroadloomError
from broadloom.maintenance.event_feed import EventFeed, RefusedEvent, events_of, fault_of
from broadloom.model import read_assignment_problem, read_link_problem, read_market_problem
from broadloom.pipeline.ingest import RawSource, find_files
from broadloom.pipeline.ingest.raw_sources import LONGEST_LINE
from broadloom.report import report
from broadloom.storage import unpack
from file_damage import FILES, flips
from hostile_texts import SEQUENCES, is_harmless
from injection_attempts import HOSTILE, PARTS, exported, exported_or_refused
from injection_attempts import attempts as injections
from text_formats import TEXTS

SCRIPTS = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "'\"><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
)
MEMORY_MB = 400.0  # by which the process may grow, in the long form too


def outcome(action: Callable[[], object]) -> str:
    """Whether an action is refused by one line, or harmless; anything else is wrong."""
    try:
        return "harmless" if action() is not False else "wrong"
    except BroadloomError as error:
        line = str(error)
        return "refused" if "\n" not in line and is_harmless(line) else "wrong"
    except Exception:
        return "wrong"


# Somebody who chooses names.


def names_for_terminals(folder: Path, is_short: bool) -> Counter[str]:
    """Escape sequences in names of files, options, verbs, brokers and topics, through the command line."""
    found: Counter[str] = Counter()
    plan = folder / "plan"
    topics = [f"t/{text}".replace("#", "") for text in SEQUENCES]
    bl.link(bl.Interest.from_lists([topics] * 2, node_ids=["rome", "oslo"]), algorithm="gm").save(plan)
    calls: list[tuple[str, ...]] = [
        ("verify", str(plan)),
        ("measure", str(plan)),
        ("measure", str(plan), "--json"),
        ("deploy", "check", str(plan), "--to", "mosquitto"),
        ("what-if", str(plan), "--fail", "rome"),
    ]
    for number, text in enumerate(SEQUENCES[:4] if is_short else SEQUENCES):
        tables = folder / f"tables-{number}"
        tables.mkdir()
        rows = f'node,topic\n"rome{text}",x\noslo,x\n'
        (tables / "subscriptions.csv").write_text(rows, newline="")
        name = text.replace("/", "")
        calls += [
            ("verify", str(folder / f"plan{name}")),
            ("verify", f"--{text}"),
            (f"verb{text}",),
            ("doctor", str(folder / f"{name}.toml")),
            ("link", str(tables), "-o", str(folder / "made")),
            ("what-if", str(plan), "--fail", f"rome{text}"),
        ]
    for call in calls:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(list(call))
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
        is_wrong = not is_harmless(out.getvalue() + err.getvalue()) or code not in (0, 1, 2)
        found["wrong" if is_wrong else "refused" if code == 2 else "harmless"] += 1
    return found


def names_in_tables(folder: Path, is_short: bool) -> Counter[str]:
    """Hostile ids and sites in tables of link, in both formats: refused, or the same in a plan on disk."""
    found: Counter[str] = Counter()
    numbers = itertools.count()
    for text in _hostile_names(is_short):
        for column in ("node", "topic", "site"):
            rome = f"rome{text}" if column == "node" else "rome"
            tables = {
                "subscriptions": {
                    "node": [rome, "oslo"],
                    "topic": [f"t/{text if column == 'topic' else 'x'}"] * 2,
                },
                "nodes": {"node": [rome, "oslo"], "site": [text if column == "site" else "south", "north"]},
                "latency": {"src": [rome], "dst": ["oslo"], "rtt_ms": ["1.5"]},
            }
            for form in ("csv", "parquet"):
                where = folder / f"tables-{next(numbers)}"
                where.mkdir()
                found[outcome(lambda w=where, t=tables, f=form: _is_kept(w, t, f))] += 1
    return found


def _hostile_names(is_short: bool) -> Sequence[str]:
    texts = [*HOSTILE, *SCRIPTS, *SEQUENCES]
    return texts[::8] if is_short else texts


def _is_kept(folder: Path, tables: dict[str, dict[str, list[str]]], form: str) -> bool:
    """Whether the ids of tables are those of a plan that was made of them."""
    for name, columns in tables.items():
        if form == "csv":
            rows = [list(columns), *zip(*columns.values(), strict=True)]
            lines = [",".join('"' + text.replace('"', '""') + '"' for text in row) for row in rows]
            (folder / f"{name}.csv").write_text("\n".join([*lines, ""]), newline="", encoding="utf-8")
        else:
            times = {"rtt_ms": [1.5]} if name == "latency" else {}
            pa.parquet.write_table(pa.table(columns | times), folder / f"{name}.parquet")
    problem = read_link_problem(folder)
    bl.link(problem.interest, problem.weights, algorithm="gm").save(folder / "plan")
    interest = bl.Plan.load(folder / "plan").interest
    wanted = tables["subscriptions"]
    return sorted(interest.node_ids) == sorted(wanted["node"]) and set(interest.topic_ids) == set(
        wanted["topic"]
    )


def names_in_other_tables(folder: Path, is_short: bool) -> Counter[str]:
    """Hostile ids in the tables of assign and market, and in events: refused, or the same on disk."""
    found: Counter[str] = Counter()
    for number, text in enumerate(_hostile_names(is_short)):
        for work, columns in OTHER_TABLES.items():
            for column in columns:
                where = folder / f"{work.__name__}-{column}-{number}"
                where.mkdir()
                names = {"subscriber": "anna", "broker": "rome", "topic": "t/x"}
                names[column] += text
                found[outcome(lambda work=work, where=where, names=names: work(where, names))] += 1
    return found


def _people(folder: Path, names: dict[str, str], space: list[list[float]]) -> None:
    """The tables of two subscribers and two brokers."""
    points = [[0.0, 0.0], [1.0, 1.0]]
    tables = {
        "publisher": {"place": [[0.5, 0.5]]},
        "subscribers": {"subscriber": [names["subscriber"], "ben"], "place": points}
        | dict.fromkeys(("lo", "hi"), space),
        "brokers": {"broker": [names["broker"], "oslo"], "place": points},
    }
    for name, columns in tables.items():
        pa.parquet.write_table(pa.table(columns), folder / f"{name}.parquet")


def _assigned(folder: Path, names: dict[str, str]) -> bool:
    _people(folder, names, [[0.0], [0.0]])
    bl.assign(read_assignment_problem(folder), "gr").save(folder / "plan")
    problem = bl.AssignmentResult.load(folder / "plan").problem
    ids = problem.subscriber_ids, problem.broker_ids
    return ids == ((names["subscriber"], "ben"), (names["broker"], "oslo"))


def _traded(folder: Path, names: dict[str, str]) -> bool:
    empty: list[list[float]] = [[], []]
    _people(folder, names, empty)
    wants = {"node": [names["subscriber"], "ben"], "topic": [names["topic"]] * 2}
    pa.parquet.write_table(pa.table(wants), folder / "subscriptions.parquet")
    sent = {"publisher": [names["subscriber"]], "topic": [names["topic"]], "rate": [1.0]}
    pa.parquet.write_table(pa.table(sent), folder / "histograms.parquet")
    bl.assign(read_market_problem(folder), "greedy-packing").save(folder / "plan")
    problem = bl.MarketResult.load(folder / "plan").problem
    ids = problem.user_ids, problem.broker_ids
    return ids == ((names["subscriber"], "ben"), (names["broker"], "oslo"))


def _maintained(folder: Path, names: dict[str, str]) -> bool:
    with bl.maintain(bl.Interest.from_lists([["t/x"], ["t/x"]], node_ids=["oslo", "bonn"])) as live:
        joins = {"seq": 1, "kind": "join", "node": names["broker"], "topics": [names["topic"]]}
        (done,) = EventFeed(live).take(events_of("e.jsonl", json.dumps(joins).encode()))
        if isinstance(done, RefusedEvent):
            raise bl.InputError(done.reason)
        live.save(folder / "live")
    with bl.Live.load(folder / "live") as again:
        topics = {"t/x", names["topic"]}
        return again.name_of(2) == names["broker"] and set(again.topic_ids) == topics


OTHER_TABLES = {
    _assigned: ("subscriber", "broker"),
    _traded: ("subscriber", "broker", "topic"),
    _maintained: ("broker", "topic"),
}


def names_in_exports(folder: Path, is_short: bool) -> Counter[str]:
    """Hostile texts in each field of the files for each kind of broker; their structure must stay."""
    del folder
    found: Counter[str] = Counter()
    for target in TARGETS:
        harmless = _structure(target, exported(target, "topic", "zz"))
        for number, (field, text) in enumerate(injections(target)):
            if (is_short and number % 20) or field in ("address", "host", "leaf_listen", "pattern"):
                continue
            made = exported_or_refused(target, field, text, 0)
            is_same = made is None or _structure(target, made) == harmless
            found["refused" if made is None else "harmless" if is_same else "wrong"] += 1
    return found


def _structure(target: Any, deployment: Any) -> list[Any]:
    return [PARTS[target.name](text)[0] for text in deployment.files.values()]


class _Elements(HTMLParser):
    """The elements of a page with their attributes that can run a script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count an element."""
        self.found[tag] += 1
        self.found.update(f"{tag} {name}" for name, _ in attrs if name.startswith("on"))


def names_in_the_report(folder: Path, is_short: bool) -> Counter[str]:
    """Markup in names of brokers, topics and titles: the page has the same elements as without."""
    del folder
    found: Counter[str] = Counter()

    def page(text: str) -> str:
        interest = bl.Interest.from_lists([[f"t{text}"]] * 2, node_ids=["a", f"b{text}"])
        return report({f"plan{text}": bl.link(interest, algorithm="gm")}, title=f"title{text}")

    expected = _Elements(page("zz")).found
    assert "Content-Security-Policy" in page("zz")
    for text in SCRIPTS[:4] if is_short else [*SCRIPTS, *HOSTILE]:
        found[outcome(lambda text=text: _Elements(page(text)).found == expected)] += 1
    return found


def bombs(folder: Path, is_short: bool) -> Counter[str]:
    """Compressed tables, dumps and events of some megabytes that unpack to gibibytes, and endless lines."""
    size = LONGEST_LINE + 2**20 if is_short else 2**31 + 2**24
    found: Counter[str] = Counter()
    heads = {
        "subscriptions.csv.gz": b"node,topic\nrome,a\n",
        "nodes.jsonl.gz": b'{"node": "a"}\n',
        "events.jsonl.gz": b'{"seq": 1}\n',
    }
    for name, head in heads.items():
        for filler in (b"\0", b"x"):
            path = folder / f"{filler.hex()}-{name}"
            part = gzip.compress(filler * 2**20)  # of a file of many parts
            path.write_bytes(gzip.compress(head) + part * (size >> 20))
            if name.startswith("events"):
                most = {"most": 2**20} if is_short else {}
                action = lambda path=path, most=most: not unpack(path.name, path.read_bytes(), **most)  # noqa: E731
            else:
                action = lambda path=path: not find_files([RawSource(str(path))])  # noqa: E731
            found[outcome(action)] += 1
            path.unlink()
    return found


def deep_and_endless_texts(folder: Path, is_short: bool) -> Counter[str]:
    """Texts that nest deeply or never end, to all parsers of dumps, logs and events."""
    del folder
    found: Counter[str] = Counter()
    count = 10_000 if is_short else 200_000
    opened = ("[", '{"a":', '{"data":[', '[{"a":', '"', '["\\u0000', "x", "\\", "{", '{"a":"')
    for text in (part * count for part in opened):
        for form in TEXTS:
            found[
                outcome(
                    lambda form=form, text=text: all(one.reason for one in form.FORMAT.rows(text.encode()))
                )
            ] += 1
        found[outcome(lambda text=text: all(map(fault_of, events_of("e.jsonl", text.encode()))))] += 1
    return found


# A local user.


def files_with_flipped_bits(folder: Path, is_short: bool) -> Counter[str]:
    """One flipped bit at a fifth of the positions of journals, orders, states and memories of hops."""
    found: Counter[str] = Counter()
    for number, make in enumerate(FILES.values()):
        if not is_short or number == 3:
            counts = flips(make, folder / str(number), 1 if is_short else 5)
            found.update({name: counts[name] for name in ("refused", "harmless", "wrong")})
    return found


def files_that_others_can_read(folder: Path, is_short: bool) -> Counter[str]:
    """Keys that others can read: refused. Whether all modes are tried depends on the form."""
    found: Counter[str] = Counter()
    path = folder / "key"
    path.write_text("a key for a test, no secret")
    for bits in (0o004, 0o040, 0o044, 0o066) if is_short else range(1, 0o100):
        path.chmod(0o600 | bits)
        readable = bool(bits & 0o044)
        result = outcome(lambda: FleetKey.load(path))
        is_right = result == "refused" or not readable
        found[result if is_right else "wrong"] += 1
    return found


def console_without_its_token(folder: Path, is_short: bool) -> Counter[str]:
    """Requests without the token, of other hosts and pages; hundreds of connections that say half a line."""
    del folder
    found: Counter[str] = Counter()
    plan = bl.link(bl.Interest.from_lists([["x"], ["x"]], node_ids=["rome", "oslo"]), algorithm="gm")
    console = ConsoleServer(WhatIfSession(plan), "plan", "a plan")
    thread = threading.Thread(target=console.run, daemon=True)
    thread.start()
    base, own = f"http://127.0.0.1:{console.port}", {"Authorization": f"Bearer {console.token}"}
    held = []
    try:
        with httpx.Client(base_url=base, timeout=60) as client:
            wrong: list[dict[str, str]] = [
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {console.token}"},
                own | {"Host": "evil.example"},
                own | {"Origin": "http://evil.example"},
            ]
            paths = ("/", "/compare", "/api/state", "/api/script", "/api/apply", "/api/do", "/nowhere")
            for headers, path in itertools.product(wrong, paths):
                for method in ("GET", "POST"):
                    status = client.request(method, path, headers=headers).status_code
                    found["refused" if status in (403, 405) else "wrong"] += 1
        for _ in range(100 if is_short else 1_500):
            held.append(socket.create_connection(("127.0.0.1", console.port)))
            held[-1].sendall(b"GET / HTTP/1.1\r\nHost: ")
        answer = httpx.get(f"{base}/api/state", headers=own, timeout=60)  # on a connection of its own
        found["harmless" if answer.status_code == 200 else "wrong"] += len(held)
    finally:
        for one in held:
            one.close()
        console.server.should_exit = True
        thread.join(60)
    return found


class InputAttack(NamedTuple):
    """An attack without a running fleet.

    Attributes:
        attacker: who attacks.
        name: what is tried.
        run: the attack; it takes a folder and whether a short form is wanted, and counts outcomes.
    """

    attacker: str
    name: str
    run: Callable[[Path, bool], Counter[str]]


NAMES, LOCAL = "somebody who chooses names", "a local user"
ATTACKS = [
    InputAttack(NAMES, "escape sequences, through the command line", names_for_terminals),
    InputAttack(NAMES, "hostile ids in tables, to a plan on disk", names_in_tables),
    InputAttack(NAMES, "hostile ids in tables of assign and market, and in events", names_in_other_tables),
    InputAttack(NAMES, "hostile texts in files for brokers", names_in_exports),
    InputAttack(NAMES, "markup in the report", names_in_the_report),
    InputAttack(NAMES, "compressed bombs and endless lines", bombs),
    InputAttack(NAMES, "deep and endless dumps, logs and events", deep_and_endless_texts),
    InputAttack(LOCAL, "a flipped bit in files of agents and controller", files_with_flipped_bits),
    InputAttack(LOCAL, "keys that others can read or write", files_that_others_can_read),
    InputAttack(LOCAL, "the console without its token, and slow connections", console_without_its_token),
]


def peak_memory() -> float:
    """The largest resident memory of this process since `reset_peak`, in MB; 0 if the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1.024e-3 for line in lines if line.startswith("VmHWM")), 0.0)


def reset_peak() -> None:
    """Let the largest resident memory begin at the present one."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def attacked(attack: InputAttack, folder: Path, is_short: bool) -> dict[str, Any]:
    """The row of an attack: attempts by outcome, and by how much the process grew."""
    folder.mkdir(parents=True, exist_ok=True)
    elsewhere = Path.cwd()
    os.chdir(folder)  # a name can be taken for that of a file
    reset_peak()
    before = peak_memory()
    try:
        counts = attack.run(folder, is_short)
    finally:
        os.chdir(elsewhere)
    names = ("refused", "harmless", "wrong")
    row: dict[str, Any] = {"attack": attack.name, "attacker": attack.attacker}
    row |= {"tried": sum(counts.values())} | {name: counts[name] for name in names}
    return row | {"memory MB": max(0.0, peak_memory() - before)}
