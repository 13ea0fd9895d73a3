"""Data checks: expectations of rows, judged by Great Expectations. `riverrun.releases` reads the rows.

Great Expectations takes seconds to import, so it is imported within functions only.

Imports settings, extras and errors only: it reads neither topics nor stores.
"""

from __future__ import annotations

from riverrun.quality.expectations import Checks, Expectations

__all__ = ["Checks", "Expectations"]
