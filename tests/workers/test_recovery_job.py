"""The recovery pass as processes run it: whoever starts it, one at a time, once a period, and at once after a death."""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relight import Run, agent, ref, step
from relight.models import claims, confirmations, recovery_runs, transitions, workers
from relight.models.errors import ConflictError, StorageLockedError
from relight.models.events import AgentEvent
from relight.models.tasks import TaskStatus
from relight.recovery import sweep
from relight.workers import execution, lanes, recovery_job, settings
from relight.workers.handles import TaskHandle
from relight.workers.home import Home
from tests.conftest import Cli, environment, wait_until
from tests.workers.conftest import Crew

NO_PERIOD = 0
LONG = 3_600_000


def period(crew: Crew, sweep_ms: int) -> None:
    crew.home.settings = replace(crew.home.settings, sweep_ms=sweep_ms)


def passes(crew: Crew) -> int:
    return len(recovery_runs.recent(crew.db, limit=1000))


def orphan(crew: Crew, *, risk: str = "low", name: str = "reading") -> TaskHandle:
    """A task that this process has claimed and will never run."""

    def reading(run: Run) -> str:
        return "read"

    task = agent(risk=risk, name=name)(reading).enqueue()
    assert crew.claim() is not None
    return task


# -- when a pass runs -----------------------------------------------------------------------------------------


def test_a_tick_runs_a_pass_unless_one_began_within_the_period(crew: Crew) -> None:
    period(crew, LONG)
    assert recovery_job.sweep_tick(crew.home) is not None
    assert recovery_job.sweep_tick(crew.home) is None
    assert passes(crew) == 1
    period(crew, NO_PERIOD)
    assert recovery_job.sweep_tick(crew.home) is not None
    assert passes(crew) == 2


def test_a_death_that_was_just_proved_is_acted_on_at_once(crew: Crew) -> None:
    period(crew, LONG)
    task = orphan(crew)
    assert recovery_job.sweep_tick(crew.home) is not None
    assert task.task().status == TaskStatus.RUNNING
    crew.die()
    report = recovery_job.sweep_tick(crew.home)
    assert report is not None
    assert [entry["id"] for entry in report.resumed] == [task.id]
    assert task.task().status == TaskStatus.PENDING


def test_one_pass_runs_in_a_period_however_many_processes_tick(crew: Crew, home: Path) -> None:
    code = (
        "import time\n"
        "from relight.workers import recovery_job\n"
        "from relight.workers.home import Home\n"
        "home, end = Home.current(), time.monotonic() + 1.2\n"
        "while time.monotonic() < end: recovery_job.sweep_tick(home)\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment(RELIGHT_SWEEP_MS="300"))
        for _ in range(3)
    ]
    assert [process.wait(30) for process in running] == [0, 0, 0]
    began = sorted(run.started_at for run in recovery_runs.recent(crew.db, limit=1000))
    assert len(began) >= 3
    gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert min(gaps) >= 300


def test_passes_of_one_process_never_overlap(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    period(crew, NO_PERIOD)
    inside = most = 0
    real = sweep.sweep

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            return real(*args, **kwargs)
        finally:
            inside -= 1

    monkeypatch.setattr(sweep, "sweep", watched)
    calls = [recovery_job.sweep_tick, recovery_job.recover] * 8
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda call: call(crew.home), calls))
    assert most == 1


@pytest.fixture
def held(crew: Crew) -> Iterator[int]:
    """The lock of the pass, held as by a process that runs one."""
    fd = os.open(crew.home.path / "locks" / "sweep", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield fd
    os.close(fd)


def test_a_tick_leaves_a_pass_that_runs_alone(crew: Crew, held: int) -> None:
    assert recovery_job.sweep_tick(crew.home) is None
    assert passes(crew) == 0


def test_a_pass_on_demand_waits_for_the_one_that_runs(crew: Crew, held: int) -> None:
    task = orphan(crew)
    crew.die()
    with ThreadPoolExecutor(1) as pool:
        demanded = pool.submit(recovery_job.recover, crew.home)
        assert not demanded.done()
        fcntl.flock(held, fcntl.LOCK_UN)
        assert [entry["id"] for entry in demanded.result(10).resumed] == [task.id]


def test_a_killed_pass_blocks_nobody(crew: Crew, home: Path) -> None:
    code = (
        "import os, signal\n"
        "from relight.recovery import sweep\n"
        "from relight.workers import recovery_job\n"
        "from relight.workers.home import Home\n"
        "sweep.sweep = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "recovery_job.recover(Home.current())\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], env=environment(), check=False)
    assert killed.returncode == -9
    assert passes(crew) == 0
    assert recovery_job.sweep_tick(crew.home) is not None


