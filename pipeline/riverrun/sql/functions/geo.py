"""Functions of places."""

from __future__ import annotations

import math

from riverrun.sql.functions.registry import scalar

_NORTH, _EAST = 90, 180
_RADII = {"KM": 6371.0, "KILOMETER": 6371.0, "KILOMETERS": 6371.0, "KILOMETRE": 6371.0, "KILOMETRES": 6371.0}
_RADII |= dict.fromkeys(("MI", "MILE", "MILES"), 3959.0)


def _radius(unit: str | None) -> float:
    found = _RADII.get((unit or "").strip().upper() or "KM")
    if found is None:
        message = f"{unit} is no unit of distances; there are KM and MI"
        raise ValueError(message)
    return found


@scalar(
    "GEO_DISTANCE(latitude DOUBLE, longitude DOUBLE, other_latitude DOUBLE, other_longitude DOUBLE, [unit STRING]) -> DOUBLE",
    theme="Places",
    nulls=frozenset({4}),
    constants={"unit": _radius},
)
def distance(
    latitude: float, longitude: float, other_latitude: float, other_longitude: float, unit: str | None = "KM"
) -> float:
    """The distance of two points in degrees along a great circle, in `KM` (as it is by default, for NULL too) or `MI`."""
    radius = _radius(unit)
    if max(abs(latitude), abs(other_latitude)) > _NORTH or max(abs(longitude), abs(other_longitude)) > _EAST:
        message = f"no distance of ({latitude}, {longitude}) and ({other_latitude}, {other_longitude})"
        raise ValueError(message)
    one, other = math.radians(latitude), math.radians(other_latitude)
    up, across = math.radians(other_latitude - latitude), math.radians(other_longitude - longitude)
    chord = math.sin(up / 2) ** 2 + math.sin(across / 2) ** 2 * math.cos(one) * math.cos(other)
    return 2 * math.asin(math.sqrt(chord)) * radius
