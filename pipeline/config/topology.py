"""Settings that decide how a topology is built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pipeline.errors import ConfigError


class Optimization(Enum):
    """A rule of `topology.optimization`."""

    REUSE_KTABLE_SOURCE_TOPICS = "reuse.ktable.source.topics"
    MERGE_REPARTITION_TOPICS = "merge.repartition.topics"
    SINGLE_STORE_SELF_JOIN = "single.store.self.join"


def parse_optimization(text: str) -> frozenset[Optimization]:
    """The rules that a value of `topology.optimization` names (`StreamsConfig.verifyTopologyOptimizationConfigs`).

    Raises:
        ConfigError: If there is no such rule, or `none` or `all` stands among others.

    >>> sorted(rule.value for rule in parse_optimization("merge.repartition.topics, single.store.self.join"))
    ['merge.repartition.topics', 'single.store.self.join']
    """
    names = [name.strip() for name in text.split(",")]
    rules = {rule.value: rule for rule in Optimization}
    if names == ["all"]:
        return frozenset(Optimization)
    if names == ["none"]:
        return frozenset()
    for name in names:
        if name not in rules:
            message = f"{text!r} is no topology.optimization"
            raise ConfigError(message, hint=f"Allowed: none, all, or a list of {', '.join(rules)}")
    return frozenset(rules[name] for name in names)


@dataclass(frozen=True, slots=True)
class TopologyConfig:
    """The settings that decide what is built from the same calls (`org.apache.kafka.streams.TopologyConfig`).

    Args:
        optimization: The rules to apply.
        ensure_explicit_internal_resource_naming: Whether stores, changelogs and repartition topics that the user has not named
            are refused.
        is_persistent: Whether the DSL keeps stores in RocksDB unless their options say otherwise (`default.dsl.store`).
    """

    optimization: frozenset[Optimization] = frozenset()
    ensure_explicit_internal_resource_naming: bool = False
    is_persistent: bool = True
