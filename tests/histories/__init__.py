"""Histories of whole clusters in memory: real hosts, faults and kills under one seed, and what must be true in the end."""
