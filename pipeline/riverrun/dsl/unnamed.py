"""Collects names that Kafka Streams generates because users left them out (`InternalResourcesNaming`, KIP-1111).

Generated names contain a number that changes when operators are added upstream. The application then loses its state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from riverrun.errors import TopologyError


@dataclass(slots=True)
class Unnamed:
    """Stores and topics with generated names, in order of creation. A table counts even if no store is needed.

    Args:
        changelogs: Changelog topics, without the application's prefix.
        stores: State stores.
        repartitions: Repartition topics, without the application's prefix.
    """

    changelogs: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    repartitions: list[str] = field(default_factory=list)

    def add_store(self, name: str, *, logging: bool) -> None:
        """Record a store, and its changelog if it has one."""
        self.stores.append(name)
        if logging:
            self.add_changelog(name)

    def add_changelog(self, store: str) -> None:
        """Record the changelog of a store."""
        self.changelogs.append(f"{store}-changelog")

    def check(self) -> None:
        """Refuse generated names (`ensure.explicit.internal.resource.naming`).

        Raises:
            TopologyError: If there are any (`InternalTopologyBuilder.checkUnprovidedNames`).
        """
        kinds = (
            ("changelog topic(s)", self.changelogs),
            ("state store(s)", self.stores),
            ("repartition topic(s)", self.repartitions),
        )
        lines = [f"Following {kind} has not been named: {', '.join(names)}" for kind, names in kinds if names]
        if lines:
            hint = "Name them in Materialized, Grouped, Joined, StreamJoined, Repartitioned, Suppressed or Named."
            raise TopologyError("\n".join(lines), hint=hint)
