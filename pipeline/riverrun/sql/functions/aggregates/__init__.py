"""Aggregates: functions of the values of many rows."""
