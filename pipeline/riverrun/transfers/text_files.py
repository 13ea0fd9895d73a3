"""Reads files of text: encodings, lines, CSV records and JSON objects, each with the number of its line.

Spark's readers replace bytes that are not in the encoding, and take quotes as they come. All rows of a batch get one type
of column, and no error names its line. Imports read lines of bytes instead, and keep what is written there.
"""

# pyarrow's readers lose as much: spellings of numbers in JSON (1.10, digits of large ones), null fields, text after a closing
# quote, an unclosed quote. They have no comments, no separators of several characters, and no numbers of lines.

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import json_decoder
from riverrun.errors import ConfigError, DeserializationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

# The longest first: the mark of UTF-32 (little endian) begins with that of UTF-16.
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MOST_BYTES = 64 * 2**20
"""Maximum size of a line, and of a record of several lines."""
_SHOWN = 100
"""Maximum number of characters of a line in messages."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")

Line = tuple[int, str]
"""The number of a line, from 1, and its text with its end."""


def codec_of(options: Mapping[str, str]) -> str | None:
    """Return the encoding that options name; None if they name none: then it is UTF-8, or what a byte order mark says."""
    name = next((value for key, value in options.items() if key.lower() in {"encoding", "charset"}), None)
    try:
        return None if name is None else codecs.lookup(name).name
    except LookupError as error:
        message = f"There is no encoding {name!r}"
        raise ConfigError(message, hint="For example --option encoding=ISO-8859-1.") from error


def lines_of(pieces: Iterable[bytes], codec: str | None, file: str) -> Iterator[Line]:
    """Yield the lines of a file, whose bytes come split at line feeds (0x0A); `file` is its name for messages."""
    decoder: codecs.IncrementalDecoder | None = None
    rest, number, is_first = "", 1, True
    pieces = iter(pieces)
    try:
        for piece in pieces:
            if decoder is None:
                found = codec or next((name for mark, name in _BOMS if piece.startswith(mark)), "utf-8")
                decoder = codecs.getincrementaldecoder(found)()
            # The byte between two pieces goes with the second one: in UTF-16 it may be half of a character.
            text = decoder.decode(piece if is_first else b"\n" + piece)
            rest += text.removeprefix("\ufeff") if is_first else text
            is_first = False
            at = rest.rfind("\n") + 1
            if at:
                for line in _split(rest[:at]):
                    yield number, line
                    number += 1
                rest = rest[at:]
        if decoder is not None:
            rest += _end_of(decoder)
    except UnicodeDecodeError as error:
        number += error.object[: error.start].count(b"\n")
        message = f"Line {number} is not text in {error.encoding}"
        hint = "Name the encoding of the files, as in --option encoding=ISO-8859-1."
        raise DeserializationError(message, hint=hint).at(file=file, line=number) from error
    for line in _split(rest):
        yield number, line
        number += 1


def _split(text: str) -> list[str]:
    """Return lines with their ends. The text ends with a line feed, so no line end of two characters is divided."""
    # Nearly every text is a single line, for which the regular expression would be slow.
    return [text] if text.find("\r") in {-1, len(text) - 2} and text.count("\n") == 1 else _LINE.findall(text)


def _end_of(decoder: codecs.IncrementalDecoder) -> str:
    """Return what is left at the end of a file."""
    state = decoder.getstate()
    try:
        return decoder.decode(b"", final=True)
    # The last byte was taken for a line feed and cut off, but it is half of a UTF-16 character.
    except UnicodeDecodeError:
        decoder.setstate(state)
        return decoder.decode(b"\n", final=True)


def malformed(file: str, number: int, problem: str, text: str) -> DeserializationError:
    """Return the error of a line that cannot be imported, with its beginning."""
    message = f"Line {number} cannot be imported: {problem}: {text.strip()[:_SHOWN]!r}"
    return DeserializationError(message, file=file, line=number)


def texts_of(lines: Iterable[Line], options: Mapping[str, str], file: str) -> Iterator[Line]:
    """Yield the texts of a file of text: lines without their ends, or all of it (`wholetext`), or parts (`lineSep`)."""
    lines, separator = _without_nuls(lines, file), options.get("lineSep")
    if options.get("wholetext", "").lower() == "true":
        yield 1, "".join(line for _, line in lines)
    elif separator is not None:
        number = 1
        for part in "".join(line for _, line in lines).removesuffix(separator).split(separator):
            yield number, part
            number += part.count("\n") + separator.count("\n")
    else:
        for number, line in lines:
            yield number, line.rstrip("\r\n")


def _without_nuls(lines: Iterable[Line], file: str) -> Iterator[Line]:
    for number, line in lines:
        if "\0" in line:
            problem = "it has NUL characters, as in UTF-16, which --option encoding=UTF-16LE reads"
            raise malformed(file, number, problem, line)
        yield number, line


Cells = list[str | None]
"""The cells of a record of CSV; None for a cell that is empty without quotes."""


@dataclass(frozen=True, slots=True)
class CsvForm:
    r"""The form of CSV: RFC 4180 unless options of Spark's reader say otherwise. Quotes within quotes are doubled.

    >>> rows = CsvForm().records([(1, 'a,"b ""c""\r\n'), (2, 'd",\n'), (3, '"",,e\n')], "f")
    >>> list(rows)
    [(1, ['a', 'b "c"\r\nd', None]), (3, ['', None, 'e'])]

    Args:
        separator: Separates cells.
        quote: Encloses cells; empty for none.
        escape: Precedes a quote within quotes. Defaults to a quote, so that quotes are doubled.
        comment: Begins lines that are left out; empty for none.
        nothing: A cell without quotes that means null, as an empty one does.
        trims: Whether cells without quotes lose leading, and trailing, white space.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'
    comment: str = ""
    nothing: str = ""
    trims: tuple[bool, bool] = (False, False)
    _quoted: re.Pattern[str] = field(init=False, repr=False)
    _plain: re.Pattern[str] = field(init=False, repr=False)
    _escaped: re.Pattern[str] = field(init=False, repr=False)
    _pairs: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compile the patterns of cells."""
        quote, escape = re.escape(self.quote or "\0"), re.escape(self.escape or self.quote or "\0")
        inner = f"{quote}{quote}" if quote == escape else f"{escape}."
        others = f"[^{quote}]" if quote == escape else f"[^{quote}{escape}]"
        # Possessive quantifiers (`*+`): what is matched once is not tried again, so long cells take linear time.
        set_slot = object.__setattr__
        set_slot(self, "_quoted", re.compile(f"{quote}((?:{others}|{inner})*+)({quote}|\\Z)", re.DOTALL))
        set_slot(self, "_plain", re.compile(f"(?:(?!{re.escape(self.separator)})[^{quote}])*+"))
        set_slot(self, "_pairs", re.compile(f"{escape}.", re.DOTALL))
        set_slot(self, "_escaped", re.compile(f"{escape}({quote}|{escape})"))

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CsvForm:
        """Return the form that options of Spark's reader describe."""
        given = {name.lower(): value for name, value in options.items()}
        quote = given.get("quote", '"')
        separator = given.get("sep", given.get("delimiter", ",")).replace("\\t", "\t")
        escape, comment = given.get("escape", quote), given.get("comment", "")
        if not separator or any(len(each) > 1 for each in (quote, escape, comment)):
            message = "Quotes, escapes and comments of CSV are single characters, and a separator has at least one"
            raise ConfigError(message, hint='For example --option sep=";" --option escape="\\".')
        trims = tuple(given.get(f"ignore{side}whitespace", "").lower() == "true" for side in ("leading", "trailing"))
        return cls(separator, quote, escape, comment, given.get("nullvalue", ""), (trims[0], trims[1]))

    def records(self, lines: Iterable[Line], file: str) -> Iterator[tuple[int, Cells]]:
        """Yield the number of each record's first line, and its cells. Empty lines are left out."""
        lines = _without_nuls(lines, file)
        for number, line in lines:
            text = line.rstrip("\r\n")
            if not text or (self.comment and text.startswith(self.comment)):
                continue
            if not self.quote or self.quote not in text:
                yield number, [self._value(cell) for cell in text.split(self.separator)]
                continue
            try:
                cells = self._cells(text)
                parts, quotes, size = [line], self._quotes(line), 0
                while cells is None:
                    following = next(lines, None)
                    if following is None or size > MOST_BYTES:
                        problem = "a quote is not closed by the end of the file"
                        if following is not None:
                            problem = f"a quote is not closed after {MOST_BYTES:,} characters"
                        raise malformed(file, number, problem, "".join(parts[:2]))
                    parts.append(following[1])
                    size += len(following[1])
                    quotes += self._quotes(following[1])
                    # Only then can the record be complete. To parse it at each line would take quadratic time.
                    if not quotes % 2:
                        cells = self._cells("".join(parts).rstrip("\r\n"))
            except ValueError as error:
                raise malformed(file, number, str(error), text) from error
            yield number, cells

    def _quotes(self, line: str) -> int:
        """Return the number of quotes that open or close a cell, or are doubled."""
        return (line if self.escape == self.quote else self._pairs.sub("", line)).count(self.quote)

    def _cells(self, text: str) -> Cells | None:
        """Return the cells of a record; None if it ends within quotes."""
        cells: Cells = []
        at, step = 0, len(self.separator)
        while True:
            start = at
            while self.trims[0] and text[start : start + 1] in {" ", "\t"}:
                start += 1
            found = self._quoted.match(text, start)
            if found is not None:
                if not found[2]:
                    return None
                cells.append(self._escaped.sub(r"\1", found[1]))
                at = found.end()
                while self.trims[1] and text[at : at + 1] in {" ", "\t"}:
                    at += 1
            else:
                plain = self._plain.match(text, at)
                assert plain is not None  # noqa: S101 - it matches nothing as well
                cells.append(self._value(plain[0]))
                at = plain.end()
            if at == len(text):
                return cells
            if not text.startswith(self.separator, at):
                where = "behind a closing quote" if found is not None else "within a cell that has no quotes around it"
                what = f"{text[at]!r} is {where} (--option quote= takes quotes as they are)"
                raise ValueError(what)
            at += step

    def _value(self, cell: str) -> str | None:
        if self.trims[0]:
            cell = cell.lstrip(" \t")
        if self.trims[1]:
            cell = cell.rstrip(" \t")
        return None if not cell or cell == self.nothing else cell


