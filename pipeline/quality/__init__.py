"""Data checks: expectations of the exact records in a topic's range, judged by Great Expectations.

Great Expectations takes seconds to import, so it is imported within functions only.

May import hosting, Kafka and the layers below.
"""

from __future__ import annotations

from pipeline.quality.expectations import Checks, Expectations

__all__ = ["Checks", "Expectations"]
