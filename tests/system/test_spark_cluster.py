"""Bounded runs and workers on a Spark cluster whose processes die: what is written is exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.cli.project import REFUSED
from tests.system.spark_clusters import processes_with, search_path, spark_cluster
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.system.groups import Group
    from tests.system.spark_clusters import SparkCluster

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark"), new_port()) as cluster:
        yield cluster


def on_spark(cluster: SparkCluster, **more: str) -> str:
    """The settings with which a project's runs and workers are on the cluster."""
    settings = {**cluster.settings, **{name.replace("_", "."): value for name, value in more.items()}}
    return "[spark]\n" + "\n".join(f'"{name}" = "{value}"' for name, value in settings.items())


def is_running(group: Group, number: int) -> bool:
    return "is running" in group.log(number)


def begin_run(group: Group, *options: str) -> subprocess.Popen[str]:
    """A bounded run in slices, in the background."""
    log = (group.directory / "run.log").open("a")
    command = [sys.executable, "-m", "riverrun.cli", "--config", str(group.directory / "0.toml"), "run", group.name]
    process = subprocess.Popen(
        [*command, "--max-records-per-slice", "4000", *options],
        cwd=group.directory,
        env=group.environ,
        stdout=log,
        stderr=log,
        text=True,
    )
    group.instances.append(process)  # ended with the test, whatever happens
    return process


def has_counted(group: Group, records: int) -> bool:
    """Return whether this many records are counted, and not yet all."""
    return records <= group.total() < group.written


def run_log(group: Group) -> str:
    return (group.directory / "run.log").read_text()


def test_a_run_goes_on_whether_its_driver_or_one_of_its_executors_is_killed(
    group: Group, cluster: SparkCluster
) -> None:
    group.configure(build="build_slowly", settings=on_spark(cluster))
    group.write(16_000)  # counts come at the end of a slice: two may pass until one is seen
    run = begin_run(group)
    until(lambda: has_counted(group, 1), "began")
    run.kill()
    assert run.wait(300) == -signal.SIGKILL, "it had ended before"
    until(lambda: not cluster.executors(), "ended the executors of the dead driver")
    found = group.total()
    run = begin_run(group)
    until(lambda: has_counted(group, found + 1), "continued")
    os.kill(cluster.executors()[0], signal.SIGKILL)
    assert run.wait(300) == 0, run_log(group)
    group.check()


def test_of_two_runs_at_once_one_is_refused_and_the_other_one_is_exact(group: Group, cluster: SparkCluster) -> None:
    group.configure(build="build_slowly", settings=on_spark(cluster, spark_cores_max="1"))
    group.write(8_000)
    runs = [begin_run(group), begin_run(group)]
    assert sorted(run.wait(300) for run in runs) == [0, REFUSED], run_log(group)
    assert f"Error: {group.name}-v1 is being processed by a run of " in run_log(group)
    group.check()


def test_a_run_whose_straggler_is_overtaken_by_a_copy_is_exact(group: Group, cluster: SparkCluster) -> None:
    settings = on_spark(cluster, spark_speculation="true", spark_speculation_quantile="0.5")
    group.configure(build="build_straggling", settings=settings)
    group.write(5_000)
    assert begin_run(group).wait(300) == 0, run_log(group)
    assert (group.directory / "straggles").exists()
    assert not (group.directory / "arrived").exists(), "no copy was started"
    group.check()


def test_an_application_is_sent_to_executors_that_do_not_have_it(group: Group, cluster: SparkCluster) -> None:
    elsewhere: dict[str, Any] = {"spark_pyspark_python": sys.executable, "spark_executorEnv_PYTHONPATH": search_path()}
    group.configure(settings=on_spark(cluster, **elsewhere))
    group.write(100)
    run = begin_run(group)
    assert run.wait(300) == 1
    assert f"Module '{group.name}_app' cannot be imported" in run_log(group)
    assert "Executors of a cluster need it" in run_log(group)
    files = f"{group.directory}/{group.name}_app.py"
    group.configure(settings=on_spark(cluster, **elsewhere, spark_submit_pyFiles=files))
    assert begin_run(group).wait(300) == 0, run_log(group)
    group.check()


def test_workers_on_spark_survive_a_killed_executor_and_leave_nothing(group: Group, cluster: SparkCluster) -> None:
    driver = group.start("--on", "spark", "--instances", "2", settings=on_spark(cluster))
    group.write(20_000)
    group.until_done()
    group.until(lambda: all(f"Instance {n} on " in group.log(0) for n in (0, 1)), "reported both instances")
    assert "2 instances" in group.command("status", group.name).stdout
    group.write(10_000)
    os.kill(cluster.executors()[0], signal.SIGKILL)
    group.write(20_000)
    group.until_done()
    group.until(lambda: group.log(0).count("is rebalancing") >= 3, "restarted the instance")
    group.write(10_000)
    group.until_done()
    assert group.stop(driver) == 0
    assert " records processed in " in group.log(0).splitlines()[-1]
    until(lambda: not cluster.executors(), "ended the executors")
    until(lambda: not processes_with(str(group.directory)), "ended all its processes")
    assert "0 instances" in group.command("status", group.name).stdout
    group.check()


def test_an_instance_on_spark_that_cannot_go_on_ends_the_command_with_its_error(
    group: Group, cluster: SparkCluster
) -> None:
    settings = '"errors.dead.letter.queue.topic.name" = "nowhere"\n' + on_spark(cluster)
    driver = group.start("--on", "spark", settings=settings)
    assert driver.wait(300) == 1
    assert "nowhere" in group.log(0).splitlines()[-2]
    assert "Traceback" not in group.log(0)


def test_instances_of_two_deployments_on_a_machine_have_own_directories(group: Group, cluster: SparkCluster) -> None:
    state, settings = group.directory / "state", on_spark(cluster, spark_cores_max="1")
    drivers = []
    for number in (0, 1):
        drivers.append(group.start("--on", "spark", "--state-dir", str(state), settings=settings))
        group.until(partial(is_running, group, number), "ran the instance")
    group.write(1_000)
    group.until_done()
    assert sorted(path.name for path in state.iterdir()) == ["instance-0", "instance-1"]
    assert [group.stop(driver) for driver in drivers] == [0, 0]
    group.check()


def test_workers_on_spark_whose_driver_loses_java_end_with_an_error_that_says_so(group: Group) -> None:
    driver = group.start("--on", "spark")
    group.until(lambda: "is running" in group.log(0), "ran the instance")
    (java,) = (pid for pid in processes_with("SparkSubmit") if parent_of(pid) == driver.pid)
    os.kill(java, signal.SIGKILL)
    assert driver.wait(300) == 1
    assert "Error: Spark's driver, a Java process of this machine, has ended" in group.log(0)
    assert "Traceback" not in group.log(0)
    until(lambda: not processes_with(str(group.directory)), "ended all its processes")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
