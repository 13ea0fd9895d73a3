"""Functions and classes of a script or a notebook in another process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys
import msgspec
from riverrun.config.by_value import dumps

class Total(msgspec.Struct, frozen=True, rename="camel"):
    carrier: str
    air_delay: int = 0
    seen: list[int] = msgspec.field(default_factory=list)

    def twice(self):
        return Total(self.carrier, self.air_delay * 2)

    @property
    def is_late(self):
        return self.air_delay > 2

    @classmethod
    def none(cls):
        return cls("-")

class Tagged(msgspec.Struct, kw_only=True, tag=True):
    total: Total

    def __post_init__(self):
        if self.total.air_delay < 0:
            raise ValueError("negative")

class Weighed(Total):
    weight: float = 1.5

def function(text):
    heavier = Weighed("c", 2, [], 2.5)
    assert (heavier.twice().air_delay, heavier.weight, isinstance(heavier, Total)) == (4, 2.5, True)
    total = msgspec.json.decode(text, type=Total)
    try:
        Tagged(total=Total("b", -1))
    except ValueError as error:
        refused = str(error)
    made = [total.twice(), Total.none(), Tagged(total=total)]
    return msgspec.json.encode(made).decode(), total.is_late, total == Total("a", 4), refused

sys.stdout.buffer.write(dumps(function))
"""
READER = 'import pickle, sys; print(pickle.load(sys.stdin.buffer)(b\'{"carrier":"a","airDelay":4}\'))'


def test_structs_of_a_script_have_their_fields_and_methods_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    written = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, check=True).stdout
    read = subprocess.run([sys.executable, "-c", READER], input=written, capture_output=True, check=True).stdout
    assert eval(read) == (  # noqa: S307 # what the process above has printed
        (
            '[{"carrier":"a","airDelay":8,"seen":[]},{"carrier":"-","airDelay":0,"seen":[]},'
            '{"type":"Tagged","total":{"carrier":"a","airDelay":4,"seen":[]}}]'
        ),
        True,
        True,
        "negative",
    )


USED = """
import sys
from dataclasses import dataclass
from typing import TypedDict
from riverrun import JSON
from riverrun.config.by_value import dumps

@dataclass(frozen=True)
class Click:
    page: str
    cents: int | None = None

class Row(TypedDict):
    page: str

clicks, rows = JSON(Click), JSON(Row)
read = clicks.deserialize(b'{"page":"/"}'), rows.deserialize(b'{"page":"/"}')

def function(text):
    return clicks.deserialize(text) == Click("/cart", 5), rows.deserialize(text)["page"], read[0] == Click("/")

sys.stdout.buffer.write(dumps(function))
"""
READER_OF_USED = 'import pickle, sys; print(pickle.load(sys.stdin.buffer)(b\'{"page":"/cart","cents":5}\'))'


def test_dataclasses_of_a_script_travel_after_a_serde_has_used_them(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(USED)
    written = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, check=True).stdout
    read = subprocess.run([sys.executable, "-c", READER_OF_USED], input=written, capture_output=True, check=True).stdout
    assert read.decode().strip() == "(True, '/cart', True)"
