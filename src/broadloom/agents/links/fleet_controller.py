"""Controller of a fleet's routes: it leads site agents from one set of trees to the next.

A change of trees has four steps. *Open*: agents open the new hops. *Switch*: a new version begins, which uses
the new trees. *Drain*: messages of earlier versions finish on the old trees. *Close*: the old trees go.
Groups of filters that change independently of each other are separate units: a unit that waits for an agent
delays no other unit. Each step is in the journal before it takes effect.

The controller has no clock, no threads and no network: a service passes reports in, sends the orders
of the brokers that `on_orders` names, and calls `tick` a few times per second.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broadloom.agents.links.agent_views import AgentView, AgentViews
from broadloom.agents.links.controller_status import controller_status
from broadloom.agents.links.fleet_state import Filters, FleetState
from broadloom.agents.links.group_trees import (
    Hops,
    adoption_record,
    is_leaf,
    new_receivers,
    with_leaves,
    without_brokers,
)
from broadloom.agents.links.route_orders import NO_EPOCH, AgentOrders, AgentReport, Epoch, Route
from broadloom.agents.links.target_units import PendingUnit, TargetUnits
from broadloom.checks import check_choice
from broadloom.errors import StorageError

if TYPE_CHECKING:
    from broadloom.storage import RecordJournal

LOG = logging.getLogger("broadloom.controller")
ABSENT = ("keep", "drop")
LAST_CHANGES = 50
SNAPSHOT_BYTES = 4_000_000  # of new records, before a snapshot replaces them
OPENED_HOPS, OPENED_TREES = 5000, 1000  # opened at once; more would hold up reports and messages


class FleetController:
    """Controller of the routes of a fleet.

    Args:
        journal: its journal; a restart with the same journal continues where it was.
        now: a clock that never goes back, in seconds.
        patience: the seconds after which a broker that is away is left out (`absent="drop"`), an agent that
            does not open its hops is set aside, and routes of a removed broker are given up.
        absent: what becomes of a broker that is away when trees change: it becomes a leaf of the new trees,
            and its neighbour keeps messages for it ("keep"), or it is left out after the patience ("drop").
        take_over: adopt the routes that agents have from another controller, instead of being refused.
        silence: after how many seconds without a report an agent is away.
        grace: how long changes that are ready wait for others, so that they share a version.

    Attributes:
        on_orders: called with the brokers that have new orders.

    Raises:
        JournalDamageError: the journal is damaged.
        StorageError: it cannot be written.

    Examples:
        >>> from broadloom.storage import RecordJournal
        >>> controller = FleetController(RecordJournal(None), now=lambda: 0.0)
        >>> controller.receive(AgentReport("rome", "1", broker_up=True))
        >>> controller.receive(AgentReport("oslo", "2", broker_up=True))
        >>> controller.set_target({("news",): frozenset({("rome", "oslo"), ("oslo", "rome")})})
        >>> [route.filters for route in controller.orders_for("rome").routes.values()]
        [('news',)]
        >>> controller.status()["opening"][0]["waits_for"]
        ['oslo', 'rome']
    """

    def __init__(
        self,
        journal: RecordJournal,
        now: Callable[[], float],
        patience: float = 60.0,
        absent: str = "keep",
        take_over: bool = False,
        silence: float = 10.0,
        grace: float = 1.0,
    ) -> None:
        self.on_orders: Callable[[set[str]], None] = lambda _: None
        self._journal = journal
        self._now = now
        self._patience = patience
        self._absent = check_choice(absent, "absent", ABSENT)
        self._take_over = take_over
        self._silence = silence
        self._grace = grace
        self._start = now()
        self._state = FleetState()
        for record in journal.records():
            self._state.apply(record.kind, record.body)
        self._views = AgentViews(self._state, now, silence)
        self._agents = self._views.views
        self._past = defaultdict[str, set[str]](set)  # earlier processes of each agent
        self._refusals: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._problem_times: dict[str, tuple[float, float]] = {}  # when each was said first and last
        self._removed_at = dict.fromkeys(self._state.removed, self._start)
        self._changes = TargetUnits(self._state)
        self._may_open = True
        self._addresses = self._state.addresses
        self._adopted = set[tuple[str, Epoch, int]]()
        self._doubtful = set(self._state.routes)  # routes that agents of another controller must confirm
        self._left_out: dict[str, set[str]] = {}
        self._ready_since: float | None = None
        self._history = deque[dict[str, Any]](maxlen=LAST_CHANGES)
        self._switched_at = dict.fromkeys(self._state.rounds, self._start)
        self._numbers: dict[str, int] = {}
        self._orders: dict[str, AgentOrders] = {}
        self._changed = set[str]()
        self._first_position = self._position
        self._followers = set[str]()
        self._opened_at = dict.fromkeys(self._state.opening, (0, self._start))
        self._needs: dict[int, frozenset[str]] = {}
        self._lacking: dict[tuple[int, frozenset[str]], list[str]] = {}  # brokers that have not opened orders
        self._snapshot_bytes = SNAPSHOT_BYTES
        self._reign(self._state.epoch.number + 1)
        self._needs = {key: self._senders_of(key) for key in self._state.opening}

    # Interface.

    @property
    def epoch(self) -> Epoch:
        """The epoch of this controller."""
        return self._state.epoch

    @property
    def refused(self) -> str | None:
        """Why the controller orders nothing; None: it is obeyed."""
        return next(iter(self._refusals.values()), None)

    @property
    def asks_routes(self) -> bool:
        """Whether reports should contain the agents' routes."""
        return self._take_over

    def set_target(
        self,
        targets: Mapping[Filters, Hops],
        addresses: Mapping[str, str] | None = None,
        are_trees: bool = False,
    ) -> None:
        """Set the trees that the fleet should have; a change that is being opened is finished first.

        Args:
            targets: the directed hops of the tree of each group of filters; empty: take everything down.
            addresses: the addresses of brokers that the fleet file does not have.
            are_trees: whether it is known that the hops of each group are a tree (`check_trees`).

        Raises:
            InputError: the hops of a group are not a tree, or two groups have topics in common.
        """
        self._changes.set_target(targets, are_trees)
        kept = {name: text for name, text in self._state.addresses.items() if self._state.routes_of(name)}
        self._addresses = kept | dict(addresses or {})
        self.tick()

    def receive(self, report: AgentReport) -> None:
        """Take a report; reports can be lost, doubled or out of order."""
        self._advance(lambda: self._accepts(report) and self._note(report))

    def tick(self) -> None:
        """Do what can be done now; call it a few times per second."""
        self._advance(lambda: True)

    def _advance(self, first: Callable[[], bool]) -> None:
        """Do all steps that can be done, if `first` returns true; a full disk delays them."""
        self._may_open = True
        self._lacking.clear()
        try:
            if first() and self.refused is None:
                while self._step():
                    pass
                if self._journal.new_bytes > self._snapshot_bytes:
                    self.compact()
                self._problems.pop("journal", None)
        except StorageError as error:
            self._say("journal", str(error))
        changed, self._changed = self._changed, set()
        if changed and self.refused is None:
            self.on_orders(changed)

    def compact(self) -> None:
        """Replace the records of the journal by one snapshot."""
        self._journal.replace([("snapshot", self._state.snapshot())])
        self._snapshot_bytes = max(SNAPSHOT_BYTES, self._journal.size)

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses of brokers that agents were told."""
        return self._state.addresses

    @property
    def removed(self) -> Collection[str]:
        """The brokers that are removed for good."""
        return self._state.removed

    def orders_for(self, broker: str) -> AgentOrders:
        """The orders of a broker's agent; those of no epoch, which agents refuse, if it has none."""
        if self.refused is not None or broker not in self._agents:
            return AgentOrders()  # before its first report, an agent can have newer orders than the journal
        if broker not in self._orders:
            self._orders[broker] = self._compose(broker)
        return self._orders[broker]

    def remove(self, broker: str) -> None:
        """Remove a broker for good; after the patience, old routes that have it are given up."""
        if broker not in self._state.removed:
            self._removed_at[broker] = self._now()
            self._commit("removed", {"brokers": sorted(self._state.removed | {broker})})
            self.tick()

    def admit(self, broker: str) -> None:
        """Take a removed broker back."""
        if broker in self._state.removed:
            self._commit("removed", {"brokers": sorted(self._state.removed - {broker})})
            self._removed_at.pop(broker, None)
            self.tick()

    def give_up(self) -> list[str]:
        """Drop all old routes that still drain, and return one sentence per change; an operator's act."""
        lines = []
        for change in sorted(self._state.draining):
            lines.append(f"the trees before version {change} are given up; {self._why_draining(change)}")
            LOG.warning("%s", lines[-1])
            self._close(change, self._state.draining[change], given_up=True)
        self.tick()
        return lines

    def carries(self, broker: str, filters: Iterable[str]) -> bool:
        """Whether messages of these filters go to and from a broker, by trees that all their brokers use."""
        if self._views.is_lost(broker):
            return False
        routes = [
            route
            for route in self._state.routes_of(broker).values()
            if route.since and route.until is None and any(end == broker for _, end in route.hops)
        ]
        found = {text: route for route in routes for text in route.filters}
        return all(
            text in found
            and all(self._uses(other, found[text]) for other in found[text].brokers())
            and not any(self._refuses(other, text) for other in found[text].brokers())
            for text in filters
        )

    def trees(self) -> dict[Filters, Hops]:
        """The hops of each group in use or being opened; a planner keeps them where it can."""
        routes = self._state.routes
        return {filters: routes[number].hops for filters, number in self._state.current.items()}

    def settled(self) -> bool:
        """Whether the fleet has the trees of the target, and all agents have followed.

        Brokers that are left out (`absent="drop"`) do not count: not in the trees, and not as agents.
        """
        state = self._state
        if self.refused is not None or self._changes.target is None or state.opening:
            return False
        return (
            all(self._is_reached(unit) for unit in self._changes.units())
            and all(map(self._waits_for_left_out, state.draining))
            and all(self._follows(broker) or self._is_left_out(broker) for broker in state.brokers())
            and all(self._follows(broker) for broker in self._agents if not self._views.is_lost(broker))
        )

    # Reports.

    def _accepts(self, report: AgentReport) -> bool:
        """Whether the agent obeys this controller; otherwise say what is wrong, or take over."""
        broker, epoch = report.broker, report.epoch
        fault = None
        if epoch not in (NO_EPOCH, *self._state.reigns):
            fault = f"the agent of {broker} obeys controller {epoch.controller} (epoch {epoch.number})"
        elif epoch not in (NO_EPOCH, self.epoch) and report.orders > self._first_position:
            fault = f"the agent of {broker} has newer orders than this journal, which is an old copy"
        if fault is not None and self._take_over:
            return self._adopt(report)
        if fault is None:
            self._refusals.pop(broker, None)
            return True
        text = f"{fault}; this controller orders nothing: stop it, or start it with --take-over"
        if self._refusals.get(broker) != text:
            LOG.error("%s", text)
        self._refusals[broker] = text
        return False

    def _note(self, report: AgentReport) -> bool:
        """Note a report; False: it is from an earlier process of the agent."""
        broker, now = report.broker, self._now()
        view = self._agents.get(broker)
        if report.instance in self._past[broker] and view is not None and now - view.seen <= self._silence:
            if report.instance.partition(".")[0] != view.report.instance.partition(".")[0]:
                self._say(f"agents {broker}", f"two agents report for broker {broker}; stop one of them")
            return False
        if view is None or view.report.instance != report.instance:
            if view is not None:
                self._past[broker].add(view.report.instance)
            self._past[broker].discard(report.instance)
            if self._state.instances.get(broker) != report.instance:
                self._restart_rounds(report)
            view = self._agents[broker] = AgentView(report, now, closed={})
            self._changed.add(broker)
        _, last = self._problem_times.get(f"agents {broker}", (0.0, now))
        if now - last > self._silence:  # the other agent has ended
            self._problems.pop(f"agents {broker}", None)
        view.report = report if report.filters is not None else replace(report, filters=view.report.filters)
        view.seen = now
        view.down_since = None if report.broker_up else view.down_since or now
        view.published = max(view.published, report.published)
        closed = view.closed = view.closed or {}
        closed |= {change: max(number, closed.get(change, 0)) for change, number in report.closed.items()}
        if report.epoch == self.epoch:
            view.opened = max(view.opened, report.opened)
            self._followers.add(broker)
        return True

    def _restart_rounds(self, report: AgentReport) -> None:
        """A new process of an agent knows nothing of the closing rounds that the one before took part in."""
        state = self._state
        again = {
            str(change): state.rounds[change] + 1
            for change in state.rounds
            if report.broker in state.closers(change)
        }
        self._commit("agent", {"broker": report.broker, "instance": report.instance, "rounds": again})

    def _adopt(self, report: AgentReport) -> bool:
        """Take over an agent with its routes; the epoch rises above that of the controller before."""
        name = f"adopt {report.broker}"
        source = (report.broker, report.epoch, report.orders)
        if source in self._adopted:
            return True
        if report.routes is None:
            self._say(name, f"the agent of {report.broker} has not said yet which routes it has")
            return False
        self._problems.pop(name, None)
        state = self._state
        if state.opening:
            self._commit("cancel", {"units": list(state.opening)})
        self._doubtful = self._doubtful & state.routes.keys() - {route.number for route in report.routes}
        self._commit("adopt", adoption_record(state, report, self._doubtful))
        self._adopted.add(source)
        self._renew([report.broker])  # its orders must have a higher number than those that it has
        if report.epoch.number >= self.epoch.number:
            self._reign(report.epoch.number + 1)
        self._switched_at |= {
            change: self._now() for change in state.rounds if change not in self._switched_at
        }
        LOG.warning("%d routes of the agent of %s are taken over", len(report.routes), report.broker)
        return True

    # Steps.

    def _step(self) -> bool:
        """Do one step, if one can be done."""
        self._lacking.clear()
        if self._addresses != self._state.addresses:
            self._commit("addresses", {"addresses": self._addresses})
        if not self._has_majority():
            return False
        return (
            self._close_drained()
            or self._cancel_blocked()
            or self._switch_ready()
            or self._open_pending()
            or self._raise_versions()
        )

    def _close_drained(self) -> bool:
        now = self._now()
        gone = {name for name, at in self._removed_at.items() if now - at >= self._patience}
        for change in list(self._state.draining):
            numbers = self._state.draining[change]
            if not self._unclosed(change):
                self._close(change, numbers)
                return True
            lost = {number for number in numbers if gone & self._state.routes[number].brokers()}
            if lost:
                names = ", ".join(sorted(gone))
                text = f"{len(lost)} old trees before version {change} are given up: {names} was removed"
                LOG.warning("%s", text)
                self._say(f"given up {change}", text)
                self._close(change, lost, given_up=True)
                return True
        return False

    def _close(self, change: int, numbers: Iterable[int], given_up: bool = False) -> None:
        self._commit("closed", {"change": change, "routes": sorted(numbers), "given_up": given_up})
        if change not in self._state.draining:
            started = self._switched_at.pop(change, None)
            for entry in self._history:
                if entry["version"] == change and started is not None:
                    entry["drained_s"] = round(self._now() - started, 3)
                    entry["given_up"] = given_up

    def _cancel_blocked(self) -> bool:
        """Set units aside that need an agent that is away, or that does not open its hops."""
        now = self._now()
        late = [key for key in self._state.opening if now - self._opened_at[key][1] > self._patience]
        for key in late:
            self._views.leave_alone(self._unopened(key), self._patience)
        blocked = [key for key in self._state.opening if any(map(self._views.is_absent, self._unopened(key)))]
        if blocked:
            self._commit("cancel", {"units": blocked})
        return bool(blocked)

    def _switch_ready(self) -> bool:
        opening = self._state.opening
        ready = [key for key in opening if not self._unopened(key)]
        now = self._now()
        if not ready:
            self._ready_since = None
            return False
        self._ready_since = now if self._ready_since is None else self._ready_since
        if len(ready) < len(opening) and now - self._ready_since < self._grace:
            return False
        version = self._state.version + 1
        entry = {
            "version": version,
            "groups": sum(len(opening[key].new) for key in ready),
            "replaced": sum(len(opening[key].old) for key in ready),
            "opened_s": round(now - min(self._opened_at[key][1] for key in ready), 3),
            "drained_s": None,
        }
        self._commit("switch", {"version": version, "units": ready})
        if version in self._state.draining:
            self._switched_at[version] = now
        else:
            entry["drained_s"] = 0.0
        self._history.append(entry)
        self._ready_since = None
        return True

    def _open_pending(self) -> bool:
        """Open the units that can be opened now, some of them at a time."""
        if not self._may_open:
            return False
        units: dict[str, dict[str, Any]] = {}
        number = self._state.next_number
        hops = 0
        self._left_out = {}
        for unit in self._changes.units():
            able = None if unit.is_behind else self._able(unit)
            if able is None or not (able.old or able.new):
                continue
            old = [self._state.routes[one] for one in able.old]
            new = []
            for filters, tree in able.new.items():
                fresh = new_receivers(filters, tree, old)
                new.append(Route(number, filters, tree, fresh=fresh).to_json())
                number += 1
                hops += len(tree)
            units[str(number)] = {"old": able.old, "new": new}
            number += 1
            if hops >= OPENED_HOPS or number - self._state.next_number >= 2 * OPENED_TREES:
                self._may_open = False  # the others follow with the next tick
                break
        if units:
            self._commit("open", {"units": units})
            for key in map(int, units):
                self._opened_at[key] = (self._position, self._now())
                self._needs[key] = self._senders_of(key)
        return bool(units)

    def _raise_versions(self) -> bool:
        """Order the versions of changes that another controller began and did not order to all brokers."""
        state = self._state
        if not self._adopted or state.opening or self._changes.units():
            return False
        behind = {
            broker: change
            for change in sorted(state.draining)
            for broker in state.closers(change)
            if state.versions.get(broker, 0) < change
        }
        if behind:
            self._commit("versions", {"versions": behind})
        return bool(behind)

    def _able(self, unit: PendingUnit) -> PendingUnit | None:
        """The unit as it can be opened now; None: it waits.

        No message passes through a broker that is away: it becomes a leaf of the new trees. A leaf need not
        open its hop before the others switch, because the hop carries messages of that broker alone.
        """
        waits = {name for name in unit.senders if not self._views.is_available(name)}
        if not waits:
            return unit
        if not all(map(self._views.is_absent, waits)):
            return None  # an agent that has just not reported yet
        inner = {name for name in waits for hops in unit.new.values() if not self._can_skip(name, hops)}
        given_up = set(filter(self._is_left_out, unit.brokers))
        if not inner and given_up.isdisjoint(waits):
            return unit
        for name in given_up:
            self._left_out.setdefault(name, set()).update(text for group in unit.new for text in group)
        leaves = set(filter(self._views.is_absent, unit.brokers)) - given_up
        new: dict[Filters, Hops] = {}
        for filters, hops in unit.new.items():
            if reduced := without_brokers(hops, given_up):
                tree = with_leaves(reduced, leaves)
                if tree is None:
                    return None
                new[filters] = tree
        routes = [self._state.routes[number] for number in unit.old]
        same = {route.key for route in routes if new.get(route.key) == route.hops}
        return PendingUnit(
            tuple(route.number for route in routes if route.key not in same),
            {filters: hops for filters, hops in new.items() if filters not in same},
        )

    def _is_reached(self, unit: PendingUnit) -> bool:
        """Whether nothing of a unit is left to do, because brokers are left out."""
        able = None if unit.is_behind or self._absent == "keep" else self._able(unit)
        if able is None or able.old or able.new:
            return False
        return all(map(self._is_left_out, filter(self._views.is_absent, unit.brokers)))

    # Who waits for whom.

    def _has_majority(self) -> bool:
        """Whether most brokers of the present routes follow this epoch.

        Two controllers cannot both have a majority: one of them meets an agent that obeys the other.
        """
        brokers = self._state.brokers() - self._state.removed
        return 2 * len(brokers & self._followers) > len(brokers) or not brokers

    def _senders_of(self, key: int) -> frozenset[str]:
        routes = [self._state.routes[number] for number in self._state.opening[key].new]
        return frozenset(start for route in routes for start, _ in route.hops)

    def _has_opened(self, broker: str, key: int) -> bool:
        view = self._agents.get(broker)
        return view is not None and view.opened >= self._opened_at[key][0]

    def _unopened(self, key: int) -> list[str]:
        """The brokers that a unit waits for."""
        position, _ = self._opened_at[key]
        needs = self._needs[key]
        lacking = self._lacking.get((position, needs))
        if lacking is None:
            lacking = [name for name in needs if not self._has_opened(name, key)]
            self._lacking[position, needs] = lacking
        if not any(map(self._views.is_absent, lacking)):
            return lacking
        trees = [self._state.routes[number].hops for number in self._state.opening[key].new]
        return [name for name in lacking if not all(self._can_skip(name, hops) for hops in trees)]

    def _can_skip(self, broker: str, hops: Hops) -> bool:
        """Whether a switch to a tree need not wait for a broker: it is away, and no message passes it."""
        if all(start != broker for start, _ in hops):
            return True
        return self._views.is_absent(broker) and is_leaf(hops, broker)

    def _unclosed(self, change: int) -> list[str]:
        number = self._state.rounds[change]
        return [
            name
            for name in sorted(self._state.closers(change))
            if name not in self._agents or (self._agents[name].closed or {}).get(change) != number
        ]

    def _why_draining(self, change: int) -> str:
        waiting = self._unclosed(change)
        away = [name for name in waiting if self._views.is_lost(name)]
        if away:
            return f"{', '.join(away)} is away and can still have messages for them"
        return f"messages for them can still be on the way at {', '.join(waiting)}"

    def _is_left_out(self, broker: str) -> bool:
        """Whether trees go on without a broker, because it is away for longer than the patience."""
        if self._absent == "keep" or not self._views.is_absent(broker):
            return False
        return self._now() - self._views.away_since(broker) >= self._patience

    def _waits_for_left_out(self, change: int) -> bool:
        """Whether each old tree of a change has a broker that is left out, so that nobody can close it."""
        routes = [self._state.routes[number] for number in self._state.draining[change]]
        return all(any(map(self._is_left_out, route.brokers())) for route in routes)

    def _uses(self, broker: str, route: Route) -> bool:
        view = self._agents.get(broker)
        return view is not None and route.since is not None and view.published >= route.since

    def _refuses(self, broker: str, text: str) -> bool:
        """Whether a broker refuses a topic filter to its agent, so that messages do not leave it."""
        view = self._agents.get(broker)
        return view is not None and any(text in hop.refused for hop in view.report.hops.values())

    def _follows(self, broker: str) -> bool:
        view = self._agents.get(broker)
        if view is None or self._views.is_lost(broker):
            return False
        is_open = broker in self._followers and view.opened >= self._numbers.get(broker, 0)
        return is_open and view.published >= self._state.versions.get(broker, 0)

    # Journal and orders.

    @property
    def _position(self) -> int:
        """The number of orders that are given now: the position of the last step in the journal.

        So numbers rise over restarts, and an agent with higher ones shows that a journal is an old copy.
        """
        return self._journal.position + self._state.offset

    def _commit(self, kind: str, body: Mapping[str, Any]) -> None:
        """Write a step to the journal, then apply it."""
        self._journal.append(kind, body)
        self._renew(self._state.apply(kind, body))
        self._changes.follow_state(is_broker_removed=kind == "removed")
        for known in (self._opened_at, self._needs):
            for key in known.keys() - self._state.opening.keys():
                del known[key]

    def _renew(self, brokers: Iterable[str]) -> None:
        """Give brokers new orders."""
        for broker in brokers:
            self._numbers[broker] = self._position
            self._orders.pop(broker, None)
            self._changed.add(broker)

    def _reign(self, number: int) -> None:
        """Begin an epoch: agents must follow its orders anew."""
        # No other controller uses the same numbers of routes, whatever copy of a journal it has.
        numbers = secrets.randbits(26) << 26
        self._commit("epoch", {"number": number, "controller": secrets.token_hex(6), "numbers": numbers})
        self._followers = set()
        self._orders.clear()
        self._numbers = dict.fromkeys(self._state.brokers() | self._agents.keys(), self._position)
        self._changed |= self._numbers.keys()
        for view in self._agents.values():
            view.opened = 0
        self._opened_at = {key: (self._position, since) for key, (_, since) in self._opened_at.items()}

    def _compose(self, broker: str) -> AgentOrders:
        state = self._state
        routes = dict(state.routes_of(broker))
        near: set[str] = set()
        if state.addresses:
            near = {name for route in routes.values() for name in route.brokers()}
        return AgentOrders(
            self.epoch,
            self._numbers.setdefault(broker, self._position),
            state.versions.get(broker, 0),
            state.rounds_of(broker),
            routes,
            {name: text for name, text in state.addresses.items() if name in near},
        )

    def _say(self, name: str, text: str) -> None:
        first, _ = self._problem_times.get(name, (self._now(), 0.0))
        if self._problems.get(name) != text:
            LOG.warning("%s", text)
            first = self._now()
        self._problems[name] = text
        self._problem_times[name] = (first, self._now())

    def status(self) -> dict[str, Any]:
        """Everything that an operator should see, as JSON values."""
        return controller_status(self)
