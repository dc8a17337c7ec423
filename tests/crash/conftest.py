"""The stage of the crash tests: a state directory, witnesses, worker processes that are quick to start, and the checks
that hold for every task however it was struck.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from relight import TaskHandle
from relight.models import confirmations, tasks
from relight.models.confirmations import Confirmation
from relight.models.tasks import AgentTask
from relight.workers import settings
from relight.workers.home import Home
from tests.conftest import ROOT, environment, wait_until
from tests.crash import witness

QUICK = {"RELIGHT_SWEEP_MS": "100", "RELIGHT_MAX_LOSSES": "1000"}


class Nursery:
    """The process that forks workers, and the way to talk to it; it may have some more modules loaded."""

    def __init__(self, *preloaded: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "crash" / "nursery.py"), *preloaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def ask(self, **order: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@dataclass
class Forked:
    """A worker process that the nursery made, and the file that holds what it said."""

    nursery: Nursery
    pid: int
    log: Path
    code: int | None = None

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.code is None:
            self.code = self.nursery.ask(poll=self.pid)
        return self.code

    def has_ended(self) -> bool:
        return self.poll() is not None

    def wait(self, timeout: float = 15.0) -> int:
        wait_until(self.has_ended, timeout)
        return self.code or 0

    def family(self) -> list[psutil.Process]:
        """The worker, while it runs, and every process below it."""
        with suppress(psutil.NoSuchProcess):
            if self.poll() is None:
                worker = psutil.Process(self.pid)
                return [worker, *worker.children(recursive=True)]
        return []

    def kill(self) -> None:
        """SIGKILL the worker with every process below it and of its group, and reap it.

        One that has ended was reaped, and its number may be another's by now.
        """
        if self.has_ended():
            return
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def kill_alone(self) -> None:
        """SIGKILL the worker and nothing that it started."""
        self.signal(signal.SIGKILL)
        self.wait()


@dataclass
class Stage:
    """One state directory with its witnesses and workers."""

    folder: Path
    nursery: Nursery
    home: Home
    started: list[Forked] = field(default_factory=list)

    @property
    def witness(self) -> Path:
        return self.folder / "witness"

    def env(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        return environment(
            **{
                **QUICK,
                witness.VARIABLE: str(self.witness),
                "RELIGHT_HOME": str(self.home.path),
                **(extra or {}),
            }
        )

    def start(
        self,
        app: ModuleType | None,
        *args: str,
        lane: str = "subagent",
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Forked:
        """Start `relight -A APP worker LANE ARGS`."""
        apps = ["-A", app.__name__] if app else []
        return self.spawn(*apps, "worker", lane, *args, env=env, cwd=cwd)

    def spawn(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Forked:
        """Start `relight ARGS`."""
        log = self.folder / f"worker-{len(self.started)}.log"
        pid = self.nursery.ask(args=args, env=self.env(env), log=str(log), cwd=str(cwd or self.folder))
        self.started.append(Forked(self.nursery, pid, log))
        return self.started[-1]

    def cli(self, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `relight --json ARGS` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "relight.workers.cli", "--json", *args],
            capture_output=True,
            text=True,
            timeout=60,
            env=self.env(env),
            cwd=self.folder,
            check=False,
        )

    def enqueue(
        self, agent: Any, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any
    ) -> TaskHandle:
        handle: TaskHandle = agent.options(home=self.home, **(options or {})).enqueue(*args, **kwargs)
        return handle

    # -- what is to be seen -----------------------------------------------------------------------------------

    def open_barrier(self, name: str) -> None:
        (self.witness / name).touch()

    def lines(self, file: str = "lines") -> list[list[str]]:
        """The words of each witness line."""
        path = self.witness / file
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_lines(self, count: int, *, file: str = "lines", deadline: float = 15.0) -> list[list[str]]:
        wait_until(lambda: len(self.lines(file)) >= count, deadline)
        return self.lines(file)

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.home.db.rows(sql, params)

    def task(self, task_id: str) -> AgentTask:
        return tasks.find(self.home.db, task_id)

    def states(self) -> Counter[tuple[str, str | None]]:
        """How many tasks are in each (status, reason)."""
        return Counter((row[0], row[1]) for row in self.rows("SELECT status, reason FROM agent_tasks"))

    def wait_for_status(self, task_id: str, *wanted: str, deadline: float = 15.0) -> AgentTask:
        wait_until(lambda: self.task(task_id).status in wanted, deadline)
        return self.task(task_id)

    def events(self, task_id: str) -> list[str]:
        statement = "SELECT event_type FROM agent_events WHERE task_id = ? AND is_structural = 1 ORDER BY seq"
        return [row[0] for row in self.rows(statement, task_id)]

    def question(self, task_id: str, *, deadline: float = 15.0) -> Confirmation:
        """The open confirmation of a task, once it is there."""
        found: list[Confirmation] = []

        def is_asked() -> bool:
            found[:] = [one for one in confirmations.listing(self.home.db) if one.task_id == task_id]
            return bool(found)

        wait_until(is_asked, deadline)
        return found[0]

    def questions(self, task_id: str) -> list[tuple[str, str]]:
        """The (id, status) of every confirmation that a task ever had, oldest first."""
        statement = "SELECT id, status FROM confirmations WHERE task_id = ? ORDER BY asked_at, id"
        return [(row[0], row[1]) for row in self.rows(statement, task_id)]

    def in_doubt(self, confirmation_id: str) -> list[str]:
        return [step.step_key for step in confirmations.steps(self.home.db, confirmation_id)]

    # -- what must always hold --------------------------------------------------------------------------------

    def check_storage(self) -> None:
        """The file is whole, and every skeleton is gap-free."""
        assert self.rows("PRAGMA integrity_check") == [("ok",)]
        assert self.rows("PRAGMA foreign_key_check") == []
        gaps = (
            "SELECT task_id FROM agent_events GROUP BY task_id HAVING count(*) != max(seq) OR min(seq) != 1"
        )
        assert self.rows(gaps) == []
        ends = """
            SELECT task_id FROM agent_events WHERE event_type IN ('task_completed', 'task_failed')
            GROUP BY task_id HAVING count(*) > 1
        """
        assert self.rows(ends) == [], "a task ended twice"

    def check_nothing_finished_ran_again(self) -> None:
        """No witness line of a step is from a later attempt than its outcome.

        Lines are TASK STEP ATTEMPT KEY; the key ends in the step's key.
        """
        statement = """
            SELECT step_key, min(attempt) FROM task_traces
            WHERE task_id = ? AND event_kind = 'tool_call_completed' AND late = 0 AND superseded = 0 GROUP BY step_key
        """
        for task_id, lines in _by_task(self.lines()).items():
            ended = dict(self.rows(statement, task_id))
            again = [
                line
                for line in lines
                if int(line[2]) > ended.get(line[3].removeprefix(f"{task_id}:"), 1 << 30)
            ]
            assert again == [], f"task {task_id} ran finished steps again"

    def close(self) -> None:
        ended = [worker for worker in self.started if worker.has_ended()]
        for worker in self.started:
            worker.kill()
        for process in processes_in(self.folder) if ended else []:  # what they left behind
            with suppress(psutil.Error):
                process.kill()
        self.home.close()


def processes_in(folder: Path) -> list[psutil.Process]:
    """The other living processes that have a file below a folder open: their log at least.

    Their environment tells nothing: a fork shows that of the nursery.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            files = process.open_files() if process.pid != os.getpid() else []
            if any(Path(file.path).is_relative_to(folder.resolve()) for file in files):
                found.append(process)
    return found


def _by_task(lines: Iterable[list[str]]) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for line in lines:
        found.setdefault(line[0], []).append(line)
    return found


MakeStage = Callable[..., Stage]


@pytest.fixture
def make_stage(tmp_path: Path, nursery: Nursery) -> Iterator[MakeStage]:
    made: list[Stage] = []

    def make(name: str = "stage") -> Stage:
        folder = tmp_path / name
        (folder / "witness").mkdir(parents=True)
        home = Home.open(settings.load(home=folder / "home", env={}))
        made.append(Stage(folder, nursery, home))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    return make_stage()


__all__ = ["QUICK", "Forked", "MakeStage", "Nursery", "Stage", "processes_in"]
