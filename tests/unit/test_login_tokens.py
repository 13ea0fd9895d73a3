"""Tokens of logins with OAUTHBEARER: from a function of the user or a service, one for all clients, renewed in time."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from riverrun.config import ProjectConfig
from riverrun.errors import BrokerError, ConfigError, StreamsError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import streams_error
from riverrun.kafka.tokens import Token, Tokens, client_properties, tokens_of
from riverrun_airflow.location import Location
from tests.token_services import token_service
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.token_services import TokenServer

OAUTH = {"sasl.mechanism": "OAUTHBEARER"}


@pytest.fixture(autouse=True)
def _no_tokens_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of this process make refused logins worth another attempt, also those of tests that follow."""
    monkeypatch.setattr("riverrun.kafka.tokens._known", {})


@pytest.fixture
def service() -> Iterator[TokenServer]:
    with token_service() as running:
        yield running


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], dict[str, str]]:
    """Makes a function that tokens come from; returns the properties that name it."""
    counter = iter(range(1_000))

    def named(callback: Any) -> dict[str, str]:
        module = ModuleType(f"given_tokens_{next(counter)}")
        module.fetch = callback  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return {**OAUTH, "oauth_cb": f"{module.__name__}:fetch", "sasl.oauthbearer.config": f"for {time.monotonic()}"}

    return named


def of_service(service: TokenServer, **more: str) -> dict[str, str]:
    properties = {"client.id": "clicks", "client.secret": "a:b c", "token.endpoint.url": service.url, **more}
    return {**OAUTH, **{f"sasl.oauthbearer.{name}": value for name, value in properties.items()}}


def current(kafka: dict[str, str]) -> Token:
    tokens = tokens_of(kafka)
    assert tokens is not None
    return tokens.current()


def test_clients_with_equal_properties_share_a_token(function: Callable[[Any], dict[str, str]]) -> None:
    asked: list[str] = []

    def fetch(setting: str) -> tuple[str, float]:
        asked.append(setting)
        return f"token {len(asked)}", time.time() + 60

    kafka = function(fetch)
    made = [client_properties(kafka)["oauth_cb"](kafka["sasl.oauthbearer.config"]) for _ in range(5)]
    assert {value for value, *_ in made} == {"token 1"}
    assert asked == [kafka["sasl.oauthbearer.config"]]
    assert current({**kafka, "sasl.oauthbearer.config": "another"}).value == "token 2"


def test_a_function_may_add_a_principal_and_extensions(function: Callable[[Any], dict[str, str]]) -> None:
    token = current(function(lambda _: ("t", time.time() + 60, "anna", {"logicalCluster": "lkc-1"})))
    assert (token.principal, token.extensions) == ("anna", {"logicalCluster": "lkc-1"})
    assert current(function(lambda _: ("t", time.time() + 60, "anna"))).principal == "anna"


def test_clients_get_no_property_that_tokens_come_from(service: TokenServer) -> None:
    kafka = {**of_service(service, method="oidc"), "https.ca.location": "", "client.id": "mine"}
    made = client_properties(kafka)
    assert {key for key in made if "oauth" in key or "https" in key} == {"oauth_cb"}
    assert made["client.id"] == "mine"
    assert client_properties({"sasl.mechanism": "PLAIN"}) == {"sasl.mechanism": "PLAIN"}


