"""Minimum-cost assignment of users to brokers (paper 5)."""
