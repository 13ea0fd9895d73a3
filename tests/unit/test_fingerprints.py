"""Digests of functions: what changes them, and that versions of Python agree on them."""

from __future__ import annotations

import argparse
import decimal
import functools
import gc
import itertools
import linecache
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from riverrun import STRING, Consumed, Named, StreamsBuilder
from tests.unit import written_alike

GOLDEN = "34344557699720c6"
"""Alike with 3.11 to 3.14. If it changes, every application has to start over."""

ROOT = Path(__file__).parents[2]


def digest(function: Any) -> str:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).map_values(function)
    return builder.build().fingerprint()


def written(source: str, name: str = "f", file: str = "module.py") -> Any:
    """A function of a module whose source is known, and whose annotations Python evaluates."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": "module"}
    exec(compile(source, file, "exec", dont_inherit=True), scope)  # noqa: S102 - as an import does
    return scope[name]


def test_a_topology_has_the_fingerprint_that_it_always_had() -> None:
    assert written_alike.topology().fingerprint() == GOLDEN


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_other_versions_of_python_find_the_same_fingerprint(version: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"there is no python{version} on the PATH")
    needed = subprocess.run([python, "-c", "import msgspec, numpy, confluent_kafka"], capture_output=True, check=False)
    if needed.returncode != 0:
        pytest.skip(f"python{version} lacks msgspec, numpy or confluent-kafka")
    command = [python, "-c", "from tests.unit.written_alike import topology; print(topology().fingerprint())"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == GOLDEN


ANNOTATED = """
import dataclasses
from typing import Annotated, Any, Callable, ClassVar, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union
import msgspec

T = TypeVar("T")

class Inner(msgspec.Struct, frozen=True, rename="camel"):
    long_name: Union[int, str, None]

class Row(msgspec.Struct):
    a: int
    b: str | None
    c: Optional[Inner] = None
    d: "list[Inner]" = []

@dataclasses.dataclass
class Counted:
    rows: list[Row] = dataclasses.field(default_factory=list)
    limit: ClassVar[int] = 3

@dataclasses.dataclass(slots=True, frozen=True)
class Tree:
    left: Union["Tree", int]
    others: dict[str, list["Tree"]] | None = None

class Pair(NamedTuple):
    left: str
    right: "Inner"

class Options(TypedDict, total=False):
    size: Annotated[int, "bytes"]
    mode: Literal["a", "b"]

class Plain:
    if True:
        count: int = 1
    made: Callable[[int], Any]

def f(value: int) -> Optional[Row]:
    def inner(row: Row) -> Counted:
        return row
    return [inner, Tree, Pair, Options, Plain, value]
