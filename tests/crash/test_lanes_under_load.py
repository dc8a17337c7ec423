"""Main does not wait behind background work, an idle system wakes at once, recovery keeps its period whoever runs it,
and many writers get along.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from relight import enqueue_many
from tests.conftest import wait_until
from tests.crash import agents_work
from tests.crash.conftest import Forked, Stage

DEFAULTS = {"RELIGHT_SWEEP_MS": "1000", "RELIGHT_APP": agents_work.__name__}
BACKGROUND, ABORTS = 500, 20
SUBAGENT_WORKERS = 4  # the default


def latency(stage: Stage, name: str) -> float:
    """Seconds from enqueueing a Main task to the line that it leaves."""
    began = time.monotonic()
    stage.enqueue(agents_work.quick, name, options={"lane": "main"})
    wait_until(lambda: any(line[1] == name for line in stage.lines()))
    return time.monotonic() - began


def wait_for_lanes(stage: Stage) -> None:
    bells = stage.home.path / "bells"
    wait_until(lambda: {name.name.split(".")[0] for name in bells.glob("*.*")} >= {"main", "subagent"})


@pytest.mark.spec(34)
def test_a_main_task_does_not_wait_behind_background_work(stage: Stage) -> None:
    background = agents_work.holding.options(home=stage.home)
    enqueue_many([background.call() for _ in range(SUBAGENT_WORKERS + BACKGROUND)])
    stage.spawn("up", env=DEFAULTS)
    stage.wait_for_lines(SUBAGENT_WORKERS)
    wait_for_lanes(stage)
    latencies = [latency(stage, f"abort-{number}") for number in range(ABORTS)]
    assert statistics.quantiles(latencies, n=20)[-1] < 1, latencies
    assert sum(line[1] == "hold" for line in stage.lines()) == SUBAGENT_WORKERS


def test_an_idle_system_uses_little_and_wakes_at_once(stage: Stage) -> None:
    worker = stage.spawn("up", env=DEFAULTS)
    wait_for_lanes(stage)
    latency(stage, "warm")
    began, used = time.monotonic(), cpu(worker)
    wait_until(lambda: time.monotonic() - began > 3)
    share = (cpu(worker) - used) / (time.monotonic() - began)
    assert latency(stage, "first") < 1
    assert share < 0.05, f"all workers together used {share:.1%} of a core"


def cpu(worker: Forked) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in worker.family())


# -- recovery and its period --------------------------------------------------------------------------------------


def passes(stage: Stage) -> list[int]:
    return [row[0] for row in stage.rows("SELECT started_at FROM recovery_runs ORDER BY started_at")]


def test_recovery_keeps_its_period_however_many_processes_there_are(stage: Stage) -> None:
    """Two processes for each lane, and two that run the periodic job; then these two die."""
    env = {"RELIGHT_SWEEP_MS": "200", "RELIGHT_LOG_LEVEL": "debug"}
    minute = stage.home.now() // 60_000
    workers = [
        stage.start(agents_work, lane=lane, env=env) for lane in ("main", "subagent", "upkeep") for _ in "12"
    ]
    wait_until(lambda: len(passes(stage)) > 8)
    found = passes(stage)
    assert min(later - earlier for earlier, later in pairwise(found)) >= 200
    assert found[-1] - found[0] < 200 * 2 * len(found)

    enqueued = sum(worker.text().count("periodic task enqueued") for worker in workers)
    assert 1 <= enqueued <= 1 + stage.home.now() // 60_000 - minute
    for worker in workers[-2:]:
        worker.kill()
    before = len(passes(stage))
    wait_until(lambda: len(passes(stage)) >= before + 3)


@pytest.mark.parametrize("way", ["killed", "killed and proved dead", "stopped"])
def test_what_was_left_behind_is_recovered_at_the_start_not_after_a_period(stage: Stage, way: str) -> None:
    """The period is ten minutes, and a pass has just been run when the system went down."""
    env = {"RELIGHT_SWEEP_MS": "600000", "RELIGHT_GRACE_MS": "100"}
    task_id = stage.enqueue(agents_work.holding).id
    worker = stage.start(agents_work, env=env)
    stage.wait_for_lines(1)
    wait_until(lambda: passes(stage))
    if way == "stopped":
        worker.signal(signal.SIGTERM)
        worker.wait()
    else:
        worker.kill()
    if way == "killed and proved dead":
        with stage.home.db.write():
            stage.home.db.change("UPDATE workers SET dead_at = ?", (stage.home.now(),))
    stage.open_barrier("hold")
    began = time.monotonic()
    stage.start(agents_work, env=env)
    stage.wait_for_status(task_id, "completed")
    assert time.monotonic() - began < 3
    assert stage.events(task_id).count("task_recovered") == 1


# -- many writers -------------------------------------------------------------------------------------------------


def test_many_writers_get_along(stage: Stage) -> None:
    """Workers of both lanes, recovery, and five more processes that store, read, cancel and recover."""
    workers = [stage.start(agents_work, lane=lane) for lane in ("main", "subagent", "upkeep")]
    command = [
        sys.executable,
        "-m",
        "tests.crash.racers",
        "load",
        str(stage.home.path),
        str(stage.folder / "go"),
    ]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=stage.env()) for _ in range(5)
    ]
    (stage.folder / "go").touch()
    told = [json.loads(process.communicate(timeout=60)[0]) for process in started]
    waits = sorted(wait for one in told for wait in one["waits"])
    kept, cancelled = ({task_id for one in told for task_id in one[name]} for name in ("kept", "cancelled"))
    wait_until(lambda: stage.states()["completed", None] + len(cancelled) >= len(kept) + len(cancelled), 30)
    ended = {row[0]: row[1] for row in stage.rows("SELECT id, status FROM agent_tasks")}
    assert {task_id for task_id, status in ended.items() if status == "failed"} == cancelled
    assert {task_id for task_id, status in ended.items() if status == "completed"} == kept
    assert waits[int(len(waits) * 0.99)] < 1
    for worker in workers:
        assert re.findall(r".*(?:locked|WARNING|ERROR).*", worker.text()) == []
    stage.check_storage()
