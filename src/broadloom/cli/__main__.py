"""`python -m broadloom.cli` is `broadloom`."""

from broadloom.cli.app import main

main()
