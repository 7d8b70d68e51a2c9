"""Generated raw inputs for `ingest`: device subscriptions in CSV with faults, brokers, and ping times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import MAX_INDEX, check_count, check_number, check_path, seeded_generator
from broadloom.model.cloud_regions import REGIONS, region_latency, region_points
from broadloom.storage import new_folder

LINES, KINDS = ("line1", "line2", "line3", "line4"), ("temperature", "alarm", "state")
PINGS = 5
_FILES, _BLOCK = 4, 250_000
# The share of subscribers that want events around a random region, not around their own.
_ABROAD = 0.1

# Faults in the rows, each with its reason in the quarantine.
FAULTS: dict[str, tuple[str, Callable[[str, str, str], bytes]]] = {
    "a field too few": ("wrong number of fields", lambda device, broker, _: f"{device},{broker}".encode()),
    "a field too many": ("wrong number of fields", lambda d, b, f: f"{d},{b},{f},1".encode()),
    "no filter": ("no topic", lambda device, broker, _: f"{device},{broker},".encode()),
    "no broker": ("no node", lambda device, _, text: f"{device},,{text}".encode()),
    "# in the middle": ("not a topic filter", lambda d, b, f: f"{d},{b},#/{f}".encode()),
    "+ inside a level": ("not a topic filter", lambda d, b, f: f"{d},{b},{f}+".encode()),
    "unknown broker": ("unknown node", lambda device, _, text: f"{device},nowhere,{text}".encode()),
    "open quote": ("quotes do not match", lambda d, b, f: f'{d},{b},"{f}'.encode()),
    "blank line": ("blank line", lambda *_: b""),
    "Latin-1": ("not UTF-8", lambda device, broker, _: f"{device},{broker},caf\xe9".encode("latin-1")),
    "our own link": ("our own link", lambda _, broker, text: f"l.tco-{broker}-x,{broker},{text}".encode()),
    "broker's topic": ("topic of the broker itself", lambda d, b, _: f"{d},{b},$SYS/broker/load".encode()),
}


def devices(
    folder: str | Path,
    brokers: int = 200,
    subscriptions: int = 500_000,
    wild: float = 0.02,
    bad: float = 0.01,
    repeated: float = 0.002,
    seed: int = 0,
    subscribers: int = 0,
) -> dict[str, int]:
    """Write raw inputs for `ingest`: brokers in the cloud regions, subscriptions of their devices, and pings.

    A device has five subscriptions: most to topics of its own region, fewer the farther a region is away.
    Subscribers are not assigned to a broker yet. Each has a position near a region, and wants the events in a
    rectangle of the map.

    Args:
        folder: the new folder; it gets nodes.csv, topics.csv, pings.csv and subscriptions-0.csv and so on;
            with subscribers also subscribers.csv, brokers.csv and publisher.csv.
        brokers: how many brokers.
        subscriptions: how many rows of device subscriptions.
        wild: the share of filters with a wildcard.
        bad: the share of rows with a fault.
        repeated: the share of rows that are copies of an earlier row.
        seed: the seed of the random generator.
        subscribers: how many subscribers are to be assigned to the brokers.

    Returns:
        The number of rows with each fault, and, under "repeated", of copies of earlier rows.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sum(devices(f"{folder}/raw", brokers=3, subscriptions=1000).values()) > 0
        True
    """
    target = check_path(folder, "the folder")
    for name, share in (("wild", wild), ("bad", bad), ("repeated", repeated)):
        check_number(share, f"the share {name}", 0, 1)
    brokers = check_count(brokers, "brokers", 1, MAX_INDEX)
    subscriptions = check_count(subscriptions, "subscriptions")
    subscribers = check_count(subscribers, "subscribers", maximum=MAX_INDEX)
    rng = seeded_generator(seed)
    site = np.sort(rng.permutation(brokers) % len(REGIONS))
    names = [f"{_short(s)}-{number}" for number, s in enumerate(site.tolist())]
    with new_folder(target) as scratch:
        _write_brokers(scratch, names, site)
        _write_pings(scratch, np.unique(site), rng)
        rows = _DeviceRows(names, site, wild, bad, repeated, rng)
        _write_subscriptions(scratch, subscriptions, rows)
        if subscribers:
            _write_subscribers(scratch, subscribers, names, site, rng)
    return rows.planted


def _short(site: int) -> str:
    """A region's name without its cloud."""
    return REGIONS[site].name.partition("/")[2]


def _topics() -> list[str]:
    return [f"{_short(s)}/{line}/{kind}" for s in range(len(REGIONS)) for line in LINES for kind in KINDS]


def _write_brokers(folder: Path, names: list[str], site: NDArray[np.int64]) -> None:
    rows = [f"{name},{REGIONS[s].name}\n" for name, s in zip(names, site.tolist(), strict=True)]
    (folder / "nodes.csv").write_text("node,site\n" + "".join(rows))
    (folder / "topics.csv").write_text("topic\n" + "".join(f"{topic}\n" for topic in _topics()))


