"""Decoders that threads make for one class at a time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

THREADS_THAT_MAKE_DECODERS = """
import sys, threading
from dataclasses import make_dataclass
import msgspec
from riverrun.decoders import converter, json_decoder, msgpack_decoder
from riverrun.serde.serdes import JSON

KINDS = {
    "a struct": lambda fields: msgspec.defstruct("Row", [(name, type_, None) for name, type_ in fields]),
    "a dataclass": lambda fields: make_dataclass("Row", [(name, type_, None) for name, type_ in fields]),
}
sys.setswitchinterval(1e-6)

def work(kind, barrier):
    barrier.wait()
    for decode, row in (
        (json_decoder(kind).decode, b'{"inner": {"f1": 1}}'),
        (msgpack_decoder(kind).decode, msgspec.msgpack.encode({"inner": {"f1": 1}})),
        (converter(kind), {"inner": {"f1": 1}}),
        (JSON(kind).deserialize, b'{"inner": {"f1": 1}}'),
    ):
        assert decode(row).inner.f1 == 1

for _ in range(100):
    numbers = [(f"f{n}", "int | None") for n in range(20)]
    kind = KINDS[sys.argv[1]]([*numbers, ("inner", KINDS[sys.argv[1]](numbers))])
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(kind, barrier)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("all decoded")
"""


@pytest.mark.parametrize("kind", ["a struct", "a dataclass"])
def test_threads_may_make_decoders_of_one_class_together(kind: str) -> None:
    """In a process of their own, which msgspec would end by a segmentation fault."""
    command = [sys.executable, "-c", THREADS_THAT_MAKE_DECODERS, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all decoded\n", "")


def test_all_decoders_of_types_are_made_in_one_module() -> None:
    """Those made elsewhere would not wait for the ones made there."""
    modules = [path for folder in ("pipeline", "plugins") for path in (ROOT / folder).rglob("*.py")]
    pattern = re.compile(r"msgspec\.(json|msgpack)\.Decoder\(|\bdecode\([^\n]*\btype=|msgspec\.convert\b")
    found = {str(path.relative_to(ROOT)) for path in modules if pattern.search(path.read_text())}
    assert found == {"pipeline/riverrun/decoders.py"}
