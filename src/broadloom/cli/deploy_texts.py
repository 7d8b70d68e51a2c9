"""Texts of `broadloom deploy`: rehearsals, comparisons and changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Record = Mapping[str, Any]

MAX_FILTERS = 5  # topic filters per link that are printed


def rehearsal_text(record: Record) -> str:
    """The text about a rehearsal."""
    as_planned = all(one["messages"] == one["planned"] for one in record["links"])
    lines = [
        f"{record['expected']:,} deliveries expected: {record['missing']:,} missing, "
        f"{record['duplicates']:,} twice, {record['unexpected']:,} unexpected",
        f"{record['uninterested']:,} messages at brokers that do not want them",
        f"{record['messages_on_links']:,} messages on links, {'as' if as_planned else 'NOT as'} planned",
    ]
    return "\n".join([*lines, *map(_failure, record["failures"])])


def _failure(one: Record) -> str:
    return (
        f"{one['killed']} {one['name']} killed: {one['missing_while_down']:,} of {one['expected']:,} "
        f"deliveries held up ({one['predicted']:,} predicted), {one['lost']:,} lost for good, "
        f"{one['duplicates']:,} twice"
    )


def comparison_table(rows: Sequence[Record]) -> Table | None:
    """A table that compares the plan with common wirings."""
    from rich.table import Table

    if not rows:
        return None
    names = ["wiring", "links", "messages_on_links", "bytes_on_links"]
    names += ["mean_hops", "max_hops", "mean_delay", "max_delay"]
    table = Table(box=None, pad_edge=False)
    for name in names:
        # Only names of wirings wrap if the terminal is narrow: a number is never cut.
        header = name.replace("_on_", "\non ").replace("_", "\n")
        table.add_column(header, no_wrap=name != "wiring", vertical="bottom")
    for row in rows:
        values = (row[name] for name in names)
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in values))
    return table


def change_text(record: Record) -> str:
    """The text about a change: differences, steps with their commands, and the rehearsal."""
    if not record["files"] and not record["order"]:
        return "\n".join(["nothing changes", *_rehearsal_lines(record)])
    lines = [record["live"], *_broker_lines(record), *_link_lines(record["changes"])]
    for number, step in enumerate(record["order"], 1):
        lines += [f"step {number}: {_step_text(step)}", *(f"  {line}" for line in _command_lines(step))]
    return "\n".join([*lines, *_rehearsal_lines(record)])


def apply_text(record: Record) -> str:
    """The text about a change that was applied, or would be."""
    if "would" in record:
        lines = [f"{len(record['would']):,} steps, none taken (dry run)", *record["notes"]]
        for number, (text, commands) in enumerate(zip(record["would"], record["commands"], strict=True), 1):
            lines += [f"{number:>3} {text}", *(f"      {command}" for command in commands)]
        return "\n".join(lines)
    if record["already_applied"]:
        return "already applied: the brokers have the links of the new plan"
    if not record["steps"]:
        return "nothing changes"
    what = "rolled back" if record["rolled_back"] else "applied"
    now = "" if record["taken"] == record["steps"] else f", {record['taken']:,} of them now"
    lines = [f"{what} in {record['steps']:,} steps{now}", _restart_text(record)]
    if record["returned"]:
        count = record["returned"]
        lines.append(f"published where they had not arrived: {count:,} message{'' if count == 1 else 's'}")
    return "\n".join(lines)


def _restart_text(record: Record) -> str:
    """The brokers that were restarted, with the seconds for which they were down."""
    down = record["seconds_down"]
    names = dict.fromkeys(record["restarts"])
    restarts = ", ".join(f"{name} (down for {down[name]:.1f} s)" if name in down else name for name in names)
    return f"restarted: {restarts or 'no broker'}"


def _broker_lines(record: Record) -> Iterator[str]:
    without = ", without links," if record["target"] == "mosquitto" else ""
    for broker in record["joining"]:
        yield f"{broker}: a new broker; it runs{without} before the first step"
    for broker in record["leaving"]:
        yield f"{broker}: leaves; it runs until the last step is done"
    for broker, (old, new) in record["moving"].items():
        yield f"{broker}: moves from {old} to {new}"


def _link_lines(changes: Iterable[Record]) -> Iterator[str]:
    for one in changes:
        for link in one["added"]:
            yield f"{one['broker']}: new link to {link['peer']}{_carried(link)}"
        for link in one["removed"]:
            yield f"{one['broker']}: no more link to {link['peer']}"
        for both in one["changed"]:
            old, new = both["from"], both["to"]
            parts = (_carried(_beyond(new, old), ", more"), _carried(_beyond(old, new), ", no more"))
            yield f"{one['broker']}: link to {new['peer']}{''.join(parts)}"


def _beyond(link: Record, other: Record) -> Record:
    """The topic filters that one link carries and the other does not."""
    return {direction: sorted(set(link[direction]) - set(other[direction])) for direction in ("out", "into")}


def _carried(link: Record, start: str = ",") -> str:
    """The topic filters of a link by direction; the empty string if there are none."""
    out, into = link["out"], link["into"]
    if not out and not into:
        return ""
    if out == into:
        return f"{start} both ways: {_few(out)}"
    parts = [f"{direction}: {_few(texts)}" for direction, texts in (("out", out), ("in", into)) if texts]
    return f"{start} {'; '.join(parts)}"


def _few(texts: Sequence[str]) -> str:
    shown = ", ".join(texts[:MAX_FILTERS])
    return f"{shown} and {len(texts) - MAX_FILTERS:,} more" if len(texts) > MAX_FILTERS else shown


def _step_text(step: Record) -> str:
    if "call" in step:
        count = sum(map(len, step["call"].values()))
        when = f", {step['when']}" if "when" in step else ""
        return f"{count:,} calls at {len(step['call']):,} brokers, no restart{when}"
    together = " together" if len(step["restart"]) > 1 else ""
    wait = f"; {step['cut']:,} deliveries wait for a later step" if step.get("cut") else ""
    moved = (
        f"; clients of {text} log in to {new}, not {old}"
        for text, (old, new) in step.get("accounts", {}).items()
    )
    restart = f"restart {', '.join(step['restart'])}" if step["restart"] else "no restart"
    return f"{restart}{together}{wait}{''.join(moved)}"


def _command_lines(step: Record) -> Iterator[str]:
    yield from step.get("commands", ())
    for broker, calls in step.get("call", {}).items():
        for call in calls:
            body = f" {json.dumps(call['body'], sort_keys=True)}" if "body" in call else ""
            yield f"{broker}: {call['method']} {call['path']}{body}"


def _rehearsal_lines(record: Record) -> Iterator[str]:
    if "rehearsal" in record:
        rehearsal = record["rehearsal"]
        after = rehearsal["afterwards"]
        yield (
            f"rehearsed: {rehearsal['lost']:,} of {rehearsal['expected']:,} deliveries lost, "
            f"{rehearsal['doubled']:,} twice, {rehearsal['unexpected']:,} unexpected"
        )
        if rehearsal.get("restarts"):
            yield f"no broker was down for more than {rehearsal['most_seconds_down']:.1f} s"
        yield (
            f"afterwards: {after['missing']:,} missing, {after['duplicates']:,} twice, "
            f"{after['unexpected']:,} unexpected"
        )
