"""Frames of the rows of text files (CSV, JSON, text), which executors read line by line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from riverrun.errors import ConfigError, DeserializationError, RangeError
from riverrun.spark.failures import on_executor
from riverrun.spark.formats import escaped
from riverrun.transfers.text_files import (
    CsvForm,
    codec_of,
    document_of,
    field_text,
    kind_of,
    lines_of,
    malformed,
    objects_of,
    texts_of,
    with_fields,
    written_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.transfers.specs import ImportSpec
    from riverrun.transfers.text_files import Cells, Line

FILE, LINE, BAD = "_riverrun_file", "_riverrun_line", "_riverrun_bad"
"""Columns with the place of a row, and the reason why it cannot be imported (null if it can)."""
OBJECT, KEY, VALUE, TIME, TIME_KIND, RISING = (
    f"_riverrun_{name}" for name in ("object", "key", "value", "time", "time_kind", "rising")
)
"""Columns of the objects of JSON files: the object and its parts, as they are written."""
RISING_KIND = "_riverrun_rising_kind"
OWN = frozenset({FILE, LINE, BAD, OBJECT, KEY, VALUE, TIME, TIME_KIND, RISING, RISING_KIND})
_START, _ROW, _BYTES = "_riverrun_start", "_riverrun_row", "value"
_PARSED = ("csv", "json", "text")
_BATCH = 5_000
_MOST_TASKS = 64
_SHOWN = 200
_HEAD = 1_000
"""Maximum number of lines that are read for the header of a CSV file: comments and empty lines may precede it."""
_OF_FILES = ("pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter", "basePath", "compression")
_OF_LINES = {
    "encoding",
    "charset",
    "mode",
    "header",
    "multiline",
    "wholetext",
    "linesep",
    "enforceschema",
    "inferschema",
}
_OF_LINES |= {"sep", "delimiter", "quote", "escape", "comment", "nullvalue", "ignoreleadingwhitespace"}
_OF_LINES |= {"ignoretrailingwhitespace", "emptyvalue", *map(str.lower, _OF_FILES)}
# CSV with a schema is read in two steps. Between them this cell means null, as Spark takes empty texts for null otherwise.
_NULL = "\u0001riverrun-null\u0001"
_MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")


def is_text(format_: str) -> bool:
    """Return whether files of a format are read line by line."""
    return format_.lower() in _PARSED


def text_frame(spec: ImportSpec, paths: Sequence[str], base: str | None, spark: Any, *, is_planned: bool) -> Any:
    """Return the rows of text files as a frame, with the place of each; the columns of a planned batch have been checked."""
    _check(spec)
    lines = _Lines(spec, paths, base, spark)
    match spec.format.lower():
        case "csv":
            return _csv_frame(spec, lines)
        case "json":
            return _json_frame(spec, lines, is_planned=is_planned)
    return lines.parsed(lambda found, file, _: texts_of(found, spec.options, file), [("value", pa.string())])


def mode_of(spec: ImportSpec) -> str:
    """Return the read mode for rows that do not fit, by Spark's names."""
    return {name.lower(): value for name, value in spec.options.items()}.get("mode", _MODES[0]).upper()


def _check(spec: ImportSpec) -> None:
    codec_of(spec.options)
    if mode_of(spec) not in _MODES:
        message = f"{mode_of(spec)} is not a read mode"
        raise ConfigError(message, hint=f"Allowed: {', '.join(_MODES)}")
    is_typed = spec.schema is not None or _is(spec, "inferSchema")
    unused = sorted(name for name in spec.options if name.lower() not in _OF_LINES)
    if not is_typed and (unused or (mode_of(spec) == "PERMISSIVE" and spec.format.lower() == "json")):
        what = f"Option {unused[0]}" if unused else "Mode PERMISSIVE"
        message = f"{what} needs columns with types, which a {spec.format} import has only with a schema"
        raise ConfigError(
            message, hint="Add --schema, or leave the option out: values are imported as they are written."
        )


def _is(spec: ImportSpec, option: str) -> bool:
    given = {name.lower(): value.lower() for name, value in spec.options.items()}
    return given.get(option.lower()) == "true"


