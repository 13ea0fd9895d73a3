"""Admission to the HTTP interface, and trust between instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from riverrun.service.admission import Access, Admission
from riverrun.service.peers import NoAnswerError, Peers
from riverrun.service.signatures import MAX_AGE_MS, POSITION, ROLE, SIGNATURE, Signatures

if TYPE_CHECKING:
    from starlette.requests import Request

SIGNED = Signatures.of("open-sesame-said-ali", "app-v1")
NOW_MS = 1_700_000_000_000


class Clock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


def anything(request: Request) -> Response:
    return JSONResponse({"path": request.url.path}, headers={POSITION: "in-0@5", ROLE: "active"})


def api(access: Access, now_ms: int = NOW_MS) -> Any:
    app = Starlette(routes=[Route("/{path:path}", anything, methods=["GET", "POST"])])
    app.add_middleware(Admission, access=access, clock=Clock(now_ms))
    return app


def client(access: Access, host: str = "127.0.0.1:8080", now_ms: int = NOW_MS) -> TestClient:
    return TestClient(api(access, now_ms), f"http://{host}")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:8080"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "https://127.0.0.1:8080"}, 200),
        ({"Origin": "ftp://127.0.0.1:8080"}, 403),
        ({"Origin": "127.0.0.1:8080"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/pause", "/resume", "/scale?threads=2"])
def test_pages_of_other_sites_cannot_tell_an_instance_anything(path: str, headers: dict[str, str], status: int) -> None:
    assert client(Access()).post(path, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("127.0.0.1", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8080", 200),
        ("[::1]", 200),
        ("worker-1:8080", 200),
        ("worker-1", 200),
        ("streams.example", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("localhost@evil.example", 421),
        ("127.0.0.1.evil.example:8080", 421),
        ("10.0.0.7:8080", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_an_instance_without_a_token_answers_to_its_own_names_only(host: str, status: int) -> None:
    caller = client(Access(server="worker-1:8080", hosts=frozenset({"streams.example"})))
    assert caller.get("/stores/counts/k", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("access", [Access(), Access("secret")])
def test_a_request_that_names_two_hosts_is_refused(access: Access) -> None:
    hosts = [("Host", "127.0.0.1:8080"), ("Host", "evil.example"), ("Authorization", "Bearer secret")]
    assert client(access).get("/status", headers=hosts).status_code == 421


@pytest.mark.parametrize(("origin", "status"), [("https://127.0.0.1:8080", 200), ("http://127.0.0.1:8080", 403)])
def test_a_page_without_tls_cannot_tell_an_instance_with_tls_anything(origin: str, status: int) -> None:
    caller = TestClient(api(Access()), "https://127.0.0.1:8080")
    assert caller.post("/pause", headers={"Origin": origin}).status_code == status


@pytest.mark.parametrize("length", ["0000000000838860800", "65537", "9" * 5000, "-1", "1e3"])
def test_a_body_that_would_be_too_long_is_not_read_however_its_length_is_written(length: str) -> None:
    answer = client(Access()).post("/query", headers={"Content-Length": length}, content=iter([b""]))
    assert (answer.status_code, answer.json()["error"]) == (413, "too-large")


def test_a_caller_with_a_token_may_use_any_host_name() -> None:
    caller = client(Access("secret"), "anything.example")
    assert caller.get("/status", headers={"Authorization": "Bearer secret"}).status_code == 200
    assert caller.get("/health").status_code == 200
    assert caller.get("/status").status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("GET", "/metrics", "reads", 200),
        ("GET", "/stores/counts/k", "reads", 200),
        ("POST", "/query", "reads", 200),
        ("POST", "/pause", "reads", 403),
        ("POST", "/pause", "controls", 200),
        ("GET", "/metrics", "controls", 200),
        ("GET", "/metrics", "neither", 401),
        ("POST", "/pause", "", 401),
    ],
)
def test_the_token_for_reading_controls_nothing(method: str, path: str, token: str, status: int) -> None:
    caller = client(Access("controls", "reads"))
    assert caller.request(method, path, headers={"Authorization": f"Bearer {token}"}).status_code == status


def test_nobody_controls_an_instance_that_has_a_token_for_reading_alone() -> None:
    caller = client(Access("", "reads"))
    assert [
        caller.post("/pause", headers={"Authorization": f"Bearer{t}"}).status_code for t in ("", " ", " reads")
    ] == [
        401,
        401,
        403,
    ]


@pytest.mark.parametrize(
    "headers", [{"Content-Length": "99999999"}, {"Transfer-Encoding": "chunked"}, {"Content-Length": "-1"}]
)
def test_a_large_body_is_not_taken_in(headers: dict[str, str]) -> None:
    answer = client(Access()).post("/pause", headers=headers)
    assert (answer.status_code, answer.headers["Connection"]) == (413, "close")


def between(access: Access, seen: list[httpx.Request] | None = None, now_ms: int = NOW_MS) -> Peers:
    """Asks an instance with that access, wherever it is said to be."""
    served = TestClient(api(access, now_ms))

    def carry(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        answer = served.request(request.method, str(request.url), headers=request.headers)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    return Peers(SIGNED, Clock(), transport=httpx.MockTransport(carry))


def access(signatures: Signatures = SIGNED, server: str = "there:1") -> Access:
    return Access("open-sesame-said-ali", signatures=signatures, server=server)


def test_instances_show_each_other_that_they_know_the_token_and_never_the_token() -> None:
    seen: list[httpx.Request] = []
    answer = between(access(), seen).get("there:1", "/stores/counts/a%20b", {"limit": "5", "from": "ä&="})
    assert (answer.status, answer.body, answer.headers[POSITION]) == (200, {"path": "/stores/counts/a b"}, "in-0@5")
    assert "Authorization" not in seen[0].headers
    assert "open-sesame-said-ali" not in str(seen[0].headers.raw) + str(seen[0].url)


@pytest.mark.parametrize(
    ("asked", "now_ms", "path"),
    [
        (
            access(server="elsewhere:1"),
            NOW_MS,
            "/stores/counts",
        ),  # what was sent to another one is passed on to this one
        (access(Signatures.of("another", "app-v1")), NOW_MS, "/stores/counts"),
        (access(Signatures.of("open-sesame-said-ali", "other-v1")), NOW_MS, "/stores/counts"),
        (access(), NOW_MS + MAX_AGE_MS + 1, "/stores/counts"),
        (access(), NOW_MS - MAX_AGE_MS - 1, "/stores/counts"),
        (access(), NOW_MS, "/events"),
        (access(), NOW_MS, "/metrics"),
    ],
)
def test_a_signature_holds_for_one_instance_for_some_minutes_and_for_questions(
    asked: Access, now_ms: int, path: str
) -> None:
    with pytest.raises(NoAnswerError, match="status 401, and does not prove that it knows the token"):
        between(asked, now_ms=now_ms).get("there:1", path, {})


@pytest.mark.parametrize("path", ["/status", "/tasks"])
def test_consoles_and_checks_ask_instances_without_sending_a_token(path: str) -> None:
    seen: list[httpx.Request] = []
    answer = between(access(), seen).get("there:1", path, {})
    assert (answer.status, answer.body) == (200, {"path": path})
    assert "open-sesame-said-ali" not in str(seen[0].headers.raw) + str(seen[0].url)
    shown = SIGNED.question("there:1", path.encode(), NOW_MS)
    assert client(access()).post(path, headers={SIGNATURE: shown}).status_code == 401


def test_a_signature_holds_for_one_question() -> None:
    served = client(access())
    shown = SIGNED.question("there:1", b"/stores/counts/a?limit=1", NOW_MS)
    targets = ("/stores/counts/a?limit=1", "/stores/counts/b?limit=1", "/stores/counts/a?limit=2", "/stores/counts/a")
    assert [served.get(target, headers={SIGNATURE: shown}).status_code for target in targets] == [200, 401, 401, 401]
    assert served.post(targets[0], headers={SIGNATURE: shown}).status_code == 401
    for forged in ("", "x", f"{NOW_MS}..", "9" * 5000, "é.é.é", f"{NOW_MS}.1.{'0' * 64}"):
        assert served.get(targets[0], headers={SIGNATURE.encode(): forged.encode()}).status_code == 401


def test_answers_of_members_without_the_token_are_not_believed_or_repeated() -> None:
    seen: list[httpx.Request] = []

    def thief(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"rows": ["false"], "next": None}, headers={POSITION: "", ROLE: "active"})

    peers = Peers(SIGNED, Clock(), transport=httpx.MockTransport(thief))
    with pytest.raises(NoAnswerError, match="does not prove that it knows") as refused:
        peers.get("thief:1", "/stores/counts", {})
    assert "false" not in str(refused.value)
    assert "Authorization" not in seen[0].headers


@pytest.mark.parametrize(
    "change",
    [
        {"status_code": 404},
        {"content": b'{"path": "x"}'},
        {"headers": {POSITION: "in-0@6"}},
        {"headers": {ROLE: "standby"}},
    ],
)
def test_an_answer_that_was_changed_on_the_way_is_not_believed(change: dict[str, Any]) -> None:
    served = client(access())

    def carry(request: httpx.Request) -> httpx.Response:
        answer = served.get(str(request.url), headers=request.headers)
        given: dict[str, Any] = {"status_code": answer.status_code, "content": answer.content, **change}
        return httpx.Response(**{**given, "headers": {**answer.headers, **change.get("headers", {})}})

    with pytest.raises(NoAnswerError, match="does not prove"):
        Peers(SIGNED, Clock(), transport=httpx.MockTransport(carry)).get("there:1", "/stores/counts", {})


@pytest.mark.parametrize(
    "server",
    [
        "127.0.0.1:80/latest/meta-data/?x=",
        "user@there:1",
        "there",
        "there:99999",
        "http://there:1",
        "there:1#",
        "a b:1",
    ],
)
def test_what_a_member_names_as_its_address_is_a_host_and_a_port_or_is_not_asked(server: str) -> None:
    seen: list[httpx.Request] = []
    with pytest.raises(NoAnswerError, match="not host:port"):
        between(access(), seen).get(server, "/stores/counts", {})
    assert seen == []


def test_without_a_token_other_machines_are_not_asked() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={})

    peers = Peers(None, Clock(), transport=httpx.MockTransport(answer))
    with pytest.raises(NoAnswerError, match="another machine"):
        peers.get("10.0.0.7:80", "/stores/counts", {})
    assert peers.get("127.0.0.1:80", "/stores/counts", {}).body == {}


def test_what_the_environment_says_about_proxies_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert not Peers(SIGNED, Clock())._client._mounts
