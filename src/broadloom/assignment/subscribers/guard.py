"""A guard for greedy assignments: accept a choice only if everybody else can still be placed.

It keeps a whole tentative assignment of those who are not decided yet (a max-flow, by groups). A choice that
takes the last room of somebody else is accepted if others can move out of the way, one by one along a path of
brokers, and refused otherwise. What the tentative assignment has for a subscriber is always accepted, so
nobody is ever stranded.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.flow import Flow, add_units, place_of, search_room, shift
from broadloom.assignment.subscribers.reach import Reach
from broadloom.kernels import kernel


@kernel
def admit(reach: Reach, flow: Flow, limit: NDArray[np.int64], g: int, b: int) -> bool:
    """Decide that one subscriber of group `g` goes to `b`, unless that would strand another.

    `flow.units` counts the undecided, `flow.load` everybody, decided or not.
    """
    p = place_of(reach, g, b)
    if flow.units[p] > 0:
        _decide(reach, flow, p)
        return True
    taken = reach.start[g]
    while flow.units[taken] == 0:
        taken += 1
    add_units(reach, flow, taken, -1)
    if flow.load[b] < limit[b] or _make_room(reach, flow, limit, b):
        flow.load[b] += 1
        return True
    add_units(reach, flow, taken, 1)
    return False


@kernel
def _decide(reach: Reach, flow: Flow, p: int) -> None:
    """A tentative place becomes final: the load stays, but this one cannot move any more."""
    add_units(reach, flow, p, -1)
    flow.load[reach.brokers[p]] += 1


@kernel
def _make_room(reach: Reach, flow: Flow, limit: NDArray[np.int64], b: int) -> bool:
    """Move one undecided subscriber on from each broker of a path, so that `b` has room; false if none."""
    n = len(limit)
    came_from, reached = np.full(n, -1, np.int64), np.zeros(n, np.bool_)
    queue = np.empty(n, np.int64)
    queue[0], reached[b] = b, True
    end = search_room(flow, limit, queue, 1, reached, came_from)
    if end < 0:
        return False
    while came_from[end] >= 0:
        shift(reach, flow, came_from[end], end, 1)
        end = came_from[end]
    return True
