"""Generated and measured link weights: points in the plane, sites, cloud regions, or a file of latencies."""

import csv
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import (
    MAX_INDEX,
    check_count,
    check_instance,
    check_path,
    check_positive,
    seeded_generator,
)
from broadloom.errors import InputError, StorageError
from broadloom.model import Weights, fill_missing, raise_to_floor, symmetrised
from broadloom.model.cloud_regions import INNER_MS, REGIONS, region_latency

# With more nodes than this, the mean weight is that of the pairs among this many evenly spaced nodes.
MEAN_NODES = 10_000


def weights(
    nodes: int | None = None,
    kind: str | Path = "planar",
    mean: float | None = None,
    seed: int = 0,
    **options: object,
) -> Weights:
    """Weights of the links between `nodes` nodes.

    Args:
        nodes: how many nodes; None: 1000, or all nodes of a file.
        kind: "planar" (`planar`), "sites" (`sites`), "regions" (`regions`), or the path of a latency matrix
            (`from_file`).
        mean: scale the weights to this mean; None: leave them as they are.
        seed: the seed of the random generator.
        **options: options of the function for this kind.

    Examples:
        >>> weights(nodes=50, kind="planar", mean=1.0)
        Weights(euclidean, 50 nodes)
    """
    check_path(kind, "the kind of weights")
    make = KINDS.get(str(kind), from_file)
    known = [name for name in inspect.signature(make).parameters if name not in ("nodes", "path", "seed")]
    for name in options:
        if name not in known:
            choices = ", ".join(known) or "no options"
            raise InputError(f"weights of kind {kind} have no option {name!r}; they have {choices}")
    count = None if nodes is None else check_count(nodes, "nodes", maximum=MAX_INDEX)
    seeded_generator(seed)
    if make is from_file:
        result = from_file(count, Path(kind), seed, **options)  # type: ignore[arg-type]
    else:
        result = make(1000 if count is None else count, seed, **options)
    if mean is None:
        return result
    return result.scaled(check_positive(mean, "mean") / mean_weight(result))


def weights_or_none(
    nodes: int | None, kind: str, mean: float | None, seed: int, options: Mapping[str, object]
) -> Weights | None:
    """As `weights`; None for the kind "none". Options that are None are ignored."""
    check_instance(options, Mapping, "options", "give a dict")  # type: ignore[type-abstract]
    chosen = {name: value for name, value in options.items() if value is not None}
    if not isinstance(kind, str) or kind != "none":
        return weights(nodes, kind, mean, seed, **chosen)
    seeded_generator(seed)
    if nodes is not None:
        check_count(nodes, "nodes")
    if chosen or mean is not None:
        name = [*chosen, "mean"][0]
        raise InputError(f"{name} is an option of weights, but the kind of weights is none; leave {name} out")
    return None


def planar(nodes: int, seed: int = 0) -> Weights:
    """Distances between points drawn uniformly from the unit square.

    Examples:
        >>> planar(3).node_count
        3
    """
    return Weights.euclidean(seeded_generator(seed).random((nodes, 2)))


