"""An instance of an application: one supervisor with its stream threads.

The `supervisor` carries out the orders of its group. `stream_threads` manages its processes, and
`exception_handler` decides how to react when one of them ends.
"""

from __future__ import annotations
