"""Real worker processes: how they serve, stop, die and are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from relight.models import tasks, workers
from relight.models.tasks import TaskStatus
from relight.workers import settings
from relight.workers.agents import ref
from relight.workers.handles import TaskHandle
from relight.workers.home import Home
from tests.conftest import StartWorker, Worker, environment, wait_until

APP = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
from huey import crontab
from relight.workers.agents import agent
from relight.workers.steps import step
from relight.workers.lanes import main

def note(text):
    with open(os.environ["WITNESS"], "a") as witness:
        witness.write(text + "\\n")

@agent(risk="low")
def who(run) -> int:
    return os.getpid()

@step(effect="read")
def nap(seconds: float) -> None:
    note(f"begin {os.getpid()}")
    time.sleep(seconds)
    note("end")

@agent(risk="low")
def sleeper(run, seconds: float) -> str:
    run.step(nap, seconds)
    return "slept"

@step(effect="read")
def nap_again(seconds: float) -> None:
    note(f"begin {os.getpid()}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(end - time.monotonic())
        except BaseException:
            note("swallowed")

@agent(risk="low")
def stubborn(run, seconds: float) -> str:
    run.step(nap_again, seconds)
    return "slept"

@step(effect="read")
async def anap_again(seconds: float) -> None:
    note(f"begin {os.getpid()}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(end - time.monotonic())
        except BaseException:
            note("swallowed")

@agent(risk="low")
async def astubborn(run, seconds: float) -> str:
    await run.step(anap_again, seconds)
    return "slept"

@step(effect="read")
def shell() -> None:
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], start_new_session=True)
    note(f"shell {child.pid}")
    note(f"begin {os.getpid()}")
    child.wait()

@agent(risk="low")
def sheller(run) -> None:
    run.step(shell)

@agent(risk="low")
def suicidal(run) -> str:
    run.step(die_once)
    return "survived"

@step(effect="read")
def die_once() -> None:
    note(f"begin {os.getpid()}")
    if "dies" not in Path(os.environ["WITNESS"]).read_text():
        note("dies")
        os._exit(9)

@agent(risk="low")
def pooled(run) -> int:
    return run.step(in_pool)

@step(effect="read")
def in_pool() -> int:
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(2) as pool:
        return sum(pool.map(abs, [-1, -2]))

@main.task()
def add(a, b):
    return a + b

@main.periodic_task(crontab())
def tick():
    note("tick")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    file = tmp_path / "consumer_app.py"
    file.write_text(APP, encoding="utf-8")
    return file


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "witness"
    monkeypatch.setenv("WITNESS", str(file))
    return file


@pytest.fixture
def state(home: Path, tmp_path: Path) -> Iterator[Home]:
    opened = Home.open(settings.load(home=home, env={}, cwd=tmp_path))
    yield opened
    opened.close()


Start = Callable[..., Worker]


@pytest.fixture
def start(start_worker: StartWorker, home: Path, app: Path, witness: Path, state: Home) -> Start:
    """Start `relight worker` on the main lane, ready to be told to stop."""

    def run(*args: str, **variables: str) -> Worker:
        worker = start_worker(home, app, *(args or ("main",)), env=variables)
        enqueue(state, "who").wait(20)
        return worker

    return run


def enqueue(home: Home, name: str, *args: Any, lane: str = "main") -> TaskHandle:
    handle: TaskHandle = ref(name).options(home=home, lane=lane, risk="low").enqueue(*args)
    return handle


def lines(witness: Path) -> list[str]:
    return witness.read_text(encoding="utf-8").splitlines() if witness.exists() else []


def begun(witness: Path) -> int:
    """Wait until a step has begun; the pid that runs it."""
    line = wait_until(lambda: next((line for line in lines(witness) if line.startswith("begin")), None), 20)
    return int(line.split()[1])


KINDS = pytest.mark.parametrize("kind", ["thread", "process"])


@KINDS
def test_a_worker_that_is_told_to_stop_lets_its_task_finish_and_takes_no_other(
    start: Start, state: Home, witness: Path, kind: str
) -> None:
    worker = start("main", "--kind", kind, "--concurrency", "1")
    running = enqueue(state, "sleeper", 1.0)
    begun(witness)
    waiting = enqueue(state, "who")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert running.status == TaskStatus.COMPLETED
    assert (waiting.status, waiting.task().attempt) == (TaskStatus.PENDING, 0)
    assert workers.alive(state.db) == [], "who ends with nothing left signs off"


@KINDS
@pytest.mark.parametrize("name", ["stubborn", "astubborn"])
def test_a_task_that_outlasts_the_grace_time_is_interrupted_and_the_process_ends(
    start: Start, state: Home, witness: Path, kind: str, name: str
) -> None:
    worker = start("main", "--kind", kind, RELIGHT_GRACE_MS="500")
    handle = enqueue(state, name, 60.0)
    begun(witness)
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.text()
    assert 0.5 <= time.monotonic() - began < 0.5 + 2
    row = handle.task()
    assert (row.status, row.reason, row.losses) == (TaskStatus.INTERRUPTED, "shutdown", 0)


@KINDS
def test_a_locked_store_does_not_hold_up_the_end(start: Start, state: Home, witness: Path, kind: str) -> None:
    worker = start("main", "--kind", kind, RELIGHT_GRACE_MS="200")
    handle = enqueue(state, "stubborn", 1.0)
    begun(witness)
    with state.db.write():
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert time.monotonic() - began < 0.2 + 2
    assert handle.status == TaskStatus.RUNNING
    start("main")
    assert handle.result(20) == "slept"


def test_a_stderr_that_nobody_reads_does_not_hold_up_the_end(
    home: Path, app: Path, witness: Path, state: Home
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    command = [
        sys.executable,
        "-m",
        "relight.workers.cli",
        "--home",
        str(home),
        "-A",
        str(app),
        "worker",
        "main",
    ]
    process = subprocess.Popen(command, stderr=writing, env=environment(RELIGHT_GRACE_MS="200"))
    try:
        enqueue(state, "who")
        wait_until(lambda: workers.alive(state.db))
        process.terminate()
        assert process.wait(0.2 + 2.5) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)


def test_an_interrupted_task_goes_on_after_a_restart(start: Start, state: Home, witness: Path) -> None:
    worker = start("main", RELIGHT_GRACE_MS="100")
    handle = enqueue(state, "sleeper", 1.0)
    begun(witness)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert handle.status == TaskStatus.INTERRUPTED
    start("main")
    assert handle.result(20) == "slept"
    assert (handle.task().attempt, handle.task().losses) == (2, 0)


@KINDS
def test_a_second_signal_ends_a_worker_at_once(start: Start, state: Home, witness: Path, kind: str) -> None:
    worker = start("main", "--kind", kind)
    enqueue(state, "stubborn", 60.0)
    pid = begun(witness)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in worker.text())
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - began < 2
    wait_until(lambda: not psutil.pid_exists(pid))


def test_an_interrupt_that_is_passed_on_as_term_is_one_request(
    start: Start, state: Home, witness: Path
) -> None:
    worker = start("main")
    handle = enqueue(state, "sleeper", 0.7)
    begun(witness)
    worker.signal(signal.SIGINT)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert handle.status == TaskStatus.COMPLETED


@KINDS
def test_processes_that_a_stuck_step_has_started_are_ended(
    start: Start, state: Home, witness: Path, kind: str
) -> None:
    worker = start("main", "--kind", kind, RELIGHT_GRACE_MS="200")
    enqueue(state, "sheller")
    begun(witness)
    shell = next(int(line.split()[1]) for line in lines(witness) if line.startswith("shell"))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    wait_until(lambda: not psutil.pid_exists(shell) or psutil.Process(shell).status() == psutil.STATUS_ZOMBIE)


def test_a_hangup_starts_the_same_program_again(start: Start, state: Home) -> None:
    worker = start("main")
    before = enqueue(state, "who").result(20)
    worker.signal(signal.SIGHUP)
    wait_until(lambda: worker.text().count("stopping") == 1)
    assert enqueue(state, "who").result(20) == before
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_all_lanes_of_a_process_are_served_and_stop_together(
    start: Start, state: Home, witness: Path
) -> None:
    worker = start("all")
    running = [enqueue(state, "sleeper", 1.0, lane=lane) for lane in ("main", "subagent", "subagent")]
    wait_until(lambda: sum(line.startswith("begin") for line in lines(witness)) == 3)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert [handle.status for handle in running] == [TaskStatus.COMPLETED] * 3


def test_main_does_not_wait_behind_a_full_subagent_lane(start: Start, state: Home, witness: Path) -> None:
    start("all")
    for _ in range(50):
        enqueue(state, "sleeper", 60.0, lane="subagent")
    begun(witness)
    for _ in range(20):
        row = enqueue(state, "who").wait(10)
        assert row.started_at is not None
        assert row.started_at - row.created_at < 1_000


# -- processes as workers ---------------------------------------------------------------------------------------


def test_a_dead_worker_process_is_replaced_and_its_task_goes_on(
    start: Start, state: Home, witness: Path
) -> None:
    worker = start("main", "--kind", "process", "--concurrency", "1")
    handle = enqueue(state, "suicidal")
    assert handle.result(20) == "survived"
    pids = [int(line.split()[1]) for line in lines(witness) if line.startswith("begin")]
    assert len(set(pids)) == 2
    assert worker.process.poll() is None


@pytest.mark.parametrize("during_a_task", [False, True])
def test_worker_processes_end_when_their_parent_is_killed(
    start: Start, state: Home, witness: Path, during_a_task: bool
) -> None:
    worker = start("main", "--kind", "process", "--concurrency", "2")
    children = psutil.Process(worker.pid).children()
    assert len(children) == 3, "two workers and a scheduler"
    if during_a_task:
        running = enqueue(state, "sleeper", 1.0)
        begun(witness)
    worker.process.kill()
    waiting = enqueue(state, "who")
    psutil.wait_procs(children, timeout=8)
    assert [child for child in children if child.is_running()] == []
    if during_a_task:
        assert running.status == TaskStatus.COMPLETED, "what runs is finished within the grace time"
    assert waiting.status in (TaskStatus.PENDING, TaskStatus.COMPLETED)


def test_a_child_that_is_told_to_stop_finishes_and_is_replaced(
    start: Start, state: Home, witness: Path
) -> None:
    worker = start("main", "--kind", "process", "--concurrency", "1")
    handle = enqueue(state, "sleeper", 0.7)
    pid = begun(witness)
    os.kill(pid, signal.SIGTERM)
    assert handle.result(20) == "slept"
    assert enqueue(state, "who").result(20) != pid
    assert worker.process.poll() is None


def test_worker_processes_inherit_no_connection_and_lose_no_commit(start: Start, state: Home) -> None:
    worker = start("main", "--kind", "process", "--concurrency", "4")
    opened = [file.path for file in psutil.Process(worker.pid).open_files()]
    assert [path for path in opened if "state.db" in path] == []
    handles = [enqueue(state, "who") for _ in range(300)]
    pids = {handle.result(60) for handle in handles}
    assert len(pids) > 1
    assert tasks.counts(state.db)["completed"] == 301
    assert state.db.rows("PRAGMA integrity_check") == [("ok",)]


@KINDS
def test_a_step_may_use_a_pool_of_processes(start: Start, state: Home, kind: str) -> None:
    start("main", "--kind", kind)
    assert enqueue(state, "pooled").result(20) == 3


# -- the consumer that Huey brings ------------------------------------------------------------------------------


@pytest.fixture
def huey_consumer(home: Path, app: Path, witness: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "huey.bin.huey_consumer", "relight.workers.lanes.main", *args]
        variables = environment(RELIGHT_APP=str(app), RELIGHT_GRACE_MS="400")
        started.append(
            subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL, start_new_session=True)
        )
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("args", [["-g", "TERM"], ["-w", "2", "-k", "process", "-g", "TERM"], ["-w", "3"]])
def test_hueys_own_consumer_serves_a_lane(
    huey_consumer: Callable[..., subprocess.Popen[bytes]],
    state: Home,
    witness: Path,
    app: Path,
    args: list[str],
) -> None:
    consumer = huey_consumer(*args)
    assert enqueue(state, "who").result(20)
    code = "import consumer_app; print(consumer_app.add(1, 2).get(blocking=True, timeout=20))"
    path = os.pathsep.join([str(app.parent), environment()["PYTHONPATH"]])
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "3\n"
    stuck = enqueue(state, "stubborn", 60.0)
    begun(witness)
    consumer.terminate()
    assert consumer.wait(10) == 0
    assert stuck.status == TaskStatus.INTERRUPTED


def test_a_periodic_task_runs_once_a_minute_over_all_processes(
    start_worker: StartWorker, home: Path, app: Path, witness: Path, tmp_path: Path, state: Home
) -> None:
    clock = tmp_path / "clock"
    minute = 29_000_000
    clock.write_text(str(minute * 60_000))
    for _ in range(2):
        start_worker(home, app, "main", env={"RELIGHT_TEST_CLOCK": str(clock)})
    for passed in range(4):
        (tmp_path / "next").write_text(str((minute + passed) * 60_000 + 30_000))
        (tmp_path / "next").replace(clock)
        wait_until(lambda n=passed: lines(witness).count("tick") == n + 1)
    assert lines(witness).count("tick") == 4
