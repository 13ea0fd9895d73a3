"""Logins with OAUTHBEARER: all clients of a process share a token, from `oauth_cb` or a token service (OIDC)."""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.parse
from base64 import b64encode
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.config import call_attribute
from riverrun.config.parsing import OAUTH_CALLBACK
from riverrun.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

_PREFIX = "sasl.oauthbearer."
# librdkafka asks for the next token after four fifths of a token's life, so the held one must be replaced before that.
_KEPT = 0.75
# No token lives as long: such an end was given in another unit.
_LONGEST_S = 10 * 365 * 86_400
# librdkafka waits as long for the first token of a client.
_SECONDS = 10.0
_PATIENCE_S = 30.0
"""How long refused logins may be those with an earlier token."""
_PAUSE_S = 5.0
"""How long a source that has failed is not asked again."""
_STALL_S = 30.0
"""How long a source may take to issue a token."""
_ASKS_AGAIN_S = 25.0
"""How long a client of librdkafka keeps a token, of which it waits for four fifths: others may have fetched a newer one."""
_MOST_BYTES = 1 << 20
"""Upper bound of a token service's answer."""


@dataclass(frozen=True, slots=True)
class Token:
    """Proof of a client's identity.

    Args:
        expires_s: Seconds since 1970.
        principal: Name of the client, for logs of librdkafka.
        extensions: SASL extensions that go with it, such as `logicalCluster`.
    """

    value: str
    expires_s: float
    principal: str
    extensions: Mapping[str, str]

    def __repr__(self) -> str:
        """Return everything but the token."""
        return f"Token(expires_s={self.expires_s}, principal={self.principal!r})"


class TokenSource(Protocol):
    """A source of tokens."""

    @property
    def place(self) -> str:
        """Its name for messages."""
        ...

    def fetch(self) -> Token:
        """Return a new token."""
        ...


@dataclass(frozen=True, slots=True)
class Callback:
    """The user's function, with confluent-kafka's signature.

    Args:
        reference: `module:function`. It takes `setting` and returns the token and when it ends, in seconds since 1970;
            and, optionally, the principal and a dict of SASL extensions.
        setting: The value of `sasl.oauthbearer.config`.
    """

    reference: str
    setting: str

    @property
    def place(self) -> str:
        """See `TokenSource.place`."""
        return f"{OAUTH_CALLBACK} {self.reference}"

    def fetch(self) -> Token:
        """See `TokenSource.fetch`."""
        try:
            returned = call_attribute(self.reference, self.setting)
        except ConfigError as error:
            # An `OSError` of the user's function is one of the network: waiting may help.
            if isinstance(error.__cause__, OSError):
                raise BrokerError(error.message, retriable=True, hint=error.hint) from error
            raise
        match returned:
            case (str() as value, int() | float() as expires_s, *rest) if len(rest) <= 2:  # noqa: PLR2004 - as documented
                principal = rest[0] if rest else ""
                extensions = rest[1] if len(rest) > 1 else {}
                if isinstance(principal, str) and _is_texts(extensions):
                    return Token(value, float(expires_s), principal, extensions)
        message = f"{self.place} must return (token, seconds since 1970 when it ends)"
        raise ConfigError(message, hint="A principal (text) and extensions (a dict of texts) may follow.")


def _is_texts(extensions: Any) -> bool:
    return isinstance(extensions, dict) and all(isinstance(text, str) for each in extensions.items() for text in each)


