"""The built-in operators, which take records and forward records.

They do no I/O, have no clock of their own and know nothing of the graph. Each module holds one family.

Null keys, null values, late records and result timestamps follow Kafka Streams. Docstrings name the class that a rule comes
from. Operators may import the processor and state contracts and values.
"""

from __future__ import annotations
