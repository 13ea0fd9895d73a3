"""Decides what a candidate takes over from the live version, and what it has to compute.

A store is carried if nothing that feeds it has changed: the nodes that use it, everything above them, also through
repartition topics, and the other stores that these use. Digests show what has changed. The rest is computed from the
beginning of the inputs, by a part of the topology (`releases.carried_part`). A table that only maps or filters the rows of a
carried store is fed from these rows.

`[apps.NAME.carry.VERSION]` overrides this for a store: it is the same although its code has changed, a function migrates it,
or it starts empty. For an output, it declares that its rows stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.config.checks import nearest
from riverrun.errors import ReleaseError
from riverrun.processor.operator import ForwardsRows, TakesRows
from riverrun.releases.topology import outputs
from riverrun.state.api import StoreKind
from riverrun.topology.fingerprint import code_of
from riverrun.topology.nodes import Lineage, ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.config.code import PickledFunction
    from riverrun.hosting.application import Application
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.nodes import Node
    from riverrun.topology.parts import Parts
    from riverrun.topology.topology import Topology

# What `streams.toml` may declare of a store, instead of a migrating function; of an output, only SAME.
SAME, EMPTY = "same", "empty"
# Only these hold all rows of a table: windows and versions expire.
_ROWS = frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE})
# Only the changelogs of these hold keys and values as their serdes write them.
_MIGRATED = _ROWS | {StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION}


class Fate(StrEnum):
    """Outcome for a store, or for the rows of an output, when a release carries state."""

    CARRIED = "carried"
    MIGRATED = "migrated"
    """Taken over, with new values from a function."""
    FED = "made from rows"
    """Computed from the rows of a store that is taken over."""
    COMPUTED = "computed"
    """Computed from the beginning of the inputs."""
    EMPTY = "empty"
    """Without anything from before the release."""


@dataclass(frozen=True, slots=True)
class Carried:
    """One store or output topic, with its fate; `why` is empty if nothing has changed."""

    name: str
    fate: Fate
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.fate.value}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class CarryPlan:
    """The state that a candidate takes over from the live version.

    Args:
        part: Nodes that have to compute something from the beginning of their inputs, or from rows that are fed to them.
        fed: Nodes of that part that forward the rows of a carried store instead, with the store.
    """

    stores: Mapping[str, Carried]
    outputs: Mapping[str, Carried]
    part: frozenset[str] = frozenset()
    fed: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str | PickledFunction] = field(default_factory=dict)

    @property
    def taken(self) -> tuple[str, ...]:
        """Return the stores whose changelogs are copied."""
        return tuple(name for name, each in self.stores.items() if each.fate in {Fate.CARRIED, Fate.MIGRATED})

    def read_by(self, topology: Topology) -> frozenset[str]:
        """Return the topics that have to be read from their beginning."""
        sources = (node for name, node in topology.nodes.items() if name in self.part)
        return frozenset(topic for node in sources if isinstance(node, SourceNode) for topic in node.topics)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the fates of all stores and outputs as text."""
        stores = (f"store {each}" for each in self.stores.values())
        return (*stores, *(f"output {each}" for each in self.outputs.values()))


def carry_plan(live: Application, new: Application, declared: Mapping[str, str | PickledFunction]) -> CarryPlan:
    """Decide what a candidate takes over. Asks no broker."""
    return _Decision(live, new, declared).plan()


