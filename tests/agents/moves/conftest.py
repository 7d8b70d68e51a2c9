"""Fixtures of the tests of moves."""

import pytest
from test_move_agent import World


@pytest.fixture
def world(tmp_path):
    """An agent without brokers, and its journal."""
    made = World(tmp_path / "journal")
    yield made
    made.journal.close()