def test_a_stopped_pass_holds_recovery_up_for_no_longer_than_a_lease(
    crew: Crew, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000]
    monkeypatch.setattr(recovery_job, "_monotonic_ms", lambda: now[0])
    task = orphan(crew)
    crew.die()
    for _ in range(3):
        assert recovery_job.sweep_tick(crew.home) is None
        now[0] += crew.home.settings.lease_ms // 3
    assert recovery_job.sweep_tick(crew.home) is not None
    assert task.task().status == TaskStatus.PENDING


def test_the_sweep_thread_begins_at_once_and_goes_on_after_an_error(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    period(crew, 20)
    stopped = threading.Event()
    calls: list[int] = []

    def tick(home: Home) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise StorageLockedError("locked")
        if len(calls) == 3:
            stopped.set()

    monkeypatch.setattr(recovery_job, "sweep_tick", tick)
    thread = threading.Thread(target=recovery_job.keep_sweeping, args=(crew.home, stopped))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(calls) == 3
    assert "the next one tries again" in caplog.text


def test_the_periodic_job_runs_a_pass_of_its_home(crew: Crew) -> None:
    lanes.upkeep.home = crew.home
    recovery_job.recover_tasks.call_local()
    assert passes(crew) == 1


@pytest.mark.parametrize("moved", [-1_000_000, 0, 10_000_000])
def test_no_clock_that_stands_still_or_is_set_back_stops_recovery(
    home: Path, tmp_path: Path, moved: int, crew: Crew
) -> None:
    clock = tmp_path / "clock"
    clock.write_text(str(crew.home.now()), encoding="utf-8")
    opened = Home.open(settings.load(test_clock=clock))
    opened.settings = replace(opened.settings, sweep_ms=20)
    wait_until(lambda: recovery_job.sweep_tick(opened))
    clock.write_text(str(opened.now() + moved), encoding="utf-8")
    task = orphan(crew)
    workers.mark_dead(crew.db, crew.owner.id, now=1)  # known already: no news for a tick
    wait_until(lambda: recovery_job.sweep_tick(opened) and task.task().status == TaskStatus.PENDING)
    opened.close()


# -- what a pass goes by --------------------------------------------------------------------------------------


def test_a_dry_run_tells_and_moves_nothing(crew: Crew) -> None:
    task = orphan(crew)
    crew.die()
    report = recovery_job.recover(crew.home, dry_run=True)
    assert [entry["id"] for entry in report.resumed] == [task.id]
    assert task.task().status == TaskStatus.RUNNING
    assert passes(crew) == 0
    assert [entry["id"] for entry in crew.recover().resumed] == [task.id]


def test_a_living_worker_is_never_taken_for_dead_however_old_its_task_is(crew: Crew) -> None:
    task = orphan(crew)
    crew.db.change("UPDATE agent_tasks SET started_at = 1, updated_at = 1, created_at = 1")
    crew.db.change("UPDATE workers SET renewed_at = 1, started_at = 1")
    for _ in range(5):
        assert crew.recover().is_empty()
    assert task.task().status == TaskStatus.RUNNING


def break_policy(crew: Crew, how: str) -> None:
    file = crew.home.path / "policy.toml"
    text = file.read_text(encoding="utf-8")
    match how:
        case "missing":
            file.unlink()
        case "empty":
            file.write_text("", encoding="utf-8")
        case "truncated":
            file.write_text(text[: text.index("high")], encoding="utf-8")
        case "misspelt":
            file.write_text(text.replace('low = "resume"', 'low = "resmue"'), encoding="utf-8")
        case "no text":
            file.write_bytes(b"\xff\xfe\x00")
        case _:
            file.unlink()
            file.mkdir()


@pytest.mark.parametrize("how", ["missing", "empty", "truncated", "misspelt", "no text", "unreadable"])
def test_under_a_broken_policy_nothing_resumes_and_the_question_names_the_file(crew: Crew, how: str) -> None:
    task = orphan(crew)
    break_policy(crew, how)
    report = crew.relight()
    assert report.resumed == []
    [entry] = report.asked
    assert (entry["id"], str(crew.home.path / "policy.toml") in entry["reason"]) == (task.id, True)
    assert crew.asked()[0].request["why"] == entry["reason"]
    assert crew.recover().is_empty()


@pytest.mark.parametrize("risk", ["lo", ""])
def test_an_unknown_risk_in_the_row_waits_for_a_person(crew: Crew, risk: str) -> None:
    orphan(crew)
    crew.db.change("UPDATE agent_tasks SET risk_level = ?", (risk,))
    report = crew.relight()
    assert report.resumed == []
    assert "unknown risk level" in report.asked[0]["reason"]


def test_a_pass_makes_tasks_claimable_whose_agent_this_process_knows(crew: Crew) -> None:
    task = ref("reading").enqueue()
    assert crew.claim() is None
    assert recovery_job.sweep_tick(crew.home) is not None
    assert task.task().hold == "unknown_agent"
    orphan(crew, name="other")
    agent(risk="low", name="reading")(lambda run: "read")
    recovery_job.sweep_tick(crew.home)
    assert crew.work().kind == "completed"


# -- leases ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stalled(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Our own monotonic time, moved by the test; the owner's lease thread has stopped but its lock is held."""
    period(crew, NO_PERIOD)
    now = [1_000_000]
    monkeypatch.setattr(recovery_job, "_monotonic_ms", lambda: now[0])
    crew.owner._stopped.set()
    assert crew.owner._thread is not None
    crew.owner._thread.join(10)
    return now


def tick_for_a_lease(crew: Crew, now: list[int]) -> None:
    for _ in range(5):
        recovery_job.sweep_tick(crew.home)
        now[0] += crew.home.settings.lease_ms // 3 + 1


def test_a_lease_that_stood_still_while_we_watched_gives_up_a_task_without_an_open_write(
    crew: Crew, stalled: list[int]
) -> None:
    task = orphan(crew)
    recovery_job.sweep_tick(crew.home)
    stalled[0] += crew.home.settings.lease_ms // 3
    recovery_job.sweep_tick(crew.home)
    assert task.task().status == TaskStatus.RUNNING
    tick_for_a_lease(crew, stalled)
    assert task.task().status == TaskStatus.PENDING


def test_one_long_gap_in_our_own_time_proves_nothing(crew: Crew, stalled: list[int]) -> None:
    task = orphan(crew)
    recovery_job.sweep_tick(crew.home)
    stalled[0] += 100 * crew.home.settings.lease_ms
    recovery_job.sweep_tick(crew.home)
    assert task.task().status == TaskStatus.RUNNING


def test_a_write_under_a_lease_that_ran_out_is_asked_about_and_not_run_again_before_its_owner_is_dead(
    crew: Crew, stalled: list[int]
) -> None:
    began, go_on = threading.Event(), threading.Event()

    @step(effect="write")
    def put() -> str:
        began.set()
        assert go_on.wait(10)
        return "put late"

    @agent
    def putting(run: Run) -> str:
        return put()

    task = putting.enqueue()
    row = crew.claim()
    assert row is not None
    with ThreadPoolExecutor(1) as pool:
        zombie = pool.submit(execution.execute, crew.home, crew.owner, row)
        assert began.wait(10)
        tick_for_a_lease(crew, stalled)
        assert (task.task().status, task.task().reason) == (TaskStatus.INTERRUPTED, "asked")
        [asked] = crew.asked()
        assert "not proved dead" in asked.request["owner"]
        with pytest.raises(ConflictError, match="not proved dead"):
            confirmations.answer_again(crew.db, asked.id, None, by="ann", now=crew.home.now())
        go_on.set()
        assert zombie.result(10).kind == "lost"
    [settled] = confirmations.steps(crew.db, asked.id)
    assert settled.decision == "settled_late"
    confirmations.approve(crew.db, asked.id, by="ann", now=crew.home.now())
    crew.owner.take(task.id, 1)
    assert crew.work().kind == "completed"
    assert task.result() == "put late"


# -- questions over many passes -------------------------------------------------------------------------------


def test_one_question_and_one_notice_over_many_passes_and_restarts(crew: Crew) -> None:
    task = orphan(crew, risk="high")
    crew.die()
    for number in range(60):
        crew.recover()
        if number % 20 == 0:
            crew.home.close()
    assert len(confirmations.listing(crew.db, only_open=False)) == 1
    assert crew.events(task.id).count(AgentEvent.TYPE_CONFIRMATION_REQUESTED) == 1


def test_a_question_survives_the_process_and_nothing_runs_before_the_answer(crew: Crew) -> None:
    task = orphan(crew, risk="high")
    crew.relight()
    [asked] = crew.asked()
    crew.home.close()
    assert [one.id for one in crew.asked()] == [asked.id]
    assert crew.claim() is None
    confirmations.approve(crew.db, asked.id, by="ann", now=crew.home.now())
    assert crew.work().kind == "completed"
    assert task.result() == "read"


def test_of_twenty_yeses_from_several_processes_one_is_accepted_and_the_task_runs_once(
    crew: Crew, cli: Cli, home: Path
) -> None:
    task = orphan(crew, risk="high")
    crew.relight()
    [asked] = crew.asked()
    code = (
        "import sys\n"
        "from relight.models import confirmations\n"
        "from relight.models.errors import AlreadyDecidedError\n"
        "from relight.workers.home import Home\n"
        "home, said = Home.current(), []\n"
        "sys.stdin.readline()\n"
        "for _ in range(5):\n"
        "    try:\n"
        "        confirmations.approve(home.db, sys.argv[1], by='p', now=home.now())\n"
        "        said.append('accepted')\n"
        "    except AlreadyDecidedError as error:\n"
        "        said.append(error.decision)\n"
        "print(*said)\n"
    )
    clicking = [
        subprocess.Popen(
            [sys.executable, "-c", code, asked.id],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [word for process in clicking for word in process.communicate("go\n", timeout=30)[0].split()]
    assert sorted(said) == ["accepted", *["approved"] * 19]
    late = cli("approve", asked.id)
    assert late.returncode == 4
    assert "already decided: approved" in late.stderr
    assert [outcome.kind for outcome in crew.work_off()] == ["completed"]
    assert crew.events(task.id).count("task_resumed") == 1


def test_a_poison_task_is_given_up_after_its_last_loss_and_a_person_can_start_it_anew(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="read")
    def poison() -> None:
        executed.append(1)
        raise KeyboardInterrupt

    @agent(risk="low")
    def poisoned(run: Run) -> None:
        poison()

    task = poisoned.enqueue()
    for loss in range(1, 4):
        claims.release_due(crew.db, now=crew.home.now() + 60_000)
        with pytest.raises(KeyboardInterrupt):
            crew.work()
        crew.relight()
        assert task.task().losses == loss
    row = task.task()
    assert (row.status, row.reason) == (TaskStatus.FAILED, "crash_loop")
    assert "poison#1" in str(row.error_json)
    assert crew.claim() is None
    transitions.retry_by_person(crew.db, task.id, by="ann", now=crew.home.now())
    assert task.task().losses == 0
    with pytest.raises(KeyboardInterrupt):
        crew.work()
    assert len(executed) == 4


def test_rows_of_dead_workers_are_not_kept_for_ever(crew: Crew) -> None:
    first = crew.owner.id
    crew.die()
    crew.recover()
    crew.db.change("UPDATE workers SET dead_at = 1 WHERE id = ?", (first,))
    second = crew.owner.id
    crew.die()
    crew.recover()
    assert [row[0] for row in crew.db.rows("SELECT id FROM workers")] == [second]
    assert workers.alive(crew.db) == []
