"""Fixtures of the tests of moves."""

import pytest
from test_move_agent import World


@pytest.fixture
def world(tmp_path):
    """A move agent without brokers; its journal is closed after the test."""
    world = World(tmp_path / "journal")
    yield world
    world.journal.close()


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    """A key of the fleet, for configurations that name none."""
    monkeypatch.setenv("BROADLOOM_KEY", "a key for tests, not a secret")
