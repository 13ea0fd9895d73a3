"""`Pattern`, the order of records that `KStream.match` looks for, and the node and stores of a match."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from riverrun.arguments import NUMBER, TEXT, function, optional
from riverrun.dsl.kinds import check_columns, checked, with_key
from riverrun.dsl.plan import serde_of
from riverrun.dsl.tables import table_store
from riverrun.errors import TopologyError
from riverrun.operators.patterns import Matching, StreamMatch, candidates
from riverrun.operators.sequences import Element, Sequel
from riverrun.processor.expressions import decision_of
from riverrun.serde.serdes import BYTES, JSON
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from riverrun.dsl.options import Materialized
    from riverrun.dsl.plan import Plan
    from riverrun.serde.api import Serde

V = TypeVar("V")

MATCH = "KSTREAM-MATCH-"
_PREDICATE = function("value", "key, value")
# The bits of a record's predicates are an unsigned number of four bytes.
_MOST_PREDICATES = 32


@dataclass(frozen=True, slots=True)
class Pattern(Generic[V]):
    """The order of records of a key that `KStream.match` looks for.

    Each method returns a new pattern. `times`, `one_or_more`, `optional` and `consecutive` are about the last element.
    Predicates take `(value)` or `(key, value)`, or are expressions of columns; they must depend on nothing else.

    >>> small, large = (lambda value: value < 10), (lambda value: value > 500)
    >>> Pattern.begin("small", small).times(2).followed_by("large", large).names
    ('small', 'large')
    """

    _elements: tuple[Element, ...]
    _predicates: tuple[Callable[..., Any], ...]
    _forbidden: int = 0
    """The bit of the predicate of the last `not_followed_by`; 0 if an element has come since."""

    @classmethod
    @checked(name=TEXT, predicate=_PREDICATE)
    def begin(cls, name: str, predicate: Callable[..., Any]) -> Pattern[Any]:
        """Begin a pattern with a record that satisfies a predicate.

        Args:
            name: The name of the record in results.
            predicate: `(value)` or `(key, value)`, or an expression.
        """
        return cls((Element(name, 1),), (predicate,))

    @checked(name=TEXT, predicate=_PREDICATE)
    def next(self, name: str, predicate: Callable[..., Any]) -> Pattern[V]:
        """Add a record that comes right after the one before, without others of the key between them."""
        if self._forbidden:
            raise TopologyError(
                "next() leaves no records between for not_followed_by() to forbid", hint="Use followed_by()."
            )
        return self._with(name, predicate, is_next=True)

    @checked(name=TEXT, predicate=_PREDICATE)
    def followed_by(self, name: str, predicate: Callable[..., Any]) -> Pattern[V]:
        """Add a record that comes later: the next one that satisfies the predicate. Others between them are skipped."""
        return self._with(name, predicate, is_next=False)

    @checked(predicate=_PREDICATE)
    def not_followed_by(self, predicate: Callable[..., Any]) -> Pattern[V]:
        """Forbid records that satisfy a predicate, until the next element; at the end of a pattern, until its time is over."""
        if self._forbidden:
            raise TopologyError(
                "A pattern has two not_followed_by() without an element between them", hint="Join them by `or`."
            )
        return Pattern(self._elements, (*self._predicates, predicate), 1 << len(self._predicates))

    @checked(least=NUMBER, most=optional(NUMBER))
    def times(self, least: int, most: int | None = None) -> Pattern[V]:
        """Repeat the last element: `times(3)` is three times, `times(2, 4)` is two to four times, as often as possible."""
        if least < 1 or (most is not None and most < least):
            raise TopologyError(f"times() takes at least 1 and at most as many or more, not {least} and {most}")
        return self._changed("times", least=least, most=least if most is None else most)

    def one_or_more(self) -> Pattern[V]:
        """Repeat the last element as often as possible."""
        return self._changed("one_or_more", least=1, most=None)

    @checked(least=NUMBER)
    def times_or_more(self, least: int) -> Pattern[V]:
        """Repeat the last element at least so many times, and as often as possible."""
        if least < 1:
            raise TopologyError(f"times_or_more() takes 1 or more, not {least}")
        return self._changed("times_or_more", least=least, most=None)

    def optional(self) -> Pattern[V]:
        """Let the last element be missing; if it can be there, it is."""
        if self._elements and self._elements[-1].forbids:
            message = f"{self._elements[-1].name} cannot be optional: not_followed_by() is about what comes before it"
            raise TopologyError(message, hint="Put not_followed_by() before an element that is not optional.")
        return self._changed("optional", is_optional=True)

    def consecutive(self) -> Pattern[V]:
        """Let no record of the key come between the repetitions of the last element."""
        return self._changed("consecutive", is_consecutive=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the elements."""
        return tuple(each.name for each in self._elements)

    def _with(self, name: str, predicate: Callable[..., Any], *, is_next: bool) -> Pattern[V]:
        if name in self.names:
            raise TopologyError(f"A pattern has two elements with the name {name!r}")
        if len(self._predicates) == _MOST_PREDICATES:
            raise TopologyError(f"A pattern has at most {_MOST_PREDICATES} predicates")
        element = Element(name, 1 << len(self._predicates), self._forbidden, is_next)
        return Pattern((*self._elements, element), (*self._predicates, predicate))

    def _changed(self, method: str, **properties: Any) -> Pattern[V]:
        if self._forbidden:
            raise TopologyError(f"{method}() is about an element, not about not_followed_by()")
        *before, last = self._elements
        return replace(self, _elements=(*before, replace(last, **properties)))


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern, and its times.

    Args:
        within_ms: How far after its first record a match is over, ms; exclusive.
        grace_ms: How far a record may lag behind stream time, ms.
    """

    pattern: Pattern[Any]
    within_ms: int
    grace_ms: int

    @classmethod
    def of(cls, pattern: Pattern[Any], within: timedelta, grace: timedelta) -> Match:
        within_ms = millis(within, "within")
        if within_ms == 0:
            raise TopologyError("within must be positive: a match has the records before its end")
        return cls(pattern, within_ms, millis(grace, "grace"))

    @property
    def functions(self) -> tuple[Any, ...]:
        """Return all that fingerprints cover."""
        elements, forbidden = self._sequel.elements, self._sequel.forbids_at_end
        return ("pattern", *map(astuple, elements), forbidden, *self._predicates, self.within_ms, self.grace_ms)

    @property
    def _sequel(self) -> Sequel:
        return Sequel(self.pattern._elements, self.pattern._forbidden)  # noqa: SLF001 - not for users

    @property
    def _predicates(self) -> tuple[Callable[..., Any], ...]:
        return self.pattern._predicates  # noqa: SLF001 - not for users

    def stores(
        self,
        plan: Plan,
        name: str,
        options: Materialized[Any, Any],
        keys: Serde[Any] | None,
        values: Serde[Any],
    ) -> tuple[StoreBuilder, ...]:
        """Return the store of records that may belong to a match, and that of records that wait for their turn, if any do."""
        if options.is_versioned or options.max_entries is not None or options.ttl is not None:
            message = f"Store {name} has records that may belong to a match, which within forgets"
            raise TopologyError(message, hint="Leave history_retention, max_entries and ttl out.")
        store = table_store(plan, name, replace(options, value_serde=candidates(values)), keys, None)
        if not self.grace_ms:
            return (store,)
        buffer = StoreBuilder(
            f"{name}-Buffer",
            StoreKind.KEY_VALUE,
            BYTES,
            BYTES,
            persistent=store.persistent,
            logging=store.logging,
            log_config=store.log_config,
            grace_ms=self.grace_ms,
        )
        return store, buffer

    def operator(self, stores: tuple[StoreBuilder, ...], values: Serde[Any]) -> StreamMatch:
        """Return a new operator above the stores."""
        store, *buffer = stores
        sequel = self._sequel
        if all(each.is_optional for each in sequel.elements):
            raise TopologyError("A pattern needs an element that is not optional")
        for each in self._predicates:
            check_columns(each, values)
        predicates = tuple(with_key(decision_of(each)) for each in self._predicates)
        matching = Matching(sequel, predicates, self.within_ms, self.grace_ms)
        name = buffer[0].name if buffer else None
        return StreamMatch(store.name, name, (store.key_serde, values), matching)


def results_serde(options: Materialized[Any, Any], values: Serde[Any]) -> Serde[Any] | None:
    """Return the serde of matches: that of the options, or JSON if that is known to have such values."""
    if options.value_serde is not None:
        return options.value_serde
    kind = None if values.plain is not None else values.value_type
    return None if kind is None else JSON(dict[str, list[kind]])  # type: ignore[valid-type]


def values_of(stream: Serde[Any] | None, store: str) -> Serde[Any]:
    """Return the serde of the stream's values, which the store needs."""
    return serde_of(stream, "values", f"store {store}", "match: grouped")
