"""Figures, tables and claims of the five papers, to compare with our results; one module per paper."""

from importlib.util import find_spec

from broadloom.errors import InputError, missing_extra
from broadloom.papers import (
    lemma_instances,
    paper1_printed,
    paper1_weighted_overlays,
    paper2_low_degree,
    paper3_shadows,
    paper4_assignment,
    paper4_parameters,
    paper4_samples,
    paper4_trees,
    paper5_markets,
)
from broadloom.papers.figures import Figure

__all__ = ["FIGURES", "Figure", "figures_of", "need_papers"]

FIGURES: tuple[Figure, ...] = (
    *paper1_weighted_overlays.FIGURES,
    *paper1_printed.FIGURES,
    lemma_instances.PAPER_1,
    *paper2_low_degree.FIGURES,
    lemma_instances.PAPER_2,
    *paper3_shadows.FIGURES,
    *paper4_assignment.FIGURES,
    *paper4_trees.FIGURES,
    *paper4_parameters.FIGURES,
    *paper4_samples.FIGURES,
    *paper5_markets.FIGURES,
)


def figures_of(paper: int | None = None, name: str | None = None) -> tuple[Figure, ...]:
    """The figures of all papers, the figures of one paper, or one figure.

    Raises:
        InputError: there is no such paper or figure.

    Examples:
        >>> [figure.key for figure in figures_of(1, "fig4")]
        ['paper1-fig4']
    """
    papers = sorted({figure.paper for figure in FIGURES})
    if paper is not None and paper not in papers:
        raise InputError(f"no paper {paper}; there are {', '.join(map(str, papers))}")
    of_paper = tuple(figure for figure in FIGURES if paper in (None, figure.paper))
    chosen = tuple(figure for figure in of_paper if name in (None, figure.name))
    if not chosen:
        known = ", ".join(figure.name for figure in of_paper)
        raise InputError(f"paper {paper} has no {name!r} here; there are {known}")
    return chosen


def need_papers() -> None:
    """Raise `MissingExtraError` if a package is missing that runs or draws the experiments."""
    for package in ("matplotlib",):
        if find_spec(package) is None:
            raise missing_extra(package, "papers")
