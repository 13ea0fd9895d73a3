"""The console: access to its page, and the page in a browser."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from riverrun import STRING, Consumed, Materialized, Named, Produced, Serde, StreamsBuilder
from riverrun.config import AppConfig
from riverrun.hosting.application import Application
from riverrun.hosting.process import SystemClock
from riverrun.kafka.door import Kafka
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.context import FailedRecord
from riverrun.service.admission import Access
from riverrun.service.answering import FILES, content
from riverrun.service.api import new_api
from riverrun.service.browsing import Asked, AskedLetters
from riverrun.service.instance import bound, serving
from riverrun.worker.group.protocol import AssignmentInfo
from riverrun.worker.queries import AnswerPage, Refusal, StoreRow
from riverrun.worker.states import InputProgress, LastCommit, TaskFigures, ThreadSeconds, WorkerState, WorkerSummary
from riverrun.worker.stream_thread.protocol import ThreadReport
from tests.browsers import animated, emulate, foreign, nameless, overflow, pale
from tests.presence import present
from tests.unit.service.test_api import FakeInstance, client, row
from tests.unit.service.test_events import Working
from tests.unit.service.test_measuring import looked_up
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from selenium.webdriver import Chrome

    from riverrun.runtime.layout import Layout

ODD = Serde[Any]("odd", lambda value: json.dumps(value).encode(), json.loads)
HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("path", FILES)
def test_the_page_needs_no_token_and_may_load_only_its_own_files(path: str) -> None:
    answer = client(FakeInstance(), "secret").get(path)
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)


def test_the_page_puts_nothing_into_itself_but_text() -> None:
    script = "\n".join(content(path) for path in FILES if path.endswith(".js"))
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage|EventSource", script
    )
    assert not re.search(r"<style|style=|\son\w+=|<script(?! type=\"module\" src)", content("/"))


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", LINK, 200),
        ("GET", "/status", LINK, 403),
        ("GET", "/events", LINK, 403),
        ("GET", "/topology", LINK, 403),
        ("GET", "/console.js", LINK, 403),
        ("POST", "/", LINK, 403),
        ("GET", "/", LINK | {"Sec-Fetch-Dest": "iframe"}, 403),
        ("GET", "/", LINK | {"Sec-Fetch-Mode": "no-cors"}, 403),
        ("GET", "/", LINK | {"Origin": "https://evil.example"}, 403),
        ("GET", "/", LINK | {"Host": "evil.example"}, 421),
    ],
)
def test_a_link_from_elsewhere_leads_to_the_page_alone(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    assert client(FakeInstance()).request(method, path, headers=headers).status_code == status


def test_stores_and_the_topology_are_returned_as_the_page_shows_them() -> None:
    caller = client(FakeInstance())
    (store,) = caller.get("/stores").json()
    assert (store["store"], store["key_serde"], store["value_serde"]) == ("counts", "string", "long")
    topology = caller.get("/topology").json()
    assert topology["description"].startswith("Topolog")
    assert "<svg" in topology["picture"]
    assert client(FakeInstance(), "secret").get("/topology").status_code == 401


class Busy(FakeInstance):
    """Is behind, and does more each second."""

    done = 0

    def reports(self) -> Mapping[int, ThreadReport]:
        self.done += 10
        last = LastCommit(SystemClock().now_ms(), 90_000, {"app-v1-counts-changelog": self.done})
        inputs = {TopicPartition("in", 1): InputProgress(self.done, self.done + 80)}
        tasks = {TaskId(0, 1): TaskFigures(self.done, {}, inputs=inputs, last_commit=last)}
        restoring = {TaskId(0, 0): 9}
        self.restoring = dict(restoring)
        return {
            1: ThreadReport(
                active=self.active,
                standby=self.standby,
                positions={},
                lags={},
                summary=WorkerSummary(),
                obeyed=1,
                restoring=restoring,
                commit_seconds=(0.5, 0.2),
                tasks=tasks,
            )
        }


def kept(value: Serde[Any]) -> Application:
    """An application with a store that has a serde of one's choice for values."""
    builder = StreamsBuilder()
    builder.table("in", Consumed(STRING, value), Materialized(STRING, value, name="kept"))
    return Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), Path("unused"))