def written_record(cells: Iterable[str | None], nothing: str = "") -> str:
    """Return cells as a record of RFC 4180, in which null is an empty cell.

    >>> written_record(["a", None, "", 'b "c" d'])
    'a,,"","b ""c"" d"'
    """
    return ",".join(nothing if cell is None else _written_cell(cell) for cell in cells)


def _written_cell(cell: str) -> str:
    if cell and not any(sign in cell for sign in ',"\r\n') and not cell[0].isspace() and not cell[-1].isspace():
        return cell
    doubled = cell.replace('"', '""')
    return f'"{doubled}"'


Raw = dict[str, msgspec.Raw]
"""The fields of an object of JSON, as they are written."""
_fields = json_decoder(Raw).decode
_list = json_decoder(list[msgspec.Raw]).decode
_texts = json_decoder(str).decode


def objects_of(lines: Iterable[Line], refused: Callable[[int, str, str], None]) -> Iterator[tuple[int, str, Raw]]:
    r"""Yield the objects of a file with one on each line: the number of the line, the text, and its fields.

    A line with a list has one object for each item. Empty lines are left out. `refused` gets each line without an object: its
    number, the problem and the text.

    >>> [text for _, text, _ in objects_of([(1, '{"a": 1E16}\n'), (2, '[{"b": 1.10}, {}]')], print)]
    ['{"a": 1E16}', '{"b": 1.10}', '{}']
    """
    for number, line in lines:
        text = line.strip(" \t\r\n")
        if not text:
            continue
        try:
            if text.startswith("["):
                yield from ((number, each, _fields(each)) for each in [bytes(item).decode() for item in _list(text)])
            else:
                yield number, text, _fields(text)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            refused(number, str(error), text)


