"""An instance of an application: one supervisor with its stream threads.

The `supervisor` carries out the orders of its group. `stream_threads` has its processes, and
`exception_handler` decides what follows the end of one.
"""

from __future__ import annotations
