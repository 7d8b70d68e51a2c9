"""Processes that run beside brokers: links that follow plans, and moves of clients."""
