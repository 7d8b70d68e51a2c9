"""Subscriber assignment (paper 4): a leaf broker per subscriber, a content filter per broker."""

from broadloom.assignment.subscribers.annealing import (
    AnnealingOptions,
    KindShares,
    allot,
    broadloom,
    broker_by_rank,
    draw_sample,
    filters_around,
    kind_masks,
    place_rest,
    sample_filters,
)
from broadloom.assignment.subscribers.content_filters import Filters, around_members, as_tuples
from broadloom.assignment.subscribers.greedy_assignment import (
    GrOptions,
    OrderOptions,
    balance,
    closest,
    closest_unbalanced,
    feasible_beta,
    gr,
    gr_no_latency,
    gr_star,
)
from broadloom.assignment.subscribers.load_flow import (
    candidates_in_time,
    groups_from_masks,
    least_lbf,
    load_limits,
    masks_in_time,
    number_rows,
)
from broadloom.assignment.subscribers.slp import SlpOptions, slp, slp1

__all__ = [
    "AnnealingOptions",
    "Filters",
    "GrOptions",
    "KindShares",
    "OrderOptions",
    "SlpOptions",
    "allot",
    "around_members",
    "as_tuples",
    "balance",
    "broadloom",
    "broker_by_rank",
    "candidates_in_time",
    "closest",
    "closest_unbalanced",
    "draw_sample",
    "feasible_beta",
    "filters_around",
    "gr",
    "gr_no_latency",
    "gr_star",
    "groups_from_masks",
    "kind_masks",
    "least_lbf",
    "load_limits",
    "masks_in_time",
    "number_rows",
    "place_rest",
    "sample_filters",
    "slp",
    "slp1",
]
