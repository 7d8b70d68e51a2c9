"""Naive order of moves, and a checker of plans that is independent of the planner."""

from __future__ import annotations

import numpy as np

from broadloom.measures import market_cost


def loads(problem, at):
    """What each broker carries."""
    return np.array(
        [problem.demand[np.asarray(at) == broker].sum() for broker in range(problem.broker_count)]
    )


def check(problem, present, planned, plan, at_once):
    """Assert what every plan of moves promises, by playing it."""
    at, broker_of = list(present), {name: i for i, name in enumerate(problem.broker_ids)}
    user_of = {name: i for i, name in enumerate(problem.user_ids)}
    parked = set()
    for step in plan.steps:
        assert 1 <= len(step) <= at_once
        assert len({move.client for move in step}) == len(step)
        both = loads(problem, at)
        for move in step:  # a client counts at both brokers while it moves
            user, to = user_of[move.client], broker_of[move.to]
            assert broker_of[move.home] == at[user] != to
            both[to] += problem.demand[user]
            assert both[to] <= problem.limit[to] * (1 + 1e-9)
            if to != planned[user]:
                assert user not in parked
                parked.add(user)
        for move in step:
            at[user_of[move.client]] = broker_of[move.to]
    left = {user for user in range(problem.user_count) if at[user] != planned[user]}
    assert {move.client for move in plan.blocked} == {problem.user_ids[user] for user in left}
    assert bool(plan.advice) == bool(left)
    assert np.isclose(plan.cost_after, market_cost(problem, at).total)
    for user in left:  # nobody who is blocked would fit
        assert loads(problem, at)[planned[user]] + problem.demand[user] > problem.limit[planned[user]]


def first_step(problem, present, planned, at_once):
    """The moves of the most gain that fit together, each gain from two whole costs."""
    before = market_cost(problem, present).total
    gains = {}
    for user in range(problem.user_count):
        if present[user] != planned[user]:
            after = list(present)
            after[user] = planned[user]
            gains[user] = before - market_cost(problem, after).total
    both, chosen = loads(problem, present), []
    for user in sorted(gains, key=lambda one: (-round(gains[one], 6), one)):
        to = planned[user]
        if len(chosen) < at_once and both[to] + problem.demand[user] <= problem.limit[to]:
            both[to] += problem.demand[user]
            chosen.append((user, round(gains[user], 6)))
    return chosen
