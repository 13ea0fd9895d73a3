"""Prometheus and Grafana as `docker/compose.yaml` sets them up: what they ask for is what a worker serves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.system.groups import Group

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docker" / "monitoring"
RULES = [
    rule for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboards" / "riverrun.json").read_text())
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
METRIC = re.compile(r"kafka_streams_\w+")
LATER = {"kafka_streams_stream_metrics_hold_seconds"}
"""Metrics that an instance has from its first hold for a release on."""
needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed")


@needs_prometheus
def test_each_alert_fires_at_its_figures_and_none_at_those_of_good_days() -> None:
    checked = subprocess.run(
        ["promtool", "test", "rules", str(ROOT / "tests/system/alerts.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_tests_of_alerts_know_all_of_them() -> None:
    quiet, loud = yaml.safe_load((ROOT / "tests/system/alerts.yaml").read_text())["tests"]
    names = {rule["alert"] for rule in RULES}
    assert {test["alertname"] for test in quiet["alert_rule_test"]} == names
    (firing,) = loud["promql_expr_test"]
    assert {re.findall(r'"(\w+)"', sample["labels"])[0] for sample in firing["exp_samples"]} == names


def test_the_guide_lists_the_alerts_there_are() -> None:
    guide = (ROOT / "docs/how-to/monitor.md").read_text()
    assert set(re.findall(r"`(Riverrun\w+)`", guide)) == {rule["alert"] for rule in RULES}


def test_dashboards_ask_the_provisioned_source_and_overlap_nowhere() -> None:
    sources = {each["uid"] for each in yaml.safe_load((MONITORING / "datasources.yaml").read_text())["datasources"]}
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} <= sources
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.broker
def test_dashboards_and_alerts_ask_for_what_a_worker_serves(
    group: Group, new_port: Callable[[], int], tmp_path: Path
) -> None:
    tokens = '"server.token" = "open sesame, said Ali"\n"server.read.token" = "only look, do not touch"'
    group.start("--server", "127.0.0.1:0", build="build_queried", settings=tokens)
    url = group.url(0)
    group.until(lambda: httpx.get(f"{url}/ready", timeout=DEADLINE_S).status_code == 200, "was ready")
    shown = httpx.get(
        f"{url}/metrics", headers={"Authorization": "Bearer only look, do not touch"}, timeout=DEADLINE_S
    ).text
    served = set(re.findall(r"^# TYPE (\w+)", shown, re.MULTILINE)) | LATER
    names = {name for each in (*TARGETS, *RULES) for name in METRIC.findall(each["expr"])}
    assert names <= served
    if shutil.which("prometheus"):
        with prometheus(url.removeprefix("http://"), "only look, do not touch", new_port(), tmp_path) as answers:
            group.until(lambda: values(answers("query", query="up")) == [1], "was read by Prometheus")
            group.write(2300)
            processed = TARGETS[3]["expr"].replace("$application", f"{group.name}-v1")
            assert DASHBOARD["panels"][3]["title"] == "Records per second"
            ask = processed.replace("$__rate_interval", "1m")
            group.until(lambda: sum(values(answers("query", query=ask))) > 0, "had records per second in Prometheus")
            for target in TARGETS:
                expression = target["expr"].replace("$application", ".*").replace("$__rate_interval", "1m")
                assert answers("query", query=expression)["resultType"] == "vector", target
            group.until(lambda: health(answers("rules")) == {"ok"}, "had its rules evaluated")


@contextmanager
def prometheus(worker: str, token: str, port: int, directory: Path) -> Iterator[Callable[..., Any]]:
    """Prometheus with the configuration of compose, reading one worker each second; yields what asks it."""
    (directory / "token").write_text(token)
    settings = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    settings["global"] = dict.fromkeys(settings["global"], "1s")
    settings["rule_files"] = [str(MONITORING / name) for name in settings["rule_files"]]
    (job,) = settings["scrape_configs"]
    job["authorization"]["credentials_file"] = str(directory / "token")
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [worker]}]
    path = directory / "prometheus.yaml"
    path.write_text(yaml.safe_dump(settings))
    subprocess.run(["promtool", "check", "config", str(path)], check=True, capture_output=True)
    command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={directory / 'prometheus'}"]
    with (
        (directory / "prometheus.log").open("w") as log,
        subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as running,
    ):

        def ask(path: str, **parameters: str) -> Any:
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/{path}", params=parameters, timeout=DEADLINE_S)
            except httpx.TransportError:
                answer = httpx.Response(503)
            if answer.status_code == 503:  # it just starts
                assert running.poll() is None, (directory / "prometheus.log").read_text()
                return {"result": [], "groups": []}
            assert answer.json()["status"] == "success", answer.text
            return answer.json()["data"]

        try:
            yield ask
        finally:
            running.terminate()


def values(data: Any) -> list[float]:
    return [float(sample["value"][1]) for sample in data["result"]]


def health(data: Any) -> set[str]:
    return {rule["health"] for group in data["groups"] for rule in group["rules"]}
