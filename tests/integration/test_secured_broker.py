"""Both client libraries at a broker that wants TLS and a password, and makes the topics it is asked for, as most do."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import BrokerError, TopicError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.door import Kafka
from riverrun.kafka.embedded import broker as embedded
from riverrun.kafka.embedded.artifacts import find_java
from riverrun.kafka.groups import GroupState
from riverrun.kafka.membership import GroupMember
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer
from riverrun.kafka.requests import Requests
from riverrun.kafka.tokens import Tokens
from riverrun.records import OffsetVector, TopicPartition
from riverrun.worker.reset import plan_reset, reset
from riverrun.worker.worker import Worker
from tests.brokers import embedded_broker
from tests.token_services import token_service, unsigned_token
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.broker

LIFE_S = 20
"""Of a token. Riverrun fetches the next one after three quarters of it."""
POLLS = 120
TP = TopicPartition("t", 0)
SECURITY = """
ssl.keystore.type=PKCS12
ssl.keystore.location={directory}/keys.p12
ssl.keystore.password=secret
sasl.enabled.mechanisms=PLAIN,OAUTHBEARER
listener.name.sasl_ssl.oauthbearer.connections.max.reauth.ms=4000
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
listener.name.sasl_ssl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_anna="known" user_app="known";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:anna
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[dict[str, str]]:
    """Properties of a client that is admitted."""
    directory, port = tmp_path_factory.mktemp("secured"), new_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "_PROPERTIES", secured(embedded._PROPERTIES, directory, port))
        broker = embedded_broker(directory / "broker", new_port())
        make_keys(directory)
        broker.start()
    yield {
        "bootstrap.servers": f"localhost:{port}",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "anna",
        "sasl.password": "known",
        "ssl.ca.location": str(directory / "broker.pem"),
    }
    broker.stop()


def secured(properties: str, directory: Path, port: int) -> str:
    """A broker's settings, with a listener besides that lets Anna in."""
    properties = properties.replace("auto.create.topics.enable=false", "auto.create.topics.enable=true")
    listener = f"SASL_SSL://127.0.0.1:{port},PLAINTEXT"
    properties = properties.replace("listeners=PLAINTEXT", f"listeners={listener}")
    properties = properties.replace("PLAINTEXT:PLAINTEXT", "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL")
    return properties + SECURITY.format(directory=directory)


def make_keys(directory: Path) -> None:
    """The broker's key, and its certificate for clients."""
    keytool: list[str | Path] = [
        Path(find_java()).resolve().with_name("keytool"),
        "-storepass",
        "secret",
        "-alias",
        "broker",
    ]
    keytool += ["-keystore", directory / "keys.p12"]
    names = ["-dname", "CN=localhost", "-ext", "san=dns:localhost,ip:127.0.0.1", "-ext", "bc=ca:true"]
    subprocess.run([*keytool, "-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", *names], check=True)
    subprocess.run([*keytool, "-exportcert", "-rfc", "-file", directory / "broker.pem"], check=True)


def test_groups_are_described_set_and_deleted_with_tls_and_a_password(kafka: dict[str, str]) -> None:
    admin = Admin(Kafka(kafka))
    assert admin.group("g") == GroupState("dead", ())
    admin.create_topics([TopicSpec("t", 1)])
    admin.alter_offsets("g", {TP: 5})
    assert admin.group("g") == GroupState("empty", ())
    assert admin.committed("g", [TP])[TP].offset == 5
    admin.delete_group("g")
    assert admin.group("g") == GroupState("dead", ())


def test_no_topic_is_made_by_asking_about_it(kafka: dict[str, str]) -> None:
    admin, missing = Admin(Kafka(kafka)), TopicPartition("missing", 0)
    assert not admin.partitions(["missing"])
    assert not admin.topic_ids(["missing"])
    assert not admin.committed("nobody", [missing])
    for call in (
        lambda: admin.require(["missing"], "are read"),
        lambda: admin.end_offsets([missing]),
        lambda: admin.alter_offsets("nobody", {missing: 1}),
        lambda: admin.delete_records({missing: 1}),
        lambda: admin.topic_config("missing"),
    ):
        with pytest.raises((TopicError, BrokerError)):
            call()
    admin.delete_topics(["missing"])
    assert "missing" not in admin.list_topics()


