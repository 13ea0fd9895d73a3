"""The manifests in `docker/kubernetes`: valid, of one piece, and run as processes with their own commands and probes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from riverrun.records import TopicPartition
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.brokers import Broker

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "docker" / "kubernetes"
FILES = sorted(path for path in MANIFESTS.rglob("*.yaml") if path.name != "kustomization.yaml")
OF_KUBERNETES = [path for path in FILES if "keda.sh" not in path.read_text()]
OBJECTS: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
WORKERS = OBJECTS["stateful-set"]["spec"]
POD = WORKERS["template"]["spec"]
RUN = OBJECTS["cron-job"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
TRIGGERS = [trigger["metadata"] for trigger in OBJECTS["scaled-object"]["spec"]["triggers"]]
PROJECT = MANIFESTS / "application" / "streams.toml"
SECRETS = ("token", "read-token")


@pytest.mark.parametrize("path", OF_KUBERNETES, ids=lambda path: path.stem)
def test_a_manifest_is_what_kubernetes_knows(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(yaml.safe_load(path.read_text()), "1.34", strict=True)


def test_kustomizations_name_each_manifest() -> None:
    named = set()
    for path in MANIFESTS.rglob("kustomization.yaml"):
        content = yaml.safe_load(path.read_text())
        generated = [name for each in content.get("configMapGenerator", ()) for name in each["files"]]
        named |= {(path.parent / name).resolve() for name in (*content["resources"], *generated)}
    assert {path for path in named if path.is_file()} == {*FILES, PROJECT}
    assert {path for path in named if path.is_dir()} == {MANIFESTS / "application", MANIFESTS / "workers"}


def test_what_pods_mount_and_what_selects_them_exists() -> None:
    application = yaml.safe_load((MANIFESTS / "application" / "kustomization.yaml").read_text())
    (generated,) = application["configMapGenerator"]
    labels = WORKERS["template"]["metadata"]["labels"]
    assert WORKERS["serviceName"] == OBJECTS["service"]["metadata"]["name"]
    assert WORKERS["selector"]["matchLabels"] == OBJECTS["service"]["spec"]["selector"] == labels
    assert OBJECTS["disruption-budget"]["spec"]["selector"]["matchLabels"] == labels
    claimed = {claim["metadata"]["name"] for claim in WORKERS["volumeClaimTemplates"]}
    for pod, kept in ((POD, claimed), (RUN, set())):
        assert pod["serviceAccountName"] == OBJECTS["service-account"]["metadata"]["name"]
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {
            *(volume["name"] for volume in pod["volumes"]),
            *kept,
        }
        assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} == {
            generated["name"]
        }
    (claim,) = [volume["persistentVolumeClaim"] for volume in RUN["volumes"] if "persistentVolumeClaim" in volume]
    assert claim["claimName"] == OBJECTS["state"]["metadata"]["name"]


def test_what_scales_workers_is_theirs() -> None:
    scaled = OBJECTS["scaled-object"]["spec"]
    workers = OBJECTS["stateful-set"]
    assert scaled["scaleTargetRef"] == {"kind": workers["kind"], "name": workers["metadata"]["name"]}
    kustomization = yaml.safe_load((MANIFESTS / "scaling" / "kustomization.yaml").read_text())
    (patch,) = kustomization["patches"]
    assert patch["target"] == scaled["scaleTargetRef"]
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]
    project = tomllib.loads(PROJECT.read_text())
    assert {trigger["bootstrapServers"] for trigger in TRIGGERS} == {project["kafka"]["bootstrap.servers"]}
    assert {trigger["consumerGroup"] for trigger in TRIGGERS} == {f"delays-{project['apps']['delays']['version']}"}


def test_pods_run_images_of_the_dockerfile_as_its_user() -> None:
    stages = (ROOT / "docker" / "Dockerfile").read_text()
    for pod in (POD, RUN):
        image = pod["containers"][0]["image"].removeprefix("riverrun-")
        _, _, stage = stages.partition(f" AS {image}\n")
        assert f"\nUSER {pod['securityContext']['runAsUser']}\n" in stage.partition("\nFROM ")[0]


def test_a_pod_that_is_replaced_can_be_back_before_its_session_ends() -> None:
    settings = tomllib.loads(PROJECT.read_text())["apps"]["delays"]["config"]
    assert settings["consumer.group.instance.id"] == "${POD_NAME}"
    assert POD["terminationGracePeriodSeconds"] * 1000 < settings["consumer.session.timeout.ms"]


@dataclass
class Pod:
    """A pod of the stateful set as a process, with places of this machine for its volumes."""

    name: str
    app: str
    port: int
    directory: Path
    places: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (container,) = POD["containers"]
        self.process = self.riverrun(*(self.app if word == "delays" else word for word in container["args"]))

    def riverrun(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command as the container does, whose image's entry point is `riverrun`."""
        (container,) = POD["containers"]
        values = {each["name"]: self.placed(each.get("value", self.name)) for each in container["env"]}
        with (self.directory / "log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "riverrun.cli", *arguments],
                cwd=self.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), **values},
                stdout=log,
                stderr=log,
            )

    def placed(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def passes(self, probe: str) -> bool:
        """Whether a probe succeeds, as the kubelet asks: by the pod's address, without a token."""
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        (container,) = POD["containers"]
        request = container[probe]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        address = {"Host": f"10.1.2.3:{ports[request['port']]}"}
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}{request['path']}", headers=address, timeout=DEADLINE_S)
        except httpx.TransportError:
            return False
        return 200 <= answer.status_code < 400

    def status(self) -> Any:
        shown = {"Authorization": "Bearer the read-token of all pods"}
        return httpx.get(f"http://127.0.0.1:{self.port}/status", headers=shown, timeout=DEADLINE_S).json()

    def terminate(self) -> int:
        """End it as the kubelet does, which kills it after the grace period."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(POD["terminationGracePeriodSeconds"])

    def log(self) -> str:
        return (self.directory / "log").read_text()


@pytest.fixture
def pods(broker: Broker, unique: str, new_port: Callable[[], int], tmp_path: Path) -> Iterator[list[Pod]]:
    pods = [pod(number, unique, broker, new_port(), tmp_path / str(number)) for number in range(2)]
    pods[0].riverrun("topic", "create", "flights", "planes", "airlines", "delays", "--partitions", "4").wait()
    yield pods
    for each in pods:
        if each.process is not None and each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def pod(number: int, app: str, broker: Broker, port: int, directory: Path) -> Pod:
    mounted = {"/etc/riverrun": "project", "/run/secrets/riverrun": "secrets", "/var/lib/riverrun": "state"}
    (container,) = POD["containers"]
    assert mounted.keys() < {mount["mountPath"] for mount in container["volumeMounts"]}
    for place in mounted.values():
        (directory / place).mkdir(parents=True)
    for secret in SECRETS:
        (directory / "secrets" / secret).write_text(f"the {secret} of all pods\n")
    places = {there: str(directory / here) for there, here in mounted.items()}
    pod = Pod(f"worker-{number}", app, port, directory, places)
    own = {"[apps.delays": f"[apps.{app}", "kafka:9092": broker.bootstrap_servers, ":8090": f":{port}"}
    text = pod.placed(PROJECT.read_text())
    for there, here in own.items():
        text = text.replace(there, here)
    (directory / "project" / "streams.toml").write_text(text)
    return pod


def logs(pods: list[Pod]) -> str:
    return "\n".join(f"--- {each.name}\n{each.log()[-3000:]}" for each in pods)


@pytest.mark.broker
def test_a_replaced_pod_finds_its_tasks_and_its_state(pods: list[Pod], broker: Broker, unique: str) -> None:
    for each in pods:
        each.start()
    pod_logs = partial(logs, pods)
    until(lambda: all(each.passes("startupProbe") for each in pods), "started", pod_logs)
    until(
        lambda: all(each.passes("readinessProbe") for each in pods) and are_settled(pods), "shared the tasks", pod_logs
    )
    assert all(each.passes("livenessProbe") for each in pods)
    before = [each.status()["active"] for each in pods]
    assert pods[1].terminate() == 0
    assert pods[0].passes("readinessProbe")
    pods[1].start()
    until(lambda: pods[1].passes("readinessProbe") and are_settled(pods), "had its tasks again", pod_logs)
    assert [each.status()["active"] for each in pods] == before
    flight = b'{"carrier": "UA", "number": 1, "origin": "EWR", "dest": "IAH", "departed_ms": 1, "dep_delay": 2}'
    broker.write("flights", [(b"%d" % number, flight, 1) for number in range(20)])
    # An end of a transaction is no record, and counts as one here.
    until(lambda: all(lag <= 4 for lag in lags(broker, unique).values()), "committed what is read", pod_logs)
    assert [each.terminate() for each in pods] == [0, 0]


def lags(broker: Broker, app: str) -> dict[str, int]:
    """Return what the triggers measure: how far the ends of topics are beyond the offsets of the group, by topic."""
    topics = [trigger["topic"].replace("delays-v1", f"{app}-v1") for trigger in TRIGGERS]
    admin = broker.admin()
    tps = [TopicPartition(topic, number) for topic in topics for number in range(4)]
    committed = admin.committed(f"{app}-v1", tps)
    ends = admin.end_offsets(tps)
    found = dict.fromkeys(topics, 0)
    for tp in tps:
        found[tp.topic] += ends[tp] - committed[tp].offset if tp in committed else ends[tp]
    return found


def are_settled(pods: list[Pod]) -> bool:
    """Whether the two share the tasks evenly, and each has copies of the other's, all of which have state."""
    shown = [each.status() for each in pods]
    one, other = (set(status["active"]) for status in shown)
    copied = [set(status["standby"]) for status in shown]
    return len(one) == len(other) > 0 and copied == [other, one]
