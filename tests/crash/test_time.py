"""Times are epoch milliseconds in whatever zone a process lives, and no clock that is set wrong takes work away."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from relight.models import events
from relight.models.state import StateDatabase
from relight.workers import bells
from tests.conftest import Cli, StartWorker, Worker, environment, wait_until
from tests.crash import agents_time, witness
from tests.crash.conftest import QUICK, Stage

ZONES = ["UTC", "America/New_York", "Asia/Tokyo"]
APP = agents_time.__name__
DELAY_MS = 4_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


# New York puts its clocks forward and back in the second after these.
CHANGES = {"spring": ms("2026-03-08 06:59:58"), "autumn": ms("2026-11-01 05:59:58")}


class Clock:
    """The clock of a test: a file that every process reads instead of the wall clock."""

    def __init__(self, file: Path, now: int) -> None:
        self.file = file
        self.set(now)

    def set(self, now: int) -> None:
        self.now = now
        draft = self.file.with_suffix(".new")
        draft.write_text(str(now))
        os.replace(draft, self.file)

    def move(self, by: int) -> None:
        self.set(self.now + by)

    @property
    def env(self) -> dict[str, str]:
        return {"RELIGHT_TEST_CLOCK": str(self.file)}


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The witness lines."""
    monkeypatch.setenv(witness.VARIABLE, str(tmp_path))
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    lines = tmp_path / "lines"
    return lambda: lines.read_text().split() if lines.exists() else []


def shown(cli: Cli, *args: str, env: dict[str, str]) -> Any:
    done = cli("--json", *args, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("worker_zone", ZONES)
def test_delays_and_retries_are_the_same_in_every_mix_of_zones_around_a_change_of_time(
    cli: Cli,
    home: Path,
    tmp_path: Path,
    start_worker: StartWorker,
    seen: Callable[[], list[str]],
    worker_zone: str,
) -> None:
    """Each task is delayed over the change, fails, and is retried after as long again."""
    clock = Clock(tmp_path / "clock", CHANGES["spring"])
    start_worker(home, APP, "subagent", env={**clock.env, "TZ": worker_zone})
    wait_until((home / "state.db").exists)
    with StateDatabase(home / "state.db", create=False) as state:

        def told(*columns: str) -> set[tuple[Any, ...]]:
            rows = [state.get_task(row["id"]) for row in enqueued]
            return {tuple(getattr(row, name) for name in columns) for row in rows}

        for change, now in CHANGES.items():
            clock.set(now)
            names = [f"{change}-{zone}" for zone in ZONES]
            enqueued = [
                delayed(cli, name, env={**clock.env, "TZ": zone})
                for name, zone in zip(names, ZONES, strict=True)
            ]
            starts_at = now + DELAY_MS
            clock.move(DELAY_MS - 1)
            assert told("hold", "due_at") == {("due", starts_at)}
            clock.move(1)
            wait_until(lambda: told("attempt", "status") == {(1, "pending")})
            assert told("started_at", "due_at") == {(starts_at, starts_at + DELAY_MS)}
            clock.move(DELAY_MS)
            wait_until(lambda names=names: set(names) <= set(seen()))


def delayed(cli: Cli, name: str, *, env: dict[str, str]) -> Any:
    """A task that is enqueued from the shell, due in four seconds."""
    given = json.dumps({"name": name})
    return shown(cli, "-A", APP, "enqueue", "fails_once", "--input", given, "--delay", "4", env=env)


@pytest.mark.parametrize("worker_zone", ZONES)
def test_by_the_real_clock_everything_starts_within_a_second_of_its_time(
    cli: Cli, home: Path, start_worker: StartWorker, seen: Callable[[], list[str]], worker_zone: str
) -> None:
    """Agent tasks and plain Huey tasks, enqueued in each zone for a second from now."""
    worker = start_worker(home, APP, "subagent", env={"TZ": worker_zone})
    wait_until(lambda: bells.listeners(home, "subagent") == 1)
    rows = [
        shown(
            cli,
            "-A",
            APP,
            "enqueue",
            "marks",
            "--input",
            f'{{"name": "{zone}"}}',
            "--delay",
            "1",
            env={"TZ": zone},
        )
        for zone in ZONES
    ]
    schedule_plain_in_every_zone()
    wait_until(lambda: len(seen()) == 2 * len(ZONES))
    assert sorted(seen()) == sorted([*ZONES, *(f"plain-{zone}" for zone in ZONES)])
    with StateDatabase(home / "state.db", create=False) as state:
        for row in rows:
            assert row["due_at"] - row["created_at"] == 1_000
            assert 0 <= (state.get_task(row["id"]).started_at or 0) - row["due_at"] < 1_000
    assert share_of_a_core(worker) < 0.2


def schedule_plain_in_every_zone() -> None:
    """A plain task for each zone, delayed with Huey's own means by a process that lives there."""
    code = f"import os; from {APP} import plain; plain.schedule(args=('plain-' + os.environ['TZ'],), delay=1)"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, env=environment(TZ=zone)) for zone in ZONES]
    assert [process.wait(30) for process in started] == [0] * len(ZONES)


