"""Slow search for a better plan of a running fleet, in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from broadloom.errors import BroadloomError, InternalError
from broadloom.linking import link

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from broadloom.plans import Plan

LOW_PRIORITY = 10  # of the process


class RelinkQuestion(NamedTuple):
    """What a search for a better plan needs; it can be pickled.

    Attributes:
        plan: the present overlay.
        max_degree: the most links that a broker can have; None: no limit.
        seed: the seed.
    """

    plan: Plan
    max_degree: int | None
    seed: int


def relink(question: RelinkQuestion) -> Plan:
    """A fresh plan for what is wanted now, which is never heavier than the present one; this can be slow.

    Raises:
        InputError: there is no plan within the limit on degrees.
    """
    present = question.plan
    options: dict[str, Any] = {} if question.max_degree is None else {"max_degree": question.max_degree}
    return link(present.interest, present.weights, seed=question.seed, previous=present, **options)


async def in_process(work: Callable[[Any], Any], value: Any) -> Any:
    """What a function of a module returns for a value, computed in a process of its own with a low priority.

    The process ends with the task that waits for it.

    Raises:
        BroadloomError: as the function.
        InternalError: the process has ended without a result.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(sender, work, value), daemon=True)
    process.start()
    sender.close()
    receiving = asyncio.ensure_future(asyncio.to_thread(receiver.recv))
    try:
        result = await asyncio.shield(receiving)
    except EOFError as error:
        raise InternalError("the process that looks for a better plan has ended early") from error
    finally:
        process.kill()
        # Its death ends `recv`; the file must stay open until then, or another one could get its number.
        await asyncio.gather(receiving, return_exceptions=True)
        process.join()
        process.close()
        receiver.close()
    if isinstance(result, BroadloomError):
        raise result
    return result


def _compute(sender: Connection, work: Callable[[Any], Any], value: Any) -> None:
    if hasattr(os, "nice"):
        os.nice(LOW_PRIORITY)
    try:
        result = work(value)
    except BroadloomError as error:
        result = error
    sender.send(result)
