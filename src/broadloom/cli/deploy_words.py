"""What `broadloom deploy` tells in words: a rehearsal, a comparison, a change."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

Record = Mapping[str, Any]

FEW = 5  # filters of a link that are named


def rehearsal_told(told: Record) -> str:
    """A rehearsal in words."""
    as_planned = all(one["messages"] == one["planned"] for one in told["links"])
    lines = [
        f"{told['expected']:,} deliveries expected: {told['missing']:,} missing, {told['duplicates']:,} "
        f"twice, {told['unexpected']:,} unexpected",
        f"{told['uninterested']:,} messages at brokers that do not want them",
        f"{told['messages_on_links']:,} messages on links, {'as' if as_planned else 'NOT as'} planned",
    ]
    return "\n".join([*lines, *map(_failure, told["failures"])])


def _failure(one: Record) -> str:
    return (
        f"{one['killed']} {one['name']} killed: {one['missing_while_down']:,} of {one['expected']:,} "
        f"deliveries held up ({one['predicted']:,} predicted), {one['lost']:,} lost for good, "
        f"{one['duplicates']:,} twice"
    )


def compared(rows: Sequence[Record]) -> Table | None:
    """Our plan beside what people wire today, as a table."""
    if not rows:
        return None
    names = ["wiring", "links", "messages_on_links", "bytes_on_links"]
    names += ["mean_hops", "max_hops", "mean_delay", "max_delay"]
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name.replace("_", " "), no_wrap=name == "wiring")
    for row in rows:
        values = (row[name] for name in names)
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in values))
    return table


def change_told(record: Record) -> str:
    """A change in words: what differs, the steps with their commands, and how a rehearsal went."""
    if not record["files"] and not record["order"]:
        return "\n".join(["nothing changes", *_rehearsed(record)])
    lines = [record["live"], *_brokers_told(record), *_links_told(record["changes"])]
    for place, step in enumerate(record["order"], 1):
        lines += [f"step {place}: {_step_told(step)}", *(f"  {line}" for line in _commands_told(step))]
    return "\n".join([*lines, *_rehearsed(record)])


def _brokers_told(record: Record) -> Iterator[str]:
    without = ", without links," if record["target"] == "mosquitto" else ""
    for broker in record["joining"]:
        yield f"{broker}: a new broker; it runs{without} before the first step"
    for broker in record["leaving"]:
        yield f"{broker}: leaves; it runs until the last step is done"
    for broker, (old, new) in record["moving"].items():
        yield f"{broker}: moves from {old} to {new}"


def _links_told(changes: Iterable[Record]) -> Iterator[str]:
    for one in changes:
        for link in one["added"]:
            yield f"{one['broker']}: new link to {link['peer']}{_ways(link)}"
        for link in one["removed"]:
            yield f"{one['broker']}: no more link to {link['peer']}"
        for both in one["changed"]:
            old, new = both["from"], both["to"]
            parts = (_ways(_beyond(new, old), ", more"), _ways(_beyond(old, new), ", no more"))
            yield f"{one['broker']}: link to {new['peer']}{''.join(parts)}"


def _beyond(link: Record, other: Record) -> Record:
    """What a link carries that another one does not."""
    return {way: sorted(set(link[way]) - set(other[way])) for way in ("out", "into")}


def _ways(link: Record, start: str = ",") -> str:
    """What a link carries which way; nothing if it is nothing."""
    out, into = link["out"], link["into"]
    if not out and not into:
        return ""
    if out == into:
        return f"{start} both ways: {_few(out)}"
    told = [f"{way}: {_few(texts)}" for way, texts in (("out", out), ("in", into)) if texts]
    return f"{start} {'; '.join(told)}"


def _few(texts: Sequence[str]) -> str:
    shown = ", ".join(texts[:FEW])
    return f"{shown} and {len(texts) - FEW:,} more" if len(texts) > FEW else shown


def _step_told(step: Record) -> str:
    if "call" in step:
        return f"{sum(map(len, step['call'].values())):,} calls at {len(step['call']):,} brokers, no restart"
    together = " together" if len(step["restart"]) > 1 else ""
    wait = f"; {step['cut']:,} deliveries wait for a later step" if step.get("cut") else ""
    moved = (
        f"; clients of {text} log in to {new}, not {old}"
        for text, (old, new) in step.get("accounts", {}).items()
    )
    restart = f"restart {', '.join(step['restart'])}" if step["restart"] else "no restart"
    return f"{restart}{together}{wait}{''.join(moved)}"


def _commands_told(step: Record) -> Iterator[str]:
    yield from step.get("commands", ())
    for broker, calls in step.get("call", {}).items():
        for call in calls:
            body = f" {json.dumps(call['body'], sort_keys=True)}" if "body" in call else ""
            yield f"{broker}: {call['method']} {call['path']}{body}"


def _rehearsed(record: Record) -> Iterator[str]:
    if "rehearsal" in record:
        told, after = record["rehearsal"], record["rehearsal"]["afterwards"]
        yield (
            f"rehearsed: {told['lost']:,} of {told['expected']:,} deliveries lost, {told['doubled']:,} "
            f"twice, {told['unexpected']:,} unexpected"
        )
        yield (
            f"afterwards: {after['missing']:,} missing, {after['duplicates']:,} twice, "
            f"{after['unexpected']:,} unexpected"
        )
