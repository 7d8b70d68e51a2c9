"""Maintain: what changes when a broker or a subscription comes or goes, without a rebuild (paper 3)."""

from __future__ import annotations

from dataclasses import dataclass

from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.maintenance._repair import Rules
from broadloom.model.algorithm import Algorithm

BACKUPS = ("primal-dual", "greedy")


@dataclass(frozen=True)
class NaiveOptions:
    """Options of the naive dynamics.

    Attributes:
        rho: how many times worse than the best link the chosen one may be, for the maximum degree's sake:
            `k` of low-oda. Without effect where links have weights.
    """

    rho: float = 3

    def __post_init__(self) -> None:
        check_number(self.rho, "rho", minimum=1, finite=False)

    def rules(self, by_weight: bool) -> Rules:
        """The options as kernels take them."""
        return Rules(True, False, by_weight, float(self.rho), 0)


@dataclass(frozen=True)
class ShadowOptions(NaiveOptions):
    """Options of the shadow dynamics.

    Attributes:
        rho: as for the naive dynamics.
        coverage: how often a node's backups cover each of its topics; more: lower degrees, slower changes.
        backups: how they are chosen, "primal-dual" (spreads the burden) or "greedy" (needs fewer).
    """

    coverage: int = 3
    backups: str = "primal-dual"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.coverage, "coverage", minimum=1)
        if self.backups not in BACKUPS:
            raise InputError(f"backups is {self.backups!r}; give one of {', '.join(BACKUPS)}")

    def rules(self, by_weight: bool) -> Rules:
        """The options as kernels take them."""
        return Rules(False, self.backups == "greedy", by_weight, float(self.rho), self.coverage)


# `run` makes the rules of the options, given whether links have weights; `Live` does the rest.
METHODS: tuple[Algorithm, ...] = (
    Algorithm(
        "shadow",
        "maintain",
        "3, Alg. 6 to 10",
        "repair time and degrees",
        "repair among the neighbours and backups of the node that changes",
        ShadowOptions.rules,
        ShadowOptions,
    ),
    Algorithm(
        "naive",
        "maintain",
        "3, Alg. 3 and 4",
        "degrees",
        "repair among all nodes",
        NaiveOptions.rules,
        NaiveOptions,
    ),
)
