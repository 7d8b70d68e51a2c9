"""Agents next to running brokers: links that follow plans, and moves of clients."""
