"""What the site adds to this folder: the documents beside it, and a reference page per public module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
BESIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "DIFFERENCES.md": "differences.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "tests/benchmarks/RESULTS.md": "benchmarks.md",
}
"""Documents of the repository, by their names on the site."""
REFERENCE = {
    "pipeline": ("pipeline",),
    "pipeline.config": ("pipeline.config",),
    "pipeline.errors": ("pipeline.errors",),
    "pipeline.project": (  # what `Millrace` returns
        "pipeline.project.app",
        "pipeline.project.worker",
        "pipeline.project.stores",
        "pipeline.project.bounded",
        "pipeline.project.release",
        "pipeline.project.status",
    ),
    "pipeline.quality": ("pipeline.quality",),
    "pipeline.testing": ("pipeline.testing",),
}
"""Reference pages, with the modules whose public names they list."""
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for source, name in BESIDE.items():
        files.append(File.generated(config, name, content=linked((ROOT / source).read_text())))
    for page, modules in REFERENCE.items():
        content = "\n".join([f"# {page}\n", *(f"::: {module}\n" for module in modules)])
        files.append(File.generated(config, f"reference/{page}.md", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to documents beside this folder lead to their pages."""
    return linked(markdown)


def linked(markdown: str) -> str:
    """Text whose links lead to pages of the site, from wherever in the repository it comes."""

    def placed(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2].removeprefix("../"), found[3] or ""
        if target.startswith("pipeline/"):  # the code is in the repository, not on the site
            return text
        target = target.removeprefix("docs/")
        return f"[{text}]({BESIDE.get(target, target)}{anchor})"

    return _LINK.sub(placed, markdown)
