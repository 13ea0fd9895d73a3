"""Wrong requests to an instance and to the console of a project get a clear answer, and none is accepted in silence."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from fastapi.routing import APIRoute

from riverrun.console.api import PATHS
from riverrun.console.api import new_api as console_api
from riverrun.console.looking import ProjectWatch
from riverrun.errors import ConfigError
from riverrun.service.admission import OPEN_PATHS, Access
from riverrun.service.api import Parameters, new_api
from riverrun.service.connections import ConnectionLimits
from riverrun.service.instance import bound, serving
from tests.unit.service.test_api import FakeInstance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest
    from fastapi import FastAPI

    from riverrun.releases.rows import DifferentRow

SECONDS = 30
TOKEN = "a-token-of-tests"  # noqa: S105 - of a server of this test's own
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO", "get")
WRONG: dict[type, tuple[str, ...]] = {
    int: ("x", "", "-1", "1.5", "9" * 30, "9" * 5000, "NaN", "%00", "0x10", "true", "1e3", "%FF", "[]"),
    bool: ("maybe", "2", "", "%00", "null"),
    str: (),
}
"""Wrong values by the type of a parameter."""


class Wrong(NamedTuple):
    """One wrong request, and a pattern that the answer must match: what the caller knows."""

    name: str
    raw: bytes
    names: str


def request(target: str, names: str, method: str = "GET", headers: str = "", body: bytes = b"") -> Wrong:
    length = f"Content-Length: {len(body)}\r\n" if body or method == "POST" else ""
    token = "" if "Authorization" in headers else f"Authorization: Bearer {TOKEN}\r\n"
    head = f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{token}{headers}{length}\r\n"
    return Wrong(f"{method} {target[:60]} {headers[:40]!r} {body[:30]!r}", head.encode("latin-1") + body, names)


def wrong_parameters() -> Iterator[Wrong]:
    """Each parameter of a query of a store with values that it cannot have."""
    for field, info in Parameters.model_fields.items():
        name = info.alias or field
        kinds = [kind for kind in WRONG if kind is info.annotation or kind in get_args(info.annotation)]
        for value in WRONG[kinds[0]] if kinds else ("xml", "", "TEXT", "%00"):
            for path in ("/stores/counts", "/stores/counts/k"):
                yield request(f"{path}?{name}={value}", re.escape(name))
        yield request(f"/stores/counts?{name}=1&{name}=2&nope={name}", "nope")
    for page in ("x", "%FF", "*" * 5000, base64.urlsafe_b64encode(b"[" * 3000).decode(), "bnVsbA", "MTIz", "e30"):
        yield request(f"/stores/counts?page={page}", "page|next|base64url")
    for key in ("***", "%C3%28", "%00*"):
        yield request(f"/stores/counts/{key}?format=base64", "base64url")
        yield request(f"/stores/counts?from={key}&format=base64", "base64url")
        yield request(f"/metadata/counts/{key}?format=base64", "base64url")
    for one, other in (("prefix", "from"), ("prefix", "to"), ("prefix", "reverse"), ("time", "time_from")):
        yield request(f"/stores/counts?{one}=1&{other}=1", f"{one}|{other}")
    for store in ("nope", "..", "%2e%2e", "a" * 5000, "%00", "%FF", "counts%20", "k%C3%A4se"):
        yield request(f"/stores/{store}", "[Ss]tore|path")
        yield request(f"/metadata/{store}/k", "[Ss]tore|path")
    for query in ("threads=x", "threads=0", "threads=-1", f"threads={'9' * 30}", "threads=4", "thread=2", ""):
        yield request(f"/scale?{query}", "threads", "POST")


def wrong_bodies() -> Iterator[Wrong]:
    deep = b"[" * 20_000 + b"]" * 20_000
    sql = b'{"sql": "SELECT 1;"}'
    bodies: dict[bytes, str] = {
        b"": "body|sql|required",
        b"{": "JSON",
        b"[]": "body|dictionary|object",
        b"null": "body|required|dictionary|object",
        b"5": "body|dictionary|object",
        b'"SELECT"': "body|dictionary|object",
        b"{}": "sql",
        b'{"sql": 5}': "sql",
        b'{"sql": null}': "sql",
        b'{"sql": ["x"]}': "sql",
        b'{"SQL": "x"}': "sql|SQL",
        b'{"sql": "x", "more": 1}': "more",
        b'{"sql": "x", "page": 5}': "page",
        deep: "nested|JSON|deep|dictionary",  # Python 3.14 parses it
        b'{"sql": ' + deep + b"}": "nested|JSON|sql|deep",
        b'{"sql": "' + b"x" * 3_000_000 + b'"}': "large|bytes|long",
        b"\xff\xfe": "JSON|UTF-8|decod",
        '{"sql": 5}'.encode("utf-16"): "sql",
        b'{"sql": "\xff"}': "JSON|UTF-8|decod",
        b'{"sql": "\\ud800"}': "JSON|UTF-8|surrogate|statements",
        b'{"sql": NaN}': "sql|JSON",
        sql: "statements",
    }
    for body, names in bodies.items():
        yield request("/query", names, "POST", "Content-Type: application/json\r\n", body)
    long = b'{"sql": "' + b"x" * 63_000 + b'"}'
    yield request("/query", "statements", "POST", f"Content-Type: application/json\r\nX: {'x' * 9000}\r\n", long)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "nonsense", ""):
        yield request("/query", "body|JSON|dictionary|statements", "POST", f"Content-Type: {kind}\r\n", sql)
    for query in ("stale=maybe", "stale=", "version=", "version=v9", "nope=1"):
        yield request(f"/query?{query}", "stale|version|statements", "POST", "Content-Type: application/json\r\n", sql)


def wrong_methods(api: FastAPI) -> Iterator[Wrong]:
    """Each path with all methods that it does not have."""
    for route in api.routes:
        path = getattr(route, "path", "/")
        has_head = not isinstance(route, APIRoute) or path in OPEN_PATHS | PATHS
        own = set(getattr(route, "methods", None) or ()) | ({"HEAD"} if has_head else set())
        filled = re.sub(r"{\w+(:path)?}", "counts", path)
        for method in METHODS:
            if method not in own:
                yield request(filled, "" if method == "HEAD" else "method|Method|path|HTTP|Invalid", method)


def wrong_everywhere() -> Iterator[Wrong]:
    for path in (
        "/nowhere",
        "/..",
        "/%2e%2e/etc/passwd",
        "/%00",
        "/%FF",
        "/%",
        "/%zz",
        "//",
        "/a" * 2000,
        "/stores//k//",
    ):
        yield request(path, "path|[Ss]tore|Invalid|HTTP")
    tokens = (
        "",
        "Bearer",
        "Bearer x",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        "Bearer \xff",
        "Bearer " + "x" * 9000,
    )
    for token in tokens:
        yield request("/status", "[Tt]oken|large|HTTP", headers=f"Authorization: {token}\r\n")
    invalid = "Invalid|HTTP|large|headers|[Hh]ost|bytes"
    good = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
    for raw in (
        b"\0\xff\x16\x03\x01\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        f"GET /status HTTP/1.1\r\n{good}no colon\r\n\r\n".encode(),
        f"GET /status HTTP/1.1\r\n{good}a\0b: 5\r\n\r\n".encode(),
        f"POST /query HTTP/1.1\r\n{good}Content-Length: -1\r\n\r\n".encode(),
        f"POST /query HTTP/1.1\r\n{good}Content-Length: x\r\n\r\n".encode(),
        f"POST /query HTTP/1.1\r\n{good}Content-Length: {'9' * 40}\r\n\r\n".encode(),
        f"POST /query HTTP/1.1\r\n{good}Content-Length: {'9' * 12}\r\n\r\n".encode(),
        f"POST /query HTTP/1.1\r\n{good}Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n".encode(),
        f"POST /query HTTP/1.1\r\n{good}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab".encode(),
        f"GET /status HTTP/1.1\r\n{good}X: {'x' * 200_000}\r\n\r\n".encode(),
        b"GET /" + b"a" * 200_000 + f" HTTP/1.1\r\n{good}\r\n".encode(),
        f"GET /status HTTP/1.1\r\n{good}".encode() + b"".join(b"X%d: 1\r\n" % n for n in range(20_000)) + b"\r\n",
    ):
        yield Wrong(repr(raw[:60]), raw, invalid)


def wrong_differences() -> Iterator[Wrong]:
    for value in WRONG[int]:
        yield request(f"/apps/clicks/difference?limit={value}", "limit")
    for app in ("nope", "%00", "..", "a" * 3000, "k%C3%A4se", "%FF"):
        yield request(f"/apps/{app}/difference", "application|path")


@contextmanager
def served(api: FastAPI, listener: socket.socket, end: Any) -> Iterator[tuple[str, int]]:
    with serving(api, listener, ConnectionLimits(), end):
        yield listener.getsockname()


def answered(address: tuple[str, int], raw: bytes) -> tuple[int | None, str]:
    """Return the status and the body of an answer; no status if there is none."""
    with socket.create_connection(address, SECONDS) as connection:
        with suppress(OSError):  # refused before it was complete
            connection.sendall(raw)
        found = b""
        try:
            while part := connection.recv(65536):
                found += part
        except ConnectionError:
            pass
        except TimeoutError:
            return None, "hang"
    head, _, body = found.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1.1 (\d+)", head)
    return (int(status[1]) if status else None), body.decode(errors="replace")


def judged(wrong: Wrong, status: int | None, body: str, logged: str) -> str:
    if "Traceback" in logged:
        return "traceback"
    if status is None:
        return "hang" if body == "hang" else "without an answer"
    if status >= 500:
        return "error"
    if status < 400:
        return "silent"
    return "clear" if re.search(wrong.names, said(body)) else "unclear"


def said(body: str) -> str:
    """Return the message of an answer in JSON, which every answer above the protocol is."""
    try:
        found = json.loads(body)
    except ValueError:
        return body if len(body) < 200 else ""
    return f"{found['error']} {found['message']}" if found.keys() >= {"error", "message"} else ""


def nothing_differs(app: str, limit: int) -> Sequence[DifferentRow]:  # noqa: ARG001 - as the console asks
    if app != "clicks":
        message = f"There is no application {app!r}"
        raise ConfigError(message)
    return []


def test_wrong_requests_are_refused_clearly(record_property: Any, caplog: pytest.LogCaptureFixture) -> None:
    judgements: list[tuple[str, str, int | None, str]] = []
    with ExitStack() as open_:
        listeners = [open_.enter_context(bound("127.0.0.1:0", wants_token=True)) for _ in range(2)]
        instance = FakeInstance()
        access = Access(TOKEN, server=instance.server)
        watch = open_.enter_context(closing(ProjectWatch(dict, 60)))
        apis = new_api(instance, access), console_api(watch, nothing_differs, dict, access)
        own = ([*wrong_parameters(), *wrong_bodies()], [*wrong_differences()])
        for api, listener, cases in zip(apis, listeners, own, strict=True):
            address = open_.enter_context(served(api, listener, api.state.events.end))
            for wrong in [*cases, *wrong_methods(api), *wrong_everywhere()]:
                caplog.clear()
                status, body = answered(address, wrong.raw)
                judgements.append((judged(wrong, status, body, caplog.text), wrong.name, status, body[:200]))
    record_property("wrong_inputs", dict(Counter(judgement for judgement, *_ in judgements)))
    others = [each for each in judgements if each[0] != "clear"]
    assert not others, "\n".join(map(str, others))
