"""Whatever way a value takes to a function of a topology, a change of it changes the fingerprint, and nothing else does."""

# ruff: noqa: E501 - programs on one line are read as one
from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    STRING,
    Consumed,
    FixedKeyProcessor,
    FixedKeyRecord,
    Processor,
    Produced,
    Record,
    StreamsBuilder,
    ValueTransformerWithKey,
)
from riverrun.testing import TopologyTestDriver
from riverrun.topology.fingerprint import code_of
from tests.unit.reaching import HELPER, MAIN, WAYS, WHOLE_MODULES, Files, built, forget, one, two, written

ROOT = Path(__file__).parents[2]
PRINTS: dict[tuple[str, str], str] = {}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a cached module of the second would hide a change
    yield
    forget()


def fingerprint(files: Files, directory: Path, value: str = "900") -> str:
    found: str = topology(files, directory, value).fingerprint()
    return found


def topology(files: Files, directory: Path, value: str = "900") -> Any:
    """The topology of a project; its directory stays on the path, where functions import from."""
    written(files, directory, value)
    sys.path.insert(0, str(directory))
    return built(directory)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Directories, each for one project, which leave the path at the end."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    numbers = itertools.count()
    return lambda: tmp_path / str(next(numbers))


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_changes_changes_the_fingerprint(way: str, place: Any) -> None:
    first = topology(WAYS[way], place(), "900")
    before = first.fingerprint()
    assert first.unseen() == {}
    assert first.fingerprint() == before
    assert fingerprint(WAYS[way], place(), "500") != before, "a change is seen"
    assert fingerprint(noisy(way), place(), "900") == before, "comments, layout and other names do not count"


def noisy(way: str) -> Files:
    """A project with other lines, comments, docstrings, spaces and names, which do not matter."""
    noise = '"""Of a case."""\n# a comment\nUNRELATED_OF_CASE = 7\n\ndef unrelated_of_case():\n    return UNRELATED_OF_CASE\n\n\n'
    head = "from __future__ import annotations\n"
    changed = {}
    for name, text in WAYS[way].items():
        body = text.removeprefix(head)
        lines = "".join(
            f"{line}  # a comment\n" if line.endswith((":", ")")) else f"{line}\n" for line in body.splitlines()
        )
        noise = noise if "C = " not in body or way not in WHOLE_MODULES else "# a comment\n\n"
        changed[name] = (head if body != text else "") + noise + lines
        ast.parse(changed[name].replace("@X", "900"))
    return changed


