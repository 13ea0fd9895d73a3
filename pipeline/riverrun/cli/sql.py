"""`riverrun sql`: inspects an application's statements, and the rows of its streams and tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from riverrun.cli.operations import Server  # noqa: TC001 - typer reads the annotation
from riverrun.cli.output import echo
from riverrun.cli.project import App, Version, flag, settings_of
from riverrun.config.checks import read_text
from riverrun.errors import ConfigError, StreamsError
from riverrun.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from riverrun.config.sections import AppConfig
    from riverrun.project.app import App as Application
    from riverrun.service.selecting import Rows, Selecting
    from riverrun.sql.commands import Command, Select, Statements
    from riverrun.sql.statements import SetProperty

_WORDS = """SHOW STREAMS TABLES TOPICS QUERIES FUNCTIONS TYPES VARIABLES DESCRIBE FUNCTION EXPLAIN PRINT FROM BEGINNING INTERVAL
    SELECT DISTINCT WHERE GROUP BY HAVING FILTER ORDER ASC DESC NULLS LIMIT UNION ALL WINDOW TUMBLING HOPPING
    SESSION SIZE TIMEZONE OFFSET JOIN LEFT WITHIN GRACE PERIOD ON EMIT CHANGES FINAL SET UNSET DEFINE UNDEFINE
    INSERT INTO VALUES DELETE""".split()  # noqa: SIM905 - a list of words


def sql(
    context: typer.Context,
    app: App,
    execute: Annotated[
        list[str] | None, typer.Option("--execute", "-e", help="Command to run, instead of a prompt.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="File with commands to run.")] = None,
    version: Version = None,
    server: Server = None,
    *,
    from_topics: Annotated[
        bool, flag("--from-topics", "Compute each SELECT here from topics; ask no instance.")
    ] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON, one row per line.")] = False,
    resolve: Annotated[
        bool, flag("--resolve", "Ask the schema registry for columns that no statement lists, and keep them.")
    ] = False,
) -> None:
    """Look at the statements of an application and at its rows. Without -e and -f it prompts for commands.

    Commands are SHOW, DESCRIBE, EXPLAIN, PRINT, SELECT, INSERT INTO ... VALUES, DELETE FROM, SET and DEFINE. The application's
    instances answer a SELECT of a table that they store. All others are computed here, in memory, from the records of topics.
    A SELECT with EMIT CHANGES shows new rows as they arrive, until Ctrl-C. SET 'auto.offset.reset' = 'earliest' lets it
    begin with the first records.

    --resolve asks the schema registry for the columns that no statement lists. It writes them to a file next to the
    statements, such as orders.columns.json, and says what has changed. Workers, runs and releases read that file. No
    broker is asked. Without --version it does so for all versions.
    """
    require_extra("sql")
    found = settings_of(context).project().app(app, version=version)
    if resolve:
        _resolve(found.config, version)
        return
    shell = _Shell.of(found, server, from_topics=from_topics, as_json=as_json)
    texts = [*(execute or []), *([] if file is None else [_text(file)])]
    if not texts and not sys.stdin.isatty():
        texts = [sys.stdin.read()]
    for text in texts:
        shell.run(text)
    if not texts:
        _prompt(shell, settings_of(context).home / "sql_history")


def _resolve(config: AppConfig, version: str | None) -> None:
    """Write the file of columns of one version, or those of all versions."""
    from riverrun.sql.statement_files import resolve

    topologies = map(str, (config.topology, *config.versions.values()))
    paths = [each for each in topologies if _is_statements(each)]
    for path in [_file_of(config, version or config.version)] if version or not paths else dict.fromkeys(paths):
        written, lines = resolve(_text(Path(path)), path, config.schema_registry)
        if lines:
            is_kept = written.exists()
            lines += [
                f"Written to {written}, which belongs under version control"
                if is_kept
                else f"Deleted {written}, which is not needed any more"
            ]
            echo("\n".join(lines))
        else:
            echo(f"All statements of {path} list their columns")


def _is_statements(topology: str) -> bool:
    return topology.endswith(".sql")


def _file_of(config: AppConfig, version: str) -> str:
    path = str(config.topology_of(version))
    if not _is_statements(path):
        message = f"The topology of {config.name} is not a file of statements"
        raise ConfigError(message, hint=f"riverrun describe {config.name} shows it.")
    return path


def _text(file: Path) -> str:
    try:
        return read_text(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


class _Shell:
    """Runs commands and prints their results."""

    def __init__(
        self, statements: Statements, selecting: Selecting, pull: Callable[[str], Rows] | None, *, as_json: bool
    ) -> None:
        # `pull` queries instances; None if they must not be queried.
        self.statements = statements
        self._selecting = selecting
        self._pull = pull
        self._as_json = as_json
        self._properties: dict[str, str] = {}
        self._variables: dict[str, str] = {}

    @classmethod
    def of(cls, found: Application, server: str | None, *, from_topics: bool, as_json: bool) -> _Shell:
        from riverrun.project.pulling import pulled
        from riverrun.service.selecting import Rows, Selecting
        from riverrun.sql.commands import Statements

        path = _file_of(found.config, found.version)
        statements = Statements.of(_text(Path(path)), path)
        selecting = Selecting(lambda: found.cluster.admin, found.config.schema_registry, statements.catalog)
        pull = None if from_topics else lambda text: Rows(*pulled(found, text, server=server))
        return cls(statements, selecting, pull, as_json=as_json)

    def run(self, text: str) -> None:
        """Run the commands of a text."""
        from riverrun.sql.commands import parse_commands
        from riverrun.sql.statements import SqlError

        try:
            for command in parse_commands(text, self._variables):
                self._answer(command)
        except SqlError as error:
            error.place(text, "command")
            raise

    def _answer(self, command: Command) -> None:
        from riverrun.sql.commands import DeleteRows, InsertValues, PrintTopic, Select
        from riverrun.sql.statements import SetProperty

        if isinstance(command, SetProperty):
            self._set(command)
            return
        if isinstance(command, InsertValues | DeleteRows):
            self._selecting.write(command)
            return
        if isinstance(command, PrintTopic | Select):
            found = self._selecting.printed(command) if isinstance(command, PrintTopic) else self._selected(command)
            self._print(found.columns, found.rows)
            return
        answer = self.statements.answer(command, self._variables)
        if self._as_json:
            self._print(answer.columns, answer.rows)
        else:
            echo("\n".join(_table(answer.columns, answer.rows)))

    def _set(self, command: SetProperty) -> None:
        if command.value is None:
            self._properties.pop(command.name, None)
        else:
            self._properties[command.name] = command.value

    def _selected(self, select: Select) -> Rows:
        from riverrun.sql.answers import is_pull, pull_query

        if self._pull is None or not is_pull(select, self.statements.catalog):
            return self._selecting.selected(select, self._properties.get("auto.offset.reset", "latest"))
        # Before an instance is asked: here, mistakes are reported with their place in the text.
        pull_query(select, self.statements.catalog)
        try:
            return self._pull(select.text)
        except StreamsError as error:
            if error.hint is None:
                raise
            hint = f"{error.hint} --from-topics computes it here."
            raise StreamsError(error.message, hint=hint) from error

    def _print(self, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
        import msgspec

        from riverrun.topics.serdes import one_line

        encode = msgspec.json.Encoder(decimal_format="number").encode
        if not self._as_json:
            echo(" | ".join(columns))
        for row in rows:
            if self._as_json:
                echo(encode(dict(zip(columns, row, strict=True))).decode())
            else:
                texts = (value if isinstance(value, str) else encode(value).decode() for value in row)
                echo(one_line(" | ".join(texts)))


def _table(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Return lines of columns, each as wide as its longest value."""
    texts = [columns, *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in texts)


def _prompt(shell: _Shell, history: Path) -> None:
    """Read commands, each up to its semicolon, until the input ends."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers.sql import SqlLexer

    catalog = shell.statements.catalog.sources
    columns = {name for source in catalog.values() for name, _ in (*source.layout.key, *source.layout.value)}
    history.parent.mkdir(parents=True, exist_ok=True)
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)),
        completer=WordCompleter([*_WORDS, *catalog, *sorted(columns)], ignore_case=True),
        lexer=PygmentsLexer(SqlLexer),
    )
    text = ""
    while True:
        try:
            line = session.prompt("      > " if text else "riverrun> ")
            text = f"{text}\n{line}".strip()
            if not text.endswith(";"):
                continue
            shell.run(text)
        # Ctrl-C ends a query, or discards what was typed; Ctrl-D ends the prompt.
        except KeyboardInterrupt:
            pass
        except EOFError:
            return
        except StreamsError as error:
            echo(f"Error: {error}", err=True)
        text = ""
