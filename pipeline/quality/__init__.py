"""Data checks: expectations over the exact records of a topic's range, judged by Great Expectations.

Great Expectations costs seconds to import and is imported within functions only. May import hosting, Kafka and what lies below.
"""

from __future__ import annotations

from pipeline.quality.expectations import Checks, Expectations

__all__ = ["Checks", "Expectations"]