class _Lines:
    """The lines of files as bytes: each file in one task, in order.

    Args:
        paths: Files, directories or patterns, escaped for Spark.
        base: The directory above those whose names have columns; None for none.
    """

    def __init__(self, spec: ImportSpec, paths: Sequence[str], base: str | None, spark: Any) -> None:
        options = {name: value for name, value in spec.options.items() if name in _OF_FILES}
        options |= {} if base is None else {"basePath": base}
        self.spec, self.spark = spec, spark
        reads_whole = _is(spec, "wholetext") or "lineSep" in spec.options or _is(spec, "multiLine")
        options |= {"wholetext": "true"} if spec.format.lower() != "csv" and reads_whole else {"lineSep": "\n"}
        self.raw = spark.read.format("text").options(**options).load(list(paths))
        self.further = [name for name in self.raw.columns if name != _BYTES]

    def first(self) -> list[Line]:
        """Return the first lines of the first file; none if there are no lines."""
        from pyspark.sql import functions as f

        for path in sorted(self.raw.inputFiles()):
            lines = self.spark.read.format("text").options(lineSep="\n").load(escaped(unquote(path))).limit(_HEAD)
            pieces = [bytes(row.line) for row in lines.select(f.col(_BYTES).cast("binary").alias("line")).collect()]
            if pieces:
                return list(lines_of(pieces, codec_of(self.spec.options), name_of(path)))
        return []

    def parsed(self, parse: Any, columns: Sequence[tuple[str, pa.DataType]]) -> Any:
        """Return the rows that `parse` makes on executors: number of the line, then the columns (names and types).

        `parse` gets the lines of a file, its name for messages, and the columns of its directories.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        lines = self.raw.select(
            f.col("_metadata.file_path").alias(FILE),
            f.col("_metadata.file_block_start").alias(_START),
            f.monotonically_increasing_id().alias(_ROW),
            f.col(_BYTES).cast("binary").alias(_BYTES),
            *(f.col(f"`{name}`") for name in self.further),
        )
        tasks = min(_MOST_TASKS, max(1, len(self.raw.inputFiles())))
        # Spark splits large files and joins small ones: this brings each file's lines together, in their order.
        of_file = lines.repartition(tasks, FILE).sortWithinPartitions(FILE, _START, _ROW)
        own = pa.schema([(FILE, pa.string()), (LINE, pa.int64()), *columns])
        further = [field for field in self.raw.schema.fields if field.name in self.further]
        made = StructType([*from_arrow_schema(own).fields, *further])
        return of_file.mapInArrow(_reading(parse, codec_of(self.spec.options), own, self.further), made)


def name_of(path: str) -> str:
    """Return the name of a file, for messages: the path of a local one.

    >>> name_of("file:/in/a%20b.csv"), name_of("s3a://in/b.csv")
    ('/in/a b.csv', 's3a://in/b.csv')
    """
    return unquote(path).removeprefix("file:").replace("///", "/", 1)


def _reading(
    parse: Any, codec: str | None, own: pa.Schema, further: Sequence[str]
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that parses files whose lines come in batches, one file after the other."""

    def pieces(batches: Iterable[Any]) -> Iterator[tuple[str, bytes, Any, int]]:
        for batch in batches:
            files, lines = batch.column(FILE).to_pylist(), batch.column(_BYTES).to_pylist()
            for number, (file, line) in enumerate(zip(files, lines, strict=True)):
                yield file, line, batch, number

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        for path, whole in groupby(pieces(batches), key=lambda piece: piece[0]):
            found = iter(whole)
            first = next(found)
            constants = {name: first[2].column(name).slice(first[3], 1) for name in further}
            values = {name: each[0].as_py() for name, each in constants.items()}
            file = name_of(path)

            # Defaults bind the present values: a generator that is read later would see those of the next file.
            def contents(first: Any = first, found: Any = found) -> Iterator[bytes]:
                yield first[1]
                for piece in found:
                    yield piece[1]

            rows = parse(lines_of(contents(), codec, file), file, values)
            with on_executor():
                yield from _batches(rows, path, own, constants)

    return process


def _batches(rows: Iterator[tuple[Any, ...]], path: str, own: pa.Schema, constants: Mapping[str, Any]) -> Iterator[Any]:
    """Yield rows as batches of Arrow, with the file and the columns of its directories."""
    batch: list[tuple[Any, ...]] = []

    def made() -> Any:
        columns = list(zip(*batch, strict=True))
        arrays = [pa.array([path] * len(batch), pa.string())]
        arrays += [pa.array(column, field.type) for column, field in zip(columns, list(own)[1:], strict=True)]
        arrays += [pa.concat_arrays([each] * len(batch)) for each in constants.values()]
        return pa.RecordBatch.from_arrays(arrays, names=[*own.names, *constants])

    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield made()
            batch = []
    if batch:
        yield made()


def _csv_frame(spec: ImportSpec, lines: _Lines) -> Any:
    form, has_header = CsvForm.of(spec.options), _is(spec, "header")
    schema = _schema_of(spec, lines)
    head = next((cells for _, cells in form.records(lines.first(), spec.source)), None)
    if head is None:
        return lines.raw.select()
    if schema is not None:
        names = [field.name for field in schema.fields if field.name not in lines.further]
    else:
        names = unique_names(head) if has_header else [f"_c{number}" for number in range(len(head))]
    is_text = None if schema is None else _are_texts(schema, names)
    parse = _CsvRows(form, names, is_text, mode_of(spec), has_header, _is(spec, "enforceSchema"))
    if schema is None:
        return lines.parsed(parse, [(name, pa.string()) for name in names])
    frame = lines.parsed(parse, [(OBJECT, pa.string())])
    own = {"sep": ",", "quote": '"', "escape": '"', "multiLine": "true", "nullValue": _NULL, "emptyValue": ""}
    return _typed(spec, frame, "from_csv", schema, own, lines.further)


