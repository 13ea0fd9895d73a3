"""Settings that decide how a topology is built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from riverrun.errors import ConfigError


class Optimization(Enum):
    """A rule of `topology.optimization`."""

    REUSE_KTABLE_SOURCE_TOPICS = "reuse.ktable.source.topics"
    MERGE_REPARTITION_TOPICS = "merge.repartition.topics"
    SINGLE_STORE_SELF_JOIN = "single.store.self.join"


def parse_optimization(text: str) -> frozenset[Optimization]:
    """Parse the rules in a value of `topology.optimization` (`StreamsConfig.verifyTopologyOptimizationConfigs`).

    Raises:
        ConfigError: If a rule is unknown, or `none` or `all` is combined with others.

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
            message = f"{text!r} is not a value of topology.optimization"
            raise ConfigError(message, hint=f"Allowed: none, all, or a list of {', '.join(rules)}")
    return frozenset(rules[name] for name in names)


@dataclass(frozen=True, slots=True)
class TopologyConfig:
    """Settings that influence how calls of the DSL become a topology (`org.apache.kafka.streams.TopologyConfig`).

    Args:
        optimization: The rules to apply.
        ensure_explicit_internal_resource_naming: Whether stores, changelogs and repartition topics without a name from
                the user are refused.
        is_persistent: Whether the DSL keeps stores in RocksDB unless their options say otherwise (`default.dsl.store`).
    """

    optimization: frozenset[Optimization] = frozenset()
    ensure_explicit_internal_resource_naming: bool = False
    is_persistent: bool = True
