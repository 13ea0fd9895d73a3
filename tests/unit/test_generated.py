"""Functions made from generated text, and the lines that tools show of them."""

from __future__ import annotations

import linecache
import os
from typing import TYPE_CHECKING, Any

from riverrun.generated import generated, marked, owner_before, text_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TEXT = "def call():\n    return {}\n"


def test_functions_of_one_label_show_their_own_lines() -> None:
    made = [generated("of one label", TEXT.format(n), {}) for n in range(3)]
    assert [text_of(function) for function in made] == [TEXT.format(n) for n in range(3)]
    assert [function() for function in made] == [0, 1, 2]


def test_lines_are_forgotten_with_their_function() -> None:
    first = generated("of a while", TEXT.format(1), {})
    file = first.__code__.co_filename
    del first
    assert not linecache.getlines(file)
    assert generated("of a while", TEXT.format(2), {}).__code__.co_filename == file


def test_a_function_may_end_while_linecache_looks_for_changed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linecache, "cache", {})
    module = tmp_path / "module.py"
    module.write_text("x = 1\n")
    linecache.getlines(str(module))
    made = [generated("that ends", TEXT.format(1), {})]
    stat = os.stat

    def dropping(path: Any, **options: Any) -> os.stat_result:
        made.clear()
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", dropping)
    linecache.checkcache()
    assert not made


def test_the_call_before_a_line_is_the_nearest_one_that_is_no_deeper() -> None:
    lines = [
        marked("def run(first, second, last):", "source"),
        marked("    if first():", "filter"),
        marked("        second()", "below"),
        marked("    value = 1", "mapper"),
        marked("    last(value)", "mapper"),
    ]
    made = generated("with owners", "\n".join(lines), {})
    file = made.__code__.co_filename
    assert [owner_before(file, number) for number in range(7)] == ["", "", "source", "filter", "filter", "filter", ""]
    assert owner_before(file, None) == owner_before("elsewhere.py", 1) == ""
