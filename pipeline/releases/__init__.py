"""Releases: how a new version of an application is computed, proven, put in the place of the old one, and taken back.

`releaser` takes the steps, and `switch` the one that puts a version in the place of another. `registry` is where it is noted
how far a release is; `versions` and `tables` are what it deals with. Every step looks before it acts, says what it did, and may
be run again after a crash at any point of it.

May import the hosts and everything below; the shell and Airflow are the two ways in.
"""

from __future__ import annotations
