"""Plant faults, and look for what finds them: `python -m tests.histories.planted docs/internals/planted-faults.md [NAME...]`.

Each fault is planted alone, into a copy of the package. Histories of consecutive seeds happen until one goes wrong; then the
tests that the plant names run. The table on the page has what was found last; without names, all plants are tried again.

`--shrink NAME SEED [ATTEMPTS]` shrinks a history that goes wrong with a plant.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.histories.drawing import SCENES_FROM
from tests.histories.plants import PLANTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.histories.plants import Edit, Plant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pipeline/riverrun"
HISTORIES = 24
_AT_ONCE = 6
_LONGEST_BATCH_SECONDS = 600
"""After this time a history counts as wrong: it does not end."""
_LONGEST_TESTS_SECONDS = 600
_LONGEST_SHRINKING_SECONDS = 3600
_NOBODY = "-"


@dataclass(frozen=True)
class Outcome:
    """The finders of a plant: cells of the table."""

    histories: str
    tests: str


class LostPlantError(Exception):
    """The text that a plant replaces is no longer there, or is there more than once."""


def planted_text(edit: Edit, text: str) -> str:
    """Return the text of a module with an edit."""
    if (found := text.count(edit.text)) != 1:
        message = f"{edit.module} has the text of a plant {found} times, not once:\n{edit.text}"
        raise LostPlantError(message)
    return text.replace(edit.text, edit.planted)


@contextmanager
def planted(plant: Plant, copy: Path) -> Iterator[None]:
    """Plant a fault into a copy of the package within this context."""
    modules = {copy / edit.module for edit in plant.edits}
    kept = {module: module.read_text() for module in modules}
    try:
        for edit in plant.edits:
            module = copy / edit.module
            module.write_text(planted_text(edit, module.read_text()))
            compile(module.read_text(), str(module), "exec")
        yield
    finally:
        for module, text in kept.items():
            module.write_text(text)


def _environment(copy: Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, (copy.parent, ROOT / "plugins", ROOT)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def _run(command: Sequence[str], copy: Path, within_s: float) -> tuple[int, str]:
    """Run a command with the copy of the package; return its status, and what it printed. One that hangs has failed."""
    try:
        ended = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=_environment(copy),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 1, (error.stdout or b"").decode(errors="replace")
    return ended.returncode, ended.stdout


def found_by_histories(plant: Plant, copy: Path, count: int) -> str:
    """Return after how many histories one went wrong: half of them of scenes, then others."""
    done = 0
    while done < count:
        first = SCENES_FROM + done if done < count // 2 else done
        command = ["-m", plant.histories, str(first), str(min(_AT_ONCE, count - done))]
        status, said = _run(command, copy, _LONGEST_BATCH_SECONDS)
        well = len(re.findall(r"^seed \d+: ", said, re.MULTILINE))
        if status:
            print(_reason(said), file=sys.stderr, flush=True)
            return f"after {done + well + 1}"
        done += well
    return _NOBODY


def _reason(said: str) -> str:
    """Return the lines that name the error of a history and its causes; empty if it did not end."""
    lines = [line[:200] for line in said.splitlines() if re.match(r"[\w.]+(Error|Killed)\b", line)]
    return "\n".join(f"  {line}" for line in lines[-2:])


def found_by_tests(plant: Plant, copy: Path) -> str:
    """Return the first file of tests with a test that fails."""
    for place in plant.tests:
        chosen = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
        paths = ["-o", f"pythonpath={ROOT} {copy.parent} {ROOT / 'plugins'}", "-m", "not broker and not slow"]
        left_out = ["--deselect", "tests/unit/simulation/test_histories.py"]
        status, said = _run([*chosen, *paths, *left_out, f"tests/unit/{place}"], copy, _LONGEST_TESTS_SECONDS)
        if status:
            found = re.search(r"^(?:FAILED|ERROR) (tests/\S+\.py)", said, re.MULTILINE)
            return f"`{found[1].removeprefix('tests/unit/')}`" if found else f"`{place}`, which does not end"
    return _NOBODY


def tried(plant: Plant, copy: Path) -> Outcome:
    """Plant a fault, and let histories and tests look for it."""
    with planted(plant, copy):
        return Outcome(found_by_histories(plant, copy, HISTORIES), found_by_tests(plant, copy))


def page(outcomes: dict[str, Outcome]) -> str:
    """Return the page with the table."""
    rows = []
    for plant in PLANTS:
        outcome = outcomes.get(plant.name, Outcome("", ""))
        rows.append(f"| `{plant.name}` | {plant.says} | {outcome.histories} | {outcome.tests} | {plant.remark} |")
    return "\n".join([_HEAD, *rows, ""])


_HEAD = f"""# Planted faults

`python -m tests.histories.planted docs/internals/planted-faults.md` writes this page. It plants one small fault at a time into
a copy of the package, and shows what finds it: up to {HISTORIES} histories (`python -m tests.histories`), or tests in
memory of the rooms concerned. A fault whose text is no longer in the code is an error.

`tests/histories/plants.py` lists the faults. An earlier drawing is one whose seeds no longer make these histories.

| Plant | Fault | Histories | Tests in `tests/unit` | Remark |
|---|---|---|---|---|"""
_ROW = re.compile(r"^\| `([\w-]+)` \| [^|]* \| ([^|]*) \| ([^|]*) \| [^|]* ?\|$", re.MULTILINE)


def outcomes_on(text: str) -> dict[str, Outcome]:
    """Read the outcomes from a page."""
    return {name: Outcome(histories.strip(), tests.strip()) for name, histories, tests in _ROW.findall(text)}


@contextmanager
def copied() -> Iterator[Path]:
    """Copy the package, with its compiled modules, into a temporary directory."""
    with TemporaryDirectory(prefix="planted-") as directory:
        copy = Path(directory) / PACKAGE.name
        shutil.copytree(PACKAGE, copy)
        status, said = _run(["-c", "import riverrun; print(riverrun.__file__)"], copy, 60)
        if status or Path(said.strip()) != copy / "__init__.py":
            sys.exit(f"The copy of the package is not the one that is imported: {said}")
        yield copy


def main(target: Path, names: Sequence[str]) -> None:
    """Try plants, and write the page after each."""
    if unknown := set(names) - {plant.name for plant in PLANTS}:
        sys.exit(f"No plants: {', '.join(sorted(unknown))}")
    outcomes = outcomes_on(target.read_text()) if target.exists() and names else {}
    with copied() as copy:
        for plant in PLANTS:
            if not names or plant.name in names:
                outcomes[plant.name] = outcome = tried(plant, copy)
                print(f"{plant.name}: histories {outcome.histories}, tests {outcome.tests}", flush=True)
                target.write_text(page(outcomes))


def shrink(name: str, seed: str, *attempts: str) -> None:
    """Shrink a history that goes wrong with a plant."""
    plant = next(each for each in PLANTS if each.name == name)
    with copied() as copy, planted(plant, copy):
        print(_run(["-m", "tests.histories", "--shrink", seed, *attempts], copy, _LONGEST_SHRINKING_SECONDS)[1])


if __name__ == "__main__":
    if sys.argv[1] == "--shrink":
        shrink(*sys.argv[2:])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
