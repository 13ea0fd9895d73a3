"""librdkafka's own error codes: in Python their names begin with an underscore, although they are documented."""

from __future__ import annotations

from confluent_kafka import KafkaError

ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN
AUTHENTICATION = KafkaError._AUTHENTICATION
AUTO_OFFSET_RESET = KafkaError._AUTO_OFFSET_RESET
FATAL = KafkaError._FATAL
FENCED_PRODUCER = KafkaError._FENCED
INVALID_ARG = KafkaError._INVALID_ARG
MSG_TIMED_OUT = KafkaError._MSG_TIMED_OUT
NOENT = KafkaError._NOENT
PARTITION_EOF = KafkaError._PARTITION_EOF
PURGE_INFLIGHT = KafkaError._PURGE_INFLIGHT
PURGE_QUEUE = KafkaError._PURGE_QUEUE
RESOLVE = KafkaError._RESOLVE
SSL = KafkaError._SSL
STATE = KafkaError._STATE
TIMED_OUT = KafkaError._TIMED_OUT
TIMED_OUT_QUEUE = KafkaError._TIMED_OUT_QUEUE
TRANSPORT = KafkaError._TRANSPORT
UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION
UNKNOWN_TOPIC = KafkaError._UNKNOWN_TOPIC
UNSUPPORTED_FEATURE = KafkaError._UNSUPPORTED_FEATURE
WAIT_COORD = KafkaError._WAIT_COORD
