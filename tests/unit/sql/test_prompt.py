"""The prompt of `riverrun sql`, in a real pseudo-terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.terminals import CTRL_C, CTRL_D, ENTER, TAB, UP, terminal

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = "riverrun>"
STATEMENTS = """
CREATE STREAM orders (customer STRING KEY, item STRING) WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'JSON');
CREATE STREAM lamps AS SELECT customer, item FROM orders WHERE item = 'lamp';
"""


def test_the_prompt_completes_takes_several_lines_and_remembers(tmp_path: Path) -> None:
    (tmp_path / "orders.sql").write_text(STATEMENTS)
    config = tmp_path / "streams.toml"
    config.write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[apps.orders]\ntopology = "orders.sql"\n')
    options = ("--config", str(config), "--home", str(tmp_path), "sql", "orders", "--version", "v1")
    with terminal(*options) as first:
        first.until(PROMPT)
        first.type("DESCRIBE lam")
        first.until("LAMPS")  # the menu
        first.type(TAB)
        first.until("LAMPS")
        first.type(f";{ENTER}")
        first.until("CUSTOMER")
        first.until(PROMPT)
        first.type(f"EXPLAIN{ENTER}")
        first.until("      >")
        first.type(f"lamps;{ENTER}")
        first.until("KSTREAM-FILTER")
        first.until(PROMPT)
        first.type(f"DESCRIBE lmaps;{ENTER}")
        first.until("LMAPS does not exist")
        first.until(PROMPT)
        first.type(f"SHOW nothing{CTRL_C}")
        first.until("riverrun> SHOW nothing")
        first.until(f"\n{PROMPT}")
        first.type(f"SHOW TABLES;{ENTER}")
        first.until("Table Name")
        first.until(PROMPT)
        first.type(CTRL_D)
        assert first.ended() == 0
    assert "Traceback" not in first.shown
    with terminal(*options) as second:
        second.until(PROMPT)
        second.type(f"{UP}{ENTER}")
        second.until("Table Name")
        second.until(PROMPT)
        second.type(CTRL_D)
        assert second.ended() == 0
