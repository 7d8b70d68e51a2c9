"""Atomic folders, canonical tables, append-only records, JSON and TOML documents."""
