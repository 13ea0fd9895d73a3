"""Files of text as imports read them: whatever is written there is kept, and what cannot be read is named by its line."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverrun.errors import ConfigError, DeserializationError
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
    from collections.abc import Iterator

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")
CELLS = st.one_of(
    st.text(CHARACTERS, max_size=4),
    st.text('",\r\n \t;\\ab', max_size=6),
    st.sampled_from(
        [
            "",
            '"',
            '""',
            "\n",
            "\r\n",
            "a\rb",
            " x ",
            "0012",
            "1E16",
            "12345678901234567.89",
            "null",
            "NaN",
            "é",
            "ઊ\u010a",
        ]
    ),
)
ROWS = st.lists(st.lists(CELLS, min_size=2, max_size=4), min_size=1, max_size=4).map(
    lambda rows: [(row + [""] * 4)[: len(rows[0])] for row in rows]
)
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "iso8859-1"]


def pieces(data: bytes) -> Iterator[bytes]:
    """Return bytes as Spark hands them out: split at line feeds, without a last empty piece."""
    found = data.split(b"\n")
    return iter(found if found[-1] else found[:-1])


def lines(data: bytes, codec: str | None = None) -> list[tuple[int, str]]:
    return list(lines_of(pieces(data), codec, "f.csv"))


def encoded(text: str, encoding: str) -> bytes:
    return text.encode(encoding, "ignore")


@settings(deadline=None, max_examples=50)
@given(
    rows=ROWS,
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    encoding=st.sampled_from(ENCODINGS),
    separator=st.sampled_from([",", ";", "\t", "|"]),
    ends=st.booleans(),
)
@example(rows=[["a", "ઊ\u010a"]], end="\n", quoting=csv.QUOTE_MINIMAL, encoding="utf-16-le", separator=",", ends=True)
def test_csv_that_other_programs_write_is_read_as_it_was_meant(
    rows: list[list[str]], end: str, quoting: Any, encoding: str, separator: str, *, ends: bool
) -> None:
    known = [[encoded(cell, encoding).decode(encoding) for cell in row] for row in rows]
    if end == "\n":  # Python writes a carriage return without quotes then
        known = [[cell.replace("\r", "") for cell in row] for row in known]
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=separator, lineterminator=end, quoting=quoting).writerows(known)
    text = written.getvalue() if ends else written.getvalue().removesuffix(end)
    codec = None if encoding in {"utf-8", "utf-8-sig", "utf-16", "utf-32"} else encoding
    found = CsvForm(separator=separator).records(lines(encoded(text, encoding), codec), "f.csv")
    empty: Any = "" if quoting == csv.QUOTE_ALL else None
    assert [cells for _, cells in found] == [[cell or empty for cell in row] for row in known]


@settings(deadline=None, max_examples=50)
@given(rows=ROWS.map(lambda rows: [[cell or None for cell in row] for row in rows]))
def test_records_that_are_written_again_are_the_same_records(rows: list[list[str | None]]) -> None:
    text = "".join(f"{written_record(row)}\n" for row in rows)
    assert [cells for _, cells in CsvForm().records(lines(text.encode()), "f.csv")] == rows


@settings(deadline=None, max_examples=50)
@given(rows=ROWS, escape=st.sampled_from('"\\'), nothing=st.sampled_from(["", "NULL", "\\N"]))
def test_null_and_empty_cells_differ_and_so_does_a_quoted_null(
    rows: list[list[str]], escape: str, nothing: str
) -> None:
    def cell(text: str) -> str:
        inner = text.replace("\\", "\\\\") if escape == "\\" else text
        return '"' + inner.replace('"', f'{escape}"') + '"'

    form = CsvForm.of({"escape": escape, "nullValue": nothing})
    text = "".join(",".join([*map(cell, row), nothing, cell(nothing)]) + "\n" for row in rows)
    assert [cells for _, cells in form.records(lines(text.encode()), "f")] == [[*row, None, nothing] for row in rows]


@settings(deadline=None, max_examples=300)
@given(text=st.text('",\r\n ab', max_size=20))
def test_whatever_is_accepted_is_read_as_a_strict_reader_of_python_does(text: str) -> None:
    try:
        found = [cells for _, cells in CsvForm().records(lines(text.encode()), "f")]
    except DeserializationError:
        return
    known = csv.reader(io.StringIO(text, newline=""), strict=True)
    assert [[cell or "" for cell in row] for row in found] == [row for row in known if row]


@settings(deadline=None)
@given(text=st.text('"\\,\n;a', max_size=20), escape=st.sampled_from('"\\'), quote=st.sampled_from(["", '"']))
def test_every_text_is_read_or_refused(text: str, escape: str, quote: str) -> None:
    form, refused = CsvForm.of({"quote": quote, "escape": escape}), None
    try:
        assert all(cells for _, cells in form.records(lines(text.encode()), "f"))
    except DeserializationError as error:
        refused = error
    assert refused is None or refused.coordinates["file"] == "f"


def test_a_cell_of_many_lines_is_read_in_linear_time() -> None:
    text = 'x,"' + 'say ""hello""\n' * 50_000 + '"\n'
    assert [len(cells) for _, cells in CsvForm().records(lines(text.encode()), "f")] == [2]
    text = 'x,"' + 'say \\"hello\\"\n' * 50_000 + '"\n'
    assert [len(cells) for _, cells in CsvForm(escape="\\").records(lines(text.encode()), "f")] == [2]


@pytest.mark.parametrize(
    ("data", "line", "problem"),
    [
        ('1,2\n3,"4\n5,6\n', 2, "a quote is not closed"),
        ('1,2\n3,a"b\n', 2, "within a cell that has no quotes"),
        ('1,"2\n2"\n3,"a"b\n', 3, "behind a closing quote"),
        ('1,2\n\n\n3," a" ,"\n', 4, "behind a closing quote"),
        ("1,2\r3,4\r5,\0\r", 3, "NUL characters"),
    ],
)
def test_a_bad_line_of_csv_is_named(data: str, line: int, problem: str) -> None:
    with pytest.raises(DeserializationError, match=problem) as caught:
        list(CsvForm().records(lines(data.encode()), "f.csv"))
    assert caught.value.coordinates == {"file": "f.csv", "line": line}


@settings(deadline=None, max_examples=50)
@given(
    before=st.integers(0, 5),
    text=st.sampled_from(["é", "ü,x", "Köln"]),
    encoding=st.sampled_from(["latin-1", "cp1252"]),
)
def test_bytes_that_are_not_utf_8_are_refused_with_their_line(before: int, text: str, encoding: str) -> None:
    data = b"a,b\n" * before + text.encode(encoding) + b"\nc,d\n"
    with pytest.raises(DeserializationError, match=rf"Line {before + 1} is not text in utf-8") as caught:
        lines(data)
    assert (caught.value.coordinates["file"], "encoding=ISO-8859-1" in str(caught.value.hint)) == ("f.csv", True)
    assert lines(data, codec_of({"Charset": encoding}))[before][1] == f"{text}\n"


def test_an_encoding_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no encoding 'utf-99'"):
        codec_of({"encoding": "utf-99"})


NUMBERS = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.decimals(allow_nan=False, allow_infinity=False)
    .map(lambda number: f"{number:f}")
    .filter(lambda text: len(text) < 60),
    st.sampled_from(["12345678901234567.89", "1E16", "1.0", "-0.0", "0.10", "1e-7", "1E+400"]),
)
VALUES = st.recursive(
    st.one_of(NUMBERS, st.sampled_from(["null", "true", "false"]), st.text(CHARACTERS, max_size=4).map(json.dumps)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.dictionaries(st.sampled_from("abc"), inner).map(
            lambda parts: "{" + ", ".join(f'"{name}": {each}' for name, each in parts.items()) + "}"
        ),
    ),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.sampled_from(["id", "user", "é", "x y"]), VALUES)


def unwanted(number: int, problem: str, _text: str) -> None:
    pytest.fail(f"line {number}: {problem}")


@settings(deadline=None, max_examples=50)
@given(objects=st.lists(OBJECTS, min_size=1), form=st.sampled_from(["lines", "CRLF", "a list in a line", "document"]))
def test_objects_keep_their_types_and_digits(objects: list[dict[str, str]], form: str) -> None:
    texts = ["{" + ", ".join(f"{json.dumps(name)}: {each}" for name, each in one.items()) + "}" for one in objects]
    data = {"lines": "\n".join(texts), "CRLF": "\r\n".join(texts) + "\r\n\r\n"}.get(form, f"[{', '.join(texts)}]\n")
    if form == "document":
        found = list(document_of(lines(data.replace(", {", ",\n{").encode()), "f"))
        assert [json.loads(text) for _, text, _ in found] == [json.loads(text) for text in texts]
    else:
        found = list(objects_of(lines(data.encode()), unwanted))
        assert [text for _, text, _ in found] == texts
    for one, (_, _, fields) in zip(objects, found, strict=True):
        for name, text in one.items():
            field = fields[name]
            shown = json.loads(text) if text.startswith('"') else None if text == "null" else text
            assert field_text(field) == shown or form == "document"
            assert kind_of(field) in {"text", "integer", "fraction", "null", "other"}
    assert kind_of(None) is None


@settings(deadline=None, max_examples=50)
@given(
    before=st.lists(st.sampled_from(['{"a": 1}', "", "{}"]), max_size=4),
    bad=st.sampled_from(
        ['{"a": NaN}', '{"a": 1', "{'a': 1}", '{"a": 01}', "5", '"text"', "[1]", "[{}, 2]", "null", '{"a": 1} x', "a,b"]
    ),
)
def test_a_bad_line_of_json_is_named(before: list[str], bad: str) -> None:
    data = "\n".join([*before, bad, '{"b": 2}'])

    def refused(number: int, problem: str, text: str) -> None:
        error = malformed("f.json", number, problem, text)
        raise error

    with pytest.raises(DeserializationError, match=rf"Line {len(before) + 1} cannot be imported: .+: ") as caught:
        list(objects_of(lines(data.encode()), refused))
    assert caught.value.coordinates == {"file": "f.json", "line": len(before) + 1}


def test_a_document_that_cannot_be_read_is_named_by_the_line_of_its_mistake() -> None:
    with pytest.raises(DeserializationError, match="Line 3 cannot be imported") as caught:
        list(document_of(lines(b'[{"a": 1},\n\n {"a": 1.}]\n'), "f.json"))
    assert caught.value.coordinates["line"] == 3


def test_columns_of_directories_are_added_to_objects() -> None:
    ((_, text, fields),) = objects_of([(1, '{"a": 1E16, "day": 2}')], unwanted)
    whole, known = with_fields(text, fields, {"day": 1, "place": "Köln"})
    assert (whole, bytes(known["day"])) == ('{"a":1E16,"day":1,"place":"Köln"}', b"1")
    assert with_fields(text, fields, {}) == (text, fields)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({}, [(1, "a"), (2, ""), (3, "b")]),
        ({"wholetext": "true"}, [(1, "a\r\n\nb")]),
        ({"lineSep": "\n"}, [(1, "a\r"), (2, ""), (3, "b")]),
    ],
)
def test_texts_are_lines_unless_options_say_otherwise(options: dict[str, str], texts: list[tuple[int, str]]) -> None:
    assert list(texts_of(lines(b"a\r\n\nb\n"), options, "f")) == texts
