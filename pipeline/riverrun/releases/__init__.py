"""Releases: compute a new version of an application, judge it, make it live, and roll it back.

Start reading at `releaser`: the steps of a release, which `step_checks` allow or refuse. `switch` makes a version live in place
of another, `gating` judges a candidate, and `differ` compares the outputs of two. `versions` are the objects they work on. The
step that a release has reached is recorded below (`hosting.release`). `repair` corrects public tables without a new version.
Every step checks before it acts and reports what it did. After a crash at any point it can be run again.

May import the hosts and everything below. The command line, `riverrun.project` and Airflow call it.
"""

from __future__ import annotations
