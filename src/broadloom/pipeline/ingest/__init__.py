"""Ingest: raw logs, dumps and pings to canonical tables, with an account of every row."""
