"""References of the five papers, and what our experiments do differently; the page and the docs show both."""

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
        differs: what our experiments do differently, or had to choose.
        extended: where an extended version appeared; empty if there is none.
    """

    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
    link: str
    short: str
    differs: str
    extended: str = ""

    @property
    def text(self) -> str:
        """The full reference in one line."""
        names = ", ".join(self.authors[:-1]) + f" and {self.authors[-1]}"
        more = [self.link] if self.link else []
        more += [f"Extended version: {self.extended}"] if self.extended else []
        return " ".join([f"{names}: {self.title}. {self.venue}, {self.year}.", *more])


PAPERS: dict[int, CitedPaper] = {
    1: CitedPaper(
        ("Chen Chen", "Yoav Tock", "Hans-Arno Jacobsen", "Roman Vitenberg"),
        "Weighted Overlay Design for Topic-Based Publish/Subscribe Systems on Geo-Distributed Data Centers",
        "35th IEEE International Conference on Distributed Computing Systems (ICDCS), pages 474-485",
        2015,
        "https://doi.org/10.1109/ICDCS.2015.55",
        "weighted overlays",
        "The paper divides its latencies by their average, but its own numbers imply a mean weight of about "
        "10, so weights have mean 10 here; at mean 1 each weighted number is a tenth. The King and Meridian "
        "matrices are not available: all figures use a published embedding of King in the plane, Fig. 8 also "
        "RIPE Atlas and WonderNetwork, as further rows. Without these files weights are distances of random "
        "points. Ties are by the smallest pair; the experiment `random` breaks them at random.",
    ),
    2: CitedPaper(
        ("Melih Onus", "Andréa W. Richa"),
        "Parameterized Maximum and Average Degree Approximation in Topic-Based Publish-Subscribe Overlay "
        "Network Design",
        "30th IEEE International Conference on Distributed Computing Systems (ICDCS)",
        2010,
        "",
        "low degree",
        "Low-ODA compares with >, as the text says; Alg. 1 prints >=. Ties are random. In Fig. 5 each "
        "algorithm has draws of its own.",
    ),
    3: CitedPaper(
        ("Chen Chen", "Hans-Arno Jacobsen", "Roman Vitenberg"),
        "Reinforce Your Overlay with Shadows: Efficient Dynamic Maintenance of Robust Low Fan-out Overlays "
        "for Topic-based Publish/Subscribe under Churn",
        "Technical report, University of Toronto and University of Oslo, 13 pages",
        2011,
        "http://www.msrg.org/papers/TRCJV-DynShadow",
        "shadows",
        "All links that a round adds or removes are repair edges, including those of a node that leaves. "
        "Low-ODA is built from scratch in a hundred of the rounds, each time also for the round before. Line "
        "8 of Alg. 12 is as printed (weight above 0); second rows of Fig. 3 have ours (weight 0 allowed). "
        "The paper does not name the popularity of Fig. 6 to 8; they are judged with uniform popularity, "
        "which its ratios imply.",
    ),
    4: CitedPaper(
        ("Albert Yu", "Pankaj K. Agarwal", "Jun Yang"),
        "Subscriber Assignment for Wide-Area Content-Based Publish/Subscribe",
        "27th IEEE International Conference on Data Engineering (ICDE), pages 267-278",
        2011,
        "",
        "subscriber assignment",
        "SLP1 and SLP run as printed, except that the search for a certificate begins at g = 1024, not at 4, "
        "which saves hundreds of linear programs (experiment `search`). Subscribers for whom the filters "
        "leave no room within the load limits get any broker in time. In a tree, "
        "the latency, the load and the threshold gamma of inner brokers are our reading, because the paper "
        "has them in a technical report that is not available: an inner broker is open to a subscriber if at "
        "least a share gamma of its leaves is in time. The workload generator is not public either.",
        "IEEE Transactions on Knowledge and Data Engineering 24(10), 2012, "
        "https://doi.org/10.1109/TKDE.2012.65",
    ),
    5: CitedPaper(
        ("Yaxiong Zhao", "Jie Wu"),
        "On the Construction of the Minimum Cost Content-Based Publish/Subscribe Overlays",
        "8th IEEE Conference on Sensor, Mesh and Ad Hoc Communications and Networks (SECON), pages 476-484",
        2011,
        "",
        "minimum cost",
        "Steiner mixing has one tree per channel, and minimum spanning trees connect the brokers; second "
        "rows have shortest paths between pairs, and one tree per channel and publisher. Greedy packing "
        "takes users by demand, the largest first. Clustering takes the largest ratio, as the text says, "
        "and the price between two users is that through their broker. Capacities bind every algorithm. The "
        "content space has 128 channels. The paper does not state its prices and the widths of "
        "subscriptions: where most of the six settings of the experiment `settings` disagree with the "
        "first, a claim is not comparable.",
    ),
}