class Growing(Working):
    """Is faster each time it is looked at."""

    def reports(self) -> Mapping[int, ThreadReport]:
        self.done += self.done // 2
        return super().reports()


def record(offset: int, key: Any, value: Any, problem: str | None = None) -> dict[str, Any]:
    headers = [["by", HOSTILE], ["no", None]]
    problems = {"key": None, "value": problem}
    return {
        "partition": 0,
        "offset": offset,
        "timestamp": 5,
        "key": key,
        "value": value,
        "headers": headers,
        "problems": problems,
    }


@dataclass
class Topics:
    """A topic with few records, and letters, without a broker."""

    kept: list[dict[str, Any]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    dead: str | None = None
    value_serde: str = HOSTILE

    def topics(self) -> list[dict[str, Any]]:
        names = {"key_serde": "string", "value_serde": self.value_serde}
        return [{"topic": "in", "partitions": 1, "roles": ["input"], **names}]

    def records(self, topic: str, asked: Asked) -> dict[str, Any]:
        assert topic == "in"
        self.asked.append(asked)
        first = 0 if asked.start in {"newest", "earliest"} else int(asked.start.rpartition("@")[2])
        found = [each for each in self.kept if each["offset"] >= first and asked.contains in str(each["value"])]
        page = found[: asked.limit]
        after = page[-1]["offset"] + 1 if page else first
        return {"records": page, "next": f"in-0@{after}", "looked_at": len(found), "is_end": len(found) == len(page)}

    def letters(self, asked: AskedLetters) -> dict[str, Any]:
        found = {
            "place": "dead-0@3",
            "timestamp": 5,
            "origin": "in-0@1",
            "error": "ValueError",
            "message": HOSTILE,
            "note": None,
        }
        letters = [found] if self.dead and asked.error in str(found["error"]) else []
        return {"app": "app", "topic": self.dead, "letters": letters, "is_end": True}

    def letter(self, place: str) -> dict[str, Any] | None:
        found: dict[str, Any]
        (found,) = self.letters(AskedLetters.model_validate({}))["letters"]
        assert place == found["place"]
        return found | {"key_text": "ann", "value_text": HOSTILE, "trace": "Traceback: " + HOSTILE}

    def turn(self) -> AbstractContextManager[bool]:
        return nullcontext(enter_result=True)


@contextmanager
def shown(
    instance: FakeInstance, page: Chrome, token: str = "", port: int = 0, topics: Topics | None = None
) -> Iterator[Shown]:
    """The console of an instance in a browser."""
    api = new_api(instance, Access(token, server="here:1"), browsed=topics or Topics())
    with (
        bound(f"127.0.0.1:{port}", wants_token=bool(token)) as listener,
        serving(api, listener, None, api.state.events.end),
    ):
        page.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        yield Shown(page, listener.getsockname()[1])


class Shown:
    """A page that is open."""

    def __init__(self, page: Chrome, port: int) -> None:
        self.page, self.port = page, port

    def text(self, name: str) -> str:
        return str(self.page.find_element(By.ID, name).text)

    def wait_for(self, name: str, text: str) -> None:
        WebDriverWait(self.page, DEADLINE_S).until(lambda _: text in self.text(name), f"{text!r} in {name}")

    def type(self, name: str, text: str) -> None:
        field = self.page.find_element(By.ID, name)
        field.clear()
        field.send_keys(text)

    def look_up(self) -> None:
        self.page.find_element(By.CSS_SELECTOR, "#browse button").click()

    def complaints(self) -> list[str]:
        """The browser's log, without lines about the favicon and about requests without a token."""
        messages = [each["message"] for each in self.page.get_log("browser")]
        return [each for each in messages if not re.search("favicon|401", each)]


def test_a_browser_shows_figures_as_they_change_and_names_as_text(page: Chrome) -> None:
    instance = Growing(server=HOSTILE)
    instance.answers = {TaskId(0, n): [AnswerPage((row(HOSTILE, 5),) if n == 0 else ())] for n in range(3)}
    with shown(instance, page, "secret") as console:
        console.wait_for("connection", "token")
        page.find_element(By.ID, "token").send_keys("wrong\n")
        console.wait_for("login-error", "not the token")
        page.find_element(By.ID, "token").send_keys("secret\n")
        console.wait_for("connection", "Connected")
        console.wait_for("graph", "KSTREAM-SOURCE-0000000000")
        console.wait_for("graph", "/s, lag 0")
        before = console.text("graph")
        WebDriverWait(page, 60).until(lambda _: console.text("graph") != before)
        assert HOSTILE in console.text("name")
        assert "Rate: " in console.text("charts")
        assert "active: 0_0, 0_1, 0_2" in console.text("log")
        assert "key: string, value: long" in console.text("serdes")
        console.look_up()
        console.wait_for("rows", HOSTILE)
        assert page.title == "app-v1: Riverrun console", "no script of a name has run"
        assert page.find_elements(By.CSS_SELECTOR, "body script, img, #instances a") == []
        assert "secret" not in page.current_url
        assert console.complaints() == []


def test_figures_stand_beside_the_topics_and_stores_they_are_of(page: Chrome) -> None:
    with shown(Busy(), page) as console:
        for text in ("lag 80, 1.5 min", "/s, lag 80", " updates/s"):
            console.wait_for("graph", text)
        console.wait_for("charts", "Latency: 1.5 min, at most 1.5 min")
        console.wait_for("charts", "Lag of inputs: 80 offsets")
        console.wait_for("tasks", "restoring, 9 left")
        assert [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#tasks tr:nth-child(2) td")][5:7] == [
            "80",
            "1.5 min",
        ]
        assert console.complaints() == []


def test_odd_keys_and_values_are_shown_exactly_and_as_text(page: Chrome) -> None:
    instance = FakeInstance(application=kept(ODD))
    huge, lossless = "x" * 100_000, 9_007_199_254_740_993
    rows = {HOSTILE: lossless, "\u0000\u202e": float("nan"), "huge": huge, "nested": {"a": [float("-inf"), lossless]}}
    pages: list[AnswerPage | Refusal] = [
        AnswerPage(tuple(StoreRow(STRING.serialize(key), ODD.serialize(value)) for key, value in rows.items()))
    ]
    instance.answers = {TaskId(0, n): pages if n == 0 else [AnswerPage(())] for n in range(3)}
    with shown(instance, page) as console:
        console.wait_for("serdes", "key-value")
        console.look_up()
        console.wait_for("found", "4 rows")
        text = console.text("rows")
        for expected in (HOSTILE, str(lossless), "NaN", '{"a":["-Infinity",9007199254740993]}'):
            assert expected in text
        assert huge not in text
        page.find_element(By.CSS_SELECTOR, "#rows button").click()
        assert huge in console.text("rows")
        assert console.complaints() == []


def test_a_store_is_asked_with_what_its_kind_takes(page: Chrome) -> None:
    with shown(FakeInstance(), page) as console:
        console.wait_for("serdes", "timestamped-key-value")
        usable = [
            each.get_attribute("id")
            for each in page.find_elements(By.CSS_SELECTOR, "#browse input")
            if each.is_displayed()
        ]
        assert usable == ["key", "from", "to", "prefix"]
        console.type("prefix", "a")
        console.type("from", "a")
        console.look_up()
        console.wait_for("store-error", "takes only one of from and prefix")


def test_ten_thousand_tasks_leave_the_page_usable(page: Chrome) -> None:
    many = frozenset(TaskId(0, n) for n in range(10_000))
    servers = {str(task): f"host-{task.partition % 100}:8090" for task in many}
    instance = FakeInstance(active=many, assignment=AssignmentInfo(servers=servers))
    with shown(instance, page) as console:
        console.wait_for("tasks-found", "10,000 tasks, the first 200 shown")
        assert len(page.find_elements(By.CSS_SELECTOR, "#tasks tr")) == 200
        assert len(page.find_elements(By.CSS_SELECTOR, "#instances a")) == 100
        console.type("task-filter", "0_9999")
        console.wait_for("tasks-found", "1 task")
        assert console.text("tasks").startswith("0_9999 host-99:8090")


def test_a_topology_too_large_for_a_picture_is_shown_as_a_text(page: Chrome) -> None:
    builder = StreamsBuilder()
    texts = builder.stream("in", Consumed(STRING, STRING))
    for number in range(1200):
        texts.map_values(str.strip).to(f"out-{number}", Produced(STRING, STRING))
    large = Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), Path("unused"))
    with shown(FakeInstance(active=frozenset(), application=large), page) as console:
        console.wait_for("graph", "too large for a picture")
        assert "out-1199" in present(page.find_element(By.ID, "description").get_attribute("textContent"))


