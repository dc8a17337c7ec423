"""Many processes at the same work: each task is claimed once, each orphan is put back once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from relight import enqueue_many
from relight.models import claims, tasks
from relight.models.fields import new_id
from relight.models.tasks import AgentTask, RiskLevel
from relight.workers.claimed import ClaimedTask
from relight.workers.lanes import LANES
from relight.workers.ownership import Owner
from tests.conftest import wait_until
from tests.crash import agents_work
from tests.crash.conftest import Stage
from tests.crash.racers import ROUNDS

PROCESSES, CLAIMS, ORPHANS = 4, 500, 50


@contextmanager
def racers(stage: Stage, role: str, barrier: Path) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "tests.crash.racers", role, str(stage.home.path), str(barrier)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=stage.env())
        for _ in range(PROCESSES)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def answers(started: list[subprocess.Popen[str]]) -> list[list[str]]:
    found = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES
    return [json.loads(text) for text in found]


def test_each_task_is_claimed_once_by_four_processes(stage: Stage) -> None:
    now = stage.home.now()
    rows = [
        AgentTask.new(new_id(), "", "nobody", "", RiskLevel.LOW, now=now) for _ in range(PROCESSES * CLAIMS)
    ]
    tasks.submit_many(stage.home.db, rows, now=now)
    barrier = stage.folder / "go"
    with racers(stage, "claim", barrier) as started:
        wait_until(lambda: stage.rows("SELECT count(*) FROM workers") == [(PROCESSES,)])
        barrier.touch()
        kept = [line.split() for lines in answers(started) for line in lines]
    assert Counter(line[0] for line in kept) == {row.id: 1 for row in rows}
    assert {(line[0], int(line[1])) for line in kept} == set(
        stage.rows("SELECT id, attempt FROM agent_tasks")
    )
    begun = "SELECT count(*) FROM agent_events WHERE event_type = 'task_started' GROUP BY task_id"
    unclaimed = "SELECT count(*) FROM agent_events WHERE event_type = 'task_unclaimed'"
    given_back = sum(int(line[1]) == 2 for line in kept)
    assert sum(row[0] for row in stage.rows(begun)) == len(rows) + given_back
    assert stage.rows(unclaimed) == [(given_back,)]
    stage.check_storage()


def test_each_orphan_is_resumed_once_by_four_passes_at_the_same_time(stage: Stage) -> None:
    now = stage.home.now()
    rows = [AgentTask.new(new_id(), "", "nobody", "", RiskLevel.LOW, now=now) for _ in range(ORPHANS)]
    tasks.submit_many(stage.home.db, rows, now=now)
    barrier = stage.folder / "rounds"
    barrier.mkdir()
    with racers(stage, "recover", barrier) as started:
        for number in range(ROUNDS):
            orphan_all(stage, gone=number % 2 == 0)
            (barrier / f"{number}").touch()
            wait_until(lambda number=number: len(list(barrier.glob(f"{number}.*"))) == PROCESSES, 20)
            assert resumed(stage) == {row.id: number + 1 for row in rows}, f"round {number}"
            assert stage.states() == {("pending", None): ORPHANS}
        found = answers(started)
    for number in range(ROUNDS):
        in_round = Counter(task_id for lines in found for task_id in lines[number])
        assert in_round == {row.id: 1 for row in rows}
    stage.check_storage()


def orphan_all(stage: Stage, *, gone: bool) -> None:
    """Let a worker claim everything and die; `gone`: its death is proved already. Losses in a row would be held back."""
    home = stage.home
    with home.db.write():
        home.db.change("UPDATE agent_tasks SET losses = 0")
    owner = Owner.start(home.db, home.path, "subagent", clock=home.now, lease_ms=30_000)
    for _ in range(ORPHANS):
        claims.claim(home.db, "subagent", worker_id=owner.id, now=home.now(), known=frozenset({"nobody"}))
    if gone:
        owner.retire()
    owner.close()


def resumed(stage: Stage) -> dict[str, int]:
    statement = (
        "SELECT task_id, count(*) FROM agent_events WHERE event_type = 'task_recovered' GROUP BY task_id"
    )
    return dict(stage.rows(statement))


def test_workers_that_come_and_go_run_each_task_once(stage: Stage) -> None:
    """A rolling restart: each new worker starts before the old one has ended."""
    handles = enqueue_many([agents_work.quick.options(home=stage.home).call(f"{n}") for n in range(150)])
    worker = stage.start(agents_work, "--concurrency", "2")
    for number in range(1, 5):
        stage.wait_for_lines(number * 25)
        following = stage.start(agents_work, "--concurrency", "2")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        worker = following
    wait_until(lambda: stage.states() == {("completed", None): len(handles)}, 30)
    assert Counter(line[0] for line in stage.lines()) == {handle.id: 1 for handle in handles}
    stage.check_storage()


def test_a_message_that_names_a_task_starts_nothing(stage: Stage) -> None:
    """Ten copies of a task as a queue entry, as a restored or doubled queue would have them, and four workers."""
    task_id = stage.enqueue(agents_work.holding).id
    lane = LANES["subagent"]
    workers = [stage.start(agents_work, "--concurrency", "1") for _ in range(PROCESSES)]
    stage.wait_for_lines(1)
    message = lane.serialize_task(ClaimedTask.of(stage.task(task_id)))
    with stage.home.db.write():
        for _ in range(10):
            stage.home.db.change(
                "INSERT INTO task (queue, data, priority) VALUES ('subagent', ?, 0)", (message,)
            )
        stage.home.db.touch("subagent")
    wait_until(lambda: stage.rows("SELECT count(*) FROM task") == [(0,)])
    stage.open_barrier("hold")
    stage.wait_for_status(task_id, "completed")
    assert [line[1] for line in stage.lines()] == ["hold", "after"]
    assert "a message that names a row is dropped" in "".join(worker.text() for worker in workers)
    is_quiet(workers_cpu=lambda: sum(sum(psutil.Process(worker.pid).cpu_times()[:2]) for worker in workers))


def is_quiet(*, workers_cpu: Callable[[], float]) -> None:
    """Within two seconds a stretch comes in which the workers do next to nothing."""
    used: list[float] = []

    def is_idle() -> bool:
        used.append(workers_cpu())
        return len(used) > 100 and used[-1] - used[-100] < 0.1

    wait_until(is_idle, 2)


@pytest.mark.parametrize("rounds", [2])
def test_four_recover_commands_at_the_same_time_resume_each_orphan_once(stage: Stage, rounds: int) -> None:
    now = stage.home.now()
    rows = [AgentTask.new(new_id(), "", "nobody", "", RiskLevel.LOW, now=now) for _ in range(ORPHANS)]
    tasks.submit_many(stage.home.db, rows, now=now)
    command = [sys.executable, "-m", "relight.workers.cli", "--json", "recover"]
    for number in range(rounds):
        orphan_all(stage, gone=False)
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=stage.env())
            for _ in range(PROCESSES)
        ]
        reports = [json.loads(process.communicate(timeout=60)[0]) for process in started]
        found = Counter(entry["id"] for report in reports for entry in report["resumed"])
        assert found == {row.id: 1 for row in rows}
        assert resumed(stage) == {row.id: number + 1 for row in rows}
