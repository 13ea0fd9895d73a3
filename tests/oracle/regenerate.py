"""Writes the golden files: what Kafka Streams itself gives for every scenario (`make oracle`).

Needs Java 17 or newer, and at the first run a Maven repository.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline.kafka.artifacts import Artifact, find_java, resolve
from tests.oracle.scenarios import scenarios

VERSION = "4.3.1"
_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_GOLDEN = _HERE / "golden"


def main(only: list[str]) -> None:
    """Replay all scenarios, or those of the named topologies."""
    chosen = [scenario for scenario in scenarios() if not only or scenario["topology"] in only]
    java = find_java()
    artifacts = [Artifact("org.apache.kafka", "kafka-streams-test-utils", VERSION)]
    libraries = resolve(artifacts, _ROOT / f".millrace/oracle-{VERSION}", java)
    results = _replay(java, chosen, os.pathsep.join(map(str, sorted(libraries.glob("*.jar")))))
    _GOLDEN.mkdir(exist_ok=True)
    for name in dict.fromkeys(scenario["topology"] for scenario in chosen):
        pairs = [(s, r) for s, r in zip(chosen, results, strict=True) if s["topology"] == name]
        _write(_GOLDEN / f"{name}.json.gz", _golden(pairs))
    _write(_GOLDEN / "unnamed.json.gz", _unnamed(chosen, results))
    print(f"{len(chosen)} scenarios, {sum(path.stat().st_size for path in _GOLDEN.iterdir()) // 1024} KiB")


def _replay(java: str, chosen: list[dict[str, Any]], libraries: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        inputs, outputs = Path(scratch) / "scenarios", Path(scratch) / "results"
        inputs.write_text("".join(json.dumps(scenario) + "\n" for scenario in chosen))
        sources = map(str, sorted(_HERE.glob("java/*.java")))
        compiler = [java, "--module", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-cp", libraries]
        subprocess.run([*compiler, "-d", scratch, *sources], check=True)
        command = [java, f"-Djava.io.tmpdir={scratch}", "-cp", scratch + os.pathsep + libraries, "Oracle"]
        subprocess.run([*command, str(inputs), str(outputs)], check=True)
        return [json.loads(line) for line in outputs.read_text("utf-8").split("\n") if line]


def _golden(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    (structure,) = {json.dumps([result["describe"], result["internal_topics"]]) for _, result in pairs}
    describe, internal_topics = json.loads(structure)
    describe = re.sub(
        r"\(extractor class: .*\)", "(extractor class: a lambda)", describe
    )  # its name changes every time
    return {
        "kafka_streams": VERSION,
        "describe": describe,
        "internal_topics": internal_topics,
        "scenarios": [
            {"cache": s["cache"], "records": s["records"]} | {part: r[part] for part in ("topics", "stores", "dropped")}
            for s, r in pairs
        ],
    }


def _unnamed(chosen: list[dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What `ensure.explicit.internal.resource.naming` says of each topology; those not chosen stay."""
    path = _GOLDEN / "unnamed.json.gz"
    known = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    found = {scenario["topology"]: result["unnamed"] for scenario, result in zip(chosen, results, strict=True)}
    return dict(sorted({**known, **found}.items()))


def _write(path: Path, golden: dict[str, Any]) -> None:
    data = json.dumps(golden, separators=(",", ":"), ensure_ascii=False).encode()
    path.write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
