"""The command line `broadloom`: thin, it parses, calls and prints."""

from broadloom.cli.app import main

__all__ = ["main"]
