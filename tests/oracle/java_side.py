"""Replays scenarios through Kafka Streams itself. Needs Java 17 or newer, and at the first run a Maven repository."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.kafka.embedded.artifacts import Artifact, find_java, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

VERSION = "4.3.1"
_HERE = Path(__file__).parent
_LIBRARIES = _HERE.parent.parent / f".riverrun/oracle-{VERSION}"


@contextmanager
def compiled() -> Iterator[tuple[list[str], Path]]:
    """The command that runs `java/Oracle.java`, and a directory for its files."""
    java = find_java()
    artifacts = [Artifact("org.apache.kafka", "kafka-streams-test-utils", VERSION)]
    libraries = os.pathsep.join(map(str, sorted(resolve(artifacts, _LIBRARIES, java).glob("*.jar"))))
    with tempfile.TemporaryDirectory() as name:
        sources = map(str, sorted(_HERE.glob("java/*.java")))
        compiler = [java, "--module", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-cp", libraries]
        subprocess.run([*compiler, "-d", name, *sources], check=True)
        yield [java, f"-Djava.io.tmpdir={name}", "-cp", name + os.pathsep + libraries, "Oracle"], Path(name)


@contextmanager
def answering() -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return a function that runs a scenario with its topology on Kafka Streams; one JVM answers all."""
    with (
        compiled() as (command, _),
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        inputs, outputs = process.stdin, process.stdout

        def ask(scenario: dict[str, Any]) -> dict[str, Any]:
            inputs.write(json.dumps(scenario) + "\n")
            inputs.flush()
            answer: dict[str, Any] = json.loads(outputs.readline())
            return answer

        yield ask
        inputs.close()


def replayed(scenarios: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Kafka Streams' result of each scenario (see `java/Oracle.java`), in their order; each processor has a JVM."""
    with compiled() as (command, scratch), ExitStack() as stack:
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
