"""Compilation of all kernels before their first use."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import NamedTuple

from broadloom.assignment import ALGORITHMS as ASSIGN_ALGORITHMS
from broadloom.assignment import assign
from broadloom.errors import MissingExtraError
from broadloom.kernels import always_compiled, compiled_count, folder_of_kernels
from broadloom.linking import ALGORITHMS as LINK_ALGORITHMS
from broadloom.linking import improve, link, lower_bound
from broadloom.maintenance import load_kernels, maintain
from broadloom.measures import components_per_topic, link_loads, routing_costs, weak_points
from broadloom.measures.sub_overlays import block_components, link_graph
from broadloom.model import AssignmentProblem, Interest, MarketProblem, Weights
from broadloom.progress import stage
from broadloom.workload import interest as random_interest
from broadloom.workload import market, subscribers
from broadloom.workload import weights as random_weights

Step = Callable[[], object]

EXACT_NODES = 7  # enough for `exact`, which takes long on more


class CompiledKernels(NamedTuple):
    """The number of kernels that were compiled, and the folder that keeps them."""

    compiled: int
    folder: Path


def compile_kernels() -> CompiledKernels:
    """Compile the kernels of all algorithms for this machine, so that no later call waits for the compiler.

    Kernels that are compiled already are only loaded. The algorithms run on small instances; those whose
    optional package is missing are left out. So are two kernels that only Spark's workers run.

    Returns:
        The number of kernels that were compiled now, and the folder that keeps them.

    Raises:
        InputError: BROADLOOM_KERNEL_CACHE=0 is set, so that no compiled kernels are kept.
        StorageError: no folder for them can be written.

    Examples:
        >>> import broadloom as bl
        >>> bl.compile_kernels()  # doctest: +SKIP
        CompiledKernels(compiled=99, folder=PosixPath('...'))
    """
    folder = folder_of_kernels()
    before = compiled_count()
    steps = [*_link_steps(), *_assign_steps(), *_maintain_steps()]
    with always_compiled(), stage("kernels of algorithms", len(steps)) as done:
        for number, run in enumerate(steps):
            with suppress(MissingExtraError):
                run()
            done(number + 1)
    return CompiledKernels(compiled_count() - before, folder)


def _link_steps() -> Iterator[Step]:
    """Every algorithm of linking, with and without weights, and the measures of plans."""
    interest = random_interest(nodes=40, topics=20, sizes=(2, 8), seed=0)
    few = interest.subset(range(EXACT_NODES))
    for kind in ("uniform", "planar", "regions"):
        weights = None if kind == "uniform" else random_weights(nodes=40, kind=kind, seed=0)
        for algorithm in LINK_ALGORITHMS:
            if algorithm.name == "exact":
                small = None if weights is None else weights.subset(range(EXACT_NODES))
                yield partial(link, few, small, algorithm.name)
                continue
            yield partial(link, interest, weights, algorithm.name)
            if "ties" in {field.name for field in fields(algorithm.options)}:
                yield partial(link, interest, weights, algorithm.name, ties="random")
        yield partial(_improve_and_measure, interest, weights)


def _improve_and_measure(interest: Interest, weights: Weights | None) -> None:
    plan = link(interest, weights, "grmaw")
    plan.metrics()
    components_per_topic(interest, plan.overlay)
    block_components(
        interest.node_start, interest.nodes, link_graph(interest.node_count, plan.edges, plan.edge_weights)
    )
    weak_points(interest, plan.overlay)
    routing_costs(interest, plan.overlay, plan.weights)
    link_loads(interest, plan.overlay)
    lower_bound(interest, weights)
    improve(plan)
    link(interest, weights, "grmaw", previous=plan)
    fewer = range(interest.node_count - 1)
    start = link(interest.subset(fewer), plan.weights.subset(fewer), "broadloom")
    link(interest, weights, "broadloom", previous=start)


def _assign_steps() -> Iterator[Step]:
    """Every algorithm of assignment, for subscribers and for markets, and the measures of results."""
    people = subscribers(set=2, subscribers=200, brokers=6, geography=0, seed=0)
    users = market(users=60, brokers=5, channels=6, seed=0)
    for algorithm in ASSIGN_ALGORITHMS:
        if algorithm.problem is AssignmentProblem:
            yield partial(_assign_and_measure, people, algorithm.name)
        else:
            yield partial(_assign_and_measure, users, algorithm.name)


def _assign_and_measure(problem: AssignmentProblem | MarketProblem, algorithm: str) -> None:
    assign(problem, algorithm).metrics()


def _maintain_steps() -> Iterator[Step]:
    """The methods of maintenance, with and without weights."""
    yield load_kernels
    interest = random_interest(nodes=40, topics=20, sizes=(2, 8), seed=0)
    yield partial(_maintain, interest)


def _maintain(interest: Interest) -> None:
    weights = random_weights(nodes=interest.node_count, kind="planar", seed=0)
    for algorithm in ("shadow", "naive"):
        live = maintain(interest, weights, algorithm=algorithm)
        live.join([0, 1, 2], at=(0.5, 0.5))
        live.resubscribe(3, [0, 1])
        live.leave(0)
        live.rebaseline()
        live.metrics()
