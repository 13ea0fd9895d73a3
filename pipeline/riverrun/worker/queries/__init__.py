"""Queries of stores while a worker runs.

`queries` has the questions, and `answers` reads stores. Questions and answers pass through a `pipe` between the supervisor
(`client`) and the stream thread that has the task (`server`).
"""

from __future__ import annotations
