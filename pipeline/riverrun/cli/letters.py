"""`riverrun letters`: dead letters in a shell: list them, look at one, replay or discard them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import App, flag, settings_of
from riverrun.errors import ConfigError
from riverrun.records import counted

if TYPE_CHECKING:
    from riverrun.topics.letters import DeadLetter, DeadLetters, LetterFilter

app = typer.Typer(
    help="Dead letters: list them, replay them to where they come from, discard them.", no_args_is_help=True
)

Places = Annotated[list[str] | None, typer.Argument(help="Places of letters, as list shows them: orders-dead-0@3.")]
Topic = Annotated[
    str | None, typer.Option(help="Topic of the letters; defaults to errors.dead.letter.queue.topic.name.")
]
Dry = Annotated[bool, flag("--dry-run", "Show the letters, and change nothing.")]
Everything = Annotated[bool, flag("--all", "Take all letters, if no other option chooses.")]
AsJson = Annotated[bool, flag("--json", "Print JSON, one letter per line.")]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Options that choose letters."""

    topic: Topic = None
    error: Annotated[str, typer.Option(help="Only letters whose exception or its message has this text.")] = ""
    origin: Annotated[
        str, typer.Option(help="Only letters from this topic, partition (orders-0) or record (orders-0@8).")
    ] = ""
    since: Annotated[str | None, typer.Option("--from", help="Only letters with this event time or a later one.")] = (
        None
    )
    until: Annotated[str | None, typer.Option("--to", help="Only letters with an earlier event time than this.")] = None

    def filter(self, places: list[str] | None = None, *, decided: bool = False) -> LetterFilter:
        from riverrun.spark.ranges import time_ms
        from riverrun.topics.letters import LetterFilter

        since_ms, until_ms = (None if each is None else time_ms(each) for each in (self.since, self.until))
        return LetterFilter(frozenset(places or ()), self.error, self.origin, since_ms, until_ms, decided)


@app.command("list")
@gathering
def list_letters(
    context: typer.Context,
    name: App,
    *,
    wanted: _Wanted,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=10**12, help="Stop after this many letters.")
    ] = None,
    decided: Annotated[bool, flag("--decided", "Also list letters that were replayed or discarded.")] = False,
    as_json: AsJson = False,
) -> None:
    """List letters that nothing was decided about, partition by partition, the oldest first."""
    import itertools

    chosen = wanted.filter(decided=decided)
    count = 0
    for letter in itertools.islice(_letters(context, name, wanted.topic).list(chosen), limit):
        count += 1
        echo(_json(letter) if as_json else _line(letter))
    if not as_json:
        echo(counted(count, "letter"))