def test_a_member_joins_with_tls_and_a_password(kafka: dict[str, str]) -> None:
    plans: list[bytes] = []
    member = GroupMember(
        Kafka(kafka),
        "joined",
        lambda: ["gone"],
        client_id="anna",
        describe=lambda: b"",
        assign=lambda said: dict.fromkeys(said, b"plan"),
        on_plan=plans.append,
    )
    for _ in range(POLLS):
        member.poll(0.5)
        if plans:
            break
    assert plans
    assert Admin(Kafka(kafka)).group("joined").members == ("anna@127.0.0.1",)
    assert "gone" not in Admin(Kafka(kafka)).list_topics()
    member.close()


def test_a_wrong_password_is_said_to_be_one(kafka: dict[str, str]) -> None:
    admin = Admin(Kafka({**kafka, "sasl.password": "forgotten"}))
    for call in (lambda: admin.group("g"), lambda: admin.delete_group("g")):
        with pytest.raises(BrokerError, match=f"{kafka['bootstrap.servers']}: .*[Aa]uthentication failed") as refused:
            call()
        assert not refused.value.retriable
        assert "credentials" in str(refused.value)


DOCUMENTED = re.compile(r"^\| (Topic|Group|Transactional id) \| (.+?) \| (literal|prefixed) \| (.+?) \|", re.MULTILINE)


