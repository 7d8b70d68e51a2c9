"""Steps of the moves of ordinary clients: what the agent does in each state (paper 5, section V).

`request_to_move` asks the operator's policy instead of the client, and `accept` is its answer. `replicate`
prepares the foreign session, `connect` changes the map and disconnects the client from home, and `redirect`
is the work of the relay, until the session at home is ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from broadloom.agents.moves.move_registry import (
    COMING,
    LEAVING,
    ORDINARY,
    Abandoned,
    Change,
    Drained,
    Move,
    MoveState,
    Registry,
    Resident,
    Stray,
    new_id,
)
from broadloom.agents.moves.ordinary_clients import NO_SESSION, RelayedClients, SeenClient
from broadloom.agents.moves.relayed_move import RelayPlan
from broadloom.mqtt.endpoint import Address

log = logging.getLogger("broadloom.agents.moves")

BYPASS_SECONDS = 5.0  # after which a client that is at the foreign broker has passed the relay by
BUSY_STATES = (MoveState.ACCEPTED, MoveState.REPLICATED, MoveState.CONNECTED)


class OrdinarySteps:
    """Moves of ordinary clients in the agent's thread.

    Args:
        clients: the relay and the routers.
        registry: the agent's state.
        addresses: the brokers' addresses for clients.
        agent_addresses: the brokers' addresses for the agent.
        save: journals changes and acts on them.
        in_own_thread: makes a function that has the agent's thread call another one.
        is_due: whether a step can be made or repeated now.
        unlinked: the broker of a move to which links do not carry the client's filters yet.
        is_at: whether a client is connected to a broker.
        review: a client as its broker shows it now, and why its move cannot begin; empty: it can.
        clock: seconds since 1970.
        limits: the seconds of `settle`, `move` and `abandon`.
    """

    def __init__(
        self,
        clients: RelayedClients,
        registry: Registry,
        addresses: Mapping[str, Address],
        agent_addresses: Mapping[str, Address],
        save: Callable[[list[Change]], None],
        in_own_thread: Callable[[Callable[..., None]], Callable[..., None]],
        is_due: Callable[[Any, float], bool],
        unlinked: Callable[[Move], str | None],
        is_at: Callable[[str, str], bool],
        clock: Callable[[], float],
        limits: Mapping[str, float],
        review: Callable[[Move], tuple[SeenClient | None, str]],
    ) -> None:
        self._clients = clients
        self._registry = registry
        self._addresses = addresses
        self._agent_addresses = agent_addresses
        self._journal = save
        self._in_own_thread = in_own_thread
        self._is_due = is_due
        self._unlinked = unlinked
        self._is_at = is_at
        self._clock = clock
        self._limits = limits
        self._review = review
        self._doubtful: dict[str, float] = {}  # moves of clients that are not known well, and since when
        self._busy: set[str] = set()  # moves with a step under way
        self._prepared: set[str] = set()  # moves whose session this process has prepared
        self._left: set[str] = set()  # moves whose client this process has disconnected from home
        self._problems: dict[str, str] = {}  # why the last step of a move has failed
        self._under_way: set[str] = set()  # moves that count for `at_once`, and when they were counted
        self._counted_at = -1.0

    def _save(self, changes: list[Change]) -> None:
        """Journal changes, and act on them."""
        self._journal(changes)
        for change in changes:
            if isinstance(change, Move):
                self._count(change)

    def advance(self, move: Move, waited: float, now: float) -> None:
        """Do the next step of a move, if it is due."""
        if move.id in self._busy:
            return
        resident = self._registry.residents[move.client]
        if move.state is MoveState.REQUESTED:
            self._ask_policy(move, now)
        elif move.state is MoveState.STAYING and now >= move.until:
            self._save([move.to(MoveState.REQUESTED, now)])
        elif move.state is MoveState.ACCEPTED:
            self._replicate(move, resident, waited, now)
        elif move.state is MoveState.REPLICATED:
            self._connect(move, resident, waited, now)
        elif move.state is MoveState.CONNECTED:
            self._redirect(move, resident, waited, now)

    def _ask_policy(self, move: Move, now: float) -> None:
        """`request_to_move` and `accept`: the operator's policy answers for the client."""
        answer = self._clients.policy.answer(move.client, move.home, move.foreign, now)
        if answer.answer == "decline":
            self._save([move.to(MoveState.DECLINED, now, "the policy file does not let it move")])
        elif answer.answer == "stay":
            self._save(
                [move.to(MoveState.STAYING, now, "the policy file lets it move later", answer.until or now)]
            )
        elif self._number_under_way(now) >= self._clients.policy.at_once:
            note = f"waiting: the policy file lets {self._clients.policy.at_once} clients move at once"
            if move.note != note:
                self._save([replace(move, note=note)])
        else:
            self._accept(move, now)

    def _accept(self, move: Move, now: float) -> None:
        """The policy has accepted: the client can have changed since the request, which can be days ago."""
        seen, problem = self._review(move)
        doubt = "" if seen is None else seen.doubt()
        waited = now - self._doubtful.setdefault(move.id, now)
        if problem or (doubt and waited > self._limits["move"]):
            self._doubtful.pop(move.id, None)
            self._save([move.to(MoveState.FAILED, now, problem or doubt)])
        elif doubt:
            if move.note != f"waiting: {doubt}":
                self._save([replace(move, note=f"waiting: {doubt}")])
        else:  # the foreign broker can have a stray session from before
            self._doubtful.pop(move.id, None)
            drained = Drained(move.client, move.foreign)
            self._save([*self._changed(move, seen), drained, move.to(MoveState.ACCEPTED, now)])

    def _changed(self, move: Move, seen: SeenClient | None) -> list[Change]:
        """The client with the filters that it has now, if they have changed."""
        resident = self._registry.residents[move.client]
        if seen is None or seen.broker != move.home:
            return []
        current = replace(resident, filters=seen.own_filters(), keeps=seen.keeps)
        return [] if current == resident else [current]

    def _number_under_way(self, now: float) -> int:
        """The number of ordinary clients that are moving; all moves are counted once per step."""
        if now != self._counted_at:
            self._counted_at = now
            self._under_way.clear()
            for move in self._registry.active_moves():
                self._count(move)
        return len(self._under_way)

    def _count(self, move: Move) -> None:
        is_ordinary = self._registry.residents[move.client].kind == ORDINARY
        if move.state in BUSY_STATES and is_ordinary and move.note != COMING:
            self._under_way.add(move.id)
        else:
            self._under_way.discard(move.id)

    def _replicate(self, move: Move, resident: Resident, waited: float, now: float) -> None:
        """`replicate`: prepare the client's session at the foreign broker."""
        unlinked = self._unlinked(move)
        if waited > self._limits["move"]:
            note = f"links of {unlinked!r} are not up" if unlinked else self._problem(move)
            self._fail(move, MoveState.FAILED, note, now)
        elif resident.keeps is False and not unlinked:
            self._save([move.to(MoveState.REPLICATED, now)])
        elif not unlinked and self._is_due((move.id, move.state), now):
            self._prepare(move, resident)

    def _prepare(self, move: Move, resident: Resident) -> None:
        def then(error: str | None) -> None:
            self._busy.discard(move.id)
            current = self._registry.moves[move.id]
            self._note_problem(move, f"no session at {move.foreign!r}", error)
            if error:
                return
            self._prepared.add(move.id)
            if current.state is MoveState.ACCEPTED:
                self._save([current.to(MoveState.REPLICATED, self._clock())])
            elif current.state is MoveState.REPLICATED:
                self._save([replace(current, since=self._clock())])

        self._busy.add(move.id)
        self._clients.prepare(self._plan(move, resident), self._in_own_thread(then))

    def _note_problem(self, move: Move, text: str, error: str | None) -> None:
        """Remember why a step has failed, for the note of a move that fails; None: it has succeeded."""
        if error is None:
            self._problems.pop(move.id, None)
        else:
            self._problems[move.id] = f"{text}: {error}"
            log.info("move %s: %s: %s", move.id, text, error)

    def _problem(self, move: Move, otherwise: str = "the foreign broker does not answer") -> str:
        """Why the last step of a move has failed."""
        return self._problems.get(move.id, otherwise)

    def _connect(self, move: Move, resident: Resident, waited: float, now: float) -> None:
        """`connect`: change the map, and disconnect the client from home, so that it connects anew."""
        if move.note not in (LEAVING, COMING):
            if move.id not in self._prepared and resident.keeps is not False:
                if waited > self._limits["move"]:
                    self._fail(move, MoveState.FAILED, self._problem(move), now)
                elif self._is_due((move.id, move.state), now):  # prepared by an agent that has died
                    self._prepare(move, resident)
            elif waited >= 2 * self._limits["settle"]:
                changed = self._new_filters(move)
                if changed is not None:  # its session is prepared anew
                    self._prepared.discard(move.id)
                    self._save([changed, replace(move, since=now)])
                else:
                    self._save([replace(move, since=now, note=LEAVING)])
        elif waited > (self._limits["abandon"] if move.note == COMING else self._limits["move"]):
            note = self._problem(move, "the client did not come")
            self._fail(move, MoveState.FAILED, note, now)
        elif resident.keeps is False:
            self._hand_over(move, resident, now)
        elif move.id not in self._left and self._is_due((move.id, move.state), now):
            self._take_over(move, resident)
        elif move.note == COMING and waited > BYPASS_SECONDS and self._is_due((move.id, COMING), now):
            self._call_back(move)

    def _new_filters(self, move: Move) -> Resident | None:
        """The client with other filters than those that were prepared; None: they are the same."""
        seen, _ = self._review(move)
        before = self._registry.residents[move.client]
        if seen is None or seen.broker != move.home or seen.own_filters() == before.filters:
            return None
        return replace(before, filters=seen.own_filters())

    def _call_back(self, move: Move) -> None:
        """Call a client back if the router has sent it past the relay, which did not answer in time."""
        if not self._is_at(move.client, move.foreign):
            return

        def then(error: str | None) -> None:
            self._busy.discard(move.id)
            self._note_problem(move, "the client has not come to the relay", error)

        self._busy.add(move.id)
        self._clients.call_back(move.client, self._in_own_thread(then))

    def _take_over(self, move: Move, resident: Resident) -> None:
        plan = replace(self._plan(move, resident), is_recovery=move.id not in self._prepared)

        def then(error: str | None) -> None:
            self._busy.discard(move.id)
            current = self._registry.moves[move.id]
            self._note_problem(move, f"the client does not leave {move.home!r}", error)
            if error:
                return
            self._left.add(move.id)
            changed = None if plan.is_recovery or current.is_over else self._new_filters(move)
            if changed is not None:
                note = "the client has changed its subscriptions while it left; request the move again"
                self._fail(current, MoveState.FAILED, note, self._clock(), changed)
            elif current.state is MoveState.REPLICATED:
                self._save([replace(current, since=self._clock(), note=COMING)])

        self._busy.add(move.id)
        report = self._in_own_thread(lambda event, note: self._on_report(move.id, event, note))
        self._clients.take_over(plan, move.foreign, report, self._in_own_thread(then))

    def _hand_over(self, move: Move, resident: Resident, now: float) -> None:
        """A client without a session has nothing to redirect."""
        if not self._is_due((move.id, move.state), now):
            return

        def then(error: str | None) -> None:
            self._busy.discard(move.id)
            current = self._registry.moves[move.id]
            moment = self._clock()
            self._note_problem(move, f"the client does not leave {move.home!r}", error)
            if not error and current.state is MoveState.REPLICATED:
                moved = replace(self._registry.residents[move.client], broker=move.foreign, since=moment)
                self._save([moved, current.to(MoveState.CONNECTED, moment)])

        self._busy.add(move.id)
        self._clients.hand_over(
            self._plan(move, resident), move.home, move.foreign, self._in_own_thread(then)
        )

    def _redirect(self, move: Move, resident: Resident, waited: float, now: float) -> None:
        """`redirect`: the relay does it; after a restart of the agent it begins anew."""
        if resident.keeps is False:
            self._await_arrival(move, waited, now)
        elif waited > self._limits["abandon"]:
            note = f"messages waiting at {move.home!r} were abandoned"
            left = Abandoned(move.client, move.home, now, True)
            self._save([left, move.to(MoveState.REDIRECTED, now, note)])
            self._clients.release(move.client, move.foreign)
        elif move.id not in self._left:
            if self._is_due((move.id, move.state), now):
                self._take_over(move, resident)
        elif waited > BYPASS_SECONDS and self._is_due((move.id, COMING), now):
            self._call_back(move)  # while there was no relay, the router has sent it to its broker

    def _await_arrival(self, move: Move, waited: float, now: float) -> None:
        """A client without a session has moved when the foreign broker shows that it is connected."""
        if self._is_at(move.client, move.foreign):
            left = Drained(move.client, move.home)  # so that links for it end
            self._save([move.to(MoveState.REDIRECTED, now, NO_SESSION), left])
        elif waited > self._limits["move"]:
            self._fail(move, MoveState.FAILED, "the client did not come", now)

    def _on_report(self, move_id: str, event: str, note: str) -> None:
        """What the relay reports of a client."""
        move = self._registry.moves[move_id]
        now = self._clock()
        resident = self._registry.residents[move.client]
        if event == "connected" and move.state is MoveState.REPLICATED:
            moved = replace(resident, broker=move.foreign, since=now)
            self._save([moved, move.to(MoveState.CONNECTED, now)])
        elif event == "drained" and move.state is MoveState.CONNECTED:
            # A broker that is killed now restores the session, so it is ended once more.
            again = Stray(move.client, move.home, now, False, new_id(), last=True)
            self._save([move.to(MoveState.REDIRECTED, now, note), again])
            self._clients.release(move.client, move.foreign)
        elif event == "failed" and move.state in (MoveState.REPLICATED, MoveState.CONNECTED):
            self._fail(move, MoveState.FAILED, note, now)

    def _fail(
        self, move: Move, state: MoveState, note: str, now: float, resident: Resident | None = None
    ) -> None:
        """End a move whose client goes home, where its session has everything.

        All changes are saved at once, also those of the client: this is repeated if the disk is full.
        """
        home = replace(resident or self._registry.residents[move.client], broker=move.home)
        stray = Stray(move.client, move.foreign, now, False, new_id())
        self._save([home, move.to(state, now, note), stray])
        self._problems.pop(move.id, None)
        self._clients.give_up(move.client, move.home)

    def cancel(self, move: Move, now: float) -> None:
        """End a move by the operator's wish, as long as its client has not arrived."""
        if move.state in (MoveState.REQUESTED, MoveState.STAYING):
            self._save([move.to(MoveState.CANCELLED, now, "cancelled by the operator")])
        else:
            self._fail(move, MoveState.CANCELLED, "cancelled by the operator", now)

    def abandon(self, move: Move) -> None:
        """The agent has ended a move otherwise, such as one of a broker that is no longer known.

        The map must not send the client to the relay any more: it connects to the broker that it is at.
        """
        self._problems.pop(move.id, None)
        self._doubtful.pop(move.id, None)
        self._under_way.discard(move.id)
        broker = self._registry.residents[move.client].broker
        if broker == move.foreign:
            self._clients.release(move.client, broker)
        else:
            self._clients.give_up(move.client, broker)

    def _plan(self, move: Move, resident: Resident) -> RelayPlan:
        return RelayPlan(
            move.id,
            move.client,
            resident.filters,
            self._agent_addresses[move.home],
            self._agent_addresses[move.foreign],
            self._addresses[move.foreign],
        )
