"""The command `millrace`: arguments, output and exit codes. No logic; engines load within the commands that need them."""

from __future__ import annotations
