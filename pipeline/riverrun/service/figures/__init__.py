"""Figures of an instance: for Prometheus (`metrics`), and for pages, once per second (`measuring`, `events`)."""

from __future__ import annotations
