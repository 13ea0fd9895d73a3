"""`riverrun quality suggest`: drafts of suites from public topics, which checks of the same application then pass."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from riverrun.cli.main import app
from riverrun.errors import ConfigError, TopicError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    from tests.brokers import Broker

pytestmark = pytest.mark.broker

STATEMENTS = """
CREATE STREAM orders (customer STRING KEY, item STRING, amount DECIMAL(8, 2))
    WITH (KAFKA_TOPIC = 'NAME-orders', VALUE_FORMAT = 'JSON');
CREATE TABLE counts WITH (KAFKA_TOPIC = 'NAME-counts') AS SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE STREAM large WITH (KAFKA_TOPIC = 'NAME-large') AS SELECT * FROM orders WHERE amount > 100;
"""


@pytest.fixture
def command(broker: Broker, unique: str, tmp_path: Path) -> Callable[..., Result]:
    """Runs commands on an application whose outputs have rows: a table with a deleted one, and a log."""
    (tmp_path / "orders.sql").write_text(STATEMENTS.replace("NAME", unique))
    config = tmp_path / "streams.toml"
    config.write_text(
        f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n'
        f'[apps.{unique}]\ntopology = "orders.sql"\nquality = "expected"\n'
    )
    broker.create(2, f"{unique}-orders", f"{unique}-large", f"{unique}-counts")
    large = [(b"c%d" % n, json.dumps({"ITEM": "lamp", "AMOUNT": 100 + n}).encode(), n) for n in range(40)]
    broker.write(f"{unique}-large", large)
    counts = [(b"c%d" % n, b'{"N":%d}' % (n + 1), n) for n in range(10)]
    broker.write(f"{unique}-counts", [*counts, (b"c0", b'{"N":7}', 20), (b"c9", None, 20)])

    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(app, ["--config", str(config), *arguments], catch_exceptions=False, **options)

    return run


def test_drafts_of_both_outputs_pass_on_the_topics_that_they_are_of(
    command: Callable[..., Result], unique: str, tmp_path: Path
) -> None:
    for output in (f"{unique}-large", f"{unique}-counts"):
        done = command("quality", "suggest", unique, output)
        assert done.exit_code == 0
        assert str(tmp_path / "expected" / f"{output}.json") in done.output
    drafted = json.loads((tmp_path / "expected" / f"{unique}-counts.json").read_text())
    assert drafted["notes"][0].startswith("Drafted from 9 rows")
    columns = {each["kwargs"].get("column") for each in drafted["expectations"]}
    assert columns == {None, "_key", "CUSTOMER", "N"}
    checked = command("check", unique, "--json")
    outcomes = json.loads(checked.output)["outcomes"]
    assert len(outcomes) > 10
    assert all(outcome.startswith("passed") for outcome in outcomes.values()), outcomes
    with pytest.raises(ConfigError, match=f"{unique}-large.json exists, and a draft replaces no suite"):
        command("quality", "suggest", unique, f"{unique}-large")


def test_a_wrong_output_and_one_without_rows_are_told(
    command: Callable[..., Result], broker: Broker, unique: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"has no output '{unique}-larg'\nHint: Did you mean '{unique}-large'\?"):
        command("quality", "suggest", unique, f"{unique}-larg")
    broker.admin().delete_topics([f"{unique}-large"])
    with pytest.raises(TopicError, match=f"expectations are drafted from do not exist: {unique}-large"):
        command("quality", "suggest", unique, f"{unique}-large", "--to", str(tmp_path / "large.json"))
    broker.create(1, f"{unique}-large")
    with pytest.raises(ConfigError, match=f"{unique}-large has no rows to draft expectations from\nHint: Process"):
        command("quality", "suggest", unique, f"{unique}-large", "--to", str(tmp_path / "large.json"))
    assert not (tmp_path / "large.json").exists()