@pytest.fixture(autouse=True)
def _no_tokens_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of this process make refused logins worth another attempt, also those of tests that follow."""
    monkeypatch.setattr("riverrun.kafka.tokens._known", {})


@pytest.fixture
def words(kafka: dict[str, str], tmp_path: Path) -> Callable[[dict[str, str], str], Application]:
    """Makes an application that counts words, with other properties of its clients."""

    def made(login: dict[str, str], name: str) -> Application:
        Admin(Kafka(kafka)).create_topics([TopicSpec(f"{name}.{topic}", 2) for topic in ("words", "counts")])
        builder = StreamsBuilder()
        stream = builder.stream(f"{name}.words", Consumed(STRING, STRING))
        counts = stream.group_by(lambda _key, word: word, Grouped(STRING, STRING)).count(Materialized(name="counted"))
        counts.to_stream().to(f"{name}.counts", Produced(STRING, LONG))
        anonymous = {key: value for key, value in kafka.items() if not key.startswith("sasl.")}
        oauth = {"sasl.mechanism": "OAUTHBEARER", **login}
        return Application(AppConfig(name, "none:none"), "v1", builder.build(), Kafka({**anonymous, **oauth}), tmp_path)

    return made


def write_words(kafka: dict[str, str], name: str, count: int) -> None:
    producer = IdempotentProducer(Kafka(kafka))
    for number in range(count):
        producer.send(f"{name}.words", str(number).encode(), b"word", 1, (), None)
    producer.flush()


def committed(kafka: dict[str, str], name: str) -> int:
    """How many words an application is done with."""
    inputs = [TopicPartition(f"{name}.words", partition) for partition in range(2)]
    return sum(done.offset for done in Admin(Kafka(kafka)).committed(f"{name}-v1", inputs).values())


def test_all_clients_log_in_with_the_token_of_a_function(
    kafka: dict[str, str],
    words: Callable[[dict[str, str], str], Application],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a worker works its tokens end: it goes on with new ones, at connections that it has. So does an idle client."""
    given: list[str] = []

    def fetch(principal: str) -> tuple[str, float]:
        given.append(principal)
        return unsigned_token(principal, LIFE_S), time.time() + LIFE_S

    began = time.monotonic()
    module = ModuleType("tokens_of_anna")
    module.fetch = fetch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    login = {"oauth_cb": "tokens_of_anna:fetch", "sasl.oauthbearer.config": "anna"}
    application = words(login, "renewed")
    write_words(kafka, "renewed", 20)
    idle, inputs = Admin(application.kafka), [TopicPartition("renewed.words", partition) for partition in range(2)]
    assert sum(idle.end_offsets(inputs).values()) == 20
    worker = Worker(application)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: committed(kafka, "renewed") == 20, "counted the first words")
    seen = len(given)
    assert seen <= 2 + (time.monotonic() - began) / (LIFE_S * 3 / 4), "clients do not share the token"
    until(lambda: len(given) >= seen + 2, "fetched new tokens")
    write_words(kafka, "renewed", 20)
    until(lambda: committed(kafka, "renewed") == 40, "counted the other words")
    assert sum(idle.end_offsets(inputs).values()) == 40
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_clients_that_are_never_polled_log_in_and_stay_so(
    kafka: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """confluent-kafka asks for tokens in a thread since 2.13 (its issue 1713); before, only a poll did."""
    asked: list[str] = []
    module, give = ModuleType("tokens_of_idle"), Tokens.for_librdkafka
    module.fetch = lambda _config: (unsigned_token("anna", 5), time.time() + 5)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def noted(tokens: Tokens, config: str) -> tuple[str, float, str, dict[str, str]]:
        asked.append(config)
        return give(tokens, config)

    monkeypatch.setattr(Tokens, "for_librdkafka", noted)
    anonymous = {key: value for key, value in kafka.items() if not key.startswith("sasl.")}
    requests = Requests(Kafka({**anonymous, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": "tokens_of_idle:fetch"}))
    consumer, producer = requests.consumer("idle"), TransactionalProducer(requests.kafka, "idle-0_0")
    producer.init()
    until(lambda: len(asked) >= 12, "asked for tokens of three clients a few times")
    assert consumer.committed([ClientTopicPartition("idle", 0)], 30)[0].error is None
    assert requests.client.list_topics(timeout=30).brokers
    producer.commit({}, "idle")


def test_all_clients_log_in_with_the_token_of_a_service(
    kafka: dict[str, str], words: Callable[[dict[str, str], str], Application]
) -> None:
    with token_service() as service:
        names = {"method": "oidc", "client.id": "anna", "client.secret": "known", "token.endpoint.url": service.url}
        login = {f"sasl.oauthbearer.{name}": value for name, value in names.items()}
        application = words(login, "served")
        write_words(kafka, "served", 20)
        assert Worker(application).run(until_caught_up=True).processed == 40
        assert len(service.forms) <= 2
        service.status = 401
        refused = words({**login, "sasl.oauthbearer.client.secret": "wrong"}, "refused")
        with pytest.raises(BrokerError, match=r"refuses client anna: 401 Unauthorized\nHint: Check sasl\.oauth"):
            Worker(refused).run(until_caught_up=True)


def documented_rights(application_id: str, inputs: str, outputs: list[str], principal: str) -> list[AclBinding]:
    """The table of the documentation, for an application."""
    text = (Path(__file__).parents[2] / "docs/run/rights.md").read_text(encoding="utf-8")
    names = {
        "each input, and each topic of a global table": [inputs],
        "each output, and the topic of dead letters": outputs,
    }
    kinds = {"Topic": "TOPIC", "Group": "GROUP", "Transactional id": "TRANSACTIONAL_ID"}
    return [
        AclBinding(
            ResourceType[kinds[kind]],
            name,
            ResourcePatternType[pattern.upper()],
            principal,
            "*",
            AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()],
            AclPermissionType.ALLOW,
        )
        for kind, what, pattern, operations in DOCUMENTED.findall(text)
        for name in names.get(what, [what.strip("`").replace("<id>", application_id)])
        for operation in operations.split(", ")
    ]


def test_an_application_works_with_the_rights_that_are_documented(kafka: dict[str, str], tmp_path: Path) -> None:
    admin = Admin(Kafka(kafka))
    admin.create_topics([TopicSpec("words", 1), TopicSpec("counts", 1), TopicSpec("letters", 1)])
    builder = StreamsBuilder()
    words = builder.stream("words", Consumed(STRING, STRING))
    counts = words.group_by(lambda _key, word: word, Grouped(STRING, STRING)).count(Materialized(name="counted"))
    counts.to_stream().to("counts", Produced(STRING, LONG))
    streams = StreamsConfig(errors_dead_letter_queue_topic_name="letters")
    config = AppConfig("limited", "none:none", streams=streams)
    limited = {**kafka, "sasl.username": "app"}
    application = Application(config, "v1", builder.build(), Kafka(limited), tmp_path)
    producer = IdempotentProducer(Kafka(kafka))
    producer.send("words", b"k", b"word", 1, (), None)
    producer.flush()
    with pytest.raises(BrokerError, match=r"group limited-v1:run .*authorization failed\nHint: Grant"):
        Worker(application).run(until_caught_up=True)
    client = AdminClient(kafka)
    rights = documented_rights("limited-v1", "words", ["counts", "letters"], "User:app")
    assert len(rights) > 15
    for future in client.create_acls(rights).values():
        future.result(30)
    summary = Worker(application).run(until_caught_up=True)
    assert (summary.processed, summary.dropped) == (2, {})
    reset(
        plan_reset(
            ConnectedApplication(application, Admin(Kafka(limited))), OffsetVector({TopicPartition("words", 0): 0})
        ),
        Admin(Kafka(limited)),
    )
    assert Worker(application).run(until_caught_up=True).processed == 2
