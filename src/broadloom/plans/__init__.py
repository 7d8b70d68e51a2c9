"""Results of the stages: each measures, verifies, saves and loads itself."""

from broadloom.plans.assignment_result import AssignmentResult
from broadloom.plans.market_result import MarketResult
from broadloom.plans.plan import Plan

__all__ = ["AssignmentResult", "MarketResult", "Plan"]
