"""A cluster in one process: brokers in memory, hosts that take turns, and the client libraries' interfaces.

`cluster.Cluster` is what users see (`riverrun.testing.Cluster`). `turns` lets one thread at a time run, as a seed says;
`simulated` and `processes` put waits, clocks and processes of Riverrun's modules under it.

The brokers are those of Kafka 4.3 as Riverrun's clients see them; `tests/unit/simulation` holds both to one suite.
`clients.clients_of` returns what `riverrun.kafka.door.Kafka` takes. Nothing happens by itself: time limits, retention,
cleaning and expiry are work of `Brokers.tick`. `faults` decides what happens to each request, `waiting` how calls wait.

Known differences:

- There is one broker without replicas, logins, rights and quotas. Refusals of a broker that is not ready come from `faults`.
- Groups have the classic protocol, and consumers that subscribe have its range assignor. They join while they are polled, where
  the library joins between polls as well; `max.poll.interval.ms` ends no membership.
- Records are not compressed, so sizes are larger: a long record may be refused that a real broker takes in compressed form.
- Producers send with `flush`, `poll`, a commit, a full batch or a tick, where the library's `linger.ms` passes.
- Markers of a transaction are in the logs when its end is answered, where brokers write them soon after. The loss of
  `WriteTxnMarkers`, a request of `brokers.COORDINATOR`, leaves them to a later tick.
- Records and offsets for topics that do not exist fail at once, where the library asks again for up to 30 s.
- The cleaner works by records instead of batches, and leaves no empty batches behind.
- The brokers' topics (`__consumer_offsets`, `__transaction_state`) are not listed.
"""
