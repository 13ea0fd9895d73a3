"""Names the subjects of schemas, and finds the schema that a serde writes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from riverrun.config.checks import nearest
from riverrun.config.sections import SERDE_SETTINGS
from riverrun.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.serde.api import SerdePlace

    Strategy: TypeAlias = "Callable[[Any, str | None], str | None]"

_JAVA_NAMES = {
    "TopicNameStrategy": "topic_subject_name_strategy",
    "RecordNameStrategy": "record_subject_name_strategy",
    "TopicRecordNameStrategy": "topic_record_subject_name_strategy",
}
_TOPIC = "topic_subject_name_strategy"


@dataclass(frozen=True, slots=True)
class Registration:
    """How a serde finds the schema to write values with.

    Args:
        auto_register: Whether to register it (`auto.register.schemas`).
        use_latest: Whether to write with the latest version of the subject instead (`use.latest.version`).
        normalize: Whether the registry normalizes it (`normalize.schemas`).
        strategy: Names the subject (`subject.name.strategy`).
        ignore_rules: Whether schemas with rules are accepted, and the rules are left out (`ignore.rules`).
    """

    auto_register: bool
    use_latest: bool
    normalize: bool
    strategy: Strategy
    ignore_rules: bool

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Registration:
        auto_register = settings.get("auto.register.schemas", True)
        use_latest = settings.get("use.latest.version", False)
        if auto_register and use_latest:
            message = "use.latest.version needs auto.register.schemas = false"
            raise ConfigError(
                message, hint="Serdes that write with the latest version of a subject do not register schemas."
            )
        normalize = settings.get("normalize.schemas", False)
        strategy = _strategy(settings.get("subject.name.strategy", _TOPIC))
        return cls(auto_register, use_latest, normalize, strategy, settings.get("ignore.rules", False))

    def subject(self, place: SerdePlace, record_name: str | None) -> str:
        from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - of an extra

        field = MessageField.KEY if place.is_key else MessageField.VALUE
        try:
            subject = self.strategy(SerializationContext(place.topic, field), record_name)
        # Confluent's strategies append None as if it were text.
        except TypeError:
            subject = None
        if subject is None:
            message = f"subject.name.strategy names no subject for {record_name or 'a schema without a name'}"
            hint = "If topics are chosen per record, use record_subject_name_strategy, which needs schemas with names."
            raise SchemaError(message, hint=hint)
        return subject


def check_settings(serde: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not a serde's, or have the wrong type."""
    for key, value in settings.items():
        if key not in SERDE_SETTINGS:
            message = f"{serde} has no setting {key}"
            raise ConfigError(
                message, hint=f"{nearest(key, SERDE_SETTINGS)} Settings of clients belong in [schema_registry]."
            )
        if not isinstance(value, SERDE_SETTINGS[key].kind) and not (key == "subject.name.strategy" and callable(value)):
            raise ConfigError(f"{serde}: {key} cannot be {value!r}")


def _strategy(given: str | Strategy) -> Strategy:
    if not isinstance(given, str):
        return given
    from confluent_kafka import schema_registry  # noqa: PLC0415 - of an extra

    known = {*_JAVA_NAMES, *_JAVA_NAMES.values()}
    name = given.rpartition(".")[2]
    if name not in known:
        message = f"subject.name.strategy is {given!r}"
        raise ConfigError(message, hint=f"Allowed: {', '.join(sorted(known))}, or your own function.")
    found: Strategy = getattr(schema_registry, _JAVA_NAMES.get(name, name))
    return found