def share_of_a_core(worker: Worker) -> float:
    process = psutil.Process(worker.pid)

    def used() -> float:
        return sum(process.cpu_times()[:2])

    before, end = used(), time.monotonic() + 1
    wait_until(lambda: time.monotonic() > end)
    return used() - before


# -- clocks that are set wrong ------------------------------------------------------------------------------------


@pytest.fixture
def clock(stage: Stage) -> Clock:
    return Clock(stage.folder / "clock", stage.home.now())


@pytest.mark.parametrize("step", [-HOUR_MS, HOUR_MS, DAY_MS], ids=["an hour back", "an hour on", "a day on"])
def test_a_clock_that_is_set_takes_no_running_task_away(stage: Stage, clock: Clock, step: int) -> None:
    """Leases count on nobody's clock; new work runs at once, and what ran goes on to its end."""
    env = {**clock.env, "RELIGHT_LEASE_MS": "300"}
    task_id = stage.enqueue(agents_time.holds).id
    stage.start(agents_time, env=env)
    stage.start(agents_time, env=env)
    stage.wait_for_lines(1)
    clock.move(step)
    passes = passes_of(stage)
    following = stage.enqueue(agents_time.marks, "new").id
    if step < 0:
        stage.home.db.change("UPDATE agent_tasks SET rank = rank + ? WHERE id = ?", (step, following))
    stage.wait_for_status(following, "completed", deadline=5)
    wait_until(lambda: passes_of(stage) >= passes + 8)
    assert (stage.task(task_id).status, stage.task(task_id).attempt) == ("running", 1)
    stage.open_barrier("hold")
    assert stage.wait_for_status(task_id, "completed").losses == 0


def passes_of(stage: Stage) -> int:
    return int(stage.rows("SELECT count(*) FROM recovery_runs")[0][0])


@pytest.mark.parametrize("step", [-HOUR_MS, DAY_MS], ids=["an hour back", "a day on"])
def test_the_death_of_a_worker_is_noticed_whatever_the_clock_says(
    stage: Stage, clock: Clock, step: int
) -> None:
    task_id = stage.enqueue(agents_time.holds).id
    worker = stage.start(agents_time, env=clock.env)
    stage.wait_for_lines(1)
    clock.move(step)
    worker.kill()
    stage.start(agents_time, env=clock.env)
    stage.wait_for_lines(2, deadline=3)
    stage.open_barrier("hold")
    stage.wait_for_status(task_id, "completed")


def test_what_is_due_waits_for_its_own_time_and_no_longer(stage: Stage, clock: Clock) -> None:
    """A clock that goes back keeps it waiting, one that goes on lets it start; looking at it costs next to nothing."""
    row = json.loads(stage.cli("-A", APP, "enqueue", "marks", "--delay", "60", env=clock.env).stdout)
    assert row["due_at"] - row["created_at"] == 60_000
    worker = stage.start(agents_time, env=clock.env)
    clock.move(-HOUR_MS)
    wait_until(lambda: passes_of(stage) >= 3)
    assert stage.task(row["id"]).hold == "due"
    process = psutil.Process(worker.pid)
    before = sum(process.cpu_times()[:2])
    passes = passes_of(stage)
    wait_until(lambda: passes_of(stage) >= passes + 10)
    assert sum(process.cpu_times()[:2]) - before < 0.5, "it looks again and again"
    clock.move(HOUR_MS + 60_000)
    stage.wait_for_status(row["id"], "completed", deadline=3)
    told = [event.event_type for event in events.by_task(stage.home.db, row["id"])]
    assert told.count("task_released") == 1


def test_a_task_that_nobody_takes_in_time_expires_and_one_that_was_begun_does_not(
    stage: Stage, clock: Clock
) -> None:
    """Its time is over by the clock; a task that was claimed once is wanted to its end."""
    options = {"expires": 60}
    begun = stage.enqueue(agents_time.holds, options=options).id
    worker = stage.start(agents_time, env={**clock.env, "RELIGHT_CONCURRENCY": "1"})
    stage.wait_for_lines(1)
    late = stage.enqueue(agents_time.marks, "late", options=options).id
    worker.kill()
    clock.move(61_000)
    stage.start(agents_time, env={**clock.env, "RELIGHT_CONCURRENCY": "1"})
    task = stage.wait_for_status(late, "failed")
    assert (task.reason, task.attempt, task.completed_at) == ("expired", 0, clock.now)
    stage.wait_for_lines(2)
    stage.open_barrier("hold")
    stage.wait_for_status(begun, "completed")
    assert [line for line in stage.lines() if line == ["late"]] == []


def test_numbers_of_events_and_the_order_of_steps_do_not_follow_the_clock(stage: Stage, clock: Clock) -> None:
    task_id = stage.enqueue(agents_time.holds).id
    stage.start(agents_time, env=clock.env)
    stage.wait_for_lines(1)
    clock.move(-DAY_MS)
    stage.open_barrier("hold")
    stage.wait_for_status(task_id, "completed")
    told = events.by_task(stage.home.db, task_id)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    stamps = [event.timestamp for event in told]
    assert any(later < earlier for earlier, later in itertools.pairwise(stamps)), "the clock did go back"
    stage.check_storage()
