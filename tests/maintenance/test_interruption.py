"""A change that is interrupted never leaves a wrong overlay that looks right."""

import pytest

import broadloom as bl
from broadloom.maintenance import dynamics


def test_an_overlay_whose_change_was_interrupted_refuses_everything(monkeypatch):
    """Ctrl-C in the middle of a join: later calls raise, instead of giving wrong links."""
    live = bl.maintain(bl.Interest.from_lists([["a"], ["a"], ["a", "b"], ["b"]]))
    live.join(["a"])

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dynamics.OverlayDynamics, "_attach", interrupt)
        with pytest.raises(KeyboardInterrupt):
            live.join(["b"])
    for call in (lambda: live.edges, lambda: live.join(["a"]), live.metrics, live.plan):
        with pytest.raises(bl.InternalError, match="a change of this overlay was interrupted"):
            call()


def test_a_refused_change_leaves_the_overlay_as_it_was():
    """Wrong input is not an interruption."""
    live = bl.maintain(bl.Interest.from_lists([["a"], ["a"]]))
    with pytest.raises(bl.InputError):
        live.leave(7)
    assert live.edges.tolist() == [[0, 1]]
