"""Difference between the trees that a fleet should have and those that it has, in independent units.

The difference is kept up to date: a change of one group among thousands costs work for that group only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from broadloom.agents.links.group_trees import (
    Hops,
    check_tree,
    group_key,
    overlapping_groups,
    without_brokers,
)
from broadloom.errors import InputError
from broadloom.mqtt.topic_filters import FilterIndex

if TYPE_CHECKING:
    from broadloom.agents.links.fleet_state import Filters, FleetState


@dataclass(frozen=True)
class PendingUnit:
    """Groups that should change together, because old and new ones have topics in common.

    Attributes:
        old: the numbers of the routes that they have.
        new: their new trees.
        is_behind: whether an earlier change of these filters is still being opened.
    """

    old: tuple[int, ...]
    new: Mapping[Filters, Hops]
    is_behind: bool = False

    @cached_property
    def senders(self) -> frozenset[str]:
        """The brokers that send in the new trees.

        They must have the routes before others use them: a message would wait at a broker whose agent has not
        heard of its route.
        """
        return frozenset(start for hops in self.new.values() for start, _ in hops)

    @cached_property
    def brokers(self) -> frozenset[str]:
        """All brokers of the new trees."""
        return frozenset(broker for hops in self.new.values() for hop in hops for broker in hop)


class TargetUnits:
    """Units in which the target of a fleet differs from its state.

    Args:
        state: the state.

    Attributes:
        target: the hops of each group; None: there is no target yet.
    """

    def __init__(self, state: FleetState) -> None:
        self._state = state
        self.target: dict[Filters, Hops] | None = None
        self._owners: dict[str, Filters] = {}  # the group of each filter of the target
        self._index = FilterIndex(())
        self._differing: set[Filters] = set()
        self._due: set[Filters] = set()  # groups to be compared again
        self._sets = GroupSets()  # of the groups that differ, or that end
        self._units: dict[int, PendingUnit] = {}  # by set

    def set_target(self, targets: Mapping[Filters, Hops], are_trees: bool = False) -> None:
        """Set the trees that the fleet should have.

        Args:
            targets: the hops of each group.
            are_trees: whether it is known that the hops of each group are a tree.

        Raises:
            InputError: the hops of a group are not a tree, or two groups have topics in common.
        """
        before = self.target or {}
        target: dict[Filters, Hops] = {}
        for filters, hops in targets.items():
            if hops:
                target[filters if filters in before else group_key(filters)] = frozenset(hops)
        changed = {
            filters
            for filters, hops in target.items()
            if (known := before.get(filters)) is not hops and known != hops
        }
        for filters in () if are_trees else changed:
            check_tree(filters, target[filters])
        dropped = before.keys() - target.keys()
        self._set_owners(dropped, [filters for filters in changed if filters not in before])
        self._due |= changed | dropped | (self._state.current.keys() if self.target is None else set())
        self.target = target

    def follow_state(self, is_broker_removed: bool = False) -> None:
        """Take over a change of the state.

        Args:
            is_broker_removed: whether the removed brokers have changed, which can concern all groups.
        """
        self._due |= self._state.touched
        self._state.touched = set()
        if is_broker_removed:
            self._due |= self._state.current.keys() | (self.target or {}).keys()

    def units(self) -> Collection[PendingUnit]:
        """The units in which the target differs from the routes in use and those being opened."""
        if self._due and self.target is not None:
            due, self._due = self._due, set()
            self._compare(due)
        return self._units.values()

    def _compare(self, due: set[Filters]) -> None:
        """Find out for some groups whether the target differs from what they have."""
        state = self._state
        for filters in due:
            number = state.current.get(filters)
            hops = None if number is None else state.routes[number].hops
            if self._wanted(filters) == hops:
                self._differing.discard(filters)
            else:
                self._differing.add(filters)
        ending = {state.routes[number].key for number in state.ending}
        old, new = self._sets.change(due, {key for key in due if key in self._differing or key in ending})
        for number in old:
            self._units.pop(number, None)
        for number in new:
            unit = self._unit(self._sets.members(number), ending)
            if unit.old or unit.new:
                self._units[number] = unit

    def _wanted(self, filters: Filters) -> Hops | None:
        """The tree that a group should have, without removed brokers."""
        hops = (self.target or {}).get(filters)
        if hops and self._state.removed:
            hops = without_brokers(hops, self._state.removed)
        return hops or None

    def _unit(self, members: Iterable[Filters], ending: set[Filters]) -> PendingUnit:
        """The unit of groups that have topics in common."""
        state = self._state
        numbers = []
        trees: dict[Filters, Hops] = {}
        for filters in members:
            if filters in self._differing:
                if filters in state.current:
                    numbers.append(state.current[filters])
                if hops := self._wanted(filters):
                    trees[filters] = hops
        is_behind = not ending.isdisjoint(members)
        is_behind |= any(state.routes[number].since is None for number in numbers)
        return PendingUnit(tuple(numbers), trees, is_behind)

    def _set_owners(self, dropped: Iterable[Filters], added: Iterable[Filters]) -> None:
        """Note the groups of filters; raise if two groups have topics in common, and change nothing."""
        self._change_owners(dropped, ())
        done: list[Filters] = []
        for filters in added:
            for text in filters:
                for other in self._index.meeting(text):
                    if self._owners[other] != filters:
                        owner = self._owners[other]
                        self._change_owners([*done, filters], dropped)
                        raise InputError(
                            f"filters {text!r:.60} and {owner[0]!r:.60} have topics in common; "
                            "give them one tree"
                        )
                self._index.add(text)
                self._owners[text] = filters
            done.append(filters)

    def _change_owners(self, dropped: Iterable[Filters], added: Iterable[Filters]) -> None:
        for filters in dropped:
            for text in filters:
                if self._owners.pop(text, None) is not None:
                    self._index.discard(text)
        for filters in added:
            for text in filters:
                self._index.add(text)
                self._owners[text] = filters


class GroupSets:
    """Sets of groups that have topics in common, directly or by way of others, kept up to date.

    Examples:
        >>> sets = GroupSets()
        >>> keys = {("a/1",), ("a/2",), ("b",)}
        >>> [len(sets.members(number)) for number in sets.change(keys, keys)[1]]
        [1, 1, 1]
        >>> old, new = sets.change({("a/+",)}, {("a/+",)})
        >>> len(old), [sorted(sets.members(number)) for number in new]
        (2, [[('a/+',), ('a/1',), ('a/2',)]])
    """

    def __init__(self) -> None:
        self._members: dict[int, list[Filters]] = {}
        self._set_of: dict[Filters, int] = {}
        self._groups_of: dict[str, set[Filters]] = defaultdict(set)  # by filter
        self._index = FilterIndex(())
        self._next = 0

    def members(self, number: int) -> list[Filters]:
        """The groups of a set."""
        return self._members[number]

    def change(self, keys: Iterable[Filters], present: set[Filters]) -> tuple[list[int], list[int]]:
        """Add, keep or remove some groups; returns the numbers of the sets that go, and of those that come.

        Args:
            keys: the groups.
            present: those of them that should be there from now on.
        """
        old = set[int]()
        for key in keys:
            for text in key:
                for other in self._index.meeting(text):
                    old.update(self._set_of[group] for group in self._groups_of[other])
        left = {group for number in old for group in self._members.pop(number)}
        for group in left:
            self._forget(group)
        groups = (left - set(keys)) | present
        new = []
        for members in overlapping_groups(sorted(groups)):
            number = self._next
            self._next += 1
            self._members[number] = members
            new.append(number)
            for group in members:
                self._set_of[group] = number
                for text in group:
                    self._index.add(text)
                    self._groups_of[text].add(group)
        return sorted(old), new

    def _forget(self, group: Filters) -> None:
        del self._set_of[group]
        for text in group:
            groups = self._groups_of[text]
            groups.discard(group)
            if not groups:
                del self._groups_of[text]
                self._index.discard(text)
