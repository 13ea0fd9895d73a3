"""The twins are no tests."""

from __future__ import annotations

collect_ignore_glob = ["topologies*.py", "regenerate.py"]