class Starting(FakeInstance):
    """Knows nothing of its tasks before it runs."""

    state = WorkerState.REBALANCING

    @property
    def layout(self) -> Layout | None:  # type: ignore[override] # as of an instance
        return super().layout if self.state is WorkerState.RUNNING else None


def test_an_instance_that_starts_is_followed_until_it_has_stores(page: Chrome) -> None:
    instance = Starting(state=WorkerState.REBALANCING)
    with shown(instance, page) as console:
        console.wait_for("now", "rebalancing")
        assert "starting" in console.text("store-error")
        instance.state = WorkerState.RUNNING
        console.wait_for("log", "rebalancing → running")
        console.wait_for("serdes", "timestamped-key-value")
        assert console.text("store-error") == ""


def test_a_page_goes_on_when_its_instance_comes_back(page: Chrome) -> None:
    with shown(FakeInstance(), page) as console:
        console.wait_for("connection", "Connected")
    console.wait_for("connection", "trying again")
    api = new_api(FakeInstance(state=WorkerState.REBALANCING), Access(server="here:1"), browsed=Topics())
    with (
        bound(f"127.0.0.1:{console.port}", wants_token=False) as listener,
        serving(api, listener, None, api.state.events.end),
    ):
        console.wait_for("connection", "Connected")
        console.wait_for("log", "rebalancing; active")
    assert "running; active" in console.text("log"), "of before"


