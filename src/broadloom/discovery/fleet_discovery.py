"""Discovery of a running fleet: subscriptions, publishers and latencies, as a folder of canonical tables."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadloom.checks import check_flag, check_number, check_path
from broadloom.deployment import Fleet
from broadloom.discovery.broker_findings import (
    BrokerFindings,
    distinct_subscriptions,
    merge_findings,
    shared_group_notes,
)
from broadloom.discovery.latencies import AUTO, CHOICES, MEASURED, Latencies, latencies
from broadloom.discovery.nats_listener import NatsListener
from broadloom.discovery.observed_publications import (
    BrokerListener,
    Observations,
    RepeatedMessages,
    quiet_sessions,
)
from broadloom.discovery.subscription_sources import SourceFindings, listened_source, read_source
from broadloom.errors import InputError
from broadloom.model import RowLedger, TableAccount
from broadloom.progress import stage
from broadloom.storage import new_folder

if TYPE_CHECKING:
    import pyarrow as pa

LISTEN_SECONDS = 30.0  # with publishers = "observed"
LONGEST_LISTEN = 7 * 86_400.0
DISCOVERY_FILE = "discovery.json"
LINKS_FILE = "links.json"
UNKNOWN = "the broker's subscriptions are not all known"
_THREADS = 16


@dataclass(frozen=True)
class Discovery:
    """Result of `discover`.

    Attributes:
        brokers: the findings per broker, in the order of the fleet.
        latencies: the round-trip times.
        notes: notes on the fleet as a whole.
        output: the folder that was written; None: nothing was written, because something is missing.
        listened: the seconds of listening.
        at: the time of the discovery, in seconds since 1970.
    """

    brokers: tuple[BrokerFindings, ...]
    latencies: Latencies
    notes: tuple[str, ...]
    output: Path | None
    listened: float
    at: float

    @property
    def is_complete(self) -> bool:
        """Whether nothing is known to be missing at any broker."""
        return all(findings.is_complete for findings in self.brokers)

    def ledger(self) -> RowLedger:
        """The account of every row of the sources."""
        quarantined: Counter[str] = Counter()
        for findings in self.brokers:
            quarantined.update(findings.quarantined)
        rows, used, duplicates = (
            sum(getattr(findings, name) for findings in self.brokers)
            for name in ("rows", "used", "duplicates")
        )
        written = sum(len(findings.wanted) for findings in self.brokers)
        account = TableAccount(
            "subscriptions", rows, used, duplicates, dict(sorted(quarantined.items())), written
        )
        return RowLedger((account,))

    def summary(self) -> str:
        """The totals, in a sentence."""
        clients = sum(len(findings.clients) for findings in self.brokers)
        filters = sum(len(findings.wanted) for findings in self.brokers)
        publications = sum(len(findings.observed.traffic) for findings in self.brokers)
        listened = f", {publications:,} publications in {self.listened:.0f} s" if self.listened else ""
        return f"{len(self.brokers):,} brokers: {clients:,} clients, {filters:,} filters{listened}"

    def record(self) -> dict[str, Any]:
        """The discovery in the types of JSON."""
        return {
            "output": None if self.output is None else str(self.output),
            "complete": self.is_complete,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds"),
            "listened_seconds": round(self.listened, 3),
            "latency": {"basis": self.latencies.basis, "rows": len(self.latencies.rows)},
            "brokers": [findings.record() for findings in self.brokers],
            "tables": self.ledger().record()["tables"],
            "notes": list(self.notes),
        }


class _MissingKnowledgeError(Exception):
    """Something is missing, so that no folder is written."""


def discover(
    fleet: Fleet | str | Path,
    output: str | Path,
    listen: float | None = None,
    latency: str | Path = AUTO,
    partial: bool = False,
    overwrite: bool = False,
) -> Discovery:
    r"""Find out the subscriptions, publishers and latencies of a running fleet, and write them as tables.

    It reads the sources that the fleet file names (`subscriptions`), connects to the brokers, and listens. If
    a broker's subscriptions are not all known, a plan would lose messages; then nothing is written, and the
    result says what is missing, unless `partial` is true. Ctrl-C ends the listening, and nothing else.

    Args:
        fleet: the fleet, or the path of its file.
        output: the folder for the tables; it appears by one rename.
        listen: the seconds for which to listen to publications; by default 30 if the fleet has
            `publishers = "observed"`, and else 0, since then any broker can publish any topic.
        latency: a CSV file (src, dst, rtt_ms), "positions", "measured" (through this machine), "none", or
            "auto": by the positions if each broker has one, else none.
        partial: write the tables even if something is missing; the table `not_carried` names these brokers.
        overwrite: replace an existing `output`.

    Raises:
        InputError: the fleet file, an option or the latency file is wrong, or `output` exists already.
        StorageError: a file cannot be read, or `output` cannot be written.
        UnreachableError: latencies are to be measured, and a broker does not answer.

    Examples:
        >>> import tempfile
        >>> import broadloom as bl
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "rome.json").write_text('{"data": [{"clientid": "c1", "topic": "t/+"}]}')
        >>> text = '[brokers.rome]\naddress = "10.0.0.7"\nkind = "emqx"\nsubscriptions = "rome.json"'
        >>> _ = (folder / "fleet.toml").write_text(text)
        >>> found = bl.discover(folder / "fleet.toml", folder / "tables")
        >>> found.summary(), found.is_complete
        ('1 brokers: 1 clients, 1 filters', True)
    """
    known = fleet if isinstance(fleet, Fleet) else Fleet.load(check_path(fleet, "fleet"))
    observes = known.links.publishers == "observed"
    default = LISTEN_SECONDS if observes else 0.0
    seconds = default if listen is None else check_number(listen, "listen", 0, LONGEST_LISTEN)
    if observes and not seconds:
        raise InputError('listen is 0, but the fleet has publishers = "observed"; give the seconds to listen')
    is_choice = isinstance(latency, str) and latency in CHOICES
    chosen: str | Path = str(latency) if is_choice else check_path(latency, "latency")
    check_flag(partial, "partial")
    path = check_path(output, "output")
    if chosen not in (AUTO, MEASURED):  # a mistake is found before the time to listen
        latencies(known, chosen, {})
    try:
        with new_folder(path, check_flag(overwrite, "overwrite")) as folder:
            found = _found(known, seconds, chosen, observes, path)
            if not (found.is_complete or partial):
                raise _MissingKnowledgeError
            _write(folder, known, found)
    except _MissingKnowledgeError:
        return Discovery(found.brokers, found.latencies, found.notes, None, found.listened, found.at)
    return found


def _found(fleet: Fleet, seconds: float, latency: str | Path, observes: bool, output: Path) -> Discovery:
    work = _Observation(fleet, seconds, latency == MEASURED)
    work.run()
    carry = fleet.links.carry
    brokers = []
    for name, broker in fleet.brokers.items():
        brokers.append(merge_findings(broker, work.sources_of(name), work.observed[name], carry, observes))
    times = latencies(fleet, latency, {name: seen.rtt_ms for name, seen in work.observed.items()})
    notes = [*shared_group_notes(brokers), *_repeated_note(work.repeated), *times.notes]
    return Discovery(tuple(brokers), times, tuple(notes), output, work.listened, work.at)


def _repeated_note(repeated: RepeatedMessages) -> list[str]:
    """A note on topics whose messages were seen at several brokers."""
    if not repeated.topics:
        return []
    topic, brokers = sorted(repeated.topics.items())[0]
    return [
        f"equal messages were seen at several brokers on {len(repeated.topics):,} topics ({topic!r} at "
        f"{', '.join(sorted(brokers))}), as if links or bridges existed; each of them counts as a publisher"
    ]


class _Observation:
    """Reading of all sources and listening at all brokers at the same time.

    Attributes:
        sources: what was read, by broker.
        observed: what was seen over connections, by broker.
        repeated: messages that were seen at several brokers.
        listened: the seconds of listening.
        at: the time of the beginning, in seconds since 1970.
    """

    def __init__(self, fleet: Fleet, seconds: float, measure: bool) -> None:
        self.sources: dict[str, list[SourceFindings]] = {name: [] for name in fleet.brokers}
        self.observed = {name: Observations() for name in fleet.brokers}
        self.repeated = RepeatedMessages()
        self.listened = 0.0
        self.at = time.time()
        self._fleet = fleet
        self._seconds = seconds
        self._measure = measure
        carry: Sequence[str] = fleet.links.carry if seconds else ()
        self._listeners: dict[str, BrokerListener | NatsListener] = {}
        for name, broker in fleet.brokers.items():
            if seconds or measure or broker.kind == "mosquitto":  # only Mosquitto counts its subscriptions
                kind = NatsListener if broker.kind == "nats" else BrokerListener
                self._listeners[name] = kind(broker, carry, self.repeated)

    def run(self) -> None:
        """Do all of it; also where an event loop runs already, as in a notebook."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._run())
            return
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._run()).result()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        listeners = self._listeners.values()
        with quiet_sessions(), ThreadPoolExecutor(_THREADS) as threads:
            reads = [
                loop.run_in_executor(threads, read_source, broker, source)
                for broker in self._fleet.brokers.values()
                for source in broker.subscription_sources()
            ]
            try:
                with stage("read sources", None):
                    await asyncio.gather(*reads, *(listener.open() for listener in listeners))
                if self._measure:  # a broker that does not answer is an error before the time to listen
                    times = {name: listener.found.rtt_ms for name, listener in self._listeners.items()}
                    latencies(self._fleet, MEASURED, times)
                if self._seconds:
                    await self._listen()
                found = iter([read.result() for read in reads])
                for broker in self._fleet.brokers.values():
                    self.sources[broker.name] = [next(found) for _ in broker.subscription_sources()]
                self.observed |= {name: listener.found for name, listener in self._listeners.items()}
                await self._recount()
            finally:
                await asyncio.gather(*(listener.close() for listener in listeners))

    def sources_of(self, broker: str) -> list[SourceFindings]:
        """All sources of a broker, including its log as far as we listened to it."""
        lines = self.observed[broker].lines
        return [*self.sources[broker], *([listened_source(lines, self.at)] if lines else [])]

    async def _recount(self) -> None:
        """Let brokers count once more whose count is unknown, or larger than what the sources show."""
        doubtful = [
            listener
            for name, listener in self._listeners.items()
            if isinstance(listener, BrokerListener)
            and listener.doubts(len(distinct_subscriptions(self.sources_of(name))))
        ]
        if doubtful:
            with stage("wait for the counts of brokers", None):
                await asyncio.gather(*(listener.recount() for listener in doubtful))

    async def _listen(self) -> None:
        """Listen until the time is over, or until Ctrl-C."""
        open_ones = [one for one in self._listeners.values() if one.found.problem is None]
        if not open_ones:
            return
        start = time.monotonic()
        with stage("listen (Ctrl-C ends it)", self._seconds) as done, suppress(asyncio.CancelledError):
            while (spent := time.monotonic() - start) < self._seconds:
                done(round(spent, 1))
                await asyncio.sleep(min(0.2, self._seconds - spent))
        self.listened = time.monotonic() - start
        for listener in open_ones:
            listener.end()


