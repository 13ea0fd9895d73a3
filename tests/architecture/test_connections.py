"""One door makes clients. Processes ask brokers with one each, made where they begin and handed on with the application."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import riverrun

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(riverrun.__file__).parent
ENTRIES = {
    "cluster/instance.py",  # an instance as a Spark task
    "demo/story.py",
    "project/cluster.py",  # the front door
    "service/history_topic.py",  # in a thread, only if the past is kept
    "service/browsing.py",  # pages for people, only if some are asked for
    "service/query_computing.py",  # push queries, in a process of their own
    "service/reading.py",  # asked by name, of another version's group
    "simulation/cluster.py",  # for the calls of a test
    "spark/tasks/work.py",  # tasks of a Spark executor
    "worker/streams_instance.py",
    "worker/stream_thread/stream_thread.py",
    "worker/worker.py",
}


def test_clients_that_ask_brokers_are_made_where_processes_begin() -> None:
    modules = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
    made = {name for name, text in modules.items() if re.search(r"(?<!class )\bAdmin\(", text)}
    assert {name for name in made if not name.startswith("kafka/")} == ENTRIES


def test_only_the_door_makes_clients_of_the_libraries() -> None:
    made = re.compile(
        r"\b(Producer|Consumer|AdminClient|KafkaAdminClient|KafkaConnectionManager|CoordinatorConnection)\("
    )
    modules = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
    found = {name: set(made.findall(text)) for name, text in modules.items() if made.search(text)}
    assert found == {
        "kafka/door.py": {"Producer", "Consumer", "AdminClient", "CoordinatorConnection"},
        "kafka/kafka_python.py": {"KafkaAdminClient", "KafkaConnectionManager"},
    }


def test_one_module_loads_kafka_python_so_that_threads_load_it_in_one_order() -> None:
    loads = re.compile(r"^(from|import) kafka\b", re.MULTILINE)
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if loads.search(path.read_text())}
    # A simulated cluster is loaded by the test that opens it, before any of its threads begins.
    assert {each for each in found if not each.startswith("simulation/")} == {"kafka/kafka_python.py"}


def test_an_application_and_its_client_are_passed_as_one_object() -> None:
    """`ConnectedApplication` owns both."""
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
    assert [f"{name}: {each}" for name, tree in trees.items() for each in functions_with_both(tree)] == []


def functions_with_both(tree: ast.Module) -> Iterator[str]:
    """Yield functions that take an application and a client that asks brokers."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            types = {ast.unparse(each.annotation).removesuffix(" | None") for each in arguments if each.annotation}
            if {"Application", "Admin"} <= types:
                yield function.name