"""


def test_versions_of_python_agree_on_annotations_that_they_evaluate() -> None:
    assert digest(written(ANNOTATED)) == "cc66b2dbd47af496"


@pytest.mark.parametrize(
    ("one", "other"),
    [("a: int", "a: float"), ("size: Annotated[int, ", "size: Annotated[str, "), ('right: "Inner"', 'right: "Row"')],
)
def test_an_annotation_that_python_evaluates_changes_a_digest(one: str, other: str) -> None:
    assert digest(written(ANNOTATED.replace(one, other))) != digest(written(ANNOTATED))


def test_an_optional_type_is_a_union_with_none() -> None:
    assert digest(written(ANNOTATED.replace("Optional[Inner]", "Inner | None"))) == digest(written(ANNOTATED))


@pytest.mark.skipif(sys.version_info < (3, 14), reason="earlier versions cannot create such a class")
def test_an_annotation_may_have_a_name_that_only_type_checkers_know() -> None:
    source = "class Row:\n    a: int\n    b: list[Unknown]\n\ndef f(v):\n    return Row\n"
    assert digest(written(source)) == digest(written(source))
    assert digest(written(source)) != digest(written(source.replace("a: int", "a: str")))
    assert digest(written(source)) != digest(written(source.replace("Unknown", "Other")))


def test_threads_may_ask_for_fingerprints_together() -> None:
    """CPython 3.11 counts the depth of a syntax tree for all threads together, and raises when they build two at a time."""

    def change_threads(*_: object) -> None:
        """Run Python code, between two steps of which another thread may go on."""

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(change_threads)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        source = Path(argparse.__file__).read_text(encoding="utf-8")
        functions = [written(f"{source}\n\ndef f(v):\n    return v + {n}\n", file=f"module{n}.py") for n in range(8)]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(digest, functions))
    finally:
        gc.callbacks.remove(change_threads)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert found == [digest(function) for function in functions]


ONE = "def f(v):\n    return v + 1\n"

ALIKE = {
    "a comment": "def f(v):\n    # one more\n    return v + 1\n",
    "a docstring": 'def f(v):\n    """One more."""\n    return v + 1\n',
    "layout": "\n\ndef f(v,):\n    return (v +\n            1)\n",
    "annotations": "def f(v: int) -> int:\n    return v + 1\n",
}

DIFFERENT = {
    "another operator": "def f(v):\n    return v - 1\n",
    "another constant": "def f(v):\n    return v + 2\n",
    "another parameter": "def f(w):\n    return w + 1\n",
    "a default": "def f(v, w=1):\n    return v + 1\n",
    "another default": "def f(v, w=2):\n    return v + 1\n",
    "a default by name": "def f(v, *, w=1):\n    return v + 1\n",
    "another default by name": "def f(v, *, w=2):\n    return v + 1\n",
    "a lambda": "f = lambda v: v + 1\n",
    "a helper": "def g(v):\n    return v + 1\ndef f(v):\n    return g(v)\n",
    "another helper of the name": "def g(v):\n    return v + 2\ndef f(v):\n    return g(v)\n",
    "a helper within a comprehension": "def g(v):\n    return v + 1\ndef f(v):\n    return [g(x) for x in v]\n",
    "another one": "def g(v):\n    return v + 2\ndef f(v):\n    return [g(x) for x in v]\n",
    "what is captured": "def make(n):\n    def f(v):\n        return v + n\n    return f\nf = make(1)\n",
    "another value captured": "def make(n):\n    def f(v):\n        return v + n\n    return f\nf = make(2)\n",
    "an object": "class F:\n    def __call__(self, v):\n        return v + 1\nf = F()\n",
    "another object": "class F:\n    def __call__(self, v):\n        return v + 2\nf = F()\n",
}


@pytest.mark.parametrize("change", ALIKE)
def test_what_does_not_change_a_function_does_not_change_its_digest(change: str) -> None:
    assert digest(written(ALIKE[change])) == digest(written(ONE))


def test_what_changes_a_function_changes_its_digest() -> None:
    sources = [ONE, *DIFFERENT.values()]
    assert len({digest(written(source)) for source in sources}) == len(sources)


def test_several_lambdas_of_one_line_are_told_apart() -> None:
    source = "f = [lambda v: v + 1, lambda v: v + 2, lambda v: v + 1]\n"
    one, two, again = written(source)
    assert digest(one) == digest(again)
    assert digest(one) != digest(two)


@pytest.mark.parametrize("file", ["gone.py", "<stdin>"])
def test_functions_without_source_are_told_apart_by_their_code(file: str) -> None:
    def unwritten(source: str) -> Any:
        scope: dict[str, Any] = {}
        exec(compile(source, file, "exec"), scope)  # noqa: S102 - as if the file were gone
        return scope["f"]

    assert digest(unwritten(ONE)) == digest(unwritten(ONE))
    assert digest(unwritten(ONE)) != digest(unwritten(DIFFERENT["another operator"]))


def test_partials_differ_by_what_they_fix() -> None:
    function = written(DIFFERENT["a default by name"])
    digests = {digest(functools.partial(function, w=fixed)) for fixed in (1, 2)}
    assert len(digests | {digest(function)}) == 3


def test_what_a_decimal_context_has_computed_does_not_change_a_digest() -> None:
    context = decimal.Context(prec=80)
    digests = [digest(functools.partial(context.divide, decimal.Decimal(1)))]
    context.divide(decimal.Decimal(1), decimal.Decimal(3))  # it notes that the result is inexact
    digests.append(digest(functools.partial(context.divide, decimal.Decimal(1))))
    assert digests[0] == digests[1]
    assert digest(functools.partial(decimal.Context(prec=79).divide, decimal.Decimal(1))) not in digests


def test_a_module_that_is_rewritten_and_reloaded_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    digests = []
    for source in (ONE, DIFFERENT["a helper"]):
        file.write_text(source)
        digests.append(digest(runpy.run_path(str(file), run_name="module")["f"]))
    assert digests[0] != digests[1]


ONE_FUNCTION = [
    "filter",
    "filter_not",
    "map",
    "map_values",
    "flat_map",
    "flat_map_values",
    "select_key",
    "peek",
    "foreach",
]


def any_function(_key: str, value: str) -> Any:
    return value


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(ONE_FUNCTION, 2)))
def test_operators_of_one_name_and_function_are_told_apart(one: str, other: str) -> None:
    def fingerprint(operator: str) -> str:
        builder = StreamsBuilder()
        getattr(builder.stream("in", Consumed(STRING, STRING)), operator)(any_function, named=Named("step"))
        return builder.build().fingerprint()

    assert fingerprint(one) != fingerprint(other)