FAILED = FailedRecord(5, "0_1", "parse", "in", 0, 1, HOSTILE, "ValueError", HOSTILE, "skipped")


class Spending(Busy):
    """Spends part of its time on records."""

    spent = 0.0

    def reports(self) -> Mapping[int, ThreadReport]:
        self.spent += 1
        seconds = ThreadSeconds(
            self.spent,
            self.spent / 2,
            self.spent / 10,
            self.spent / 4,
            punctuate=self.spent / 50,
            commit_wait=self.spent / 20,
        )
        nodes = {node: share * self.spent for node, share in SHARES.items()}
        return {1: replace(super().reports()[1], seconds=seconds, nodes=nodes)}


SHARES = {"KSTREAM-SOURCE-0000000000": 0.002, "KSTREAM-AGGREGATE-0000000001": 0.43}
LEVELS = {"busy-1": 0.06, "busy-2": 0.3, "busy-3": 0.9}


class Levels(FakeInstance):
    """Has a busy node of each colour."""

    spent = 0.0

    def reports(self) -> Mapping[int, ThreadReport]:
        self.spent += 1
        nodes = {name: share * self.spent for name, share in LEVELS.items()}
        return {1: replace(super().reports()[1], seconds=ThreadSeconds(self.spent), nodes=nodes)}


