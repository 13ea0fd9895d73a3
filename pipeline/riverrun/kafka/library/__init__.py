"""The client libraries: settings, ends of clients, and one file for each library's private parts."""

from __future__ import annotations
