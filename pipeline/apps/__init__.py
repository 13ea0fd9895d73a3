"""Example applications. They import the public surface only, as a user's would."""

from __future__ import annotations