def _write(folder: Path, fleet: Fleet, found: Discovery) -> None:
    from broadloom.storage.tables import write_table

    for name, table in _tables(fleet, found).items():
        write_table(folder, name, table)
    links = {"publishers": fleet.links.publishers, "max_degree": fleet.links.max_degree}
    (folder / LINKS_FILE).write_text(json.dumps(links, indent=2) + "\n")
    (folder / DISCOVERY_FILE).write_text(json.dumps(found.record(), indent=2) + "\n")


def _tables(fleet: Fleet, found: Discovery) -> dict[str, pa.Table]:
    """The tables to write."""
    import pyarrow as pa

    def table(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> pa.Table:
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        kinds = {"rate": pa.float64()}
        return pa.table(
            {
                name: pa.array(column, kinds.get(name, pa.string()))
                for name, column in zip(names, columns, strict=True)
            }
        )

    wanted = [(one.broker.name, topic) for one in found.brokers for topic in one.wanted]
    left_out = [(one.broker.name, *pair) for one in found.brokers for pair in one.not_carried]
    left_out += [(one.broker.name, "#", UNKNOWN) for one in found.brokers if not one.is_complete]
    published = [
        (one.broker.name, topic, traffic.packet_bytes / one.observed.seconds)
        for one in found.brokers
        for topic, traffic in sorted(one.observed.traffic.items())
    ]
    tables = {
        "nodes": fleet.nodes_table(),
        "subscriptions": table(("node", "topic"), wanted),
        "publications": table(("node", "topic", "rate"), published),
        "not_carried": table(("node", "topic", "reason"), left_out),
    }
    if found.latencies.rows:
        tables["latency"] = found.latencies.table()
    return tables
