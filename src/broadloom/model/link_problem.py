"""Link problem: interest, weights, nodes and what is not carried, read from a folder of canonical tables."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import raise_for_first, repeated
from broadloom.errors import InputError
from broadloom.model.graphs import Interest
from broadloom.model.publishers import LeftOutSubscription
from broadloom.model.row_ledger import Reason
from broadloom.model.weights import Weights, fill_missing, raise_to_floor, symmetrised
from broadloom.storage import as_path, committed, new_folder

if TYPE_CHECKING:
    import pyarrow as pa

WEIGHT_SOURCES = ("auto", "latency", "coordinates", "sites", "uniform")


@dataclass(frozen=True)
class LinkProblem:
    """Input of the link stage.

    Attributes:
        interest: the subscriptions of the nodes.
        weights: the weights of links.
        nodes: the table of the nodes, with all its columns.
        not_carried: the subscriptions that are left out, sorted: those of the table `not_carried`, and those
            to `$SYS` topics, which each broker has for itself.
    """

    interest: Interest
    weights: Weights
    nodes: pa.Table
    not_carried: tuple[LeftOutSubscription, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, by their number in the weights; empty if the weights are not by site."""
        return tuple(_site_numbers(self.nodes, "nodes")[1]) if self.weights.kind == "sites" else ()


def read_link_problem(
    folder: str | Path,
    weights: str = "auto",
    missing: str | None = None,
    floor: float | None = None,
    inner: float | None = None,
    outer: float | None = None,
) -> LinkProblem:
    """The link problem in a folder of canonical tables.

    A shared subscription (`$share/GROUP/FILTER`, `$queue/FILTER`) counts as its filter. Subscriptions to
    `$SYS` topics are left out and listed in `not_carried`.

    Args:
        folder: holds `subscriptions`, and optionally `nodes`, `topics`, `latency` and `not_carried`.
        weights: the source of the weights: the table "latency" (between nodes, or between sites),
            "coordinates" (x, y, ... of the nodes), "sites" (`inner` and `outer`), "uniform" (all 1); "auto":
            the first of these that the folder has.
        missing: for "latency": "refuse" missing pairs (the default), or fill them by the shortest "path".
        floor: for "latency": raise smaller values to this one, so that a zero is not an error.
        inner: for "sites": the weight inside a site; 1 by default.
        outer: for "sites": the weight between sites; 10 by default.

    Raises:
        InputError: a table or column is missing, something in it is wrong, or an option does not apply.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from broadloom.storage.tables import read_table

    path = committed(folder)
    nodes = read_table(path, "nodes")
    latency = read_table(path, "latency")
    subscriptions, internal = _plain_filters(read_subscriptions(path))
    if nodes is None and internal:  # a broker stays, even if all its subscriptions are left out
        names = {*pc.unique(subscriptions.column("node")).to_pylist(), *(one.node for one in internal)}
        nodes = pa.table({"node": pa.array(sorted(names), pa.string())})
    topics = _with_filters(read_table(path, "topics"), subscriptions)
    interest = Interest.from_table(subscriptions, nodes, topics)
    if nodes is None:
        nodes = pa.table({"node": pa.array(interest.node_ids, pa.string())})
    source = _source(weights, latency, nodes)
    _check_options(source, {"missing": missing, "floor": floor}, {"inner": inner, "outer": outer})
    if source == "latency":
        if latency is None:
            raise InputError(
                f"{path} has no table latency; add it, or choose auto, coordinates, sites or uniform"
            )
        chosen = _from_latency(latency, nodes, missing or "refuse", floor)
    elif source == "coordinates":
        chosen = _from_coordinates(nodes, path)
    elif source == "sites":
        site, _ = _site_numbers(nodes, path)
        chosen = Weights.sites(site, 1.0 if inner is None else inner, 10.0 if outer is None else outer)
    else:
        chosen = Weights.uniform(interest.node_count)
    left_out = {*_listed(read_table(path, "not_carried")), *internal}
    return LinkProblem(interest, chosen, nodes, tuple(sorted(left_out)))


def write_link_problem(
    folder: str | Path, interest: Interest, tables: dict[str, pa.Table] | None = None, overwrite: bool = False
) -> None:
    """Write an interest, and further `tables`, as one atomic folder of canonical tables.

    `tables` can include `nodes`; by default that table has only the interest's node ids.
    """
    import pyarrow as pa

    from broadloom.storage.tables import write_table

    interest_tables = {
        "nodes": pa.table({"node": pa.array(interest.node_ids, pa.string())}),
        "topics": pa.table({"topic": pa.array(interest.topic_ids, pa.string())}),
        "subscriptions": interest.to_table(),
    }
    with new_folder(as_path(folder), overwrite) as scratch:
        for name, table in (interest_tables | (tables or {})).items():
            write_table(scratch, name, table)


def read_subscriptions(folder: Path) -> pa.Table:
    """The table of subscriptions, its texts as indices into the distinct ones."""
    import pyarrow as pa

    from broadloom.storage.tables import coded_table, parquet_dataset, require_table

    names = ["node", "topic"]
    path = folder / "subscriptions.parquet"
    if path.is_dir() or (path.exists() and not (folder / "subscriptions.csv").exists()):
        with suppress(pa.ArrowInvalid, OSError, KeyError):  # `require_table` then raises the right error
            schema = parquet_dataset(path).schema
            if all(schema.field(name).type == pa.string() for name in names):
                return coded_table(path, names)
    table = require_table(folder, "subscriptions")
    columns = [table[name].dictionary_encode().unify_dictionaries() for name in names]
    return pa.table(columns, names=names)


def _plain_filters(subscriptions: pa.Table) -> tuple[pa.Table, list[LeftOutSubscription]]:
    """The subscriptions with each filter as the broker matches it, and those that are not carried.

    Rows of shared subscriptions become rows of their filters, each once. Only the distinct texts are looked
    at, and the indices of rows.

    Raises:
        InputError: a topic has a wildcard in a position where MQTT does not allow it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not subscriptions.num_rows:
        return subscriptions, []
    (nodes, node), (topics, topic) = (_codes(subscriptions[name]) for name in ("node", "topic"))
    marked = pc.match_substring_regex(topics, r"^\$(?:share|queue|SYS)\b|(?:^|/)[+#](?:/|$)")
    is_marked = np.append(np.asarray(pc.fill_null(marked, False), bool), False)
    if not is_marked.any():
        return subscriptions, []
    texts = topics.to_pylist()
    bare: list[str | None] = list(texts)
    rows = np.flatnonzero(is_marked[topic])
    codes, first = np.unique(topic[rows], return_index=True)
    for code, row in sorted(zip(codes.tolist(), rows[first].tolist(), strict=True), key=lambda pair: pair[1]):
        bare[code] = _bare_filter(texts[code], row)
    is_internal = np.array([str(text).partition("/")[0] == "$SYS" for text in bare] + [False]) & is_marked
    is_shared = np.array([one != text for one, text in zip(bare, texts, strict=True)] + [False])
    if not (is_internal.any() or is_shared.any()):
        return subscriptions, []
    plain = pa.array(bare, pa.string()).dictionary_encode()
    topic_of_code = np.append(np.asarray(pc.fill_null(plain.indices, -1), np.int32), np.int32(-1))
    pair = node.astype(np.int64) * (len(texts) + 1) + topic_of_code[topic]
    shared = np.flatnonzero(is_shared[topic])
    is_repeat = np.isin(pair[shared], pair[~is_shared[topic]])
    once = np.zeros(len(shared), bool)
    once[np.unique(pair[shared], return_index=True)[1]] = True
    is_kept = ~is_internal[topic]
    is_kept[shared[is_repeat | ~once]] = False
    internal = [
        LeftOutSubscription(str(nodes[int(node[row])]), str(bare[topic[row]]), Reason.INTERNAL)
        for row in np.flatnonzero(is_internal[topic]).tolist()
    ]
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(values[is_kept], mask=values[is_kept] < 0), names)
        for values, names in ((node, nodes), (topic_of_code[topic], plain.dictionary))
    ]
    return pa.table([pa.chunked_array([column]) for column in columns], names=["node", "topic"]), internal


