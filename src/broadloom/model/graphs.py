"""Interest (the topics of each node) and overlay (the links between nodes)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import (
    MAX_INDEX,
    and_more,
    can_iterate,
    check_count,
    check_ids,
    check_index,
    frozen_array,
    index_array,
    integer_array,
    ordered_list,
    plain_array,
    raise_for_first,
    repeated,
    restore_frozen,
    shown,
)
from broadloom.errors import InputError
from broadloom.kernels import group_by
from broadloom.notebook import PREVIEW_ROWS, html_summary

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import sparray, spmatrix

FEW_VALUES = 10_000  # up to this many ids, plain Python is as quick as pyarrow


@dataclass(frozen=True, eq=False)
class Interest:
    """Subscriptions of nodes (brokers) to topics, in compressed rows by node and by topic.

    Nodes and topics are dense indices, with string ids. Make an interest with `from_lists`,
    `from_pairs`, `from_table` or `from_matrix`, which check their arguments.

    A topic id can be an MQTT topic filter, such as `sensors/#`. Filters and topics that overlap (some topic
    matches both) belong together: `grouped` makes one topic of them, and `broadloom.link` connects that.

    Attributes:
        node_ids: the id of each node, by index.
        topic_ids: the id of each topic, by index.
        topic_start: the index in `topics` at which each node's topics start, with the end appended.
        topics: each node's topic indices, ascending, node after node.
        node_start: the index in `nodes` at which each topic's nodes start, with the end appended.
        nodes: each topic's node indices, ascending, topic after topic.

    Examples:
        >>> interest = Interest.from_lists([[0, 2], [2, 5], []])
        >>> interest
        Interest(3 nodes, 3 topics, 4 subscriptions)
        >>> interest.topic_ids
        ('0', '2', '5')
        >>> interest.nodes_of(1)
        array([0, 1], dtype=int32)
    """

    node_ids: tuple[str, ...]
    topic_ids: tuple[str, ...]
    topic_start: NDArray[np.int64]
    topics: NDArray[np.int32]
    node_start: NDArray[np.int64]
    nodes: NDArray[np.int32]

    def __post_init__(self) -> None:
        nodes, topics = check_ids(self.node_ids, "node"), check_ids(self.topic_ids, "topic")
        checked = Interest.from_rows(self.topic_start, self.topics, topics, nodes)
        for name in ("node_start", "nodes"):
            if not np.array_equal(integer_array(getattr(self, name), name), getattr(checked, name)):
                raise InputError(f"{name} does not follow from the topics; make an interest with from_rows")
        vars(self).update(vars(checked))

    @classmethod
    def from_lists(
        cls,
        lists: Iterable[Iterable[object]],
        topics: int | None = None,
        node_ids: Sequence[object] | None = None,
    ) -> Interest:
        """Interest from one list of topic ids (numbers or strings) per node.

        Args:
            lists: the topics of each node; an empty list is a node without topics.
            topics: the number of topics, if ids are the numbers from 0 to topics - 1. By default the topics
                are the ids that occur, in ascending order.
            node_ids: the id of each node; its index by default.

        Raises:
            InputError: a topic is missing, out of range, or listed twice by one node.

        Examples:
            >>> Interest.from_lists([["weather", "news"], ["news"]]).topic_ids
            ('news', 'weather')
        """
        if isinstance(lists, (str, bytes, Set, Mapping)) or not can_iterate(lists):
            raise InputError(f"the topics of all nodes are {shown(lists)}; give one list of topics per node")
        rows = [_topic_list(node, row) for node, row in enumerate(lists)]
        start = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
        flat = [topic for row in rows for topic in row]
        codes, topic_ids = (
            _numbered(flat, "topic") if topics is None else _in_range(flat, _topic_count(topics))
        )
        return cls.from_rows(start, codes, topic_ids, node_ids)

    @classmethod
    def from_pairs(
        cls,
        nodes: Sequence[object] | pa.ChunkedArray,
        topics: Sequence[object] | pa.ChunkedArray,
        node_ids: Sequence[object] | None = None,
        topic_ids: Sequence[object] | None = None,
    ) -> Interest:
        """Interest from two columns: in row `i`, `nodes[i]` subscribes to `topics[i]`.

        Indices follow the ascending order of the ids, whatever the order of the rows.

        Args:
            nodes: the subscribing node of each row.
            topics: the topic of each row.
            node_ids: all nodes in the order of their indices, including nodes without topics.
            topic_ids: all topics in the order of their indices.

        Raises:
            InputError: columns of different length, a missing or unknown id, or a repeated pair.

        Examples:
            >>> Interest.from_pairs(["b", "a", "b"], ["x", "x", "y"]).topics_of(1)
            array([0, 1], dtype=int32)
        """
        rows, all_nodes = _numbered(nodes, "node", node_ids)
        columns, all_topics = _numbered(topics, "topic", topic_ids)
        if len(rows) != len(columns):
            raise InputError(f"{len(rows):,} nodes but {len(columns):,} topics; give one of each per row")
        order = np.lexsort((columns, rows))
        start = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(all_nodes)))))
        return cls.from_rows(start, columns[order], all_topics, all_nodes)

    @classmethod
    def from_table(
        cls, subscriptions: object, nodes: object | None = None, topics: object | None = None
    ) -> Interest:
        """Interest from the canonical table `subscriptions`, and optionally `nodes` and `topics`.

        Each is an Arrow table or record batch, a DataFrame of pandas or Polars, or any other table with the
        Arrow C interface (`__arrow_c_stream__` or `__arrow_c_array__`).

        Args:
            subscriptions: columns `node` and `topic`, one row per subscription.
            nodes: column `node`: indices follow its rows, and it can have nodes without topics.
            topics: column `topic`, likewise.

        Raises:
            InputError: a value is not a table, a column is missing, or as for `from_pairs`.

        Examples:
            >>> import pyarrow as pa
            >>> Interest.from_table(pa.table({"node": ["a", "b"], "topic": ["x", "x"]}))
            Interest(2 nodes, 1 topics, 2 subscriptions)
        """
        from broadloom.storage.tables import as_table

        table = as_table(subscriptions, "subscriptions")
        pairs = {name: _column(table, "subscriptions", name) for name in ("node", "topic")}
        known_nodes = None if nodes is None else _column(nodes, "nodes", "node").to_pylist()
        known_topics = None if topics is None else _column(topics, "topics", "topic").to_pylist()
        try:
            return cls.from_pairs(pairs["node"], pairs["topic"], known_nodes, known_topics)
        except InputError as error:
            if str(error).startswith("row "):
                raise InputError(f"subscriptions {error}") from error
            raise

    @classmethod
    def from_matrix(
        cls,
        matrix: ArrayLike | sparray | spmatrix,
        node_ids: Sequence[object] | None = None,
        topic_ids: Sequence[object] | None = None,
    ) -> Interest:
        """Interest from a matrix with one row per node and one column per topic.

        Args:
            matrix: a SciPy sparse matrix or array, or a dense one, of true and false or 1 and 0.
            node_ids: the id of each node; its index by default.
            topic_ids: the id of each topic; its index by default.

        Raises:
            InputError: not two axes, or an entry that is neither 0 nor 1.

        Examples:
            >>> interest = Interest.from_matrix([[1, 0, 1], [0, 0, 1]], topic_ids=["a", "b", "c"])
            >>> interest.topics_of(0), interest.topic_ids
            (array([0, 2], dtype=int32), ('a', 'b', 'c'))
        """
        rows, columns, (n, m) = _ones(matrix)
        start = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=n))))
        return cls.from_rows(start, columns, m if topic_ids is None else _sized(topic_ids, m), node_ids)

    def to_table(self) -> pa.Table:
        """The canonical table `subscriptions`.

        Examples:
            >>> Interest.from_lists([["x"], ["x"]]).to_table().column("node").to_pylist()
            ['0', '1']
        """
        import pyarrow as pa

        owners = np.repeat(np.arange(self.node_count), np.diff(self.topic_start))
        nodes, topics = (pa.array(ids, pa.string()) for ids in (self.node_ids, self.topic_ids))
        return pa.table({"node": nodes.take(owners), "topic": topics.take(self.topics)})

    @classmethod
    def from_rows(
        cls,
        start: ArrayLike,
        topics: ArrayLike,
        topic_ids: int | Sequence[object],
        node_ids: Sequence[object] | None = None,
    ) -> Interest:
        """Interest from compressed rows: node `u` has `topics[start[u]:start[u + 1]]`, in any order.

        Args:
            start: one more entry than there are nodes, ascending from 0 to the number of subscriptions.
            topics: topic indices.
            topic_ids: the number of topics, or their ids.
            node_ids: the id of each node; its index by default.

        Examples:
            >>> Interest.from_rows([0, 2, 3], [1, 0, 1], topic_ids=2).topics_of(0)
            array([0, 1], dtype=int32)
        """
        starts = frozen_array(integer_array(start, "row starts"))
        columns = integer_array(topics, "topic indices")
        if starts.ndim != 1 or columns.ndim != 1:
            raise InputError(
                f"row starts have shape {starts.shape}, topic indices {columns.shape}; give one list of each"
            )
        n = len(starts) - 1
        ids = tuple(map(str, range(n))) if node_ids is None else check_ids(node_ids, "node")
        if len(ids) != n:
            raise InputError(f"{n:,} nodes but {len(ids):,} node ids; give one id per node")
        counts = _row_sizes(starts, len(columns))
        names = _names(topic_ids)
        rows = np.repeat(np.arange(n, dtype=np.int32), counts)
        _check_columns(rows, columns, len(names), ids)
        sorted_columns = _sorted_rows(rows, columns.astype(np.int32))
        _check_no_repeats(rows, sorted_columns, ids, names)
        node_start, by_topic = group_by(sorted_columns, len(names))
        interest = object.__new__(cls)
        restore_frozen(
            interest,
            {
                "node_ids": ids,
                "topic_ids": names,
                "topic_start": starts,
                "topics": sorted_columns,
                "node_start": node_start,
                "nodes": rows[by_topic],
            },
        )
        return interest

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return len(self.node_ids)

    @property
    def topic_count(self) -> int:
        """The number of topics, including those without subscribers."""
        return len(self.topic_ids)

    @property
    def subscription_count(self) -> int:
        """The number of pairs of a node and a topic."""
        return len(self.topics)

    @property
    def has_filters(self) -> bool:
        """Whether a topic id is an MQTT topic filter with a wildcard.

        Examples:
            >>> Interest.from_lists([["a/+", "b"]]).has_filters, Interest.from_lists([["c#"]]).has_filters
            (True, False)
        """
        return self.filter_count > 0

    @cached_property
    def filter_count(self) -> int:
        """The number of topic ids that are MQTT topic filters with a wildcard."""
        joined = "\n".join(self.topic_ids)  # one quick search instead of one per topic
        if "#" not in joined and "+" not in joined:
            return 0
        from broadloom.mqtt.topic_filters import is_filter

        return sum(map(is_filter, self.topic_ids))

    def grouped(self) -> Interest:
        """The interest in which filters and topics that overlap are one topic, named by the shortest of them.

        A group has the subscribers of all its members. It stands where its first member stood. A filter
        without subscribers needs no tree, so it is in no group with others.

        Returns:
            The interest itself if nothing overlaps.

        Examples:
            >>> Interest.from_lists([["a/#"], ["a/b", "c"], ["+/b"]]).grouped().topic_ids
            ('+/b', 'c')
        """
        return self._grouping[0]

    @property
    def group_of_topic(self) -> NDArray[np.int64]:
        """The index of each topic's group among the topics of `grouped()`."""
        return self._grouping[1]

    @cached_property
    def _grouping(self) -> tuple[Interest, NDArray[np.int64]]:
        """The grouped interest, and the index of each topic's group in it."""
        group_of_topic = np.arange(self.topic_count)
        if not self.has_filters:
            return self, frozen_array(group_of_topic)
        from broadloom.mqtt.topic_filters import groups

        used = np.flatnonzero(np.diff(self.node_start)).tolist()
        names = {text: text for text in self.topic_ids} | groups(self.topic_ids[topic] for topic in used)
        group_ids = list(dict.fromkeys(names.values()))
        if len(group_ids) == self.topic_count:
            return self, frozen_array(group_of_topic)
        index = {name: group for group, name in enumerate(group_ids)}
        group_of_topic = np.array([index[names[text]] for text in self.topic_ids], np.int64)
        rows = np.repeat(np.arange(self.node_count), np.diff(self.topic_start))
        codes = np.unique(rows * len(group_ids) + group_of_topic[self.topics])
        counts = np.bincount(codes // len(group_ids), minlength=self.node_count)
        start = np.concatenate(([0], np.cumsum(counts)))
        grouped = Interest.from_rows(start, codes % len(group_ids), group_ids, self.node_ids)
        return grouped, frozen_array(group_of_topic)

    def topics_of(self, node: int) -> NDArray[np.int32]:
        """The topics of a node, ascending."""
        index = check_index(node, self.node_count, "node")
        return self.topics[self.topic_start[index] : self.topic_start[index + 1]]

    def nodes_of(self, topic: int) -> NDArray[np.int32]:
        """The subscribers of a topic, ascending."""
        index = check_index(topic, self.topic_count, "topic")
        return self.nodes[self.node_start[index] : self.node_start[index + 1]]

    def subset(self, nodes: ArrayLike) -> Interest:
        """The interest of some of the nodes, in this order, over the same topics.

        Args:
            nodes: node indices, each once; or a mask: one truth value per node.

        Raises:
            InputError: a node does not exist or occurs twice, or a mask has another length.

        Examples:
            >>> Interest.from_lists([[0], [0, 1], [1]]).subset([2, 1]).node_ids
            ('2', '1')
        """
        chosen = index_array(nodes, self.node_count, "node")
        rows = [self.topics[self.topic_start[u] : self.topic_start[u + 1]] for u in chosen]
        start = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
        topics = np.concatenate([*rows, np.empty(0, np.int32)])
        return Interest.from_rows(start, topics, self.topic_ids, [self.node_ids[u] for u in chosen])

    def __getstate__(self) -> dict[str, object]:
        return {name: vars(self)[name] for name in self.__dataclass_fields__}  # without cached values

    def __setstate__(self, state: dict[str, object]) -> None:
        restore_frozen(self, state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Interest):
            return NotImplemented
        return (
            self.node_ids == other.node_ids
            and self.topic_ids == other.topic_ids
            and np.array_equal(self.topic_start, other.topic_start)
            and np.array_equal(self.topics, other.topics)
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        counts = {
            "nodes": self.node_count,
            "topics": self.topic_count,
            "subscriptions": self.subscription_count,
            "topics per node": self.subscription_count / max(self.node_count, 1),
        }
        first = [
            (self.node_ids[u], ", ".join(self.topic_ids[t] for t in self.topics_of(u)[:PREVIEW_ROWS]))
            for u in range(min(self.node_count, PREVIEW_ROWS))
        ]
        return html_summary("Interest", counts, ("node", "topics"), first, self.node_count)

    def __repr__(self) -> str:
        return (
            f"Interest({self.node_count:,} nodes, {self.topic_count:,} topics, "
            f"{self.subscription_count:,} subscriptions)"
        )


def _numbered(
    values: object, kind: str, known: Sequence[object] | None = None
) -> tuple[NDArray[np.integer[Any]], tuple[str, ...]]:
    """The index of each value among the known ids, or among the distinct values in ascending order."""
    if known is None and _is_plain(values):
        distinct = sorted(set(values))
        index = {value: i for i, value in enumerate(distinct)}
        return np.array([index[value] for value in values], np.int64), check_ids(distinct, kind)
    import pyarrow as pa
    import pyarrow.compute as pc

    from broadloom.storage.tables import indices_in

    coded = pa.dictionary(pa.int32(), pa.string())
    if isinstance(values, pa.ChunkedArray) and values.type == coded and len(values):
        return _numbered_codes(values, kind, known)
    column = _id_column(values, kind)
    if known is None:
        distinct = pc.unique(column)
        distinct = distinct.take(pc.array_sort_indices(distinct))
        return indices_in(column, distinct), check_ids(distinct.to_pylist(), kind)
    ids = check_ids(known, kind)
    found = indices_in(column.cast(pa.string()), pa.array(ids, pa.string()))
    raise_for_first(
        found < 0,
        lambda row: f"row {row}: {kind} {column[row]} is unknown",
        f"add it to the {kind}s or drop it",
    )
    return found, ids


def _numbered_codes(
    column: pa.ChunkedArray, kind: str, known: Sequence[object] | None
) -> tuple[NDArray[np.integer[Any]], tuple[str, ...]]:
    """As `_numbered`, for indices into distinct texts: only these are looked at; a row takes 4 bytes."""
    import pyarrow.compute as pc

    column = column.unify_dictionaries()
    texts = column.chunk(0).dictionary
    codes = np.concatenate([np.asarray(pc.fill_null(chunk.indices, -1), np.int32) for chunk in column.chunks])
    is_used = np.zeros(len(texts) + 1, bool)
    is_used[codes] = True  # a missing value marks the last one
    if is_used[-1] or not pc.all(pc.not_equal(texts, "")).as_py():
        return _numbered(column.cast(texts.type), kind, known)
    used = np.flatnonzero(is_used)
    try:
        numbers, ids = _numbered(texts.take(used), kind, known)
    except InputError:  # raise it again for the row with the fault
        return _numbered(column.cast(texts.type), kind, known)
    number = np.full(len(texts), -1, np.int32)
    number[used] = numbers
    return number[codes], ids


def _is_plain(values: object) -> TypeGuard[list[Any]]:
    """Whether the values are a short list of whole numbers, or of texts: no reason to load pyarrow."""
    if type(values) is not list or len(values) > FEW_VALUES:
        return False
    kinds = set(map(type, values))
    if kinds == {int}:
        return all(abs(value) < 2**63 for value in values)
    return kinds == {str} and all(value and value.isascii() for value in values)


def _id_column(values: object, kind: str) -> pa.Array:
    """Ids as one Arrow array of whole numbers or of strings, none missing or empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = values
    if not isinstance(values, (pa.Array, pa.ChunkedArray, list)) and not _is_plain_column(values):
        column = ordered_list(values, f"{kind} ids")
    try:
        column = pa.array(column, from_pandas=True) if isinstance(column, (list, np.ndarray)) else column
    except UnicodeEncodeError as error:
        raise InputError(
            f"a {kind} id is {shown(error.object)}, which is not valid Unicode; give other text"
        ) from error
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InputError(f"{kind} ids are of several types, or beyond 64 bits; use strings") from error
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_dictionary(column.type):
        values = _without_views(column.type.value_type)
        chunks = [chunk.dictionary.cast(values).take(chunk.indices) for chunk in chunks]
        column = pa.chunked_array(chunks, values)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    column = column.cast(_without_views(column.type))
    if pa.types.is_null(column.type) and len(column) == 0:
        return column.cast(pa.string())
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    missing = np.asarray(column.is_null())
    if is_text:
        missing = missing | np.asarray(pc.fill_null(pc.equal(column, ""), True))
    raise_for_first(missing, lambda row: f"row {row} has no {kind}", f"give each row a non-empty {kind}")
    if not (is_text or pa.types.is_integer(column.type)):
        first = shown(column[0].as_py())
        raise InputError(f"{kind} ids are {column.type} ({first}, ...); use strings or whole numbers")
    return column


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type, but strings instead of string views, for which Arrow has few functions."""
    import pyarrow as pa

    return pa.string() if pa.types.is_string_view(kind) else kind


def _is_plain_column(values: object) -> bool:
    """Whether Arrow converts a NumPy array as it is: one axis, no mask, and the byte order of the machine."""
    return type(values) is np.ndarray and values.ndim == 1 and values.dtype.isnative


def _in_range(values: Sequence[object], topics: int) -> tuple[NDArray[np.int64], int]:
    """The values as topic indices; `from_rows` checks that they are below `topics`."""
    wrong = [value for value in values if not isinstance(value, (int, np.integer)) or isinstance(value, bool)]
    if wrong:
        raise InputError(
            f"topic {wrong[0]!r}{and_more(len(wrong) - 1)} is not a number from 0 to {topics - 1}"
        )
    try:
        return np.array(values, np.int64), topics
    except OverflowError as error:
        raise InputError(f"a topic is beyond 64 bits; topics are 0 to {topics - 1}") from error


def _topic_list(node: int, topics: Iterable[object]) -> list[object]:
    if isinstance(topics, (str, bytes, Mapping)) or not can_iterate(topics):
        raise InputError(f"the topics of node {node} are {shown(topics)}; give a list of topics")
    return list(topics) if isinstance(topics, Set) else ordered_list(topics, f"the topics of node {node}")


def _topic_count(topics: object) -> int:
    return check_count(topics, "topics", maximum=MAX_INDEX)


def _names(topic_ids: int | Sequence[object]) -> tuple[str, ...]:
    """Topic ids, or the numbers below their count."""
    if isinstance(topic_ids, (int, np.integer)):
        return tuple(map(str, range(_topic_count(topic_ids))))
    return check_ids(topic_ids, "topic")


def _row_sizes(start: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """The number of topics of each row; raises unless the rows cover all topics."""
    counts = np.diff(start)
    if not len(start) or start[0] != 0 or start[-1] != total or (counts < 0).any():
        raise InputError(f"row starts do not ascend from 0 to the {total:,} subscriptions")
    return counts


def _check_columns(
    rows: NDArray[np.int32], columns: NDArray[np.int64], topics: int, ids: tuple[str, ...]
) -> None:
    """Raise unless topic indices are in range."""
    raise_for_first(
        (columns < 0) | (columns >= topics),
        lambda row: f"node {ids[rows[row]]!r} subscribes to topic {columns[row]}",
        f"topics are 0 to {topics - 1}",
    )


def _sorted_rows(rows: NDArray[np.int32], topics: NDArray[np.int32]) -> NDArray[np.int32]:
    """Each row's topics in ascending order."""
    descending = (rows[1:] == rows[:-1]) & (topics[1:] < topics[:-1])
    return topics[np.lexsort((topics, rows))] if descending.any() else topics


def _check_no_repeats(
    rows: NDArray[np.int32], topics: NDArray[np.int32], ids: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """Raise if a node has a topic twice; the rows are sorted by node, then topic."""
    raise_for_first(
        (rows[1:] == rows[:-1]) & (topics[1:] == topics[:-1]),
        lambda row: f"node {ids[rows[row]]!r} subscribes to topic {names[topics[row]]!r} twice",
        "give each subscription once",
    )


def _ones(matrix: Any) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, int]]:
    """The rows and columns of the entries that are 1, in the order of the rows, and the matrix's shape."""
    from scipy.sparse import coo_array, issparse

    if hasattr(matrix, "columns") or isinstance(matrix, np.ma.MaskedArray):
        raise InputError(
            f"the matrix is a {type(matrix).__name__}; give a plain array of 0 and 1 and the ids as node_ids "
            "and topic_ids, or use from_table for rows of node and topic"
        )
    is_sparse = issparse(matrix)
    try:
        array: Any = matrix if is_sparse else np.asarray(matrix)
    except (TypeError, ValueError) as error:
        raise InputError(
            "the matrix has rows of different lengths, or entries that are not numbers; "
            "give numbers, one row per node and one column per topic"
        ) from error
    if len(array.shape) != 2:
        raise InputError(f"the matrix has shape {array.shape}; give one row per node, one column per topic")
    if array.dtype.kind not in "biuf":
        raise InputError(f"the matrix is of {array.dtype}; give 0 and 1, or false and true")
    sparse: Any = coo_array(array) if is_sparse else None
    rows, columns = sparse.coords if is_sparse else np.nonzero(array)
    values = sparse.data if is_sparse else array[rows, columns]
    raise_for_first(
        ~((values == 0) | (values == 1)),
        lambda i: f"the entry of node {rows[i]} and topic {columns[i]} is {values[i]}",
        "give 0 or 1",
    )
    rows, columns = (np.asarray(index, np.int64)[values == 1] for index in (rows, columns))
    order = np.lexsort((columns, rows))
    return rows[order], columns[order], array.shape


def _sized(topic_ids: Sequence[object], count: int) -> Sequence[object]:
    """The topic ids, if there is one per topic."""
    listed = ordered_list(topic_ids, "topic ids")
    if len(listed) != count:
        raise InputError(f"{count:,} topics but {len(listed):,} topic ids; give one id per topic")
    return listed


def _column(value: object, name: str, column: str) -> pa.ChunkedArray:
    """A column of a canonical table."""
    from broadloom.storage.tables import as_table

    table = as_table(value, name)
    if column not in table.column_names:
        raise InputError(f"table {name} has no column {column!r} (it has {', '.join(table.column_names)})")
    return table.column(column)


class Adjacency(NamedTuple):
    """Neighbours in compressed rows: those of node `u` are `neighbours[start[u]:start[u + 1]]`.

    `edge` has the index of the edge to each neighbour, at the same position.
    """

    start: NDArray[np.int64]
    neighbours: NDArray[np.int32]
    edge: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Overlay:
    """Links between nodes: pairs `u < v`, each once, in the order of selection.

    Attributes:
        node_count: the number of nodes.
        edges: int32 (m, 2).

    Examples:
        >>> overlay = Overlay.from_edges(3, [(1, 0), (1, 2)])
        >>> overlay.edges.tolist()
        [[0, 1], [1, 2]]
        >>> overlay.degrees().tolist()
        [1, 2, 1]
    """

    node_count: int
    edges: NDArray[np.int32]

    def __post_init__(self) -> None:
        vars(self).update(vars(Overlay.from_edges(self.node_count, self.edges)))

    @classmethod
    def from_edges(cls, node_count: int, edges: ArrayLike) -> Overlay:
        """An overlay from pairs of node indices, in either order.

        Raises:
            InputError: not pairs of whole numbers, an unknown node, a loop, or a repeated edge.
        """
        count = check_count(node_count, "nodes", maximum=MAX_INDEX)
        pairs = plain_array(edges, "edges")
        if pairs.size == 0 and pairs.shape in ((0,), (0, 2)):
            return trusted_overlay(count, np.empty((0, 2), np.int32))
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
            raise InputError(f"edges are {pairs.dtype} of shape {pairs.shape}; give pairs of node indices")
        pairs = integer_array(pairs, "edges")
        low, high = pairs.min(axis=1), pairs.max(axis=1)
        raise_for_first(
            (low < 0) | (high >= count),
            lambda i: f"edge {i} is {tuple(pairs[i].tolist())}",
            f"nodes are 0 to {count - 1}",
        )
        raise_for_first(low == high, lambda i: f"edge {i} links node {low[i]} to itself", "link two nodes")
        code = low * count + high
        raise_for_first(
            repeated(code), lambda i: f"edge {i} repeats {(int(low[i]), int(high[i]))}", "give each edge once"
        )
        return trusted_overlay(count, np.stack((low, high), axis=1).astype(np.int32))

    @property
    def edge_count(self) -> int:
        """The number of links."""
        return len(self.edges)

    def degrees(self) -> NDArray[np.int64]:
        """The number of links of each node."""
        return np.bincount(self.edges.ravel(), minlength=self.node_count)

    def adjacency(self) -> Adjacency:
        """The neighbours of each node, ascending, and the edge to each of them."""
        ends = np.concatenate((self.edges, self.edges[:, ::-1]))
        by_neighbour = group_by(ends[:, 1], self.node_count)[1]
        start, order = group_by(ends[by_neighbour, 0], self.node_count)
        order = by_neighbour[order]
        return Adjacency(start, ends[order, 1], (order % max(self.edge_count, 1)).astype(np.int32))

    def __setstate__(self, state: dict[str, object]) -> None:
        restore_frozen(self, state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Overlay):
            return NotImplemented
        return self.node_count == other.node_count and np.array_equal(self.edges, other.edges)

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        degrees = self.degrees()
        most = int(degrees.max(initial=0))
        mean = float(degrees.mean()) if self.node_count else 0.0
        facts = {"nodes": self.node_count, "links": self.edge_count, "mean degree": mean, "max degree": most}
        return html_summary("Overlay", facts)

    def __repr__(self) -> str:
        return f"Overlay({self.node_count:,} nodes, {self.edge_count:,} edges)"


def trusted_overlay(node_count: int, edges: NDArray[np.int32]) -> Overlay:
    """An overlay of edges that our own code made, not checked again; they become read-only."""
    overlay = object.__new__(Overlay)
    restore_frozen(overlay, {"node_count": node_count, "edges": edges})
    return overlay
