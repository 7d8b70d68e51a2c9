"""Assignment of subscribers to brokers (paper 4) and of market users to brokers (paper 5)."""

from broadloom.assignment.assignment_plan import ALGORITHMS, assign

__all__ = ["ALGORITHMS", "assign"]