@dataclass(frozen=True, slots=True)
class TokenService:
    """A service that issues tokens for a client's id and secret: the grant `client_credentials` of OAuth 2.

    Args:
        url: Its address (`sasl.oauthbearer.token.endpoint.url`).
        scope: What the token permits; may be empty.
        extensions: SASL extensions, `name=value`, separated by commas.
        ca_location: File with certificates of authorities, to check the service's; empty for the system's.
    """

    url: str
    client_id: str
    client_secret: str
    scope: str = ""
    extensions: str = ""
    ca_location: str = ""

    def __repr__(self) -> str:
        """Return everything but the secret."""
        return f"{self.place}, client {self.client_id}"

    @property
    def place(self) -> str:
        """See `TokenSource.place`: the address without parts that may be secret."""
        parts = urllib.parse.urlsplit(self.url)
        return f"The token service {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def fetch(self) -> Token:
        """See `TokenSource.fetch`."""
        # Before the request: if the answer takes long, the token counts as ended too early, not too late.
        asked_s = time.time()  # noqa: TID251 - tokens end by the wall clock
        answer = self._answer()
        value, seconds = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(value, str) or not value or not isinstance(seconds, int | float | str):
            message = f"{self.place} has answered without access_token or expires_in"
            raise BrokerError(message, retriable=False, hint=f"Is {_PREFIX}token.endpoint.url its address for tokens?")
        try:
            expires_s = asked_s + float(seconds)
        except ValueError as error:
            message = f"{self.place} has answered with expires_in {seconds!r}"
            raise BrokerError(message, retriable=False) from error
        return Token(value, expires_s, self.client_id, _parsed(self.extensions))

    def _answer(self) -> Mapping[str, Any]:
        import ssl  # noqa: PLC0415 - loads for long, and few applications have such a service
        import urllib.error  # noqa: PLC0415 - as above
        import urllib.request  # noqa: PLC0415 - as above

        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        login = f"{urllib.parse.quote(self.client_id, '')}:{urllib.parse.quote(self.client_secret, '')}"
        headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}", "Accept": "application/json"}
        request = urllib.request.Request(self.url, urllib.parse.urlencode(form).encode(), headers)  # noqa: S310 - checked
        try:
            context = ssl.create_default_context(cafile=self.ca_location or None)
            with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:  # noqa: S310 - as above
                found = json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            # The error is also the answer, whose body is not read.
            error.close()
            message = f"{self.place} refuses client {self.client_id}: {error.code} {error.reason}"
            is_passing = error.code in {408, 429} or error.code >= 500  # noqa: PLR2004 - HTTP's own
            hint = f"Check {_PREFIX}client.id, {_PREFIX}client.secret and {_PREFIX}scope in [kafka]."
            raise BrokerError(message, retriable=is_passing, hint=hint) from error
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            message = f"{self.place} cannot be reached: {reason}"
            is_passing = not isinstance(reason, ssl.SSLCertVerificationError)
            hint = (
                f"Check {_PREFIX}token.endpoint.url in [kafka], and https.ca.location if its certificate is your own."
            )
            raise BrokerError(message, retriable=is_passing, hint=hint) from error
        except (ValueError, RecursionError) as error:
            message = f"{self.place} has not answered with JSON"
            raise BrokerError(
                message, retriable=False, hint=f"Check {_PREFIX}token.endpoint.url in [kafka]."
            ) from error
        return found if isinstance(found, dict) else {}


def _parsed(extensions: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in extensions.split(",") if each)
    return {name.strip(): value.strip() for name, _, value in pairs}


