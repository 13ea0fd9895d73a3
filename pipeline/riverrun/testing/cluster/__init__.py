"""Kafka in one process: brokers in memory under one clock, and the client libraries' interfaces to them.

The brokers are those of Kafka 4.3 as Riverrun's clients see them. `tests/unit/testing/cluster` has one suite of tests for both.
Nothing happens by itself: time limits, retention and cleaning are those of `Brokers.tick`. `faults` decides what happens to
each request, `waiting` how calls wait.
"""
