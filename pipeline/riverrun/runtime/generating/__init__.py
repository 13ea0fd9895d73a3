"""Builds the operators of a sub-topology (`compile`) and generated functions that do the work of several (`fusion`).

`function_writer` writes the lines of one function, and `fused_code` shows the code of a whole sub-topology.
"""

from __future__ import annotations