def test_fingerprints_are_alike_in_other_processes_and_places(tmp_path: Path) -> None:
    def listed(seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "tests.unit.reaching", str(tmp_path / f"at-{seed}"), "900"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    one_process, other = listed("1"), listed("4711")
    assert len(one_process) == len(WAYS)
    assert one_process == other


SAME = {
    "a docstring of a class": (
        "class K:\n    C = 1\n    def g(self, v):\n        return 2\ndef f(v):\n    return K().g(v)\n",
        'class K:\n    """Text."""\n    C = 1\n    def g(self, v):\n        """Text."""\n        return 2\ndef f(v):\n    return K().g(v)\n',
    ),
    "an inner docstring": (
        "def f(v):\n    def g():\n        return 1\n    return g()\n",
        'def f(v):\n    def g():\n        """Text."""\n        return 1\n    return g()\n',
    ),
    "an annotation": ("C = 1\ndef f(v):\n    return C\n", "C: int = 1\ndef f(v: int) -> int:\n    return C\n"),
    "an order of methods": (
        "class K:\n    def a(self): return 1\n    def b(self): return 2\ndef f(v):\n    return K().a()\n",
        "class K:\n    def b(self): return 2\n    def a(self): return 1\ndef f(v):\n    return K().a()\n",
    ),
    "an order of names": ("A = 1\nB = 2\ndef f(v):\n    return A, B\n", "B = 2\nA = 1\ndef f(v):\n    return A, B\n"),
    "a form of a constant": ("C = 1000\ndef f(v):\n    return C\n", "C = 1_000\ndef f(v):\n    return C\n"),
    "quotes": ("C = 'a'\ndef f(v):\n    return C + 'b'\n", 'C = "a"\ndef f(v):\n    return C + "b"\n'),
    "a set's order": (
        "C = {'a', 'b', 'c'}\ndef f(v):\n    return C\n",
        "C = {'c', 'b', 'a'}\ndef f(v):\n    return C\n",
    ),
    "where it is installed": (
        "from pathlib import Path\nC = Path(__file__).parent / 'rates.csv'\nT = str(C)\ndef f(v):\n    return C, T\n",
        "from pathlib import Path\nC = Path(__file__).parent / 'rates.csv'\nT = str(C)\ndef f(v):\n    return C, T\n",
    ),
    "a logger and a lock": (
        "import logging, threading\nlog = logging.getLogger('a')\nlock = threading.Lock()\ndef f(v):\n    with lock:\n        log.info(v)\n    return v\n",
        "import logging, threading\nlog = logging.getLogger('a')\nlock = threading.RLock() and threading.Lock()\ndef f(v):\n    with lock:\n        log.info(v)\n    return v\n",
    ),
    "a name of another function": (
        "C = 1\ndef other(): return 1\ndef f(v):\n    return C\n",
        "C = 1\ndef other(): return 2\ndef f(v):\n    return C\n",
    ),
    "an attribute that is called like a name": (
        "amount = 1\nC = 2\ndef f(v):\n    return v.amount + C\n",
        "amount = 3\nC = 2\ndef f(v):\n    return v.amount + C\n",
    ),
    "a tuple that is shared": (
        "A = (1, [2])\nB = A\ndef f(v):\n    return A, B\n",
        "A = (1, [2])\nB = (1, [2])\ndef f(v):\n    return A, B\n",
    ),
}


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_matter_does_not_change_the_fingerprint(change: str, place: Any) -> None:
    before, after = (fingerprint(one(text), place()) for text in SAME[change])
    assert before == after


def test_other_names_of_a_module_that_is_used_do_not_change_the_fingerprint(place: Any) -> None:
    main = "import HELPER\ndef f(v):\n    import HELPER as h\n    return HELPER.C, h.D\n"
    texts = ("C, D = 1, 2\nE = 3\n", "C, D = 1, 2\nE = 4\n")
    before, after = (fingerprint(two(main, text), place()) for text in texts)
    assert before == after


def test_versions_in_files_of_their_own_differ_only_where_they_do(place: Any) -> None:
    text = "LIMIT = @X\nRATE = 3\ndef big(k, v): return v > LIMIT\ndef money(v): return v * RATE\n"
    files = {
        f"{MAIN}.py": f"import {HELPER} as v1\n"
        + text
        + (
            "def build(builder):\n    from riverrun import JSON, STRING, Consumed, Produced, StreamsBuilder\n    def made(m):\n"
            "        builder = StreamsBuilder()\n"
            "        builder.stream('in', Consumed(STRING, JSON)).filter(m.big).map_values(m.money).to('out', Produced(STRING, JSON))\n"
            "        return builder.build()\n    import sys\n    this = sys.modules[__name__]\n    this.pair = [made(v1), made(this)]\n    return this.pair[0]\n"
        ),
        f"{HELPER}.py": text.replace("@X", "1"),
    }
    topology(files, place(), "2")
    one_version, other = (each.node_fingerprints() for each in sys.modules[MAIN].pair)
    assert [name for name in one_version if one_version[name] != other[name]] == ["KSTREAM-FILTER-0000000001"]


UNSEEN = {
    "a generator": ("G = (n for n in [1])\ndef f(v):\n    return next(G)\n", "G in f (builtins.generator)"),
    "an iterator": (
        "import itertools\nG = itertools.count()\ndef f(v):\n    return next(G)\n",
        "G in f (itertools.count)",
    ),
    "a random generator": (
        "import random\nG = random.Random()\ndef f(v):\n    return G.random()\n",
        "G in f (random.Random)",
    ),
    "a file": ("G = open(__file__)\ndef f(v):\n    return G.read()\n", "G in f (_io.TextIOWrapper)"),
    "an object in an object": (
        "import socket\nclass K:\n    def __init__(self):\n        self.peer = socket.socket()\nk = K()\ndef f(v):\n    return k\n",
        "K.peer (socket.socket)",
    ),
    "the environment": ("import os\ndef f(v):\n    return os.environ['A']\n", "environment variables that f reads"),
    "the environment by another name": (
        "from os import environ as e\ndef f(v):\n    return e['A']\n",
        "environment variables that f reads",
    ),
    "a file that a function reads": ("def f(v):\n    return open('a').read()\n", "files that f reads"),
    "a module by name": (
        "import importlib\ndef f(v):\n    return importlib.import_module(v)\n",
        "modules that it looks up by name that f reads",
    ),
    "too many values": ("C = list(range(3_000_000))\ndef f(v):\n    return C\n", "C in f (3,000,000 values)"),
    "an object that hides its content": (
        "class M(type):\n    __mro__ = property(lambda c: 1 / 0)\nclass K(metaclass=M):\n    pass\nk = K()\ndef f(v):\n    return k\n",
        "k in f",
    ),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_what_no_digest_covers_is_named(what: str, place: Any) -> None:
    text, name = UNSEEN[what]
    found = topology(one(text), place())
    assert any(each.startswith(name) for each in found.unseen().get("KSTREAM-MAPVALUES-0000000001", ())), found.unseen()
    assert found.fingerprint() == fingerprint(one(text), place())


HOSTILE = {
    "__getattr__ that answers anything": "class K:\n    def __getattr__(self, name): return K()\n",
    "__getattribute__ that raises": "class K:\n    def __getattribute__(self, name): raise ValueError(name)\n",
    "__eq__ and __hash__ that raise": "class K:\n    def __eq__(self, o): raise ValueError\n    def __hash__(self): raise ValueError\n",
    "__reduce__ that raises": "class K(dict):\n    def __reduce_ex__(self, p): raise ValueError\n",
    "__class__ that lies": "class K:\n    __class__ = property(lambda self: int)\n",
    "__iter__ without an end": "class K(list):\n    def __iter__(self):\n        while True: yield 1\n",
    "__repr__ that raises": "class K:\n    def __repr__(self): raise ValueError\n    __str__ = __repr__\n",
    "__bool__ that raises": "class K:\n    def __bool__(self): raise ValueError\n",
    "__len__ that lies": "class K(list):\n    def __len__(self): return 10 ** 12\n",
    "a mock": "from unittest.mock import MagicMock as K\n",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_objects_that_misbehave_are_digested_or_named(what: str, place: Any) -> None:
    text = HOSTILE[what] + "k = K()\nC = @X\ndef f(v):\n    return k, C\n"
    assert fingerprint(one(text), place(), "900") != fingerprint(one(text), place(), "500")


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.frozensets(st.integers())
    ),
)


@given(NESTED, NESTED)
def test_digests_of_values_are_equal_exactly_if_the_values_are(one_value: Any, other: Any) -> None:
    assert (code_of(one_value) == code_of(other)) == (repr(one_value) == repr(other))


@settings(max_examples=200)
@given(st.data())
def test_functions_that_call_each_other_in_any_way_show_each_constant(data: st.DataObject) -> None:
    """Functions form any graph, with cycles; the fingerprint covers exactly the constants that the first one reaches."""
    count = data.draw(st.integers(1, 7))
    calls = [data.draw(st.sets(st.integers(0, count - 1))) for _ in range(count)]
    changed = data.draw(st.integers(0, count - 1))

    def made(value: int) -> Any:
        scope: dict[str, Any] = {"__name__": "graph_of_case"}
        for number, callees in enumerate(calls):
            body = ", ".join([f"C{number}", *(f"f{callee}(v)" for callee in sorted(callees))])
            exec(f"def f{number}(v):\n    return {body}\n", scope)  # noqa: S102 - as an import does
            scope[f"C{number}"] = value if number == changed else 0
        return scope

    reached, left = set[int](), [0]
    while left:
        number = left.pop()
        if number not in reached:
            reached.add(number)
            left += calls[number]
    before, after = made(0), made(1)
    assert (code_of(before["f0"]) != code_of(after["f0"])) == (changed in reached)
    both = StreamsBuilder()
    for number in range(count):
        both.stream(f"in{number}", Consumed(STRING, JSON)).map_values(before[f"f{number}"])
    alone = StreamsBuilder()
    alone.stream("in0", Consumed(STRING, JSON)).map_values(before["f0"])
    name = "KSTREAM-MAPVALUES-0000000001"
    assert both.build().node_fingerprints()[name] == alone.build().node_fingerprints()[name]


TRAVELLING = """
import enum, functools, sys
from dataclasses import dataclass, field
import cloudpickle, msgspec
from riverrun import *
LIMIT, RATES = 5, {"eur": 2}
class E(enum.Enum):
    A = 1
@dataclass(frozen=True)
class D:
    a: int = LIMIT
    b: list = field(default_factory=lambda: [LIMIT])
class S(msgspec.Struct):
    a: int = 3
class P(Processor):
    K = 7
    def process(self, record):
        if record.value != E.A.value and D().a and S().a and self.K:
            self.context.forward(record)
def helper(v):
    return v * RATES["eur"] + LIMIT
def build(builder):
    stream = builder.stream("in", Consumed(STRING, JSON)).map_values(helper).map_values(lambda v: helper(v))
    stream.process(P).to("out", Produced(STRING, JSON(D)))
    return builder.build()
if __name__ == "__main__":
    from riverrun.config.code import reference_of
    with open(sys.argv[1], "wb") as file:
        file.write(reference_of(build).code)
    print(build(StreamsBuilder()).node_fingerprints())
"""


def test_functions_of_a_script_have_one_fingerprint_in_all_processes(tmp_path: Path) -> None:
    script, code = tmp_path / "script.py", tmp_path / "code"
    script.write_text(TRAVELLING)
    receive = "import pickle, sys; from riverrun import StreamsBuilder; "
    receive += "print(pickle.load(open(sys.argv[1], 'rb'))(StreamsBuilder()).node_fingerprints())"
    commands = [sys.executable, str(script), str(code)], [sys.executable, "-c", receive, str(code)]
    there, here = (
        subprocess.run(each, capture_output=True, text=True, check=True, cwd=ROOT).stdout for each in commands
    )
    assert there == here


class _Beginning:
    def __init__(self) -> None:
        self.begun = True


class _Plain(Processor[str, Any]):
    def process(self, record: Record[str, Any]) -> None: ...


class _WithABase(_Beginning, Processor[str, Any]):
    def process(self, record: Record[str, Any]) -> None: ...


class _OfAPlainOne(_Plain):
    def init(self, context: Any) -> None: ...


class _FixedKeys(FixedKeyProcessor[str, Any]):
    def process(self, record: FixedKeyRecord[str, Any]) -> None: ...


class _Transformer(ValueTransformerWithKey[str, Any, Any]):
    def transform(self, key: str, value: Any) -> Any:
        return key, value


@pytest.mark.parametrize("made", [_Plain, _WithABase, _OfAPlainOne, _FixedKeys, _Transformer])
def test_the_digest_of_a_class_is_the_same_before_and_after_its_first_object(made: type) -> None:
    before = code_of(made)
    made()
    assert code_of(made) == before


def test_what_functions_keep_while_they_process_leaves_the_fingerprint() -> None:
    kept: dict[str, int] = {}
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON))
    stream.map_values(lambda v: kept.setdefault(str(v), len(kept))).to("out", Produced(STRING, JSON))
    topology = builder.build()
    before = topology.fingerprint()
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, JSON).pipe_input("a", 5)
    assert kept
    assert topology.fingerprint() == before
    topology.add_sink("another", "more", "KSTREAM-SOURCE-0000000000", key_serde=STRING, value_serde=JSON)
    assert topology.fingerprint() != before


def test_the_fingerprint_of_code_leaves_out_what_functions_hold() -> None:
    def topology_of(mapper: Any) -> Any:
        builder = StreamsBuilder()
        builder.stream("in", Consumed(STRING, JSON)).map_values(mapper).to("out", Produced(STRING, JSON))
        return builder.build()

    def holding(held: Any) -> Any:
        return topology_of(lambda v: (held, v))

    one_, other = holding({"a": 1}), holding({"a": 2})
    assert one_.fingerprint() != other.fingerprint()
    assert one_.code_fingerprint() == other.code_fingerprint()
    assert one_.code_fingerprint() != topology_of(lambda v: v).code_fingerprint()