def _write_pings(folder: Path, sites: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Write several round-trip times per pair of regions and direction, each up to 20 % above the latency."""
    latency = region_latency()
    lines = ["src,dst,rtt_ms\n"]
    for src in sites.tolist():
        for dst in sites.tolist():
            samples = latency[src, dst] * (1 + 0.2 * rng.random(1 if src == dst else PINGS))
            lines += [f"{REGIONS[src].name},{REGIONS[dst].name},{rtt:.3f}\n" for rtt in samples]
    (folder / "pings.csv").write_text("".join(lines))


def _write_subscriptions(folder: Path, count: int, rows: _DeviceRows) -> None:
    per_file = -(-count // _FILES)
    for file in range(_FILES):
        mine = range(file * per_file, min(count, (file + 1) * per_file))
        with (folder / f"subscriptions-{file}.csv").open("wb") as out:
            out.write(b"device,broker,filter\n")
            for first in range(mine.start, mine.stop, _BLOCK):
                out.writelines(rows.draw(first, min(mine.stop, first + _BLOCK)))


def _write_subscribers(
    folder: Path, count: int, names: list[str], site: NDArray[np.int64], rng: np.random.Generator
) -> None:
    """Write subscribers near the brokers; most want events nearby, some want events far away."""
    point = region_points()
    on_map = np.array([[region.longitude, region.latitude] for region in REGIONS])
    home = site[rng.integers(len(site), size=count)]
    centre = on_map[np.where(rng.random(count) < _ABROAD, rng.integers(len(REGIONS), size=count), home)]
    centre = centre + rng.normal(0, 4, centre.shape)
    half = rng.lognormal(0.5, 0.5, centre.shape)
    columns = point[home] + rng.normal(0, 2, (count, point.shape[1])), centre - half, centre + half
    lines = (
        f'sub-{number},"{position}","{lo}","{hi}"\n'
        for number, (position, lo, hi) in enumerate(
            zip(*(_rounded(column) for column in columns), strict=True)
        )
    )
    near = _rounded(point[site] + rng.normal(0, 1, (len(site), point.shape[1])))
    brokers = (f'{name},"{position}"\n' for name, position in zip(names, near, strict=True))
    (folder / "subscribers.csv").write_text("subscriber,place,lo,hi\n" + "".join(lines))
    (folder / "brokers.csv").write_text("broker,place\n" + "".join(brokers))
    (folder / "publisher.csv").write_text(f'place\n"{_rounded(point[:1])[0]}"\n')


def _rounded(rows: NDArray[np.float64]) -> list[list[float]]:
    return np.round(rows, 3).tolist()


@dataclass
class _DeviceRows:
    """Random rows of device subscriptions; `planted` counts the faults and repeats in them."""

    names: list[str]
    site: NDArray[np.int64]
    wild: float
    bad: float
    repeated: float
    rng: np.random.Generator
    planted: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*FAULTS, "repeated"), 0))

    def draw(self, first: int, last: int) -> Iterator[bytes]:
        """The rows from `first` to `last` as lines of a CSV file."""
        size, own = last - first, len(LINES) * len(KINDS)
        near = np.argsort(region_latency(), axis=1, kind="stable")
        device = np.arange(first, last) // 5
        broker = (device * 2654435761 % 2**32) % len(self.names)
        away = np.minimum(self.rng.geometric(0.8, size) - 1, len(REGIONS) - 1)
        topic = near[self.site[broker], away] * own + self.rng.integers(own, size=size)
        chance, shape = self.rng.random(size), self.rng.integers(2**31, size=size)
        topics, before = _topics(), b""
        columns = (column.tolist() for column in (device, broker, topic, chance, shape))
        for d, b, t, p, s in zip(*columns, strict=True):
            if p < self.bad:
                yield self._fault(s, f"dev-{d}", self.names[b], topics[t]) + b"\n"
                continue
            if p < self.bad + self.repeated and before:
                self.planted["repeated"] += 1
            else:
                text = _wild(topics[t], s) if p > 1 - self.wild else topics[t]
                before = f"dev-{d},{self.names[b]},{text}\n".encode()
            yield before

    def _fault(self, shape: int, device: str, broker: str, text: str) -> bytes:
        """A row with one of the faults, which is counted."""
        name = list(FAULTS)[shape % len(FAULTS)]
        self.planted[name] += 1
        return FAULTS[name][1](device, broker, text)


def _wild(topic: str, shape: int) -> str:
    """A topic filter with a wildcard that matches the topic; one in fifty matches topics of all regions."""
    region, line, kind = topic.split("/")
    if shape % 50 == 0:
        return f"+/{line}/{kind}"
    return (f"{region}/+/{kind}", f"{region}/{line}/#", f"{region}/#", f"{region}/{line}/+")[shape % 4]