def test_a_service_gets_id_secret_and_scope(service: TokenServer) -> None:
    token = current(of_service(service, scope="kafka", extensions="logicalCluster=lkc-1,identityPoolId=pool-1"))
    assert service.forms == [("clicks:a%3Ab%20c", {"grant_type": ["client_credentials"], "scope": ["kafka"]})]
    assert token.extensions == {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"}
    assert 50 < token.expires_s - time.time() <= 60


class Failing:
    """A source whose answers are given: seconds that a token lives, or an error; each may take time on a given clock."""

    def __init__(self, *answers: float | StreamsError, at: SimpleNamespace | None = None, takes_s: float = 0) -> None:
        self.answers = list(answers)
        self.place = "the source"
        self._at, self._takes_s, self._is_later = at, takes_s, False

    def fetch(self) -> Token:
        # The first token is there at once.
        if self._at is not None and self._is_later:
            self._at.s += self._takes_s
        self._is_later = True
        answer = self.answers.pop(0)
        if isinstance(answer, StreamsError):
            raise answer
        return Token(f"one of {len(self.answers)}", time.time() + answer, "", {})


def test_a_token_is_renewed_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, begun_s = Tokens(Failing(100, 100)), time.time()
    first = tokens.current()
    monkeypatch.setattr(time, "time", lambda: begun_s + 70)
    assert tokens.current() == first
    monkeypatch.setattr(time, "time", lambda: begun_s + 76)
    assert tokens.current() != first


def test_a_token_is_kept_while_there_is_no_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    error = BrokerError("no service", retriable=True)
    tokens, begun_s = Tokens(Failing(100, error, error)), time.time()
    first = tokens.current()
    monkeypatch.setattr(time, "time", lambda: begun_s + 90)
    assert tokens.current() == first
    monkeypatch.setattr(time, "time", lambda: begun_s + 101)
    with pytest.raises(BrokerError, match="no service"):
        tokens.current()


@pytest.mark.parametrize("failed_at_s", [76, 90, 94, 96, 99.5])
def test_calls_do_not_ask_a_source_that_has_just_failed(failed_at_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    at = SimpleNamespace(s=time.time())
    monkeypatch.setattr(time, "time", lambda: at.s)
    error = BrokerError("no service", retriable=True)
    source = Failing(100, error, 100)
    tokens = Tokens(source)
    first = tokens.current()
    at.s += failed_at_s
    assert {tokens.current().value for _ in range(9)} == {first.value}
    assert len(source.answers) == 1
    at.s += 6
    assert tokens.current() != first


@pytest.mark.parametrize("error", [BrokerError("no service", retriable=True), ConfigError("no function")])
@pytest.mark.parametrize("lived_s", [None, 101, 200])
def test_calls_without_a_token_do_not_ask_a_source_that_has_just_failed(
    error: StreamsError, lived_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = SimpleNamespace(s=time.time())
    monkeypatch.setattr(time, "time", lambda: at.s)
    source = Failing(*[100] * (lived_s is not None), error, 100)
    tokens = Tokens(source)
    if lived_s is not None:
        tokens.current()
        at.s += lived_s
    for call in range(9):
        # Both ways to a token share the pause.
        if call % 2 and lived_s is not None:
            assert tokens.may_help() is isinstance(error, BrokerError)
        with pytest.raises(type(error), match=error.message):
            tokens.current()
    assert len(source.answers) == 1
    at.s += 6
    assert tokens.current().value == "one of 0"


def test_a_token_that_ends_while_a_source_fails_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    at = SimpleNamespace(s=time.time())
    monkeypatch.setattr(time, "time", lambda: at.s)
    tokens = Tokens(Failing(100, BrokerError("no service", retriable=True), at=at, takes_s=20))
    tokens.current()
    at.s += 90
    with pytest.raises(BrokerError, match="no service"):
        tokens.current()


def test_a_source_that_hangs_is_an_error_and_its_late_token_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer, source = threading.Event(), Failing(100, 100, 100)
    issue = source.fetch

    def fetch() -> Token:
        may_answer.wait(60)
        return issue()

    monkeypatch.setattr(source, "fetch", fetch)
    monkeypatch.setattr("riverrun.kafka.tokens._STALL_S", 0.2)
    tokens = Tokens(source)
    for _ in range(2):
        with pytest.raises(BrokerError, match=r"the source has not issued a token within 0\.2 s") as caught:
            tokens.current()
        assert caught.value.retriable
    may_answer.set()

    def has_token() -> bool:
        with suppress(BrokerError):
            return bool(tokens.current())
        return False

    until(has_token, "got the late token")
    first = tokens.current()
    may_answer.clear()
    begun_s = time.time()
    monkeypatch.setattr(time, "time", lambda: begun_s + 80)
    assert tokens.current() == first, "the held one is still valid"
    may_answer.set()


def test_living_clients_soon_have_a_token_that_was_fetched_after_a_refusal() -> None:
    tokens = Tokens(Failing(3_600))
    _, asks_again_s, _, _ = tokens.for_librdkafka("")
    assert 20 < asks_again_s - time.time() <= 25
    assert Tokens(Failing(10)).for_librdkafka("")[1] - time.time() <= 10


REFUSALS = [librdkafka.AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED]


@pytest.mark.parametrize("code", REFUSALS)
def test_a_login_refused_after_a_stall_is_tried_with_a_new_token(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, begun_s = Tokens(Failing(*[100] * 9)), time.time()
    monkeypatch.setattr("riverrun.kafka.tokens._known", {"source": tokens})
    at = SimpleNamespace(s=begun_s)
    monkeypatch.setattr(time, "time", lambda: at.s)

    def is_passing() -> bool:
        error = streams_error(KafkaError(code), "read")
        assert isinstance(error, BrokerError)
        return error.retriable

    first = tokens.current()
    assert not is_passing(), "the token is fresh"
    # The machine stalls until after the end of the token, or clients have asked for the next one shortly before.
    for stalled_s, asks_first in ((110.0, False), (300.0, True)):
        at.s += stalled_s
        before = tokens.current() if asks_first else first
        assert is_passing()
        renewed = tokens.current()
        assert renewed != first
        assert not asks_first or renewed == before
        at.s += 20
        assert is_passing(), "other clients report logins with the earlier token"
        at.s += 20
        assert not is_passing(), "the new token is refused"


def test_a_login_refused_while_no_token_is_issued_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun_s = time.time()
    tokens = Tokens(Failing(100, BrokerError("no service", retriable=True), BrokerError("gone", retriable=False), 100))
    tokens.current()
    at = SimpleNamespace(s=begun_s + 200)
    monkeypatch.setattr(time, "time", lambda: at.s)
    # While the service is down, errors do not ask it each.
    assert [tokens.may_help() for _ in range(3)] == [True] * 3
    at.s += 6
    assert [tokens.may_help() for _ in range(2)] == [False, False]
    at.s += 6
    assert tokens.may_help()


@pytest.mark.parametrize("takes_s", [0, 4, 29, 31])
def test_a_source_that_fails_slowly_is_not_asked_by_each_error(takes_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    at = SimpleNamespace(s=time.time())
    monkeypatch.setattr(time, "time", lambda: at.s)
    source = Failing(100, *[BrokerError("no service", retriable=True)] * 3, at=at, takes_s=takes_s)
    tokens = Tokens(source)
    tokens.current()
    at.s += 50
    # Those that wait for the lock meanwhile come right after the failure.
    assert [tokens.may_help() for _ in range(9)] == [True] * 9
    assert len(source.answers) == 2
    at.s += 6
    assert tokens.may_help()
    assert len(source.answers) == 1


@pytest.mark.parametrize("takes_s", [0, 29, 31])
def test_a_slow_token_leaves_clients_time_to_log_in_with_it(takes_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    at = SimpleNamespace(s=time.time())
    monkeypatch.setattr(time, "time", lambda: at.s)
    tokens = Tokens(Failing(1000, 1000, at=at, takes_s=takes_s))
    tokens.current()
    at.s += 100
    assert tokens.may_help()
    at.s += 20
    assert tokens.may_help(), "other clients report logins with the earlier token"
    at.s += 20
    assert not tokens.may_help(), "the new token is refused"


def test_refusals_of_a_new_token_are_for_good_however_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    source, begun_s = Failing(1000, 1000, 1000), time.time()
    tokens = Tokens(source)
    tokens.current()
    found = []
    for seconds in (100, 220, 340):
        monkeypatch.setattr(time, "time", lambda at=begun_s + seconds: at)
        found.append(tokens.may_help())
    assert found == [True, False, False]
    assert len(source.answers) == 1


def test_a_refused_password_is_an_end() -> None:
    error = streams_error(KafkaError(librdkafka.AUTHENTICATION), "read")
    assert isinstance(error, BrokerError)
    assert not error.retriable


def raises(error: Exception) -> Callable[[str], Any]:
    def fetch(_: str) -> Any:
        raise error

    return fetch


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (lambda _: "token", "must return"),
        (lambda _: None, "must return"),
        (lambda _: ("t",), "must return"),
        (lambda _: (b"t", time.time() + 60), "must return"),
        (lambda _: ("t", "soon"), "must return"),
        (lambda _: ("t", time.time() + 60, 5), "must return"),
        (lambda _: ("t", time.time() + 60, "p", [("a", "b")]), "must return"),
        (lambda _: ("t", time.time() + 60, "p", {"a": 1}), "must return"),
        (lambda _: ("t", time.time() + 60, "p", {}, {}), "must return"),
        (lambda _: ("t", time.time() - 5), r"ends -5 s from now\nHint: .*seconds since 1970"),
        (lambda _: ("t", time.time() * 1_000 + 60_000), "not ms"),
        (lambda _: ("t", float("inf")), "ends inf s from now"),
        (lambda _: ("t", float("nan")), "ends nan s from now"),
        (lambda: ("t", 0), "TypeError"),
        (raises(ValueError("no key")), "ValueError: no key"),
        (5, "is of type int, not a function"),
    ],
)  # fmt: skip
def test_a_function_that_gives_no_token_is_an_error_of_settings(
    function: Callable[[Any], dict[str, str]], callback: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        current(function(callback))


def test_a_function_that_reaches_no_network_is_tried_again(function: Callable[[Any], dict[str, str]]) -> None:
    with pytest.raises(BrokerError, match="ConnectionRefusedError") as error:
        current(function(raises(ConnectionRefusedError("nobody listens"))))
    assert error.value.retriable


@pytest.mark.parametrize(
    ("status", "body", "message", "retriable"),
    [
        (401, b"", "refuses client clicks: 401 Unauthorized\nHint: Check sasl.oauthbearer.client.id", False),
        (400, b'{"error": "invalid_scope"}', "refuses client clicks: 400", False),
        (404, b"", "refuses client clicks: 404", False),
        (429, b"", "refuses client clicks: 429", True),
        (503, b"", "refuses client clicks: 503", True),
        (200, b"<html>", "has not answered with JSON", False),
        (200, b"\xff\xfe", "has not answered with JSON", False),
        (200, b"[" * 100_000, "has not answered with JSON", False),
        (200, b'{"access_token": "t", "expires_in": 1e999}', "ends inf s from now", False),
        (200, b"[1]", "without access_token", False),
        (200, b"{}", "without access_token", False),
        (200, b'{"access_token": "t", "expires_in": "soon"}', "expires_in 'soon'", False),
        (200, b'{"access_token": "t", "expires_in": null}', "without access_token or expires_in", False),
        (200, b'{"access_token": 5, "expires_in": 5}', "without access_token", False),
    ],
)  # fmt: skip
def test_a_service_that_gives_no_token_is_named(
    service: TokenServer, status: int, body: bytes, message: str, retriable: bool
) -> None:
    service.status, service.body = status, body
    with pytest.raises((BrokerError, ConfigError), match=message) as error:
        current(of_service(service))
    assert getattr(error.value, "retriable", False) is retriable
    assert "a:b c" not in str(error.value)


def test_a_service_that_cannot_be_reached_is_tried_again(service: TokenServer) -> None:
    kafka = of_service(service)
    # Another process may take a port as soon as its server has ended; nobody listens at this one.
    kafka["sasl.oauthbearer.token.endpoint.url"] = "http://127.0.0.1:1/token"
    with pytest.raises(BrokerError, match=r"http://127\.0\.0\.1:1/token cannot be reached: .*refused") as error:
        current(kafka)
    assert error.value.retriable


def test_an_address_is_shown_without_its_secrets(service: TokenServer) -> None:
    service.status = 401
    kafka = of_service(service)
    kafka["sasl.oauthbearer.token.endpoint.url"] += "?key=hidden"
    with pytest.raises(BrokerError) as error:
        current(kafka)
    assert "hidden" not in str(error.value)


def project(tmp_path: Path, **properties: str) -> ProjectConfig:
    kafka = {"bootstrap.servers": "b:1", **{name.replace("__", "."): value for name, value in properties.items()}}
    lines = "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in kafka.items())
    path = tmp_path / "streams.toml"
    path.write_text(f"[kafka]\n{lines}\n")
    return ProjectConfig.load(path, {})


OIDC = {
    "sasl__oauthbearer__method": "oidc",
    "sasl__oauthbearer__client__id": "clicks", "sasl__oauthbearer__client__secret": "hidden",
    "sasl__oauthbearer__token__endpoint__url": "https://login.example.org/token",
}  # fmt: skip


def test_either_source_of_tokens_is_accepted(tmp_path: Path) -> None:
    assert project(tmp_path, sasl__mechanism="OAUTHBEARER", oauth_cb="my_tokens:fetch").kafka["oauth_cb"]
    assert project(tmp_path, sasl__mechanisms="OAUTHBEARER", **OIDC, sasl__oauthbearer__scope="kafka").kafka


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"sasl__mechanism": "OAUTHBEARER"}, "needs a source of tokens"),
        ({"sasl__mechanism": "OAUTHBEARER", "oauth_cb": "fetch"}, "oauth_cb is 'fetch', not module:function"),
        ({"sasl__mechanism": "PLAIN", "oauth_cb": "a:b"}, "oauth_cb is for logins with OAUTHBEARER"),
        ({"oauth_cb": "a:b"}, "oauth_cb is for logins with OAUTHBEARER"),
        (OIDC, "is for logins with OAUTHBEARER"),
        ({"sasl__mechanism": "OAUTHBEARER", "oauth_cb": "a:b", **OIDC}, "has two sources of tokens"),
        ({"sasl__mechanism": "OAUTHBEARER", **OIDC, "sasl__oauthbearer__method": "odic"}, "method is 'odic'"),
        ({"sasl__mechanism": "OAUTHBEARER", **OIDC, "sasl__oauthbearer__client__secret": ""}, "needs .*client.secret"),
        (
            {"sasl__mechanism": "OAUTHBEARER", **OIDC, "sasl__oauthbearer__token__endpoint__url": "file:///token"},
            "token.endpoint.url is not an address",
        ),
        ({"sasl__mechanism": "OAUTHBEARER", **OIDC, "sasl__oauthbearer__scop": "a"}, "Did you mean .*scope"),
        (
            {"sasl__mechanism": "OAUTHBEARER", **OIDC, "sasl__oauthbearer__grant__type": "urn:jwt"},
            "grant.type cannot be set",
        ),
    ],
)  # fmt: skip
def test_settings_of_tokens_that_do_not_fit_are_refused(
    tmp_path: Path, properties: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        project(tmp_path, **properties)
    assert "hidden" not in str(error.value)


def test_a_connection_of_airflow_names_no_code(tmp_path: Path) -> None:
    path = project(tmp_path).path
    tokens = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": "os:system", "sasl.oauthbearer.config": "true"}
    with pytest.raises(ConfigError, match=r"cannot set oauth_cb.*\nHint: Set it in \[kafka\] of streams.toml"):
        Location(path, tokens).project()
    with pytest.raises(ConfigError, match="needs a source of tokens"):
        Location(path, {"sasl.mechanism": "OAUTHBEARER"}).project()
