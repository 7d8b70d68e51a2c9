"""The option that every algorithm for markets has."""

from dataclasses import dataclass

from broadloom.model import check_core


@dataclass(frozen=True)
class MarketOptions:
    """What every algorithm for markets is told.

    Attributes:
        core: how traffic crosses the core: "mst", "pair" or "tree"; see `broadloom.measures.market_cost`.
    """

    core: str = "mst"

    def __post_init__(self) -> None:
        check_core(self.core)
