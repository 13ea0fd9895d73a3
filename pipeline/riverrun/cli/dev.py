"""`riverrun dev`: a worker in this process that restarts with the new code whenever a file of the project is saved."""

from __future__ import annotations

import importlib
import linecache
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.output import echo
from riverrun.cli.project import App, Version, settings_of, tell_of_staging, told
from riverrun.cli.signals import Ending, stop_then_end
from riverrun.cli.worker import run_sampled, show_restore, show_state
from riverrun.config.addons import BUILT_IN, others, parts
from riverrun.config.code import is_users
from riverrun.errors import ConfigError
from riverrun.records import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from riverrun.worker.worker import Worker

# Files that are saved within this time are one change. Looking at them is cheaper than watchfiles, one more dependency:
# which files count, and what has changed when a run was interrupted, would be decided here all the same.
_LOOK_SECONDS = 0.3
_WATCHED = frozenset({".py", ".toml", ".json"})
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages", "spark-warehouse"})
_NO_TESTS = 5

Seen = dict[Path, tuple[int, int]]
"""Time of change and size of each file."""


def dev(
    context: typer.Context,
    app: App,
    version: Version = None,
    state_dir: Annotated[Path | None, typer.Option(help="Directory of the local state; defaults to state.dir.")] = None,
    tests: Annotated[
        Path | None,
        typer.Option(help="Tests for pytest, such as tests/. The worker starts if they pass, also after each save."),
    ] = None,
) -> None:
    """Run all tasks in this process, and start again with the new code after each save, until Ctrl-C."""
    ending = Ending()
    settings = settings_of(context)
    if tests is not None:
        _require_tests(tests)
    # Cached bytecode is valid for a time in seconds and a size: of two saves within a second, the second could be missed.
    sys.dont_write_bytecode = True
    # A name that does not exist ends the command; later errors of loading only wait for the next save.
    settings.project().app(app, version=version)

    def load() -> Worker:
        chosen = settings.project().app(app, version=version)
        return chosen.sole_worker(state_dir=state_dir, on_state=show_state, on_restore=show_restore)

    session = DevSession(settings.config.resolve().parent, load, tests)
    ending.ask(stop_then_end(session.end))
    session.run()


class DevSession:
    """Runs one worker after the other: each save of a file in the project's directory ends one and starts the next.

    Args:
        load: Loads the application, and returns its worker.
        tests: Tests that must pass before a worker starts; None for none.
    """

    def __init__(self, directory: Path, load: Callable[[], Worker], tests: Path | None = None) -> None:
        self._directory = directory
        self._load = load
        self._tests = tests
        self._suffixes = watched_suffixes()
        self._seen: Seen = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        """Set by a change, and by the end."""
        self._is_over = False
        self._stop: Callable[[], None] = _nothing

    def end(self) -> None:
        """End the worker, and then the session. May be called from another thread."""
        self._is_over = True
        self._interrupt()

    def run(self) -> None:
        """Run until `end`. Errors of the project's code and files are printed, and the next save is awaited."""
        self._seen = files_in(self._directory, self._suffixes)
        threading.Thread(target=self._watch, name="files", daemon=True).start()
        while not self._is_over:
            self._news.clear()
            try:
                self._try_once()
            except Exception as error:
                if told(error) is None:
                    raise
            if not self._news.is_set():
                echo(f"Waiting for a change in {self._directory}")
                self._news.wait()

    def _try_once(self) -> None:
        """Test and run the code as it is now, until it is changed."""
        forget_modules(self._directory)
        if self._tests is not None and not self._passes(self._tests):
            return
        running = self._load()
        tell_of_staging(running.application)
        if not self._may_be_stopped_by(running.stop):
            return
        summary = run_sampled(running)
        echo(f"{counted(summary.processed, 'record')} processed in {counted(summary.commits, 'commit')}")

    def _passes(self, tests: Path) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
        path = os.pathsep.join([str(self._directory), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}
        with subprocess.Popen(command, env=environ) as running:
            if not self._may_be_stopped_by(running.terminate):
                running.terminate()
            code = running.wait()
        if self._news.is_set():
            return False
        if code == _NO_TESTS:
            echo(f"There are no tests in {tests}")
        elif code:
            echo("Tests fail: this code does not run")
        return code in {0, _NO_TESTS}

    def _may_be_stopped_by(self, stop: Callable[[], None]) -> bool:
        """Let a change, or the end, call `stop`. Return False if there was one already."""
        # Together under the lock: a change either finds `stop`, or is found here.
        with self._lock:
            self._stop = stop
            return not self._news.is_set()

    def _interrupt(self) -> None:
        with self._lock:
            self._news.set()
            self._stop()

    def _watch(self) -> None:
        while not self._is_over:
            found = self._look()
            if found == self._seen:
                continue
            # Editors write in several steps: wait until two looks are equal.
            while (later := self._look()) != found:
                found = later
            changed = sorted(str(path.relative_to(self._directory)) for path in differing(self._seen, found))
            self._seen = found
            echo(f"Changed: {', '.join(changed)}")
            self._interrupt()

    def _look(self) -> Seen:
        time.sleep(_LOOK_SECONDS)
        return files_in(self._directory, self._suffixes)


def watched_suffixes() -> frozenset[str]:
    """Return the suffixes of a project's code, declarations and schemas; without add-ons of others if one is broken."""
    own = _WATCHED | parts("topologies", BUILT_IN).keys()
    try:
        return own | parts("topologies", others()).keys()
    except ConfigError as error:
        told(error)
        return own


def files_in(directory: Path, suffixes: Collection[str]) -> Seen:
    """Return the files of a project with one of some suffixes. Hidden folders and environments are left out."""
    found: Seen = {}
    for root, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if _is_looked_into(Path(root, name))]
        for path in (Path(root, name) for name in names):
            if path.suffix in suffixes:
                # It may have been deleted meanwhile.
                with suppress(OSError):
                    status = path.stat()
                    found[path] = status.st_mtime_ns, status.st_size
    return found


def _is_looked_into(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in _PASSED_OVER
    return not is_hidden and not (folder / "pyvenv.cfg").exists()


def differing(before: Mapping[Path, object], now: Mapping[Path, object]) -> set[Path]:
    """Return the files that are new, changed or gone."""
    return {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}


def forget_modules(directory: Path) -> None:
    """Let the next import of each module of the project read its file."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and _belongs_to(directory, Path(file)):
            del sys.modules[name]
    importlib.invalidate_caches()
    # Otherwise tracebacks would show lines of the old files.
    linecache.checkcache()


def _belongs_to(directory: Path, file: Path) -> bool:
    if directory not in file.parents or not is_users(str(file)):
        return False
    folders = [folder for folder in file.parents if directory in folder.parents]
    return all(_is_looked_into(folder) for folder in folders)


def _require_tests(tests: Path) -> None:
    if find_spec("pytest") is None:
        raise ConfigError("--tests needs pytest, which is not installed", hint="pip install pytest")
    if not tests.exists():
        raise ConfigError(f"--tests: there is no {tests}", hint="Name a folder or a file with tests of pytest.")


def _nothing() -> None:
    """Stop nothing: no worker and no test runs."""
