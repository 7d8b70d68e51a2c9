"""Naive order of moves, and a checker of plans that is independent of the planner."""

from __future__ import annotations

import numpy as np

from broadloom.measures import market_cost


def loads(problem, at):
    """The load of each broker."""
    return np.array(
        [problem.demand[np.asarray(at) == broker].sum() for broker in range(problem.broker_count)]
    )


def check(problem, present, planned, plan, at_once):
    """Assert the properties of every plan of moves, by applying its steps."""
    at = list(present)
    broker_of = {name: i for i, name in enumerate(problem.broker_ids)}
    user_of = {name: i for i, name in enumerate(problem.user_ids)}
    parked = set()
    for step in plan.steps:
        assert 1 <= len(step) <= at_once
        assert len({move.client for move in step}) == len(step)
        load = loads(problem, at)
        for move in step:  # a client counts at both brokers while it moves
            user, to = user_of[move.client], broker_of[move.to]
            assert broker_of[move.home] == at[user] != to
            load[to] += problem.demand[user]
            assert load[to] <= problem.limit[to] * (1 + 1e-9)
            if to != planned[user]:
                assert user not in parked
                parked.add(user)
        for move in step:
            at[user_of[move.client]] = broker_of[move.to]
    blocked = {user for user in range(problem.user_count) if at[user] != planned[user]}
    assert {move.client for move in plan.blocked} == {problem.user_ids[user] for user in blocked}
    assert bool(plan.advice) == bool(blocked)
    assert np.isclose(plan.cost_after, market_cost(problem, at).total)
    for user in blocked:  # none of them would fit
        assert loads(problem, at)[planned[user]] + problem.demand[user] > problem.limit[planned[user]]


def first_step(problem, present, planned, at_once):
    """The moves with the largest gains that fit together; each gain is a difference of two total costs."""
    before = market_cost(problem, present).total
    gains = {}
    for user in range(problem.user_count):
        if present[user] != planned[user]:
            after = list(present)
            after[user] = planned[user]
            gains[user] = before - market_cost(problem, after).total
    load, chosen = loads(problem, present), []
    for user in sorted(gains, key=lambda user: (-round(gains[user], 6), user)):
        to = planned[user]
        if len(chosen) < at_once and load[to] + problem.demand[user] <= problem.limit[to]:
            load[to] += problem.demand[user]
            chosen.append((user, round(gains[user], 6)))
    return chosen
