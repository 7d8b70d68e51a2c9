"""Results of the stages: each measures, verifies, saves and loads itself."""

from broadloom.plans.assignment_result import (
    AssignedBlock,
    AssignmentResult,
    SavedAssignment,
    assignment_summary,
    filters_table,
    is_assignment,
    read_assignment_record,
    write_assignment_record,
)
from broadloom.plans.division import WeightDivision
from broadloom.plans.market_result import (
    MarketResult,
    is_market,
    overloaded_brokers,
    saved_market_metrics,
)
from broadloom.plans.plan import Plan, read_link_record, saved_not_carried
from broadloom.plans.positions import map_positions, plane_positions, site_names
from broadloom.plans.stage_result import StageResult

__all__ = [
    "AssignedBlock",
    "AssignmentResult",
    "MarketResult",
    "Plan",
    "SavedAssignment",
    "StageResult",
    "WeightDivision",
    "assignment_summary",
    "filters_table",
    "is_assignment",
    "is_market",
    "map_positions",
    "overloaded_brokers",
    "plane_positions",
    "read_assignment_record",
    "read_link_record",
    "saved_market_metrics",
    "saved_not_carried",
    "site_names",
    "write_assignment_record",
]
