"""Look-ups that are rehearsed: answers are recorded once, and used instead of calls."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import JSON, STRING, Consumed, Named, Produced, StreamsBuilder, Topology
from riverrun.errors import ConfigError, ProcessingError
from riverrun.testing import LookupAnswer, TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LETTERS = {"processing.exception.handler": "continue", "errors.dead.letter.queue.topic.name": "letters"}
asked: list[Any] = []


@pytest.fixture(autouse=True)
def _forgets() -> None:
    asked.clear()


@dataclass
class Price:
    product: str
    cents: int


async def price_of(product: str) -> Price:
    asked.append(product)
    await asyncio.sleep(1)
    if product == "kiwi":
        raise KeyError(product)
    return Price(product, 100 * len(product) + asked.count(product))


def looking(fetch: Callable[..., Any] = price_of, *, flat: bool = False, **options: Any) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON))
    look_up = stream.flat_map_values_async if flat else stream.map_values_async
    look_up(fetch, named=Named("priced"), **options).to("out", Produced(STRING, JSON))
    return builder.build()


def piped(topology: Topology, *values: Any, config: Any = None, **options: Any) -> list[Any]:
    with TopologyTestDriver(topology, config, **options) as driver:
        driver.input_topic("in", STRING, JSON).pipe_key_value_list([("k", value) for value in values])
        return driver.output_topic("out", STRING, JSON).read_values_to_list()


@pytest.mark.parametrize("options", [{}, {"ordered": False}])
def test_recorded_answers_have_the_results_of_calls(tmp_path: Path, options: dict[str, Any]) -> None:
    file, values = tmp_path / "answers.jsonl", ["fig", "pear", "fig", "kiwi"]
    called = piped(looking(**options), *values, config=LETTERS, record_answers=file)
    assert called == [
        {"product": product, "cents": cents} for product, cents in (("fig", 301), ("pear", 401), ("fig", 302))
    ]
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"node": "priced", "argument": "fig", "answer": {"product": "fig", "cents": 301}},
        {"node": "priced", "argument": "pear", "answer": {"product": "pear", "cents": 401}},
        {"node": "priced", "argument": "fig", "answer": {"product": "fig", "cents": 302}},
        {"node": "priced", "argument": "kiwi", "error": "KeyError: 'kiwi'"},
    ]
    asked.clear()
    assert piped(looking(**options), *values, config=LETTERS, answers=file) == called
    assert piped(looking(**options), "pear", "pear", answers=file) == [called[1], called[1]]
    with pytest.raises(ProcessingError, match="KeyError: 'kiwi'"):
        piped(looking(**options), "kiwi", answers=file)
    assert asked == []


def test_the_argument_of_a_function_of_key_and_value_is_both(tmp_path: Path) -> None:
    def both(key: str, value: dict[str, int]) -> list[Any]:
        return [key, value["n"]]

    piped(looking(both, flat=True), {"n": 2}, record_answers=tmp_path / "answers.jsonl")
    (line,) = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert json.loads(line) == {"node": "priced", "argument": ["k", {"n": 2}], "answer": ["k", 2]}
    answers = [LookupAnswer("priced", ["k", {"b": 1, "a": 2}], ["x", "y"])]
    assert piped(looking(both, flat=True), {"a": 2, "b": 1}, answers=answers) == ["x", "y"]


def test_what_an_iterator_answers_is_recorded_and_goes_on(tmp_path: Path) -> None:
    def several(value: int) -> Any:
        return (each for each in range(value))

    assert piped(looking(several, flat=True), 2, record_answers=tmp_path / "a") == [0, 1]
    assert piped(looking(several, flat=True), 2, answers=tmp_path / "a") == [0, 1]


@pytest.mark.parametrize("config", [None, LETTERS])
def test_a_missing_answer_is_an_error_whatever_handlers_do(config: Any) -> None:
    answers = [LookupAnswer("priced", {"n": 1}, 5)]
    with pytest.raises(
        ConfigError, match=r"No answer is recorded for node priced and the argument \{'n': 2\}"
    ) as raised:
        piped(looking(lambda _value: 1), {"n": 1}, {"n": 2}, answers=answers, config=config)
    assert raised.value.hint == 'Record it, or add a line: {"answer":"...","argument":{"n":2},"node":"priced"}'


def test_an_answer_that_json_changes_is_not_recorded(tmp_path: Path) -> None:
    def pair(value: int) -> Any:
        return (value, float("nan")) if value else (1, 2)

    for value in (0, 1):
        with pytest.raises(ConfigError, match="The answer of node priced cannot be recorded"):
            piped(looking(pair), value, record_answers=tmp_path / "answers.jsonl", config=LETTERS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "answers, line 1 is not an answer: "),
        ('\n{"node": "priced", "argument": 1}', "answers, line 2 needs either answer or error"),
        ('{"node": "priced", "argument": 1, "answer": 1, "error": "x"}', "needs either answer or error"),
        ('{"node": "priced", "arguments": 1, "answer": 1}', "is not an answer: "),
        ('{"node": "price", "argument": 1, "answer": 1}', "node price, which looks nothing up"),
        (
            '{"node": "priced", "argument": "fig", "answer": {"product": 1}}',
            "The answer of node priced for 'fig' does not",
        ),
        (None, "answers cannot be read: No such file"),
    ],
)
def test_mistakes_in_recorded_answers_have_clear_errors(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "answers"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        piped(looking(), "fig", answers=file)


def test_answers_are_used_or_recorded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="either get recorded answers, or"):
        piped(looking(), answers=[], record_answers=tmp_path / "answers")
    with pytest.raises(ConfigError, match="Answers cannot be recorded in"):
        piped(looking(), record_answers=tmp_path / "missing" / "answers")


def test_a_record_that_is_set_aside_takes_its_own_answers_with_it(tmp_path: Path) -> None:
    def numbered(value: str) -> str:
        asked.append(value)
        return f"{value}{asked.count(value)}"

    def refuse(value: str) -> str:
        if value == "b2":
            raise ValueError(value)
        return value

    builder = StreamsBuilder()
    inputs = [builder.stream(topic, Consumed(STRING, STRING)) for topic in ("in", "other")]
    looked_up = inputs[0].merge(inputs[1]).map_values_async(numbered, named=Named("numbered"))
    looked_up.map_values(refuse).to("out", Produced(STRING, STRING))
    topology, file = builder.build(), tmp_path / "answers.jsonl"
    # All records are processed at once, when the wait for the other input ends.
    config = {"processing.exception.handler": "set-aside", "max.task.idle.ms": 1_000}

    def outputs(**options: Any) -> list[str | None]:
        with TopologyTestDriver(topology, config, **options) as driver:
            topic = driver.input_topic("in", STRING, STRING)
            for values in "abab", "b":
                topic.pipe_value_list(list(values))
                driver.advance_wall_clock_time(timedelta(seconds=2))
            return driver.output_topic("out", STRING, STRING).read_values_to_list()

    written = [LookupAnswer("numbered", letter, f"{letter}{n}") for n in (1, 2, 3) for letter in "ab"]
    assert outputs(answers=written) == ["a1", "b1", "a2", "b3"]
    assert outputs(record_answers=file) == outputs(answers=file) == ["a3", "b3", "a4", "b4"]