class _Decision:
    """The nodes of a candidate while their fates are decided."""

    def __init__(self, live: Application, new: Application, declared: Mapping[str, str | PickledFunction]) -> None:
        self._live, self._new, self._app = live.topology.parts(), new.topology.parts(), new.config.name
        self._version, self._declared = new.version, declared
        self._outputs, self._before = outputs(new), outputs(live)
        self._digests = live.topology.node_fingerprints(), new.topology.node_fingerprints()
        self._operators: dict[str, object] = {}
        self._check_declared()
        self._said = {name: word for name, word in declared.items() if name in self._new.stores and word != EMPTY}
        self._by_word = frozenset(user for store in self._said for user in self._new.users[store])
        self._migrated_users = frozenset(
            user for store, word in self._said.items() if word != SAME for user in self._new.users[store]
        )
        self._kept = self._nodes_kept()

    def plan(self) -> CarryPlan:
        begun = self._begun()
        part: frozenset[str] = frozenset()
        # What is computed cannot feed other nodes, so these have to be computed as well: each round adds to the part.
        while True:
            fed = self._fed(part)
            wanted = {
                name
                for name in self._new.nodes
                if name not in self._kept and name not in fed and name not in begun and self._has_results(name)
            }
            grown = self._closure(wanted)
            if grown == part:
                break
            part = grown
        self._check_part(part, begun)
        stores = {name: self._store(name, part) for name in self._new.stores}
        fates = {topic: self._output(topic, part, fed) for topic in self._outputs}
        ways = [way for name in fed for parent in self._new.nodes[name].parents if (way := self._way_to_rows(parent))]
        above = {way[-1]: store for way in ways if (store := self._rows(way[-1]))}
        plan = CarryPlan(
            stores=stores,
            outputs=fates,
            part=part | fed | frozenset(name for way in ways for name in way),
            fed={name: store for name, store in above.items() if name not in part},
            functions={name: word for name, word in self._said.items() if word != SAME},
        )
        if not plan.taken:
            raise self._nothing(plan)
        return plan

    # What the project says

    def _check_declared(self) -> None:
        where = f"apps.{self._app}.carry.{self._version}"
        known = {*self._new.stores, *self._outputs}
        for name, word in self._declared.items():
            if name not in known:
                message = f"{where}.{name}: {self._version} has no such store or output"
                raise ReleaseError(message, hint=nearest(name, known))
            builder = self._new.stores.get(name)
            if builder is None:
                self._check_output(where, name, word)
            elif word != EMPTY:
                self._check_store(where, builder, word)

    def _check_output(self, where: str, topic: str, word: str | PickledFunction) -> None:
        if word != SAME:
            message = f"{where}.{topic} is {word!r}: of an output, only {SAME!r} can be said"
            raise ReleaseError(message, hint="Then its rows stay as they are until new records change them.")
        if topic not in self._before:
            message = f"{where}.{topic}: the live version does not write {topic}, so it has no rows that could stay"
            raise ReleaseError(message)

    def _check_store(self, where: str, builder: StoreBuilder, word: str | PickledFunction) -> None:
        name, before = builder.name, self._live.stores.get(builder.name)
        if before is None:
            message = f"{where}.{name} is {word!r}, and the live version has no store {name}"
            raise ReleaseError(message, hint=f'{name} = "{EMPTY}" lets it start empty; without a word it is computed.')
        if before.kind is not builder.kind:
            message = f"{where}.{name} is {word!r}: {name} was a {before.kind.value} store, and is a {builder.kind.value} store"
            raise ReleaseError(message, hint="Leave it out: then it is computed.")
        if word != SAME and builder.kind not in _MIGRATED:
            message = f"{where}.{name}: a {builder.kind.value} store cannot be migrated"
            raise ReleaseError(message, hint="Leave it out: then it is computed.")

    def _nothing(self, plan: CarryPlan) -> ReleaseError:
        found = "; ".join(f"{each.name}: {each.why or each.fate.value}" for each in plan.stores.values())
        message = f"{self._app} {self._version} can take no store over: {found or 'it has none'}"
        hint = f"Release it without --carry, or say what stays the same: [apps.{self._app}.carry.{self._version}]."
        return ReleaseError(message, hint=hint)

    # What has changed

    def _nodes_kept(self) -> frozenset[str]:
        """Return the nodes whose results and stores are those of the live version: the largest set that is closed upwards."""
        kept = {name for name in self._new.nodes if name in self._live.nodes and self._is_equal(name)}
        # Any node may read a global store without being connected to it, so its change may change any result.
        if any(self._is_global_changed(name) for name in self._live.global_stores):
            kept &= self._by_word
        while True:
            lost = {name for name in kept if name not in self._by_word and not self._stands(name, kept)}
            if not lost:
                return frozenset(kept)
            kept -= lost

    def _is_equal(self, name: str) -> bool:
        before, now = self._digests
        return name in self._by_word or before[name] == now[name]

    def _is_global_changed(self, store: str) -> bool:
        before, now = self._digests
        return before[f"global store {store}"] != now.get(f"global store {store}")

    def _stands(self, name: str, kept: set[str]) -> bool:
        node = self._new.nodes[name]
        above = self._above(node)
        # A repartition topic that other nodes write to holds other records, though its own digest is the same.
        if isinstance(node, SourceNode) and above != self._writers(self._live, node):
            return False
        if above - kept or above & self._migrated_users:
            return False
        return all(self._is_store_kept(store, kept) for store in self._stores_of(name))

    def _is_store_kept(self, store: str, kept: set[str]) -> bool:
        # Without a changelog nothing can be taken over: the project has to declare such a store empty, which is no change.
        if store not in self._live.stores or (self._declared.get(store) == EMPTY and self._new.stores[store].logging):
            return False
        before, now = self._digests
        if store not in self._said and before[f"store {store}"] != now[f"store {store}"]:
            return False
        new_users = self._new.users[store] - self._live.users[store]
        return self._live.users[store] <= kept and not any(self._may_write(name) for name in new_users)

    def _may_write(self, name: str) -> bool:
        # The operators of the DSL write only to their own stores, and read those of others; users' objects may do anything.
        node = self._new.nodes[name]
        return isinstance(node, ProcessorNode) and node.is_users_own

    def _above(self, node: Node) -> set[str]:
        """Return the nodes that send records to a node, directly or through a repartition topic."""
        return self._writers(self._new, node) if isinstance(node, SourceNode) else set(node.parents)

    @staticmethod
    def _writers(parts: Parts, source: SourceNode) -> set[str]:
        read = parts.repartition_topics.keys() & source.topics
        return {name for name, node in parts.nodes.items() if isinstance(node, SinkNode) and node.topic in read}

    def _stores_of(self, name: str) -> list[str]:
        return [store for store, users in self._new.users.items() if name in users]

    def _operator(self, name: str) -> object:
        if name not in self._operators:
            node = self._new.nodes[name]
            self._operators[name] = node.supplier() if isinstance(node, ProcessorNode) else None
        return self._operators[name]

    # What has to be computed

    def _begun(self) -> set[str]:
        """Return the nodes that begin after the release: users of stores that start empty, and all below."""
        empty = (store for store, word in self._declared.items() if word == EMPTY)
        begun = {user for store in empty for user in self._new.users[store]} - self._kept
        return self._spread(begun, lambda name, found: bool(self._above(self._new.nodes[name]) & found))

    def _spread(self, found: set[str], reaches: Callable[[str, set[str]], bool]) -> set[str]:
        while more := {name for name in self._new.nodes if name not in found | self._kept and reaches(name, found)}:
            found |= more
        return found

    def _has_results(self, name: str) -> bool:
        """Return whether a node changes a store, or an output whose rows do not stay."""
        node = self._new.nodes[name]
        if isinstance(node, SinkNode):
            return node.topic in self._outputs and not self._stays(name)
        return bool(self._stores_of(name))

    def _stays(self, name: str) -> bool:
        """Return whether a node is the sink of an output whose rows stay, as the project says."""
        node = self._new.nodes[name]
        return isinstance(node, SinkNode) and self._declared.get(str(node.topic)) == SAME

    def _rows(self, name: str) -> str | None:
        """Return the store that has all rows of a table whose updates a node forwards, if it is taken over."""
        if name not in self._kept:
            return None
        operator = self._operator(name)
        store = operator.rows_in if isinstance(operator, ForwardsRows) else None
        builder = None if store is None else self._new.stores.get(store)
        return store if builder is not None and builder.logging and builder.kind in _ROWS else None

    def _way_to_rows(self, name: str) -> tuple[str, ...]:
        """Return the nodes from a kept one up to one that forwards all rows of a table, none of which needs more than rows.

        It is empty if there are no such nodes.
        """
        way = [name]
        while self._rows(name) is None:
            parents = self._new.nodes[name].parents
            if name not in self._kept or len(parents) != 1 or not self._is_plain(name):
                return ()
            (name,) = parents
            way.append(name)
        return tuple(way)

    def _is_plain(self, name: str) -> bool:
        """Return whether the results of a node for rows depend on these alone."""
        node = self._new.nodes[name]
        keeps_keys = isinstance(node, ProcessorNode) and node.lineage is Lineage.KEPT
        is_plain = isinstance(self._operator(name), TakesRows) or keeps_keys
        return is_plain and not self._stores_of(name)

    def _fed(self, part: frozenset[str]) -> set[str]:
        """Return the nodes that need nothing but rows of a store that is taken over."""

        def is_source(name: str) -> bool:
            way = self._way_to_rows(name)
            return bool(way) and part.isdisjoint(way)

        def is_fed(name: str, found: set[str]) -> bool:
            node = self._new.nodes[name]
            if name in part or isinstance(node, SourceNode) or len(node.parents) != 1:
                return False
            (parent,) = node.parents
            if parent not in found and not is_source(parent):
                return False
            if isinstance(node, SinkNode):
                output = self._outputs.get(str(node.topic))
                return output is not None and output.kind is OutputKind.TABLE and self._has_results(name)
            return self._is_plain(name)

        fed = self._spread(set(), is_fed)
        while lonely := {name for name in fed if not self._ends_in(name, fed) or not self._begins_in(name, fed)}:
            fed -= lonely
        return fed

    def _begins_in(self, name: str, fed: set[str]) -> bool:
        (parent,) = self._new.nodes[name].parents
        return parent in fed or bool(self._way_to_rows(parent))

    def _ends_in(self, name: str, fed: set[str]) -> bool:
        # A node below that is computed needs each update, not only the last row of each key.
        children = [other for other, node in self._new.nodes.items() if name in node.parents and not self._stays(other)]
        return isinstance(self._new.nodes[name], SinkNode) or (bool(children) and fed.issuperset(children))

    def _closure(self, wanted: Iterable[str]) -> frozenset[str]:
        """Return nodes with everything that contributes to their results: nodes above, and users of their stores."""
        found, waiting = set[str](), list(wanted)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            waiting += self._above(self._new.nodes[name])
            waiting += [user for store in self._stores_of(name) for user in self._new.users[store]]
        return frozenset(found)

    def _check_part(self, part: frozenset[str], begun: set[str]) -> None:
        """Make sure that nothing is to be computed below a store that is migrated, or starts empty."""
        for store, word in self._declared.items():
            users = self._new.users.get(store, set()) & part
            if not users:
                continue
            below = sorted(
                topic
                for topic, node in ((str(n.topic), n) for n in self._new.nodes.values() if isinstance(n, SinkNode))
                if node.name in part and topic in self._outputs
            )
            what = f"{', '.join(below) or min(users)} would have to be computed from the beginning"
            message = f"apps.{self._app}.carry.{self._version}.{store} is {word!r}, and {what}, with {store}"
            stay = f'"{(below or ["TOPIC"])[0]}" = "{SAME}"'
            hint = f"Leave {store} out: then it is computed as well. Or let the rows stay: {stay}."
            raise ReleaseError(message, hint=hint)
        if part & begun:
            message = f"{min(part & begun)} begins after the release, and is needed to compute what comes before it"
            raise ReleaseError(message)

    # Fates

    def _store(self, name: str, part: frozenset[str]) -> Carried:
        builder, users = self._new.stores[name], self._new.users[name]
        word = self._declared.get(name)
        if word == EMPTY:
            return Carried(name, Fate.EMPTY, "as streams.toml says")
        if users & part:
            needed = [user for user in sorted(users) if user not in self._kept]
            why = self._changed(needed[0]) if needed else f"needed for {self._needed_for(users, part)}"
            return Carried(name, Fate.COMPUTED, why)
        if not builder.logging:
            if builder.source_topic is not None:
                return Carried(name, Fate.CARRIED, f"its rows are those of {builder.source_topic}")
            message = f"Store {name} has no changelog, so it cannot be taken over"
            hint = f'Say that it starts empty: [apps.{self._app}.carry.{self._version}] {name} = "{EMPTY}".'
            raise ReleaseError(message, hint=hint)
        if word is None:
            return Carried(name, Fate.CARRIED)
        if word == SAME:
            return Carried(name, Fate.CARRIED, "the same, as streams.toml says")
        return Carried(name, Fate.MIGRATED, f"by {word}")

    def _output(self, topic: str, part: frozenset[str], fed: set[str]) -> Carried:
        sinks = {name for name, node in self._new.nodes.items() if isinstance(node, SinkNode) and node.topic == topic}
        if self._declared.get(topic) == SAME:
            return Carried(topic, Fate.CARRIED, "its rows stay, as streams.toml says")
        if sinks & part:
            return Carried(topic, Fate.COMPUTED, self._changed(min(sinks & part)))
        if sinks & fed:
            return Carried(topic, Fate.FED, self._changed(min(sinks & fed)))
        if sinks <= self._kept:
            return Carried(topic, Fate.CARRIED)
        return Carried(topic, Fate.EMPTY, "it follows a store that starts empty")

    def _needed_for(self, users: set[str], part: frozenset[str]) -> str:
        """Return a changed node that is computed below users of a store, or in addition to them."""
        found = self._spread(set(users), lambda name, found: bool(self._above(self._new.nodes[name]) & found))
        return min(((found - self._kept) & part) or (part - self._kept) or users, key=self._new.order.index)

    def _changed(self, name: str) -> str:
        """Return what has changed at a node, or above it."""
        before, now = self._digests
        above = self._all_above(self._new, name)
        # Nodes without names are numbered, so one more or one less gives all that follow other names.
        told = (self._own_change(each) for each in self._new.order if each in above - self._kept)
        first = next((each for each in told if each), None) or self._removed(name, above)
        if first is not None:
            return first
        if name not in before:
            return f"{name} is new"
        if before[name] != now[name]:
            return f"{name} has changed"
        node = self._new.nodes[name]
        for parent in sorted(self._above(node)):
            if parent not in self._kept or parent in self._migrated_users:
                return self._changed(parent) if parent not in self._migrated_users else f"{parent} has other values"
        changed = [s for s in self._stores_of(name) if before.get(f"store {s}") != now[f"store {s}"]]
        return f"store {changed[0]} has changed" if changed else f"{name} is fed by another set of nodes"

    @cached_property
    def _live_contents(self) -> dict[str, tuple[object, ...]]:
        return {name: _content(node) for name, node in self._live.nodes.items()}

    def _own_change(self, name: str) -> str | None:
        """Return how a node itself has changed, not only what feeds it or its name; None if it has not."""
        before, now = self._digests
        content = _content(self._new.nodes[name])
        if name not in before:
            is_there = any(found == content for other, found in self._live_contents.items() if other not in now)
            return None if is_there else f"{name} is new"
        has_changed = before[name] != now[name] and self._live_contents[name] != content
        return f"{name} has changed" if has_changed else None

    def _removed(self, name: str, above: set[str]) -> str | None:
        """Return which of the nodes above a node the candidate lacks; None if it has all."""
        content, left = _content(self._new.nodes[name]), [_content(self._new.nodes[each]) for each in above]
        likes = (other for other, found in self._live_contents.items() if found == content)
        before = {each for other in likes for each in self._all_above(self._live, other)}
        gone = (each for each in self._live.order if each in before and self._live_contents[each] not in left)
        first = next(gone, None)
        return None if first is None else f"{first} was removed"

    def _all_above(self, parts: Parts, name: str) -> set[str]:
        """Return a node with all nodes that send records to it."""
        found, waiting = set[str](), [name]
        while waiting:
            each = waiting.pop()
            if each not in found:
                found.add(each)
                node = parts.nodes[each]
                waiting += self._writers(parts, node) if isinstance(node, SourceNode) else node.parents
        return found


def _content(node: Node) -> tuple[object, ...]:
    """Return what a node does, without names that numbers are part of."""
    match node:
        case SourceNode():
            return "source", code_of(node.key_serde), code_of(node.value_serde), code_of(node.timestamp_extractor)
        case ProcessorNode():
            return "processor", *(code_of(function) for function in node.functions)
        case SinkNode():
            return "sink", code_of(node.key_serde), code_of(node.value_serde), code_of(node.partitioner)