@app.command()
def show(
    context: typer.Context,
    name: App,
    place: Annotated[str, typer.Argument(help="Place of the letter, as list shows it: orders-dead-0@3.")],
    topic: Topic = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show a letter: its record by the serdes of the application, its exception, and what became of it."""
    from riverrun.topics.letters import decoded_record, text_of

    (letter,) = _found(context, name, topic, _Wanted().filter([place], decided=True))
    if as_json:
        echo(_json(letter))
        return
    key, value = decoded_record(settings_of(context).project().app(name).topology(), letter)
    echo(_line(letter))
    echo(f"key: {key}")
    echo(f"value: {value}")
    for header, data in letter.headers:
        echo(f"header {header}: {text_of(data)}")
    if letter.trace:
        echo(letter.trace.rstrip())


@app.command()
@gathering
def replay(
    context: typer.Context,
    name: App,
    places: Places = None,
    *,
    wanted: _Wanted,
    value: Annotated[str | None, typer.Option(help="Value that replaces that of a single letter, as text.")] = None,
    value_file: Annotated[
        Path | None, typer.Option(help="File whose bytes replace the value of a single letter.")
    ] = None,
    everything: Everything = False,
    dry_run: Dry = False,
    again: Annotated[
        bool, flag("--again", "Let stores and topics get records twice, and tables lose newer rows.")
    ] = False,
) -> None:
    """Write the records of letters to where they come from, each once: key, value, headers and event time as they were.

    Records whose windows have closed count as late. If the cause is still there, they become letters again. Letters of
    topics that are read with `table` are left out if their key has a newer row. In tables made of streams, a record may replace
    a newer row: these are named.
    """
    from riverrun.project.progress_bar import progress_bar
    from riverrun.topics.letters import other_groups

    mended = _mended(value, value_file)
    chosen = _chosen(context, name, wanted.topic, wanted.filter(places), everything=everything)
    letters = _letters(context, name, wanted.topic)
    with progress_bar():
        planned = letters.plan(chosen)
    if planned.outdated:
        echo(f"left out, as their keys have newer rows: {', '.join(letter.name for letter in planned.outdated)}")
    if dry_run:
        _show_all(list(planned.letters), "would be replayed")
        if planned.repeats:
            echo(f"may get records twice: {planned.repeats}")
        if planned.set_back:
            echo(f"may lose newer rows: {', '.join(planned.set_back)}")
    if planned.groups and (dry_run or again or not (planned.repeats or planned.set_back)):
        echo(f"get the records as well: {other_groups(planned)}")
    if not dry_run:
        echo(f"{counted(letters.carry_out(planned, mended, again=again), 'letter')} replayed")


@app.command()
@gathering
def discard(
    context: typer.Context,
    name: App,
    places: Places = None,
    *,
    wanted: _Wanted,
    everything: Everything = False,
    dry_run: Dry = False,
) -> None:
    """Note that letters are not wanted: they are not listed any more, and cannot be replayed."""
    letters = _chosen(context, name, wanted.topic, wanted.filter(places), everything=everything)
    if dry_run:
        _show_all(letters, "would be discarded")
        return
    count = _letters(context, name, wanted.topic).discard(letters)
    echo(f"{counted(count, 'letter')} discarded")


def _letters(context: typer.Context, name: str, topic: str | None) -> DeadLetters:
    return settings_of(context).project().app(name).letters(topic)


def _chosen(
    context: typer.Context, name: str, topic: str | None, wanted: LetterFilter, *, everything: bool
) -> list[DeadLetter]:
    if wanted.is_everything and not everything:
        message = "No letters are selected"
        raise ConfigError(message, hint="Name places, choose by --error, --origin, --from or --to, or take --all.")
    return _found(context, name, topic, wanted)


def _found(context: typer.Context, name: str, topic: str | None, wanted: LetterFilter) -> list[DeadLetter]:
    """Return the letters that a filter chooses; each place that it names must have one."""
    letters = list(_letters(context, name, topic).list(wanted))
    missing = sorted(wanted.places - {letter.name for letter in letters})
    if missing:
        message = f"There is no letter at {', '.join(missing)} that nothing was decided about"
        raise ConfigError(message, hint=f"riverrun letters list {name} --decided shows all of them.")
    return letters


def _mended(value: str | None, file: Path | None) -> bytes | None:
    if value is not None and file is not None:
        raise ConfigError("--value and --value-file cannot be combined", hint="Leave one of them out.")
    if file is None:
        return None if value is None else value.encode()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _show_all(letters: list[DeadLetter], outcome: str) -> None:
    for letter in letters:
        echo(_line(letter))
    echo(f"{counted(len(letters), 'letter')} {outcome}")


def _line(letter: DeadLetter) -> str:
    from riverrun.topics.serdes import time_text

    became = f"  {letter.note.state} by {letter.note.by}" if letter.note is not None else ""
    said = f"{letter.error}: {letter.message}" if letter.message else letter.error
    place = f"{letter.name}  {time_text(letter.timestamp)}  {letter.origin}@{letter.origin_offset}"
    return f"{place}  {' '.join(said.split())}{became}"


def _json(letter: DeadLetter) -> str:
    import msgspec

    from riverrun.topics.letters import letter_object

    return msgspec.json.encode(letter_object(letter)).decode()
