"""Inputs of the stages: frozen values over read-only arrays, and the tables that they are read from."""

from broadloom.model.algorithm import Algorithm, NoOptions, find_algorithm, nearest_name
from broadloom.model.assignment_problem import (
    ASSIGNMENT_LIMITS,
    AssignmentProblem,
    ContentFilter,
    assignment_tables,
    read_assignment_problem,
    write_assignment_problem,
)
from broadloom.model.channels import Grid, summarize
from broadloom.model.cloud_regions import INNER_MS, REGIONS, Region, region_latency, region_points
from broadloom.model.density import Density, DensityArrays, measure_of
from broadloom.model.graphs import Adjacency, Interest, Overlay
from broadloom.model.link_problem import WEIGHT_SOURCES, LinkProblem, read_link_problem, write_link_problem
from broadloom.model.market_problem import (
    CORES,
    LOAD_TOLERANCE,
    PRICE_TOLERANCE,
    MarketProblem,
    TrafficReader,
    check_core,
    check_has_points,
    read_market_problem,
)
from broadloom.model.row_ledger import LEDGER_FILE, Reason, RowLedger, TableAccount
from broadloom.model.weights import (
    DENSE,
    EUCLIDEAN,
    SITES,
    UNIFORM,
    WEIGHT_KINDS,
    WeightArrays,
    Weights,
    fill_missing,
    raise_to_floor,
    symmetrised,
    weight_of,
)

__all__ = [
    "ASSIGNMENT_LIMITS",
    "CORES",
    "DENSE",
    "EUCLIDEAN",
    "INNER_MS",
    "LEDGER_FILE",
    "LOAD_TOLERANCE",
    "PRICE_TOLERANCE",
    "REGIONS",
    "SITES",
    "UNIFORM",
    "WEIGHT_KINDS",
    "WEIGHT_SOURCES",
    "Adjacency",
    "Algorithm",
    "AssignmentProblem",
    "ContentFilter",
    "Density",
    "DensityArrays",
    "Grid",
    "Interest",
    "LinkProblem",
    "MarketProblem",
    "NoOptions",
    "Overlay",
    "Reason",
    "Region",
    "RowLedger",
    "TableAccount",
    "TrafficReader",
    "WeightArrays",
    "Weights",
    "assignment_tables",
    "check_core",
    "check_has_points",
    "fill_missing",
    "find_algorithm",
    "measure_of",
    "nearest_name",
    "raise_to_floor",
    "read_assignment_problem",
    "read_link_problem",
    "read_market_problem",
    "region_latency",
    "region_points",
    "summarize",
    "symmetrised",
    "weight_of",
    "write_assignment_problem",
    "write_link_problem",
]
