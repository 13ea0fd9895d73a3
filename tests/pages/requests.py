"""Makes the page that lists every request: `python -m tests.pages.requests docs/reference/http.md`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from riverrun.config import AppConfig
from riverrun.service.admission import CHANGES_PATH, OPEN_PATHS, QUERY_PATH
from riverrun.service.api import Parameters, new_api
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEAD = """\
# HTTP

`python -m tests.pages.requests` makes this page from the requests that an instance answers.
[Queries and operations](../queries.md) explains them, with examples and errors.

An instance answers at `application.server`, in JSON unless stated otherwise. With `server.token` set, callers send a token
(`Authorization: Bearer ...`). Errors are `{"error": "...", "message": "..."}`.
"""


def page() -> str:
    """Return the page, as Markdown."""
    config = AppConfig("clicks", "my_module:build")
    application = SimpleNamespace(id="clicks-v1", version="v1", config=config, kafka={})
    instance: Any = SimpleNamespace(id="instance", server="127.0.0.1:8090", application=application)
    described = new_api(instance).openapi()["paths"]
    requests = [(path, method, each) for path, methods in described.items() for method, each in methods.items()]
    return "\n".join([_HEAD, *(line for request in requests for line in _section(*request))])


def _section(path: str, method: str, described: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {method.upper()} {path}", "", described["description"], "")
    yield f"Token: {_token(path, method)}."
    yield ""
    body = described.get("requestBody", {})
    if body:
        more = ", and `page` to continue after a page" if path == QUERY_PATH else ""
        yield from (f'The body is a JSON object: `{{"sql": "SELECT ..."}}`{more}.', "")
    parameters = [each for each in described.get("parameters", ()) if each["in"] == "query"]
    if parameters:
        yield from ("| Parameter | Type | Default | Meaning |", "|---|---|---|---|")
        yield from (_row(each) for each in parameters)
        yield ""


def _token(path: str, method: str) -> str:
    if path in OPEN_PATHS:
        return "none"
    asks = method == "get" or path in {QUERY_PATH, CHANGES_PATH}
    return "`server.token` or `server.read.token`" if asks else "`server.token`"


def _row(parameter: Mapping[str, Any]) -> str:
    schema = parameter["schema"]
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    choices = [f"`{choice}`" for each in kinds for choice in each.get("enum", ())]
    kind = " or ".join(choices) or kinds[0].get("type", "")
    default = "required" if parameter["required"] else _default(schema.get("default"))
    meaning = parameter.get("description") or Parameters.model_fields[parameter["name"]].description
    return f"| `{parameter['name']}` | {kind} | {default} | {meaning} |"


def _default(value: object) -> str:
    match value:
        case None | "":
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case int() if value == MAX_TIME_MS:
            return "the end"
        case _:
            return f"`{value}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