def document_of(lines: Iterable[Line], file: str) -> Iterator[tuple[int, str, Raw]]:
    """Yield the objects of a file that is one document (`multiLine`): an object, or a list of objects."""
    text = "".join(line for _, line in lines)
    if not text.strip():
        return
    try:
        items = [bytes(item).decode() for item in _list(text)] if text.lstrip().startswith("[") else [text.strip()]
        found = [(1, each, _fields(each)) for each in items]
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        # msgspec's message has the byte, and users need the line.
        place = re.search(r"byte (\d+)", str(error))
        before = text.encode()[: int(place[1])] if place else b""
        number = before.count(b"\n") + 1
        raise malformed(file, number, str(error), text.splitlines()[number - 1 : number][0]) from error
    yield from found


def field_text(raw: msgspec.Raw | None) -> str | None:
    """Return a field as text: the content of a text, and anything else as it is written; None for null.

    >>> [field_text(msgspec.Raw(each)) for each in (b'"a"', b"1.10", b"null", b"[1]")]
    ['a', '1.10', None, '[1]']
    """
    text = None if raw is None else bytes(raw).decode()
    if text is None or text == "null":
        return None
    return _texts(text) if text.startswith('"') else text


def kind_of(raw: msgspec.Raw | None) -> str | None:
    """Return the kind of a field: `text`, `integer`, `fraction`, `null` or `other`; None if there is none.

    >>> [kind_of(msgspec.Raw(each)) for each in (b'"a"', b"1", b"1E16", b"null", b"true")]
    ['text', 'integer', 'fraction', 'null', 'other']
    """
    if raw is None:
        return None
    first, text = bytes(raw)[:1], bytes(raw)
    if first == b'"':
        return "text"
    if first in b"-0123456789":
        return "integer" if text.lstrip(b"-").isdigit() else "fraction"
    return "null" if text == b"null" else "other"


def with_fields(text: str, fields: Raw, further: Mapping[str, Any]) -> tuple[str, Raw]:
    """Return an object with further fields, such as those of the names of directories."""
    if not further:
        return text, fields
    added = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in further.items()}
    whole = {**fields, **added}
    return msgspec.json.encode(whole).decode(), whole
