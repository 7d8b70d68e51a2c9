"""Choice of the links between brokers: every topic is connected, at the least cost (papers 1 and 2)."""

from broadloom.linking.degree_and_diameter import DegreeRule, grow, low_degree_edges
from broadloom.linking.divide_and_conquer import (
    DivideOptions,
    PartGroup,
    assemble,
    conquer,
    distances_to,
    divide,
    join,
    landmarks,
    members,
    rows_of,
)
from broadloom.linking.greedy_overlays import merge_by_weight
from broadloom.linking.link_plan import (
    ALGORITHMS,
    LinkChange,
    finish,
    fitting_weights,
    improve,
    link,
    link_change,
    lower_bound,
    run,
)
from broadloom.linking.link_result import LinkResult
from broadloom.linking.local_search import heaviest_first, reverse_delete

__all__ = [
    "ALGORITHMS",
    "DegreeRule",
    "DivideOptions",
    "LinkChange",
    "LinkResult",
    "PartGroup",
    "assemble",
    "conquer",
    "distances_to",
    "divide",
    "finish",
    "fitting_weights",
    "grow",
    "heaviest_first",
    "improve",
    "join",
    "landmarks",
    "link",
    "link_change",
    "low_degree_edges",
    "lower_bound",
    "members",
    "merge_by_weight",
    "reverse_delete",
    "rows_of",
    "run",
]
