"""What the site adds to this folder: the documents beside it, and a reference page per public module."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "DIFFERENCES.md": "differences.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "tests/benchmarks/RESULTS.md": "benchmarks.md",
    **{
        str(chart.relative_to(ROOT)): f"pictures/benchmarks/{chart.name}"
        for chart in sorted((ROOT / "tests/benchmarks/charts").glob("*.svg"))
    },
}
"""Documents of the repository, by their names on the site."""
REFERENCE = {
    "riverrun": ("riverrun",),
    "riverrun.config": ("riverrun.config",),
    "riverrun.errors": ("riverrun.errors",),
    "riverrun.project": (  # what `Riverrun` returns, and its methods that are of add-ons
        "riverrun.project.app",
        "riverrun.project.worker",
        "riverrun.project.stores",
        "riverrun.project.runs",
        "riverrun.project.release",
        "riverrun.project.live",
        "riverrun.project.state",
        "riverrun.project.checks",
        "riverrun.project.graph",
        "riverrun.project.impact",
        "riverrun.project.transfers",
        "riverrun.project.archives",
    ),
    "riverrun.quality": ("riverrun.quality",),
    "riverrun.testing": ("riverrun.testing",),
}
"""Reference pages, with the modules whose public names they list."""
_SOURCES = {name: source for source, name in BESIDE.items()}
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for source, name in BESIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    for page, modules in REFERENCE.items():
        content = "\n".join([f"# {page}\n", *(f"::: {module}\n" for module in modules)])
        files.append(File.generated(config, f"reference/{page}.md", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let links lead to pages of the site: they are written as places in the repository."""
    return linked(markdown, page.file.src_uri)


def linked(markdown: str, page: str) -> str:
    """Text whose links lead to pages of the site.

    Args:
        markdown: The text, with links as its file in the repository has them.
        page: Its name on the site.
    """
    source = _SOURCES.get(page, f"docs/{page}")

    def placed(found: re.Match[str]) -> str:
        text, anchor = found[1], found[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        if target not in BESIDE and not target.startswith("docs/"):  # the code is in the repository, not on the site
            return text
        name = BESIDE.get(target, target.removeprefix("docs/"))
        return f"[{text}]({posixpath.relpath(name, posixpath.dirname(page))}{anchor})"

    return _LINK.sub(placed, markdown)
