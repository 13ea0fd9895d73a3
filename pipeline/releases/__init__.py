"""Releases: compute a new version of an application, judge it, make it live, and roll it back.

`releaser` takes the steps; `switch` makes a version live in place of another. `registry` records how far a release has come.
`versions` and `tables` are the objects it works on. Every step checks before it acts and says what it did. After a crash at
any point it can be run again.

May import the hosts and everything below. The command line and Airflow are the two ways in.
"""

from __future__ import annotations
