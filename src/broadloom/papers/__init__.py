"""Each figure and table of the five papers as data, ours beside theirs: one module a paper."""

from broadloom.errors import InputError
from broadloom.papers import content, low_degree, markets, shadows, weighted
from broadloom.papers.figure import Figure

FIGURES: tuple[Figure, ...] = (
    *weighted.FIGURES,
    *low_degree.FIGURES,
    *shadows.FIGURES,
    *content.FIGURES,
    *markets.FIGURES,
)


def figures_of(paper: int | None = None, name: str | None = None) -> tuple[Figure, ...]:
    """The figures of all papers, of one, or a single one.

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
