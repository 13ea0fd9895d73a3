"""Bar charts as SVG, light and dark, without anything from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDTH, _LEFT, _RIGHT, _BAR, _GAP, _TOP = 900, 330, 150, 16, 14, 40
_STYLE = """<style>
svg{background:#fff}text{font:13px system-ui,sans-serif;fill:#1b2a33}.t{font-size:15px}.s{fill:#50646f}
rect{fill:#9db0ba}.own{fill:#00897b}
@media(prefers-color-scheme:dark){svg{background:#0f171b}text{fill:#e6eef0}.s{fill:#a9bcc4}
rect{fill:#5b6f79}.own{fill:#4db6ac}}
</style>"""


@dataclass(frozen=True)
class Bars:
    """A comparison under one label: a value per side."""

    label: str
    values: Mapping[str, float]


def chart(title: str, groups: Sequence[Bars], digits: int = 0, own: str = "Riverrun") -> str:
    """Draw horizontal bars, one below the other, on one scale.

    Args:
        title: Says what the values are, and in which unit.
        groups: What is compared.
        digits: Digits of values behind the point.
        own: The side that is to be seen first; sides that begin so stand out.
    """
    highest = max(value for group in groups for value in group.values.values())
    lines: list[str] = []
    y = _TOP
    for group in groups:
        middle = y + len(group.values) * _BAR / 2 + 4
        lines.append(f'<text x="{_LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(group.label)}</text>')
        for side, value in group.values.items():
            length = (_WIDTH - _LEFT - _RIGHT) * value / highest if highest else 0.0
            kind = ' class="own"' if side.startswith(own) else ""
            lines.append(f'<rect{kind} x="{_LEFT}" y="{y}" width="{max(length, 1):.0f}" height="{_BAR - 2}" rx="2"/>')
            shown = f"{escape(side)} {value:,.{digits}f}"
            lines.append(f'<text class="s" x="{_LEFT + length + 6:.0f}" y="{y + _BAR - 4}">{shown}</text>')
            y += _BAR
        y += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" aria-label="{escape(title)}">'
    )
    return "\n".join(
        [
            f"{head}<title>{escape(title)}</title>",
            _STYLE,
            f'<text class="t" x="10" y="22">{escape(title)}</text>',
            *lines,
            "</svg>\n",
        ]
    )