class Tokens:
    """The token of all clients of this process with equal settings: hundreds of producers ask a service once."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._held: Token | None = None
        self._fetched_s = self._renew_s = 0.0
        self._is_first = True
        self._refused_s: float | None = None
        self._failure: BrokerError | ConfigError | None = None
        self._failed_s = 0.0
        self._asked: tuple[Future[Token], float] | None = None

    def current(self) -> Token:
        """Return a token that is valid, a new one if the held one ends soon."""
        # Held during the request, so that clients that start together do not ask the service together.
        with self._lock:
            if self._held is not None and _now_s() < self._renew_s:
                return self._held
            try:
                self._held = self._fetched()
                self._refused_s = None
            except (BrokerError, ConfigError):
                # By the time after the request, which may have taken long.
                if self._held is None or self._held.expires_s <= _now_s():
                    raise
            return self._held

    def may_help(self) -> bool:
        """Return whether a login that was refused may succeed with a newer token, which is fetched if need be.

        After a stall of the machine, clients log in with a token that has ended, before they ask for the next one.
        """
        with self._lock:
            now_s = _now_s()
            # Clients report logins with the earlier token for a while, and one with the new one is a refusal for good.
            if self._refused_s is not None and self._held is not None and now_s < self._held.expires_s:
                return now_s - self._refused_s <= _PATIENCE_S
            is_fresh = now_s - self._fetched_s <= _PATIENCE_S
            if self._held is None or (is_fresh and self._is_first):
                return False
            if not is_fresh:
                try:
                    self._held = self._fetched()
                except (BrokerError, ConfigError) as error:
                    return isinstance(error, BrokerError) and error.retriable
            self._refused_s = _now_s()
            return True

    def _fetched(self) -> Token:
        """Return a new token; for a while after a failure, raise that again without asking the source."""
        if self._failure is not None and 0 <= _now_s() - self._failed_s <= _PAUSE_S:
            raise self._failure.with_traceback(None)
        try:
            token = self._checked()
        except (BrokerError, ConfigError) as error:
            # After the request, which may have taken long.
            self._failure, self._failed_s = error, _now_s()
            if self._held is not None:
                log.warning("no new token for logins was issued: %s", error)
            raise
        self._failure = None
        return token

    def _checked(self) -> Token:
        token, now_s = self._issued(), _now_s()
        # Negated, so that NaN is refused as well.
        if not now_s < token.expires_s < now_s + _LONGEST_S:
            message = f"The login's token ends {token.expires_s - now_s:.0f} s from now"
            hint = "The end is given in seconds since 1970, not ms. Is this machine's clock right?"
            raise ConfigError(message, hint=hint)
        self._renew_s = now_s + _KEPT * (token.expires_s - now_s)
        self._fetched_s, self._is_first = now_s, self._held is None
        return token

    def _issued(self) -> Token:
        """Return a new token; its source has a deadline. A late answer is for the next call."""
        now = time.monotonic()
        # One that hangs for good is asked again.
        if self._asked is None or now > self._asked[1] + 2 * _STALL_S:
            self._asked = Future[Token](), now
            threading.Thread(
                target=_answer, args=(self._source, self._asked[0]), name="login-token", daemon=True
            ).start()
        issued, asked = self._asked
        wait([issued], max(asked + _STALL_S - now, 0))
        if not issued.done():
            message = f"{self._source.place} has not issued a token within {_STALL_S:g} s"
            raise BrokerError(message, retriable=True, hint="Without a token, no client can log in.")
        self._asked = None
        return issued.result()

    def for_librdkafka(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """Return the token as confluent-kafka's `oauth_cb` does; librdkafka calls it in one of its threads."""
        token = self.current()
        asks_again_s = _now_s() + _ASKS_AGAIN_S
        return token.value, min(token.expires_s, asks_again_s), token.principal, dict(token.extensions)

    def for_kafka_python(self) -> Any:
        """Return the token's provider as kafka-python wants it."""
        from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415 - the library loads for long

        tokens = self

        class Provider(AbstractTokenProvider):  # type: ignore[misc, unused-ignore]  # the library is not typed
            def token(self) -> str:
                return tokens.current().value

            def extensions(self) -> dict[str, str]:
                return dict(tokens.current().extensions)

        return Provider()


def _now_s() -> float:
    return time.time()  # noqa: TID251 - as above


def _answer(source: TokenSource, future: Future[Token]) -> None:
    try:
        future.set_result(source.fetch())
    except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
        future.set_exception(error)


_known: dict[TokenSource, Tokens] = {}
"""The tokens of this process: sources are equal if their settings are."""


def newer_token_may_help() -> bool:
    """Return whether a login that was refused may succeed with a newer token; False for logins without tokens."""
    # Each of them: a new token is fetched for all.
    helps = [tokens.may_help() for tokens in list(_known.values())]
    return any(helps)


def _tokens(source: TokenSource) -> Tokens:
    return _known.setdefault(source, Tokens(source))


def tokens_of(kafka: Mapping[str, str]) -> Tokens | None:
    """Return the tokens with which clients log in; None if they log in otherwise."""
    if kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", "")).upper() != "OAUTHBEARER":
        return None
    if OAUTH_CALLBACK in kafka:
        return _tokens(Callback(kafka[OAUTH_CALLBACK], kafka.get(f"{_PREFIX}config", "")))
    given = [kafka[f"{_PREFIX}{name}"] for name in ("token.endpoint.url", "client.id", "client.secret")]
    more = [kafka.get(name, "") for name in (f"{_PREFIX}scope", f"{_PREFIX}extensions", "https.ca.location")]
    return _tokens(TokenService(*given, *more))


def client_properties(kafka: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the properties as confluent-kafka's clients take them: tokens come from a function of this process."""
    tokens = tokens_of(kafka)
    if tokens is None:
        return kafka
    # Its errors are clearer here than through librdkafka, which reports a timeout.
    tokens.current()
    kept = {name: value for name, value in kafka.items() if not name.startswith((_PREFIX, "https."))}
    # A thread of the library calls this, even for a client that is never polled (since confluent-kafka 2.13).
    return {**kept, OAUTH_CALLBACK: tokens.for_librdkafka}
