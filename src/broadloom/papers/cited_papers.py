"""References of the five papers, as the page, the documentation and CITATION.cff cite them."""

from __future__ import annotations

from typing import NamedTuple


class CitedPaper(NamedTuple):
    """A paper.

    Attributes:
        authors: all authors, in the order of the paper.
        title: its title.
        venue: where it appeared, with pages.
        year: when it appeared.
        link: its DOI or address; empty if none is known.
        short: what it is about, in a few words.
    """

    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
    link: str
    short: str

    @property
    def text(self) -> str:
        """The full reference in one line."""
        names = ", ".join(self.authors[:-1]) + f" and {self.authors[-1]}"
        return f"{names}: {self.title}. {self.venue}, {self.year}.{f' {self.link}' if self.link else ''}"


PAPERS: dict[int, CitedPaper] = {
    1: CitedPaper(
        ("Chen Chen", "Yoav Tock", "Hans-Arno Jacobsen", "Roman Vitenberg"),
        "Weighted Overlay Design for Topic-Based Publish/Subscribe Systems on Geo-Distributed Data Centers",
        "35th IEEE International Conference on Distributed Computing Systems (ICDCS), pages 474-485",
        2015,
        "https://doi.org/10.1109/ICDCS.2015.55",
        "weighted overlays",
    ),
    2: CitedPaper(
        ("Melih Onus", "Andréa W. Richa"),
        "Parameterized Maximum and Average Degree Approximation in Topic-Based Publish-Subscribe Overlay "
        "Network Design",
        "30th IEEE International Conference on Distributed Computing Systems (ICDCS)",
        2010,
        "",
        "low degree",
    ),
    3: CitedPaper(
        ("Chen Chen", "Hans-Arno Jacobsen", "Roman Vitenberg"),
        "Reinforce Your Overlay with Shadows: Efficient Dynamic Maintenance of Robust Low Fan-out Overlays "
        "for Topic-based Publish/Subscribe under Churn",
        "Technical report, University of Toronto and University of Oslo, 13 pages",
        2011,
        "http://www.msrg.org/papers/TRCJV-DynShadow",
        "shadows",
    ),
    4: CitedPaper(
        ("Albert Yu", "Pankaj K. Agarwal", "Jun Yang"),
        "Subscriber Assignment for Wide-Area Content-Based Publish/Subscribe",
        "27th IEEE International Conference on Data Engineering (ICDE), pages 267-278; extended version: "
        "IEEE Transactions on Knowledge and Data Engineering 24(10), 2012, "
        "https://doi.org/10.1109/TKDE.2012.65",
        2011,
        "",
        "subscriber assignment",
    ),
    5: CitedPaper(
        ("Yaxiong Zhao", "Jie Wu"),
        "On the Construction of the Minimum Cost Content-Based Publish/Subscribe Overlays",
        "8th IEEE Conference on Sensor, Mesh and Ad Hoc Communications and Networks (SECON), pages 476-484",
        2011,
        "",
        "minimum cost",
    ),
}
