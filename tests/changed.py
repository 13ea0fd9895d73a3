"""Print the test files that a change may affect, by imports: `python -m tests.changed [REV]`.

A change is what differs from a revision (defaults to HEAD), with files that git does not know yet. It affects a test file that
imports a changed module, however indirectly, or names a changed file that is no module.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
_SOURCES = {"pipeline": "", "plugins": "", "tests": "tests."}
"""Folders of modules, and what their modules' names begin with."""
_SURFACE = "riverrun"
_TESTS = ("tests/unit", "tests/oracle", "tests/conformance", "tests/architecture")
"""Folders of tests without brokers."""


def affected(changed: Sequence[str]) -> list[str]:
    """Return the test files that a change of some files may affect, as paths below the project's root."""
    modules = _modules()
    names = {path: name for name, path in modules.items()}
    found = {names[path] for path in changed if path in names}
    texts = {path for path in changed if path not in names and (ROOT / path).suffix != ".py"}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for imported in _imports(path, modules):
            importers[imported].add(name)
    left = list(found)
    while left:
        more = importers[left.pop()] - found
        found |= more
        left += more
    return sorted(
        path
        for name, path in modules.items()
        if _is_test(path) and (name in found or any(Path(text).name in (ROOT / path).read_text() for text in texts))
    )


def _is_test(path: str) -> bool:
    return path.startswith(_TESTS) and Path(path).name.startswith("test_")


def _modules() -> dict[str, str]:
    """Return paths by the name of their module."""
    found = {}
    for folder, prefix in _SOURCES.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = prefix + ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = str(path.relative_to(ROOT))
    return found


def _imports(path: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules that a file imports, those in functions and for types included."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                yield from _origins(node.module, each.name, modules)


def _origins(module: str, name: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules that define an imported name. Those of the public surface are looked up, as it imports all."""
    if f"{module}.{name}" in modules:
        yield f"{module}.{name}"
    elif module == _SURFACE:
        yield from [public[name]] if name in (public := _public()) else (each for each in modules if each != _SURFACE)
    elif module in modules:
        yield module


@cache
def _public() -> dict[str, str]:
    tree = ast.parse((ROOT / "pipeline" / _SURFACE / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {each.asname or each.name: str(node.module) for node in imports for each in node.names}


def _changed(revision: str) -> list[str]:
    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    return git("diff", "--name-only", revision) + git("ls-files", "--others", "--exclude-standard")


def main(arguments: Sequence[str]) -> None:
    """Print a file a line; nothing if no test file is affected."""
    for path in affected(_changed(*(arguments or ["HEAD"]))):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
