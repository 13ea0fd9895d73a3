"""The console: who gets its page, and what a browser makes of it."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from pipeline.records import TaskId
from pipeline.service.admission import Access
from pipeline.service.api import new_api
from pipeline.service.console.files import FILES, content
from pipeline.service.server import bound, serving
from pipeline.worker.questions.queries import Page
from tests.unit.service.test_api import FakeInstance, client, row
from tests.unit.service.test_events import Working

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.worker.stream_thread.protocol import Report

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
    script = content("/console.js")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage|EventSource", script
    )
    assert not re.search(r"<style|style=|\son\w+=|<script(?! src)", content("/"))


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


def test_stores_and_the_topology_are_told_as_the_page_shows_them() -> None:
    asked = client(FakeInstance())
    (store,) = asked.get("/stores").json()
    assert (store["store"], store["key_serde"], store["value_serde"]) == ("counts", "string", "long")
    topology = asked.get("/topology").json()
    assert topology["description"].startswith("Topolog")
    assert "<svg" in topology["picture"]
    assert client(FakeInstance(), "secret").get("/topology").status_code == 401


class Growing(Working):
    """Is faster each time it is looked at."""

    def reports(self) -> Mapping[int, Report]:
        self.done += self.done // 2
        return super().reports()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("there is no Chromium here (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1100,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield made
    finally:
        made.quit()


def test_a_browser_shows_figures_as_they_change_and_names_as_text() -> None:
    instance = Growing(server=HOSTILE)
    instance.answers = {TaskId(0, n): [Page((row(HOSTILE, 5),) if n == 0 else ())] for n in range(3)}
    api = new_api(instance, Access("secret", server="here:1"))
    with (
        bound("127.0.0.1:0", wants_token=True) as listener,
        serving(api, listener, None, api.state.events.end),
        chromium() as page,
    ):
        wait = WebDriverWait(page, 60)

        def shown(name: str) -> str:
            return str(page.find_element(By.ID, name).text)

        page.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        wait.until(lambda _: "token" in shown("connection"))
        page.find_element(By.ID, "token").send_keys("wrong\n")
        wait.until(lambda _: "not the token" in shown("login-error"))
        page.find_element(By.ID, "token").send_keys("secret\n")
        wait.until(lambda _: shown("connection") == "Connected")
        wait.until(lambda _: "KSTREAM-SOURCE-0000000000" in shown("graph"))
        wait.until(lambda _: "/s, lag 7" in shown("graph"))
        before = shown("graph")
        wait.until(lambda _: shown("graph") != before)
        assert HOSTILE in shown("application")
        assert "Rate: " in shown("charts")
        assert "active: 0_0, 0_1, 0_2" in shown("log")
        assert "key: string, value: long" in shown("serdes")
        page.find_element(By.CSS_SELECTOR, "#browse button").click()
        wait.until(lambda _: HOSTILE in shown("rows"))
        assert page.title == "Millrace console", "no script of a name has run"
        assert page.find_elements(By.CSS_SELECTOR, "body script, img") == []
        assert "secret" not in page.current_url
        refused = re.compile("favicon|401")  # a picture that no page names, and what came without the token
        assert [each["message"] for each in page.get_log("browser") if not refused.search(each["message"])] == []
