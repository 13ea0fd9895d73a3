"""The console of a project: what its interface answers, and what a browser makes of it."""

from __future__ import annotations

import re
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from riverrun.console.api import files, new_api
from riverrun.console.looking import ProjectWatch
from riverrun.console.shown import change_object, instance_object, lag_object, release_object, row_object, run_object
from riverrun.errors import BrokerError, ConfigError, ReleaseError
from riverrun.hosting.gated import GateVerdict, HeldRun, HeldState
from riverrun.hosting.inputs import InputLag
from riverrun.hosting.release import Release, ReleaseChange, ReleaseStep
from riverrun.project.graph import Member, ProjectGraph, Read, ReaderKind, Write
from riverrun.project.graph_pictures import as_picture
from riverrun.project.surprises import surprises
from riverrun.records import TopicPartition
from riverrun.releases.rows import DifferentRow
from riverrun.service.admission import Access
from riverrun.service.instance import bound, serving
from riverrun.spark.runs import RunRecord
from riverrun.topology.svg import svg
from tests.browsers import animated, emulate, foreign, nameless, overflow, pale
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from selenium.webdriver import Chrome

HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
NOW = 1_767_300_000_000
HOUR = 3_600_000
STATUS = {
    "state": "running",
    "paused": False,
    "threads": 2,
    "active": ["0_0", "0_1"],
    "standby": {"0_2": 3},
    "restoring": {"0_3": 40, "0_4": None},
    "waiting": {},
    "processed": 1234,
    "recovery_s": 1.5,
}


def ran(number: int, state: str, **more: Any) -> dict[str, Any]:
    began = NOW - number * HOUR
    ended = None if state == "running" else began + HOUR // 2
    run = RunRecord(f"r{number}", "clicks", "v1", "ann@laptop", began, "clicks-0@0..9", state, ended, **more)
    return run_object(run)


def version(name: str, *, live: bool, lag: int) -> dict[str, Any]:
    inputs = [InputLag(TopicPartition("clicks", 0), False, None, 0, lag)]
    known = {"version": name, "id": f"clicks-{name}", "live": live, "error": None, "group": "stable", "members": 1}
    return known | {"scheme": "http", "instances": [instance_object("host-1:8090", STATUS)]} | lag_object(inputs)


def test_the_lag_of_a_version_whose_offsets_are_beyond_the_end_has_an_error() -> None:
    lag = InputLag(TopicPartition("clicks", 0), False, 3, 0, 5)
    assert lag_object([lag])["error"] is None
    assert lag_object([lag])["beyond"] == ""
    shown = lag_object([lag, lag._replace(committed=9)])
    assert "9 of clicks-0, which ends at 5" in shown["error"]
    assert shown["beyond"] == "2 behind, 4 beyond the end"
    assert [each["beyond"] for each in shown["inputs"]] == ["4 beyond the end", ""]


def project() -> dict[str, Any]:
    """The state of a project at a look."""
    outcomes = {"no negative counts": "passed", HOSTILE: "warning: 3 of 9"}
    verdict = GateVerdict("abc123", "clicks-0@7", "s", outcomes=outcomes, warnings=(HOSTILE,))
    held = HeldRun("def456", "v1", HeldState.HELD, verdict=verdict)
    release = Release("clicks", "v1", ReleaseStep.GATED, "v2", verdict=verdict, held=held, revision=3)
    change = ReleaseChange(
        "clicks", 3, HOSTILE, NOW, "0.1", "reprocessed", "gated", "v1", "v2", verdict="abc123", changed=("verdict",)
    )
    clicks = {
        "name": "clicks",
        "schedule": "@daily",
        "error": None,
        "release": release_object(release),
        "history": [change_object(change)],
        "versions": [version("v1", live=True, lag=80), version("v2", live=False, lag=7)],
    }
    broken: dict[str, Any] = {
        "name": "broken",
        "schedule": "@daily",
        "error": None,
        "release": release_object(Release("broken", "v1")),
        "history": [],
    }
    trouble = {"version": "v1", "id": "broken-v1", "live": True, "error": HOSTILE, "group": "Dead", "members": 0}
    return {
        "at": NOW,
        "seen_at": NOW,
        "project": "shop",
        "brokers": "127.0.0.1:9092",
        "error": None,
        "apps": [clicks, broken | {"versions": [trouble]}],
        "graph": "clicks v1, broken v1",
        "runs": [
            ran(1, "running"),
            ran(2, "done", records_in=5000),
            ran(30, "failed", error=HOSTILE),
            ran(400, "died"),
        ],
    }