def colours() -> Application:
    """A node for each colour of busy ones."""
    builder = StreamsBuilder()
    texts = builder.stream("in", Consumed(STRING, STRING))
    for name in LEVELS:
        texts = texts.filter(lambda _key, _value: True, named=Named(name))
    texts.to("out", Produced(STRING, STRING))
    return Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), Path("unused"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_busy_node_is_coloured_and_says_how_busy_it_is(page: Chrome, scheme: str) -> None:
    emulate(page, prefers_color_scheme=scheme)
    with shown(Levels(application=colours()), page) as console:
        console.wait_for("graph", "90 % busy")
        for name, share in LEVELS.items():
            assert f"{share * 100:g} % busy" in console.text("graph")
            (box,) = page.find_elements(By.CSS_SELECTOR, f"#graph .{name}")
            assert box.get_attribute("data-key") == f"node {name}"
        assert pale(page) == []
        for width in (360, 768, 1400):
            assert overflow(page, width) == []
        assert console.complaints() == []


class Asking(Busy):
    """Looks values up."""

    def reports(self) -> Mapping[int, ThreadReport]:
        report = super().reports()[1]
        rates = {"lookup_rate": 12.0, "lookup_latency_avg": 30.0, "lookup_latency_max": 1500.0}
        counts = {"failure_total": 1, "retry_total": 3, "timeout_total": 2, "cache_hit_total": 6, "cache_miss_total": 2}
        measured = looked_up("price", **rates, **counts, in_flight=4, waiting=7)
        return {
            1: replace(report, tasks={task: replace(each, measured=measured) for task, each in report.tasks.items()})
        }


def asking() -> Application:
    """A node that looks prices up."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).map_values(str, named=Named("price")).to(
        "out", Produced(STRING, STRING)
    )
    return Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), Path("unused"))


def test_look_ups_of_a_node_have_their_figures(page: Chrome) -> None:
    with shown(Asking(application=asking()), page) as console:
        console.wait_for("graph", "12/s looked up, 4 in flight")
        console.wait_for("lookups", "price 12 4 7 30 ms 1.5 s 1 3 2 75 % of 8")
        assert (nameless(page), pale(page), overflow(page, 360)) == ([], [], [])
        assert console.complaints() == []


def test_charts_have_a_past_when_the_page_opens_and_show_the_values_of_a_moment(page: Chrome) -> None:
    api = new_api(Spending(), Access(server="here:1"), browsed=Topics())
    for _ in range(9):
        api.state.history.look()
    with bound("127.0.0.1:0", wants_token=False) as listener, serving(api, listener, None, api.state.events.end):
        page.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        console = Shown(page, listener.getsockname()[1])
        console.wait_for("threads", "Stream thread 1: process 50 %, punctuate 2 %, commit 10 %")
        console.wait_for("threads", "wait for commit 5 %, poll 25 %")
        console.wait_for("threads", "KSTREAM-AGGREGATE-0000000001 busy: 43 %, at most 43 %")
        assert "KSTREAM-SOURCE" not in console.text("threads"), "it is hardly ever busy"
        chart = page.find_element(By.CSS_SELECTOR, "#charts svg")
        assert [each.text for each in chart.find_elements(By.CSS_SELECTOR, "text")][-1].count(":") == 2, "a time"
        lag = page.find_elements(By.CSS_SELECTOR, "#charts figure")[1]
        ActionChains(page).move_to_element(lag.find_element(By.TAG_NAME, "svg")).perform()
        readout = lag.find_element(By.CLASS_NAME, "readout")
        WebDriverWait(page, DEADLINE_S).until(lambda _: re.fullmatch(r"\d\d:\d\d:\d\d UTC: 80 offsets", readout.text))
        page.find_element(By.ID, "period").send_keys("5 minutes")
        assert len(chart.find_elements(By.CSS_SELECTOR, "path[d^=M]")) == 1
        assert console.complaints() == []


def test_a_failure_leads_to_its_record(page: Chrome) -> None:
    topics = Topics([record(n, f"k{n}", n) for n in range(3)])
    with shown(FakeInstance(failures=[FAILED]), page, topics=topics) as console:
        console.wait_for("failures", "in-0@1")
        assert HOSTILE in console.text("failures")
        page.find_element(By.LINK_TEXT, "in-0@1").click()
        console.wait_for("topic-rows", "k1")
        assert topics.asked[-1].start == "in-0@1"
        assert "k0" not in console.text("topic-rows")
        assert console.complaints() == []


def test_records_of_a_topic_are_shown_filtered_paged_and_followed(page: Chrome) -> None:
    topics = Topics([record(n, None, {"n": n}) for n in range(250)])
    with shown(FakeInstance(), page, topics=topics) as console:
        console.wait_for("topic-serdes", "input, 1 partitions; key: string")
        console.type("topic-from", "earliest")
        page.find_element(By.CSS_SELECTOR, "#topic-form button").click()
        console.wait_for("topic-found", "100 records shown; looked at 250, and there are more")
        page.find_element(By.ID, "topic-next").click()
        console.wait_for("topic-found", "200 records")
        console.type("topic-contains", "249")
        page.find_element(By.CSS_SELECTOR, "#topic-form button").click()
        console.wait_for("topic-found", "1 record shown; looked at 1, up to the end")
        page.find_element(By.ID, "topic-follow").click()
        topics.kept.append(record(250, "new", {"n": 249_249}))
        console.wait_for("topic-rows", '{"n":249249}')
        assert console.text("topic-rows").startswith("0@250"), "the newest first"
        page.find_element(By.ID, "topic-follow").click()
        assert console.complaints() == []


def test_hostile_records_and_letters_are_shown_as_text(page: Chrome) -> None:
    huge = "x" * 100_000
    kept = [
        record(0, HOSTILE, HOSTILE),
        record(1, huge, {"a": [huge]}),
        record(2, "7b", "fffe", f"not read by {HOSTILE}"),
    ]
    with shown(FakeInstance(), page, topics=Topics(kept, dead="dead")) as console:
        console.wait_for("letters", "dead-0@3")
        page.find_element(By.CSS_SELECTOR, "#topic-form button").click()
        console.wait_for("topic-found", "3 records")
        text = console.text("topic-rows")
        assert HOSTILE in text
        assert f"not read by {HOSTILE}" in text
        assert huge not in text
        page.find_element(By.LINK_TEXT, "dead-0@3").click()
        console.wait_for("letter", "riverrun letters replay app dead-0@3")
        assert f"Traceback: {HOSTILE}" in console.text("letter")
        assert page.title == "app-v1: Riverrun console", "no script has run"
        assert page.find_elements(By.CSS_SELECTOR, "body script, img") == []
        for width in (360, 768, 1400):
            assert overflow(page, width) == []
        console.type("letters-error-text", "other")
        page.find_element(By.CSS_SELECTOR, "#letters-form button").click()
        console.wait_for("letters-found", "0 letters in dead")
        assert console.complaints() == []


def test_sections_without_content_are_left_out(page: Chrome) -> None:
    with shown(FakeInstance(), page) as console:
        console.wait_for("topic-serdes", "input")
        console.wait_for("now", "Stream threads")
        for section in ("letters-section", "sql-section", "lookups-section"):
            assert not page.find_element(By.ID, section).is_displayed()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_by_everybody(page: Chrome, scheme: str) -> None:
    emulate(page, prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    instance = Spending(failures=[FAILED])
    instance.answers = {TaskId(0, n): [AnswerPage((row("ann", 5),) if n == 0 else ())] for n in range(3)}
    topics = Topics([record(0, "key", None), record(1, "key", "7b", "not read")], dead="dead")
    with shown(instance, page, topics=topics) as console:
        console.wait_for("graph", "lag 80")
        console.look_up()
        console.wait_for("rows", "ann")
        console.wait_for("threads", "process 50 %")
        page.find_element(By.LINK_TEXT, "dead-0@3").click()
        console.wait_for("letter", "riverrun letters")
        page.find_element(By.CSS_SELECTOR, "#topic-form button").click()
        console.wait_for("topic-found", "2 records")
        page.execute_script("document.getElementById('sql-section').hidden = false")
        assert pale(page) == []
        assert nameless(page) == []
        assert animated(page) == []
        assert foreign(page) == []
        assert overflow(page, 320) == []


def test_the_keyboard_reaches_everything(page: Chrome) -> None:
    with shown(FakeInstance(), page) as console:
        console.wait_for("serdes", "timestamped-key-value")
        console.wait_for("now", "running")
        page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
        seen = []
        for _ in range(60):
            focus = page.switch_to.active_element
            if focus.tag_name == "body":
                break
            assert focus.value_of_css_property("outline-style") != "none", "one sees where one is"
            seen.append(focus.get_attribute("id") or focus.get_attribute("aria-label") or focus.text)
            focus.send_keys(Keys.TAB)
        assert seen[0] == "Skip to the figures"
        reached = {
            "graph",
            "As a text",
            "task-filter",
            "Table of tasks",
            "store",
            "key",
            "Look up",
            "happened",
            "period",
            "topic-from",
            "topic-follow",
            "Read",
        }
        assert reached <= set(seen)
