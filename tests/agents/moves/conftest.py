"""Fixtures of the tests of moves."""

import pytest
from test_move_agent import World


@pytest.fixture
def world(tmp_path):
    """A move agent without brokers; its journal is closed after the test."""
    world = World(tmp_path / "journal")
    yield world
    world.journal.close()
