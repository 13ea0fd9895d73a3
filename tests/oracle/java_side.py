"""Replays scenarios through Kafka Streams itself. Needs Java 17 or newer, and at the first run a Maven repository."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.kafka.embedded.artifacts import Artifact, find_java, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERSION = "4.3.1"
_HERE = Path(__file__).parent
_LIBRARIES = _HERE.parent.parent / f".millrace/oracle-{VERSION}"


def replayed(scenarios: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What Kafka Streams gives for each scenario (see `java/Oracle.java`), in their order; a JVM per processor works."""
    java = find_java()
    artifacts = [Artifact("org.apache.kafka", "kafka-streams-test-utils", VERSION)]
    libraries = os.pathsep.join(map(str, sorted(resolve(artifacts, _LIBRARIES, java).glob("*.jar"))))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        scratch = Path(name)
        sources = map(str, sorted(_HERE.glob("java/*.java")))
        compiler = [java, "--module", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-cp", libraries]
        subprocess.run([*compiler, "-d", name, *sources], check=True)
        command = [java, f"-Djava.io.tmpdir={name}", "-cp", name + os.pathsep + libraries, "Oracle"]
        parts = min(os.cpu_count() or 1, len(scenarios))
        processes = []
        for part in range(parts):
            inputs, outputs = scratch / f"scenarios-{part}", scratch / f"results-{part}"
            inputs.write_text("".join(json.dumps(scenario) + "\n" for scenario in scenarios[part::parts]))
            processes.append(stack.enter_context(subprocess.Popen([*command, str(inputs), str(outputs)])))
        codes = [process.wait() for process in processes]
        if any(codes):
            message = "Kafka Streams failed"
            raise RuntimeError(message)
        results = [stack.enter_context((scratch / f"results-{part}").open(encoding="utf-8")) for part in range(parts)]
        for number in range(len(scenarios)):
            yield json.loads(next(results[number % parts]))