def _codes(column: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int32]]:
    """The distinct texts of a column, and the index of each row's text; -1 for a missing one."""
    import pyarrow.compute as pc

    parts = [np.asarray(pc.fill_null(chunk.indices, -1), np.int32) for chunk in column.chunks]
    return column.chunk(0).dictionary, np.concatenate(parts)


def _bare_filter(text: str, row: int) -> str:
    """A topic or filter without the prefix of a shared subscription."""
    from broadloom.mqtt.topic_filters import SHARED, is_valid_filter

    bare = re.sub(SHARED, "", text)
    if not is_valid_filter(bare) or bare.startswith(("$share/", "$queue/")):
        raise InputError(
            f"subscriptions row {row}: {text!r} is not an MQTT topic filter; "
            "`+` and `#` stand alone between slashes, `#` only at the end, as in a/+/b/#"
        )
    return bare


def _with_filters(topics: pa.Table | None, subscriptions: pa.Table) -> pa.Table | None:
    """The table of topics, completed by the topic filters of the subscriptions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if topics is None:
        return None
    from broadloom.mqtt.topic_filters import is_filter

    texts = pc.unique(subscriptions.column("topic")).cast(pa.string())
    wild = texts.filter(pc.match_substring_regex(texts, "[+#]"))
    known = set(topics.column("topic").to_pylist())
    filters = sorted(text for text in wild.to_pylist() if is_filter(text) and text not in known)
    if not filters:
        return topics
    return pa.concat_tables([topics.select(["topic"]), pa.table({"topic": pa.array(filters, pa.string())})])


def _listed(table: pa.Table | None) -> list[LeftOutSubscription]:
    """The rows of the table `not_carried`."""
    if table is None:
        return []
    columns = (table.column(name).to_pylist() for name in LeftOutSubscription._fields)
    return [LeftOutSubscription(*(value or "" for value in row)) for row in zip(*columns, strict=True)]


def _check_options(source: str, of_latency: dict[str, object], of_sites: dict[str, object]) -> None:
    """Raise if an option is set that does not apply to the source of the weights."""
    for needed, options in (("latency", of_latency), ("sites", of_sites)):
        names = [name for name, value in options.items() if value is not None]
        if names and source != needed:
            raise InputError(
                f"{names[0]} is for weights from {needed}, but they come from {source}; leave it out"
            )


def _source(requested: str, latency: pa.Table | None, nodes: pa.Table) -> str:
    """The source of the weights; "auto" is resolved by the tables that exist."""
    from broadloom.storage.tables import coordinate_columns

    if requested not in WEIGHT_SOURCES:
        raise InputError(f"no weights {requested!r}; there are {', '.join(WEIGHT_SOURCES)}")
    if requested != "auto":
        return requested
    if latency is not None:
        return "latency"
    if coordinate_columns(nodes):
        return "coordinates"
    return "sites" if "site" in nodes.column_names else "uniform"


def _from_coordinates(nodes: pa.Table, folder: Path) -> Weights:
    import pyarrow as pa
    import pyarrow.compute as pc

    from broadloom.storage.tables import coordinate_columns

    columns = coordinate_columns(nodes)
    if not columns:
        raise InputError(
            f"{folder}: table nodes has no coordinates (x, y, ...); add them or choose other weights"
        )
    try:
        axes = [np.asarray(pc.cast(nodes.column(name), pa.float64()), np.float64) for name in columns]
    except pa.ArrowInvalid as error:
        raise InputError(f"{folder}: coordinates of table nodes are not numbers: {error}") from error
    return Weights.euclidean(np.stack(axes, axis=1), nodes.column("node").to_pylist())


def _site_numbers(nodes: pa.Table, folder: Path | str) -> tuple[NDArray[np.int32], list[str]]:
    """The site of each node as a number, and the sites' names in ascending order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from broadloom.storage.tables import indices_in

    if "site" not in nodes.column_names:
        raise InputError(f"{folder}: table nodes has no column 'site'; add it or choose other weights")
    column = nodes.column("site")
    raise_for_first(
        np.asarray(pc.fill_null(pc.equal(column, ""), True)),
        lambda row: f"node {nodes.column('node')[row].as_py()!r} has no site",
        "give each node a site",
    )
    names = sorted(set(column.to_pylist()))
    return indices_in(column, pa.array(names, pa.string())).astype(np.int32), names