@dataclass(frozen=True, slots=True)
class _CsvRows:
    """Makes rows of the lines of a file.

    Args:
        names: The names of the columns.
        is_text: For each column of a schema, whether it is text; None for cells as they are.
        mode: Treatment of records with another number of cells.
        has_header: Whether the first record has the names of the columns.
        is_by_position: Whether these names may be others.
    """

    form: CsvForm
    names: list[str]
    is_text: list[bool] | None
    mode: str
    has_header: bool
    is_by_position: bool

    def __call__(self, found: Iterable[Line], file: str, _further: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        records = self.form.records(found, file)
        if self.has_header:
            self._check_header(next(records, None), file)
        for number, cells in records:
            row = cells if len(cells) == len(self.names) else self._filled(number, cells, file)
            if row is None:
                continue
            if self.is_text is None:
                yield number, *row
            # Spark must read an empty cell of a number as null, and that of a text as empty.
            else:
                typed = [cell if cell or known else None for cell, known in zip(row, self.is_text, strict=True)]
                yield number, written_record(typed, _NULL)

    def _filled(self, number: int, cells: Cells, file: str) -> Cells | None:
        """Return a record with the right number of cells; None if it is left out."""
        if self.mode == _MODES[0]:
            problem = f"it has {len(cells)} cells, not {len(self.names)}"
            raise malformed(file, number, problem, written_record(cells))
        return (cells + [None] * len(self.names))[: len(self.names)] if self.mode == _MODES[1] else None

    def _check_header(self, found: tuple[int, Cells] | None, file: str) -> None:
        if found is None or self.is_by_position:
            return
        names = unique_names(found[1])
        if [name.lower() for name in names] != [name.lower() for name in self.names]:
            message = f"The header has the columns {', '.join(names)}, not {', '.join(self.names)}"
            hint = "Files of one import have one header; --option enforceSchema=true takes columns by position."
            raise DeserializationError(message, hint=hint).at(file=file, line=found[0])


def _are_texts(schema: Any, names: Sequence[str]) -> list[bool]:
    from pyspark.sql.types import StringType

    return [isinstance(schema[name].dataType, StringType) for name in names]


def unique_names(cells: Cells, *, has_case: bool = False) -> list[str]:
    """Return the names of a header's columns, made unique as by Spark: by the number of the column.

    >>> unique_names(["v", "V", None]), unique_names(["v", "V", "a", "a"], has_case=True)
    (['v0', 'V1', '_c2'], ['v', 'V', 'a2', 'a3'])
    """
    names = [cell or f"_c{number}" for number, cell in enumerate(cells)]
    known = names if has_case else [name.lower() for name in names]
    unique = [f"{name}{at}" if known.count(known[at]) > 1 else name for at, name in enumerate(names)]
    for at, name in enumerate(found := unique if has_case else [name.lower() for name in unique]):
        if name in found[:at]:
            message = f"The header {','.join(names)} has two columns that would be {unique[at]}"
            raise ConfigError(message, hint="Rename one of them.")
    return unique


def _schema_of(spec: ImportSpec, lines: _Lines) -> Any:
    """Return the schema of the rows, given or inferred by Spark; None for columns of text."""
    if spec.schema is not None:
        return lines.spark.createDataFrame([], spec.schema).schema
    if not _is(spec, "inferSchema"):
        return None
    options = {"escape": '"', "multiLine": "true", **spec.options}
    files = lines.raw.inputFiles()
    return lines.spark.read.format(spec.format).options(**options).load([unquote(file) for file in files]).schema


def _typed(
    spec: ImportSpec, frame: Any, function: str, schema: Any, own: Mapping[str, str], further: Sequence[str]
) -> Any:
    """Return rows with the columns of a schema, and the reason why a row does not fit it."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    options = {name: value for name, value in spec.options.items() if name.lower() not in _OF_LINES}
    options |= {**own, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    of_names = {field.name: field.dataType for field in schema.fields if field.name in further}
    inside = StructType(
        [field for field in schema.fields if field.name not in further] + [StructField(BAD, StringType())]
    )
    parsed = frame.withColumn("parsed", getattr(f, function)(OBJECT, inside.toDDL(), options))
    outside = [(f.col(f"`{name}`"), name) for name in further]
    cast = [(column.cast(of_names[name]) if name in of_names else column).alias(name) for column, name in outside]
    rows = parsed.select("parsed.*", FILE, LINE, *cast)
    match mode_of(spec):
        case "PERMISSIVE":
            return rows.withColumn(BAD, f.lit(None).cast("string"))
        case "DROPMALFORMED":
            return rows.where(f.col(BAD).isNull())
    does_not_fit = f.concat(f.lit("it does not fit the schema: "), f.col(BAD))
    return rows.withColumn(BAD, f.when(f.col(BAD).isNotNull(), does_not_fit))


def _json_frame(spec: ImportSpec, lines: _Lines, *, is_planned: bool) -> Any:
    is_document, drops = _is(spec, "multiLine"), mode_of(spec) != _MODES[0]
    key = sorted(spec.key)

    def objects(found: Iterable[Line], file: str) -> Iterator[tuple[int, str, Any]]:
        def refused(number: int, problem: str, text: str) -> None:
            if not drops:
                raise malformed(file, number, problem, text)

        return document_of(found, file) if is_document else objects_of(found, refused)

    def parse(found: Iterable[Line], file: str, further: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        for number, text, fields in objects(found, file):
            whole, known = with_fields(text, fields, further)
            yield (
                number,
                whole,
                _key_text(key, known),
                _text_of(spec.value, known),
                *_text_and_kind(spec.timestamp, known),
                *_text_and_kind(spec.incremental, known),
                *(None if name is None else kind_of(known.get(name)) for name in (*key, spec.value)),
            )

    if spec.schema is not None:
        frame = lines.parsed(
            lambda found, file, _: ((number, text) for number, text, _ in objects(found, file)), [(OBJECT, pa.string())]
        )
        return _typed(spec, frame, "from_json", _schema_of(spec, lines), {}, lines.further)
    kinds = [f"_riverrun_kind_{number}" for number in range(len(key) + 1)]
    names = [OBJECT, KEY, VALUE, TIME, TIME_KIND, RISING, RISING_KIND, *kinds]
    frame = lines.parsed(parse, [(name, pa.string()) for name in names])
    if not is_planned:
        _check_fields(spec, frame, dict(zip((*key, spec.value), kinds, strict=True)))
    return _with_rising(spec, frame)


def _key_text(key: Sequence[str], fields: Mapping[str, msgspec.Raw]) -> str | None:
    if len(key) < 2:  # noqa: PLR2004 - one key stands alone
        return field_text(fields.get(key[0])) if key else None
    nothing = msgspec.Raw(b"null")
    return msgspec.json.encode({name: fields.get(name, nothing) for name in key}).decode()


def _text_of(name: str | None, fields: Mapping[str, msgspec.Raw]) -> str | None:
    return None if name is None else field_text(fields.get(name))


def _text_and_kind(name: str | None, fields: Mapping[str, msgspec.Raw]) -> tuple[str | None, str | None]:
    return (None, None) if name is None else (field_text(fields.get(name)), kind_of(fields.get(name)))


def _check_fields(spec: ImportSpec, frame: Any, kinds: Mapping[str | None, str]) -> None:
    """Check that each named field is in at least one of the objects, if there are any."""
    from pyspark.sql import functions as f

    wanted = {name: column for name, column in kinds.items() if name is not None}
    wanted |= {} if spec.timestamp is None else {spec.timestamp: TIME_KIND}
    wanted |= {} if spec.incremental is None else {spec.incremental: RISING_KIND}
    if not wanted:
        return
    counts = [f.count(column).alias(f"n{number}") for number, column in enumerate(wanted.values())]
    found = frame.select(*counts, f.count(f.lit(1)).alias("rows"), f.first(OBJECT).alias("first")).first()
    missing = [name for number, name in enumerate(wanted) if found["rows"] and not found[f"n{number}"]]
    if missing:
        message = f"{spec.source} has no column {', '.join(missing)}"
        raise ConfigError(message, hint=f"Its first object is {found['first'][:_SHOWN]}.")


def _with_rising(spec: ImportSpec, frame: Any) -> Any:
    """Return the frame with the incremental column in the type of its values."""
    from pyspark.sql import functions as f

    if spec.incremental is None:
        return frame
    kinds = {row[0] for row in frame.select(RISING_KIND).distinct().collect()} - {None, "null"}
    if "other" in kinds or ("text" in kinds and len(kinds) > 1):
        message = f"Values of column {spec.incremental} cannot be ordered: {', '.join(sorted(kinds))}"
        raise RangeError(message, hint="Import by a column of numbers, or of texts that rise.")
    kind = "string" if kinds <= {"text"} and kinds else ("double" if "fraction" in kinds else "bigint")
    return frame.withColumn(spec.incremental, f.col(RISING).cast(kind))
