"""Processes that die at a write to brokers, within the process of a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from riverrun.kafka.admin import Admin
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CrashError(BaseException):
    """The process dies here."""


@contextmanager
def crashing(at: int, *, after: bool) -> Iterator[list[str]]:
    """Die at one of the writes to brokers, before or after it takes place."""
    seen: list[str] = []
    patched = [
        (TransactionalProducer, "commit"),
        (IdempotentProducer, "flush"),
        (Admin, "alter_topic_configs"),
        (Admin, "create_topics"),
        (Admin, "delete_records"),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name in patched]

    def replaced(name: str, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            seen.append(name)
            if len(seen) > at:
                if len(seen) == at + 1 and after:
                    original(*args, **options)
                raise CrashError(name)
            return original(*args, **options)

        return call

    for owner, name, original in originals:
        setattr(owner, name, replaced(name, original))
    try:
        yield seen
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def writes_of(doing: Callable[[], object]) -> int:
    """Return how often something writes to brokers."""
    with crashing(10**6, after=False) as seen:
        doing()
    return len(seen)