def _from_latency(latency: pa.Table, nodes: pa.Table, missing: str, floor: float | None) -> Weights:
    """Weights from latencies: a dense matrix between nodes, or weights by site if the table names sites."""
    names = nodes.column("node").to_pylist()
    if "site" not in nodes.column_names or _any_known(latency, names):
        return Weights.dense(_matrix(latency, names, missing, floor), names)
    site, sites = _site_numbers(nodes, "latency")
    matrix = _matrix(latency, sites, missing, floor)
    raise_for_first(
        np.isnan(matrix.diagonal()),
        lambda s: f"latency has no row from site {sites[s]!r} to itself",
        "give the round trip inside each site",
    )
    return Weights.sites(site, between=matrix)


def _any_known(latency: pa.Table, names: list[str]) -> bool:
    """Whether any row of the latency table has one of these names."""
    import pyarrow as pa

    from broadloom.storage.tables import indices_in

    known = pa.array(names, pa.string())
    return any(np.any(indices_in(latency.column(side), known) >= 0) for side in ("src", "dst"))


def _matrix(latency: pa.Table, names: list[str], missing: str, floor: float | None) -> NDArray[np.float64]:
    """The latency table as a symmetric matrix: the mean of both directions of each pair."""
    import pyarrow as pa

    from broadloom.storage.tables import indices_in

    src, dst = (latency.column(side).to_pylist() for side in ("src", "dst"))
    values = latency.column("rtt_ms").to_numpy().astype(np.float64)
    u, v = (indices_in(latency.column(side), pa.array(names, pa.string())) for side in ("src", "dst"))

    def describe(row: int) -> str:
        return f"latency row {row}: {src[row]!r} to {dst[row]!r}"

    raise_for_first(
        (u < 0) | (v < 0),
        lambda row: f"{describe(row)}: a name is unknown",
        "name nodes in all rows, or sites in all rows",
    )
    raise_for_first(
        repeated(u * len(names) + v), lambda row: f"{describe(row)} appears twice", "give one value per pair"
    )
    raise_for_first(
        ~(np.isfinite(values) & ((values > 0) | ((values == 0) & (floor is not None)))),
        lambda row: f"{describe(row)}: rtt_ms is {values[row]}",
        "give a finite number above 0" + (", or a floor for zeros" if floor is None else ""),
    )
    matrix = np.full((len(names), len(names)), np.nan)
    matrix[u, v] = values
    return fill_missing(raise_to_floor(symmetrised(matrix, "mean"), floor), missing, names)
