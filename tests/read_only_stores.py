"""A topology with a store that is filled from a topic of somebody else (KIP-813)."""

from __future__ import annotations

from riverrun import STRING, Processor, ProcessorContext, Record, Stores, Topology


class Keep(Processor[str, str]):
    """Puts each record into the read-only store."""

    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store("kept")

    def process(self, record: Record[str, str]) -> None:
        self.store.put(record.key, record.value)


class LookUp(Processor[str, str]):
    """Forwards what the read-only store has for each key."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("kept")

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(Record(record.key, self.store.get(record.key), record.timestamp))


def looking_up(prefix: str = "") -> Topology:
    """Looks keys of `in` up in what `changes` has put into the store; the topics' names begin with `prefix`."""
    topology = Topology().add_read_only_state_store(
        Stores.key_value_store("kept", STRING, STRING),
        f"{prefix}changes",
        source_name="changes-source",
        processor_name="keep",
        supplier=Keep,
        key_serde=STRING,
        value_serde=STRING,
    )
    topology.add_source("source", f"{prefix}in", key_serde=STRING, value_serde=STRING)
    topology.add_processor("look-up", LookUp, "source")
    topology.connect_processor_and_state_stores("look-up", "kept")
    return topology.add_sink("sink", f"{prefix}out", "look-up", key_serde=STRING, value_serde=STRING)
