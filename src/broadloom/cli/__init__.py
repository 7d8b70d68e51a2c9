"""Command line `broadloom`: it parses arguments, calls the package, and prints results."""

from broadloom.cli.app import main

__all__ = ["main"]
