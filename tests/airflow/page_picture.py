"""Makes the picture of the page in Airflow: `python -m tests.airflow.page_picture docs/pictures/airflow.png`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from riverrun import LONG, Riverrun
from riverrun.records import TopicPartition
from tests.airflow.services import ROOT, USERS, Services
from tests.brokers import Broker, embedded_broker, free_port
from tests.browsers import chromium

SIZE = (1280, 1250)
SECONDS = 120
SHOP = "shop"


def pay(broker: Broker, first: int, number: int) -> None:
    """Write payments of seven users, each later than the one before."""
    records = [
        (f"user{n % 7}/{n}".encode(), LONG.serialize(n % 40 - 5), 1_000 * n) for n in range(first, first + number)
    ]
    broker.write(f"{SHOP}.payments", records)


def prepare(broker: Broker, home: Path) -> Path:
    """Run an application, check it, and bring a release of it as far as its gate."""
    example = (ROOT / "tests" / "system" / "example_app.py").read_text()
    (home / f"{SHOP}.py").write_text(example.replace('"example"', f'"{SHOP}"'))
    path = home / "streams.toml"
    path.write_text(
        f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{SHOP}]
topology = "{SHOP}:build"
quality = "{SHOP}:expectations"
data_docs = "docs"
[apps.{SHOP}.versions]
v2 = "{SHOP}:build_v2"
"""
    )
    sys.path.append(str(home))
    broker.create(3, *(f"{SHOP}.{topic}" for topic in ("payments", "sums", "receipts")))
    app = Riverrun(path, by="airflow:shop__run.run").app(SHOP)
    pay(broker, 0, 300)
    broker.admin().delete_records({TopicPartition(f"{SHOP}.payments", n): 20 for n in range(2)})
    app.run()
    app.checks.run()
    app.release("v2").reprocess().gate()
    pay(broker, 300, 60)
    app.run()
    pay(broker, 360, 90)
    return path


def main(picture: Path) -> None:
    """Make the picture.

    Args:
        picture: Where it goes.
    """
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        embedded = embedded_broker(home / "kafka", free_port())
        embedded.start()
        try:
            project = prepare(Broker(embedded.bootstrap_servers), home)
            _photograph(home, project, picture)
        finally:
            embedded.stop()


def _photograph(home: Path, project: Path, picture: Path) -> None:
    (home / "passwords").write_text(json.dumps({user: user for user in USERS}))
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in USERS.items()),
        "RIVERRUN_CONFIG": str(project),
        "PYTHONPATH": os.pathsep.join(map(str, (home, ROOT, ROOT / "plugins"))),
    }
    services = Services(home, {**os.environ, **settings}, free_port())
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=services.environ, check=True)
    services.start("api-server")
    try:
        services.until(services.answers, "the API server answers")
        with chromium() as browser:
            address = f"http://127.0.0.1:{services.port}"
            browser.set_window_size(*SIZE)
            browser.get(f"{address}/api/v2/version")
            browser.add_cookie({"name": "_token", "value": services.token("cy"), "path": "/"})
            browser.get(f"{address}/plugin/riverrun")
            wait = WebDriverWait(browser, SECONDS)
            browser.switch_to.frame(wait.until(lambda found: found.find_element(By.TAG_NAME, "iframe")))
            wait.until(lambda found: found.find_element(By.LINK_TEXT, SHOP)).click()
            wait.until(lambda found: found.find_element(By.CSS_SELECTOR, ".bar .expired"))
            browser.switch_to.default_content()
            browser.save_screenshot(str(picture))
    finally:
        services.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
