"""The versions of an application that histories release, and what each makes of records, in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Named, Produced, TimeWindows, windowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.dsl.builder import StreamsBuilder
    from riverrun.topology.topology import Topology

WINDOW_MS, GRACE_MS = 20_000, 30_000
INPUT, COUNTS, WINDOWS, SEEN, ALERTS = "clicks", "counts", "windows", "seen", "alerts"
TABLES = COUNTS, WINDOWS
LOGS = SEEN, ALERTS
USERS, PAGES = "uvwx", "abcdef"


class Click(NamedTuple):
    """A record of the input."""

    number: int
    user: str
    page: str
    time_ms: int

    @property
    def partition(self) -> int:
        return USERS.index(self.user) % 2


@dataclass(frozen=True, slots=True)
class Version:
    """A version, by its differences from the first one.

    Args:
        pages: The page that it counts in the place of another one.
        without: The page that its windows leave out.
        alert: The page whose records it writes into a log that no other version has; none if it is empty.
    """

    name: str
    pages: tuple[tuple[str, str], ...] = ()
    without: str = ""
    alert: str = ""

    def topology(self, builder: StreamsBuilder) -> Topology:
        """Return a topology: a log, a count behind a repartition, a windowed count, and maybe a log of alerts."""
        mark, pages, without, alert = self.name, dict(self.pages), self.without, self.alert
        clicks = builder.stream(INPUT, Consumed(STRING, STRING))
        clicks.map_values(lambda text: f"{mark} {text}").to(SEEN, Produced(STRING, STRING))

        def page(_user: str, text: str) -> str:
            return pages.get(text[0], text[0])

        by_page = clicks.group_by(page, Grouped(STRING, STRING, name="by-page"))
        by_page.count(Materialized(STRING, LONG, name="per-page")).to_stream().to(COUNTS, Produced(STRING, LONG))
        kept = clicks.filter(lambda _user, text: text[0] != without, named=Named("kept"))
        windows = TimeWindows.of(timedelta(milliseconds=WINDOW_MS), grace=timedelta(milliseconds=GRACE_MS))
        counts = kept.group_by_key().windowed_by(windows).count(Materialized(STRING, LONG, name="per-window"))
        marked = counts.to_stream().map_values(lambda count: f"{mark} {count}")
        marked.to(WINDOWS, Produced(windowed(STRING), STRING))
        if alert:
            alerts = clicks.filter(lambda _user, text: text[0] == alert, named=Named("alerting"))
            alerts.map_values(lambda text: f"{mark} {text}").to(ALERTS, Produced(STRING, STRING))
        return builder.build()

    def counts(self, clicks: Iterable[Click]) -> Counter[str]:
        """Return how often each page was seen."""
        pages = dict(self.pages)
        return Counter(pages.get(click.page, click.page) for click in clicks)

    def windows(self, clicks: Iterable[Click]) -> Counter[tuple[str, int]]:
        """Return how often each user was seen in each window. A record that comes after the grace is left out."""
        found: Counter[tuple[str, int]] = Counter()
        latest: defaultdict[int, int] = defaultdict(int)
        for click in clicks:
            if click.page == self.without:
                continue
            latest[click.partition] = max(latest[click.partition], click.time_ms)
            start = click.time_ms - click.time_ms % WINDOW_MS
            if start + WINDOW_MS + GRACE_MS > latest[click.partition]:
                found[click.user, start] += 1
        return found

    def logs(self, clicks: Iterable[Click]) -> Mapping[str, set[int]]:
        """Return the numbers of the records in all logs."""
        clicks = list(clicks)
        alerts = {click.number for click in clicks if click.page == self.alert}
        return {SEEN: {click.number for click in clicks}, ALERTS: alerts}

    def rows(self, clicks: list[Click]) -> Mapping[str, Mapping[Any, Any]]:
        """Return the rows of all tables."""
        return {COUNTS: self.counts(clicks), WINDOWS: self.windows(clicks)}


VERSIONS = {
    each.name: each
    for each in (
        Version("v1"),
        Version("v2", pages=(("b", "a"), ("f", "g"))),
        Version("v3", without="c", alert="d"),
        Version("v4"),
    )
}


def v1(builder: StreamsBuilder) -> Topology:
    return VERSIONS["v1"].topology(builder)


def v2(builder: StreamsBuilder) -> Topology:
    return VERSIONS["v2"].topology(builder)


def v3(builder: StreamsBuilder) -> Topology:
    return VERSIONS["v3"].topology(builder)


def v4(builder: StreamsBuilder) -> Topology:
    return VERSIONS["v4"].topology(builder)


LATER = {"v2": v2, "v3": v3, "v4": v4}
