"""DEFINE and UNDEFINE: values in place of variables, and no more than values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from riverrun import StreamsBuilder
from riverrun.cli.main import app
from riverrun.sql import build_sql
from riverrun.sql.commands import Select, parse_commands
from riverrun.sql.statement_files import statement_digests
from riverrun.sql.statements import SqlError
from riverrun.sql.variables import spelled, statement_words

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("DEFINE a = 'x'; SELECT ${a}, ${A}", "SELECT x, x"),
        ("DEFINE a = '-3'; SELECT (${a})", "SELECT (- 3)"),
        ("DEFINE a = '''it''''s'''; SELECT ${a}", "SELECT 'it''s'"),
        ("DEFINE a = '`q r`'; SELECT ${a}", "SELECT `q r`"),
        ("DEFINE a = 'x'; SELECT '${a}.${a} $${a} ${b}', `${a}_y`", "SELECT 'x.x ${a} ${b}', `x_y`"),
        ("DEFINE a = 'x'; DEFINE b = '${a}y'; SELECT ${b}", "SELECT xy"),
        ("DEFINE a = 'x'; DEFINE a = 'y'; SELECT ${a}; UNDEFINE a; SELECT '${a}';", "SELECT y; SELECT '${a}';"),
        ("DEFINE a = 'x; DROP STREAM y'; SELECT '${a}'", "SELECT 'x; DROP STREAM y'"),
        ("DEFINE a = ''' OR TRUE'; SELECT '${a}'", "SELECT ''' OR TRUE'"),
        ("DEFINE a = '-3'; SELECT 1-${a}, 'end'", "SELECT 1- - 3, 'end'"),
        ("DEFINE a = 'x'; SELECT '$${b}'; UNDEFINE a; SELECT '$${a}';", "SELECT '$${b}'; SELECT '$${a}';"),
        ("SELECT define, 1R, m->k, '$', a FROM undefine", "SELECT define, 1R, m->k, '$', a FROM undefine"),
    ],
)
def test_variables_are_replaced_by_their_values(text: str, statements: str) -> None:
    assert spelled(statement_words(text)) == statements
    assert spelled(statement_words(statements)) == statements


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("SELECT ${a}", "There is no variable a", 8),
        ("DEFINE name = 'x'; SELECT ${nme}", "Did you mean NAME", 27),
        ("DEFINE a = 'x y'; SELECT ${a}", "no single name, number or text", 26),
        ("DEFINE a = ''; SELECT ${a}", "no single name, number or text", 23),
        ("DEFINE a = 'x; DROP STREAM y'; SELECT ${a}", "no single name, number or text", 39),
        ("DEFINE a = 'x'; SELECT ${a}_y", "outside quotes stands alone", 24),
        ("DEFINE a = 'x'; SELECT y_${a}", "outside quotes stands alone", 24),
        ("DEFINE a = 'x'; SELECT ${a}${a}", "outside quotes stands alone", 24),
        ("DEFINE a = 'it''s'; SELECT ${a}", "no single name, number or text", 28),
        ("DEFINE a = x", "Expected a text in quotes, found 'x'", 12),
        ("DEFINE 'a' = 'x'", "Expected the name of a variable", 8),
        ("DEFINE a = 'x' SELECT 1", "Expected ;, found 'SELECT'", 16),
        ("DEFINE a", "Expected =, found the end", 9),
        ("UNDEFINE a;", "There is no variable a", 10),
        ("SELECT ${", "found the end", 10),
        ("SELECT ${1}", "Expected ${name}", 10),
        (f"DEFINE a = '{'x' * 9_000}'; SELECT '${{a}}${{a}}'", "has 18000 characters: the most is 10000", 9023),
    ],
)
def test_a_mistake_with_variables_has_its_place(text: str, message: str, place: int) -> None:
    with pytest.raises(SqlError) as error:
        build_sql(text, StreamsBuilder(), file="a.sql")
    assert message in str(error.value)
    assert f"(a.sql:1:{place})" in str(error.value)


def test_texts_of_a_file_without_variables_stay_as_they_are() -> None:
    text = "CREATE STREAM p (a STRING KEY) WITH (KAFKA_TOPIC = '$${p}.${q}', VALUE_FORMAT = 'JSON');"
    assert spelled(statement_words(text)) == text


def test_another_value_is_a_change_of_the_statements_that_use_it() -> None:
    text = """
        DEFINE least = '4'; DEFINE unused = '1';
        CREATE STREAM p (a STRING KEY, n INT) WITH (KAFKA_TOPIC = 'p', VALUE_FORMAT = 'JSON');
        CREATE STREAM o AS SELECT a, n FROM p WHERE n > ${least};
    """
    old, new, other = (
        statement_digests(each, "a.sql") for each in (text, text.replace("'4'", "'5'"), text.replace("'1'", "'2'"))
    )
    assert {name for name in old if old[name] != new[name]} == {"CREATE STREAM O"}
    assert old == other


def test_an_instance_is_asked_with_the_values() -> None:
    variables: dict[str, str] = {}
    assert parse_commands("DEFINE who = 'ann';", variables) == []
    (select,) = parse_commands("SELECT n FROM counts\nWHERE customer = '${who}' ORDER BY n;", variables)
    assert isinstance(select, Select)
    assert select.text == "SELECT n FROM counts WHERE customer = 'ann' ORDER BY n"


def test_the_prompt_keeps_variables_between_commands(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(
        "CREATE SOURCE TABLE t (k STRING PRIMARY KEY, n INT) WITH (KAFKA_TOPIC = 't', VALUE_FORMAT = 'JSON');"
    )
    config = tmp_path / "streams.toml"
    config.write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[apps.a]\ntopology = "a.sql"\n')
    commands = ["DEFINE name = 't';", "DEFINE gone = 'x'; UNDEFINE gone;", "SHOW VARIABLES; DESCRIBE ${name};"]
    options = [part for each in commands for part in ("-e", each)]
    done = CliRunner().invoke(app, ["--config", str(config), "sql", "a", "--version", "v1", *options])
    assert done.output.splitlines()[:4] == [
        "Variable Name  Value",
        "NAME           t",
        "Field  Type     Role",
        "K      STRING   primary key",
    ]