class Looking:
    """Finds what it is told to find, a moment later each time."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found, self.looks = found, 0

    def __call__(self) -> dict[str, Any]:
        self.looks += 1
        return self.found | {"at": self.found["at"] + self.looks}


def differences(app: str, limit: int) -> Sequence[DifferentRow]:
    if app != "clicks":
        message = f"{app}: no release is planned"
        raise ReleaseError(message)
    changed = DifferentRow("counts", "changed", {"key": HOSTILE, "window_start": 5}, {"n": 1, "m": 2}, {"n": 3, "m": 2})
    gone = DifferentRow("counts", "gone", {"key": "bob"}, {"": float("nan")}, {})
    return [changed, gone][:limit]


def between() -> dict[str, Any]:
    """The graph of the project, as a console has it after a look."""
    clicks, broken = Member("clicks", version="v1"), Member(HOSTILE, version="v1")
    graph = ProjectGraph(
        (clicks, broken),
        (Read(broken, "counts", ReaderKind.TABLE),),
        (Write(clicks, "counts"), Write(broken, "counts")),
    )
    texts = [each.text for each in surprises(graph)]
    return {
        "name": "clicks v1, broken v1",
        "picture": svg(as_picture(graph), "all"),
        "surprising": texts,
        "unknown": [],
    }


@contextmanager
def served(look: Looking, token: str = "") -> Iterator[str]:
    with (
        closing(ProjectWatch(look, 0.2)) as watch,
        bound("127.0.0.1:0", wants_token=bool(token), where="[console]") as listener,
    ):
        name = f"127.0.0.1:{listener.getsockname()[1]}"
        api = new_api(watch, differences, between, Access(token, server=name))
        with serving(api, listener, None, api.state.events.end):
            yield f"http://{name}/"


class Page:
    """A browser at the console."""

    def __init__(self, page: Chrome, address: str) -> None:
        self.page = page
        page.get(address)

    def text(self, name: str) -> str:
        return str(self.page.find_element(By.ID, name).text)

    def texts(self, selector: str) -> list[str]:
        """The texts of elements at one moment: the page replaces elements while it is looked at."""
        return [" ".join(text.split()) for text in self._each(selector, "each.innerText ?? each.textContent")]

    def attributes(self, selector: str, name: str) -> list[str]:
        """An attribute of elements at one moment."""
        return self._each(selector, f"each.getAttribute('{name}')")

    def _each(self, selector: str, found: str) -> list[str]:
        script = f"return [...document.querySelectorAll(arguments[0])].map(each => {found})"
        shown: list[str] = self.page.execute_script(script, selector)
        return shown

    def wait_for(self, name: str, text: str) -> None:
        WebDriverWait(self.page, DEADLINE_S).until(lambda _: text in self.text(name), f"{text!r} in {name}")

    def open(self) -> None:
        for summary in self.page.find_elements(By.CSS_SELECTOR, "summary"):
            summary.click()

    def complaints(self) -> list[str]:
        messages = [each["message"] for each in self.page.get_log("browser")]
        return [each for each in messages if not re.search("favicon|401|409", each)]


@pytest.fixture
def asked() -> Iterator[TestClient]:
    with closing(ProjectWatch(Looking(project()), 0.05)) as watch:
        yield TestClient(new_api(watch, differences, between, Access("secret")), raise_server_exceptions=False)


READER = {"Authorization": "Bearer secret"}


def test_only_the_pages_own_files_need_no_token(asked: TestClient) -> None:
    for path in files():
        answer = asked.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage", answer.text)
    for path in ("/status", "/events", "/graph", "/apps/clicks/difference"):
        assert asked.get(path).status_code == 401
    assert asked.get("/status", headers=READER).status_code == 200


def test_the_console_changes_nothing_and_has_no_page_for_others(asked: TestClient) -> None:
    for path in ("/status", "/graph", "/apps/clicks/difference", "/scale", "/pause"):
        assert asked.post(path, headers=READER).status_code in {404, 405}
    elsewhere = READER | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    assert asked.get("/status", headers=elsewhere).status_code == 403


def test_a_difference_says_so_when_there_is_more(asked: TestClient) -> None:
    found = asked.get("/apps/clicks/difference?limit=1", headers=READER).json()
    assert found == {"rows": [row_object(differences("clicks", 1)[0])], "more": True}
    assert asked.get("/apps/clicks/difference", headers=READER).json()["rows"][1]["old"] == {"": "nan"}
    assert asked.get("/apps/clicks/difference?limit=0", headers=READER).status_code == 422


def test_the_graph_is_asked_for_on_its_own(asked: TestClient) -> None:
    assert asked.get("/graph", headers=READER).json() == between()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("no", hint="why"), 404),
        (ReleaseError("no", hint="why"), 409),
        (BrokerError("no", retriable=True), 503),
    ],
)
def test_what_cannot_be_compared_is_said(error: Exception, status: int) -> None:
    def fail(app: str, limit: int) -> Sequence[DifferentRow]:  # noqa: ARG001 - as it is called
        raise error

    with closing(ProjectWatch(Looking(project()))) as watch:
        answer = TestClient(new_api(watch, fail, between, Access())).get(
            "/apps/clicks/difference", headers={"Host": "127.0.0.1"}
        )
    assert answer.status_code == status
    assert answer.json()["message"].startswith("no")


def test_a_browser_shows_applications_runs_and_releases(page: Chrome) -> None:
    with served(Looking(project()), "secret") as address:
        console = Page(page, address)
        console.wait_for("connection", "token")
        page.find_element(By.ID, "token").send_keys("secret\n")
        console.wait_for("apps", "v1: 1 members, stable")
        assert page.title == "shop: Riverrun console"
        rows = console.texts("#apps tr")
        assert "v2: gated" in rows[0]
        assert "running, 2026-01-01" in rows[0]
        assert HOSTILE in rows[1]
        bars = console.attributes("#timeline rect", "class")
        assert bars == ["failed", "done", "running"], "the oldest is before the period"
        (label,) = console.attributes("#timeline svg", "aria-label")
        assert "3 bounded runs since" in label
        console.wait_for("surprising", f"clicks and {HOSTILE} write to counts")
        assert console.texts("#graph .title") == ["clicks v1", f"{HOSTILE} v1"]
        assert "restoring" not in console.text("instances")
        assert console.attributes("#instances a", "href") == ["http://host-1:8090/"] * 2
        assert "2, 40 records left" in console.text("instances")
        assert "abc123: needs an approval" in console.text("release")
        assert "def456: its gate has warnings" in console.text("release")
        assert "riverrun held publish clicks --approve abc123" in console.text("release")
        assert HOSTILE in console.text("verdict")
        console.open()
        assert "reprocessed → gated" in console.text("history")
        assert HOSTILE in console.text("runs")
        assert "clicks-0 v1 none 80 80" in console.text("inputs")
        page.find_element(By.ID, "compare").click()
        console.wait_for("compared", "2 rows differ")
        assert console.texts("#rows mark") == ["n: 1", "n: 3", "nan"]
        assert HOSTILE in console.text("rows")
        assert page.find_elements(By.CSS_SELECTOR, "body script, img") == []
        assert console.complaints() == []


def test_the_menu_leads_to_each_section_and_keeps_the_application(page: Chrome) -> None:
    with served(Looking(project())) as address:
        console = Page(page, address)
        console.wait_for("app-title", "clicks")
        page.find_element(By.LINK_TEXT, "broken").click()
        console.wait_for("app-title", "broken")
        assert console.texts("#menu a") == [
            "Applications",
            "Topics between applications",
            "Bounded runs",
            "Application",
        ]
        page.find_element(By.LINK_TEXT, "Bounded runs").click()
        assert page.current_url.endswith("#runs-title")
        assert console.text("app-title") == "Application broken"
        assert page.switch_to.active_element.get_attribute("id") != "app-title"


def test_trouble_has_a_colour_and_so_has_what_waits_for_a_person(page: Chrome) -> None:
    with served(Looking(project())) as address:
        console = Page(page, address)
        console.wait_for("apps", "stable")
        assert console.texts("#apps .is-warnings") == ["v2: gated"]
        assert console.texts("#apps .is-failed") == [HOSTILE]
        console.open()
        assert console.texts("#runs .is-failed") == ["failed", "died"]


def test_another_application_is_chosen_by_its_link_and_stays(page: Chrome) -> None:
    look = Looking(project())
    with served(look) as address:
        console = Page(page, address)
        console.wait_for("app-title", "clicks")
        page.find_element(By.LINK_TEXT, "broken").click()
        console.wait_for("app-title", "broken")
        assert console.texts("a[aria-current]") == ["broken"]
        assert page.switch_to.active_element.get_attribute("id") == "app-title"
        assert HOSTILE in console.text("app-error")
        assert "No worker or run" in console.text("silent")
        assert not page.find_element(By.ID, "compare").is_displayed()
        seen = look.looks
        WebDriverWait(page, 60).until(lambda _: look.looks > seen + 2)
        assert console.text("app-title") == "Application broken"


def test_what_was_seen_before_is_shown_on_when_brokers_are_away(page: Chrome) -> None:
    look = Looking(project())
    with served(look) as address:
        console = Page(page, address)
        console.wait_for("apps", "stable")
        look.found = look.found | {"error": "No broker can be reached."}
        console.wait_for("broken", "No broker can be reached. Shown is what was seen at 2026-01-01")
        assert "stable" in console.text("apps")
        look.found = look.found | {"error": None}
        WebDriverWait(page, 60).until(lambda _: console.text("broken") == "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_by_everybody(page: Chrome, scheme: str) -> None:
    emulate(page, prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    with served(Looking(project())) as address:
        console = Page(page, address)
        console.wait_for("apps", "stable")
        console.open()
        page.find_element(By.ID, "compare").click()
        console.wait_for("compared", "2 rows differ")
        assert pale(page) == []
        assert nameless(page) == []
        assert animated(page) == []
        assert foreign(page) == []
        assert overflow(page, 320) == []


def test_the_keyboard_reaches_everything(page: Chrome) -> None:
    with served(Looking(project())) as address:
        Page(page, address).wait_for("apps", "stable")
        page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
        seen = []
        for _ in range(40):
            focus = page.switch_to.active_element
            if focus.tag_name == "body":
                break
            assert focus.value_of_css_property("outline-style") != "none", "one sees where one is"
            seen.append(focus.get_attribute("id") or focus.get_attribute("aria-label") or focus.text)
            focus.send_keys(Keys.TAB)
    assert seen[0] == "Skip to the applications"
    assert {"clicks", "broken", "period", "timeline", "As a table", "host-1:8090", "compare"} <= set(seen)


def test_a_thousand_applications_and_hundreds_of_runs_leave_the_page_usable(page: Chrome) -> None:
    found = project()
    clicks, runs = found["apps"][0], found["runs"]
    found["apps"] = [clicks | {"name": f"app-{n}"} for n in range(1000)]
    found["runs"] = [run | {"app": f"app-{n % 100}"} for n in range(75) for run in runs]
    with served(Looking(found)) as address:
        console = Page(page, address)
        console.wait_for("app-title", "app-0")
        page.find_element(By.LINK_TEXT, "app-999").click()
        console.wait_for("app-title", "app-999")
