"""The twins are no tests, and some import names that are not there yet: they are imported by test_oracle.py alone."""

from __future__ import annotations

collect_ignore_glob = ["topologies*.py", "regenerate.py"]