def sites(
    nodes: int,
    seed: int = 0,  # noqa: ARG001 (every kind takes a seed; sites are not random)
    site_size: int = 100,
    inner: float = 1.0,
    outer: float = 10.0,
) -> Weights:
    """Sites of `site_size` consecutive nodes each, as in paper 1, section IX-G.

    Examples:
        >>> sites(6, site_size=2).site
        array([0, 0, 1, 1, 2, 2], dtype=int32)
    """
    size = check_count(site_size, "site_size", minimum=1)
    return Weights.sites(np.arange(nodes) // size, inner, outer)


def regions(nodes: int, seed: int = 0) -> Weights:
    """Nodes spread evenly over the cloud regions (`REGIONS`), with latency from the distance between them.

    Examples:
        >>> regions(8).of([0], [1]) > 0
        array([ True])
    """
    order = seeded_generator(seed).permutation(len(REGIONS))
    return Weights.sites(order[np.arange(nodes) % len(REGIONS)], inner=INNER_MS, between=region_latency())


KINDS: dict[str, Callable[..., Weights]] = {"planar": planar, "sites": sites, "regions": regions}


def from_file(
    nodes: int | None,
    path: Path,
    seed: int = 0,
    missing: str = "refuse",
    symmetric: str = "mean",
    floor: float | None = None,
) -> Weights:
    """Weights from a latency matrix in a file.

    Args:
        nodes: how many nodes to take, drawn without replacement; None: all.
        path: an `.npz` file (its array `rtt_ms`, or the only square one) or a `.csv` file (numbers, with or
            without names in the first line and column). NaN or an empty field is a missing pair.
        seed: the seed of the choice of nodes.
        missing: "refuse" a matrix with missing pairs, or fill them by the shortest "path" over the others.
        symmetric: how the two directions of a pair are combined: "mean", "min", "max", or "refuse" a
            difference.
        floor: weights below this are raised to it; None: they stay, and a weight of 0 is an error.
    """
    matrix = read_matrix(path)
    rng = seeded_generator(seed)
    if nodes is not None:
        if nodes > len(matrix):
            raise InputError(
                f"{path} has {len(matrix)} nodes, but nodes is {nodes}; give at most {len(matrix)}"
            )
        chosen = np.sort(rng.permutation(len(matrix))[:nodes])
        matrix = matrix[np.ix_(chosen, chosen)]
    return Weights.dense(fill_missing(raise_to_floor(symmetrised(matrix, symmetric), floor), missing))


def read_matrix(path: Path) -> NDArray[np.float64]:
    """The square matrix of numbers in an `.npz` or `.csv` file; NaN where a field is empty."""
    path = check_path(path)
    readers = {".npz": _read_npz, ".csv": _read_csv}
    if path.suffix not in readers:
        raise InputError(
            f"weights {str(path)!r} are neither {', '.join(KINDS)} nor the path of a .npz or .csv file"
        )
    try:
        matrix = readers[path.suffix](path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give the path of a file") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (BadZipFile, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a {path.suffix} file, or is damaged") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{path} holds a matrix of shape {matrix.shape}; expected a square one")
    return matrix


def _read_npz(path: Path) -> NDArray[np.float64]:
    try:
        with path.open("rb") as handle, np.load(handle) as file:
            arrays = {name: file[name] for name in file}
    except (ValueError, EOFError, AttributeError, TypeError) as error:  # numpy raises any of these
        raise InputError(f"{path} is not a .npz file of plain arrays, or is damaged") from error
    square = [name for name, array in arrays.items() if array.ndim == 2 and len(set(array.shape)) == 1]
    name = "rtt_ms" if "rtt_ms" in square else square[0] if len(square) == 1 else None
    if name is None:
        raise InputError(f"{path} has {len(square)} square arrays; name the one to use rtt_ms")
    return arrays[name].astype(np.float64)


def _read_csv(path: Path) -> NDArray[np.float64]:
    with path.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.reader(lines) if row]
    first_row, first_field = 1, 1  # numbers of the first row and field with a weight, for errors
    if rows and not _is_number(rows[0][-1]):
        rows = rows[1:]
        first_row = 2
        if len(rows) and len(rows[0]) == len(rows) + 1:
            rows = [row[1:] for row in rows]
            first_field = 2
    for i, row in enumerate(rows, first_row):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{path} row {i} has {len(row) + first_field - 1} fields, "
                f"the first has {len(rows[0]) + first_field - 1}; give the same number in every row"
            )
    for i, row in enumerate(rows, first_row):
        for j, text in enumerate(row, first_field):
            if not _is_number(text):
                raise InputError(f"{path} row {i}, field {j} is {text!r}; give a number or leave it empty")
    return np.array([[float(text) if text.strip() else np.nan for text in row] for row in rows])


def _is_number(text: str) -> bool:
    try:
        float(text.strip() or "nan")
    except ValueError:
        return False
    return True


def mean_weight(weights: Weights) -> float:
    """The mean weight over all pairs, or over those of `MEAN_NODES` evenly spaced nodes if there are more."""
    check_instance(weights, Weights, "weights", "make them with Weights.dense")
    n = weights.node_count
    if n < 2:
        return 1.0
    if n > MEAN_NODES:
        weights = weights.subset(np.linspace(0, n - 1, MEAN_NODES).astype(np.int64))
        n = MEAN_NODES
    nodes = np.arange(n)
    total = sum(float(weights.of(np.full(n - u - 1, u), nodes[u + 1 :]).sum()) for u in range(n))
    return total / (n * (n - 1) / 2)
