"""The records of environments, in a control topic: what each consists of, and how far it has come."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Line, Name, Time, UnreadableError, Word, foreign_decoder
from riverrun.errors import ConfigError, StateError, TaskMigratedError, UnderWayError, UnknownOutcomeError
from riverrun.hosting.control_topic import ControlTopic, readable
from riverrun.hosting.process import SystemClock, this_user
from riverrun.runtime.layout import environment_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.kafka.admin import Admin

ENVIRONMENTS_TOPIC = "riverrun-environments"


class EnvironmentState(StrEnum):
    """How far an environment has come."""

    COMPUTING = "computing"
    """It is being computed, or a command that was to do so has ended before."""
    READY = "ready"
    """Its members have processed the vector."""
    DROPPING = "dropping"
    """It is being deleted, or a command that was to do so has ended before."""


@dataclass(frozen=True, slots=True)
class EnvironmentRecord:
    """An environment.

    Args:
        members: The version of each member, in the order of the flow.
        named: The members that were named; the others follow from them.
        without: Applications that would follow, and were left out.
        vector: The offsets of external inputs up to which it is computed.
        digests: The fingerprint of each member's topology.
        allows_lost: Whether it is computed although brokers have deleted records.
        operation: Identifies the last change.
    """

    name: Name
    members: dict[Name, Name]
    named: tuple[Name, ...] = ()
    without: tuple[Line, ...] = ()
    state: EnvironmentState = EnvironmentState.COMPUTING
    vector: str = ""
    digests: dict[Name, Word] = field(default_factory=dict)
    allows_lost: bool = False
    by: Line = ""
    changed_ms: Time = 0
    operation: Word = ""

    @property
    def application_ids(self) -> Mapping[str, str]:
        """The id of each member in the environment."""
        return {app: f"{environment_name(self.name, app)}-{version}" for app, version in self.members.items()}

    def __str__(self) -> str:
        members = ", ".join(f"{app} {version}" for app, version in self.members.items())
        return f"{self.name}: {self.state.value}, by {self.by}: {members}"


_decode = foreign_decoder(EnvironmentRecord)


class EnvironmentRegistry:
    """Reads and writes the records of environments. A write fails if another process has changed the record since."""

    def __init__(self, admin: Admin, by: str = "") -> None:
        self._topic = ControlTopic(admin, ENVIRONMENTS_TOPIC)
        self._by = by or this_user()

    def all(self) -> list[EnvironmentRecord]:
        """Return the records of all environments, sorted by name."""
        return sorted(readable(ENVIRONMENTS_TOPIC, self._topic.read(), _decode), key=lambda found: found.name)

    def find(self, name: str) -> EnvironmentRecord | None:
        """Return the record of an environment; None if there is none."""
        found = self._topic.read().get(name)
        try:
            return None if found is None else _decode(found)
        except UnreadableError as error:
            message = f"The record of environment {name} in topic {ENVIRONMENTS_TOPIC} cannot be read: {error}"
            raise StateError(message, hint="If a newer version of Riverrun wrote it, use that version.") from error

    def read(self, name: str) -> EnvironmentRecord:
        """Return the record of an environment that must exist."""
        found = self.find(name)
        if found is None:
            known = ", ".join(each.name for each in self.all()) or "none"
            message = f"There is no environment {name}"
            raise ConfigError(message, hint=f"Environments: {known}. `riverrun env create {name} --from APP` makes it.")
        return found

    def write(self, record: EnvironmentRecord, before: EnvironmentRecord | None) -> EnvironmentRecord:
        """Write a record in place of the one that was read before."""
        now_ms = SystemClock().now_ms()
        written = replace(record, by=self._by, changed_ms=now_ms, operation=uuid.uuid4().hex)
        self._put(record.name, msgspec.json.encode(asdict(written)), before)
        return written

    def delete(self, record: EnvironmentRecord) -> None:
        """Delete a record that was read before."""
        self._put(record.name, None, record)

    def require(self, name: str, known: EnvironmentRecord | None) -> None:
        """Make sure that the record is still the one that was read or written."""
        found = self.find(name)
        if (found and found.operation) != (known and known.operation):
            raise _changed(name, found)

    def _put(self, name: str, value: bytes | None, before: EnvironmentRecord | None) -> None:
        try:
            self._topic.write(name, {name: value}, lambda: self.require(name, before))
        except (TaskMigratedError, UnknownOutcomeError) as error:
            raise _changed(name, self.find(name)) from error


def _changed(name: str, found: EnvironmentRecord | None) -> UnderWayError:
    now = "it is gone" if found is None else f"it is {found.state.value}, by {found.by}"
    message = f"Another command has changed environment {name} meanwhile: {now}"
    return UnderWayError(message, hint="Look at `riverrun env list`, then decide again.")
