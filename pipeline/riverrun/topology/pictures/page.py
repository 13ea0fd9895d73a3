"""A topology as one page of HTML: its picture, its sub-topologies, and Kafka Streams' description."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from riverrun.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.topology.nodes import SubTopology

_STYLE = """
:root{color-scheme:light dark}
body{margin:2rem auto;max-width:72rem;padding:0 1rem;font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}
figure{margin:1rem 0;overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.4rem .8rem;border-bottom:1px solid #90a4ae}
pre{overflow-x:auto;padding:1rem;border:1px solid #90a4ae}
"""
_COLUMNS = "Sub-topology", "Reads", "Keeps", "Writes"


def page(title: str, fingerprint: str, picture: str, description: str, subs: Iterable[SubTopology]) -> str:
    """Return a self-contained page: no script, no external picture or style.

    Args:
        title: The heading, for example the application.
        fingerprint: The topology's fingerprint.
        picture: An SVG document to embed.
        description: Kafka Streams' text.
        subs: The sub-topologies, for the table.
    """
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(sub))}</tr>\n" for sub in subs)
    heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>Fingerprint: <code>{escape(fingerprint)}</code></p>
<figure>
{picture}</figure>
<h2>Sub-topologies</h2>
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}</tbody>
</table>
<h2>Description</h2>
<pre>{escape(description)}</pre>
</body>
</html>
"""


def _cells(sub: SubTopology) -> tuple[str, ...]:
    chosen = ["a topic per record" for node in sub.nodes if isinstance(node, SinkNode) and callable(node.topic)]
    stores = [f"{store.name} ({store.kind.value})" for store in sub.stores]
    return str(sub.id), _lines(sub.source_topics), _lines(sorted(stores)), _lines([*sub.sink_topics, *chosen])


def _lines(names: Iterable[str]) -> str:
    return "<br>".join(map(escape, names))
