"""The page in Airflow's own server, in a real Chromium: its buttons trigger DAGs, and it says that no broker answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.airflow.services import ROOT, SECONDS, USERS, Services
from tests.browsers import chromium

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.airflow

FILE = """
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[apps.clicks]
topology = "clicks:build"
quality = "clicks:expectations"
"""
DAG = "clicks__quality"


def test_a_button_triggers_a_dag_and_leads_to_its_run(
    tmp_path: Path, migrated: Path, new_port: Callable[[], int]
) -> None:
    (tmp_path / "streams.toml").write_text(FILE)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "applications.py").write_text((ROOT / "dags" / "applications.py").read_text())
    (tmp_path / "passwords").write_text(json.dumps({user: user for user in USERS}))
    settings = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in USERS.items()),
        "RIVERRUN_CONFIG": str(tmp_path / "streams.toml"),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugins"))),
    }
    services = Services(tmp_path, {**os.environ, **settings}, new_port())
    shutil.copy(migrated, tmp_path)
    reserialize = [sys.executable, "-m", "airflow", "dags", "reserialize"]
    subprocess.run(reserialize, env=services.environ, check=True, capture_output=True)
    services.start("api-server")
    try:
        services.until(services.answers, "the API server answers")
        with chromium() as browser:
            address = f"http://127.0.0.1:{services.port}"
            browser.get(f"{address}/api/v2/version")
            browser.add_cookie({"name": "_token", "value": services.token("bob"), "path": "/"})
            browser.get(f"{address}/riverrun/apps/clicks")
            assert "127.0.0.1:1" in browser.find_element(By.CSS_SELECTOR, "[role=alert]").text
            browser.find_element(By.CSS_SELECTOR, f'form[data-dag="{DAG}"] button').click()
            wait = WebDriverWait(browser, SECONDS)
            link = wait.until(lambda found: found.find_element(By.CSS_SELECTOR, "output a"))
            (run,) = services.runs(DAG)
            assert (link.text, run["conf"]) == (run["dag_run_id"], {"since": "last"})
            assert f"/dags/{DAG}/runs/" in link.get_attribute("href")
    finally:
        services.end()
