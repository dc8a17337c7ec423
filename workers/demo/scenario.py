"""The demo, act by act: enqueue, kill the working process half-way, watch another take over, ask, and judge.

Invariant: every fact is worked out from the state file and the witness file when its act is over. An act that does
not get there in its time ends the demo; what was not shown counts as false.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ...models import confirmations, tasks, traces, workers
from ...models.confirmations import Confirmation, ConfirmationStep
from ...models.errors import InputError, RefusedError, RelightError
from ...models.tasks import AgentTask, Lane, TaskStatus
from .. import agents, settings
from ..home import Home
from . import facts, stage
from .crew import Crew, crew
from .facts import Answer, Fact, Kill
from .screen import Row, Screen, screen

T = TypeVar("T")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"  # beside the rooms, in a checkout and when installed
APPS = [EXAMPLES / name for name in ("explorer.py", "fixer.py", "answer.py")]
QUESTIONS = ("asyncio.gather", "json.dumps", "asyncio.Queue.get", "json.JSONDecoder.decode", "asyncio.wait_for")
SLOTS = 2  # of a Subagent worker: one for the explorer, one for the fixer
PACE_MS = 120  # a step; the tasks must last long enough for a second worker to start meanwhile
ACT_S = 20.0
LOOK_S = 0.005
DRAW_S = 0.1


class ActFailed(RelightError):
    """An act of the demo did not come to its end; the message says which and why."""


def run(*, home: Path | None, yes: bool) -> int:
    """Play the demo on `home`, or on a temporary folder. Returns 0 only if all four facts are true."""
    if not yes and not sys.stdin.isatty():
        raise InputError("there is no terminal to ask at: say yes beforehand with --yes")
    with ExitStack() as ends:
        ends.enter_context(_stopped_by_signals())
        folder = ends.enter_context(_folder(home))
        shown = screen()
        ends.callback(shown.close)
        workers_of_demo = ends.enter_context(crew(folder, APPS))
        opened = ends.enter_context(_opened(folder))
        play = Play(opened, workers_of_demo, shown, stage.build(folder / "demo"), assume_yes=yes)
        return play.perform()


@dataclass
class Play:
    """What the acts share."""

    home: Home
    crew: Crew
    screen: Screen
    stage: stage.Stage
    assume_yes: bool
    cast: dict[str, str] = field(default_factory=dict)  # task name → id, in the order of the board
    names: dict[str, str] = field(default_factory=dict)  # worker id → name
    facts: dict[int, Fact] = field(default_factory=dict)
    drawn: float = 0.0

    def perform(self) -> int:
        """Play all acts, then print the four facts."""
        try:
            self._acts()
        except ActFailed as failure:
            self.screen.say(f"stopped: {failure}", "red")
        self.screen.close()
        return self._verdict()

    def _acts(self) -> None:
        self._start()
        kill_ready = self._ask_main_lane()
        kill = self._kill_half_way(kill_ready)
        self._watch_takeover(kill)
        self._ask_for_yes(kill)

    # -- the acts ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.screen.say(f"state: {self.home.db.path}")
        for name, args in _FIRST_WORKERS.items():
            self.screen.say(f"started {name}, pid {self.crew.start(name, *args)}: relight worker {' '.join(args)}")
        pace = {"pace_ms": PACE_MS, "witness": str(self.stage.witness)}
        tree = {"source": str(self.stage.original), "target": str(self.stage.copy)}
        self._enqueue("explorer", "explorer", "Survey json and asyncio", **pace)
        self._enqueue("fixer", "fixer", "Tidy a copy", **tree, **pace)
        self._enqueue("next in line", "explorer", "Survey json", roots=[str(Path(json.__file__).parent)])
        self.screen.say("enqueued: explorer (reads, low risk), fixer (writes, high risk), and one more behind them")
        self._until("both tasks run", lambda: self._running("explorer") and self._running("fixer"))

    def _ask_main_lane(self) -> list[AgentTask]:
        self._enqueue("question", "answer", "Where is asyncio.run defined?", lane=Lane.MAIN)
        self._until("the Main worker answers", lambda: self._has_ended("question"))
        asked = [self._answered(f"Where is {name} defined?") for name in QUESTIONS]
        for task in asked:
            waited = (task.started_at or task.created_at) - task.created_at
            self.screen.say(f"{task.task_prompt} {json.loads(task.result_json or 'null')} Started after {waited} ms.")
        return asked

    def _kill_half_way(self, asked: Sequence[AgentTask]) -> Kill:
        name = "background worker 2"
        self.screen.say(f"started {name}, pid {self.crew.start(name, *_BACKGROUND)}: it will have to take over")
        self._until(f"{name} works", lambda: self._task("next in line").started_at)
        self._until("both tasks are half done, the fixer inside a write", self._half_way)
        victim = self._owner("fixer")
        self.crew.kill(victim.pid)
        kill = Kill(victim.id, self.home.now())
        self.screen.say(f"SIGKILL to pid {victim.pid}, which had both tasks half done", "bold red")
        background = [self._task("explorer"), self._task("fixer")]
        self._judge(3, facts.question_did_not_wait(asked, background, self._task("next in line"), kill))
        return kill

    def _watch_takeover(self, kill: Kill) -> None:
        self._until("the explorer runs again", lambda: self._task("explorer").attempt > 1)
        self._judge(1, facts.takeover(self._history("explorer"), kill))
        self._until("the explorer ends", lambda: self._has_ended("explorer"))
        report = json.loads(self._task("explorer").result_json or "{}")
        longest = report.get("longest") or {}
        self.screen.say(
            f"explorer: {report.get('files')} files, {report.get('functions')} functions; the longest is "
            f"{longest.get('name')} with {longest.get('lines')} lines ({longest.get('file')}:{longest.get('line')}); "
            f"{len(report.get('marks', []))} comments that leave work for later"
        )

    def _ask_for_yes(self, kill: Kill) -> None:
        asked = self._until("the fixer's question is filed", self._question)
        answer = self._answer(asked)
        if answer.status in _YES:
            self._until("the fixer ends", lambda: self._has_ended("fixer"))
        histories = {name: self._history(name) for name in ("explorer", "fixer")}
        self._judge(2, facts.no_repeat(histories, facts.executions(self.stage.executed()), kill))
        self._judge(4, facts.waited_for_yes(self._task("fixer"), histories["fixer"], answer, self.stage.wrong_files()))

    # -- the question about the fixer -------------------------------------------------------------------------

    def _question(self) -> Confirmation | None:
        mine = (one for one in confirmations.listing(self.home.db) if one.task_id == self.cast["fixer"])
        return next(mine, None)

    def _answer(self, asked: Confirmation) -> Answer:
        """Show what a person needs to know, then do what the person says."""
        doubtful = confirmations.steps(self.home.db, asked.id)
        self.screen.say(f"relight asks: {asked.request.get('why')}", "yellow")
        for step in doubtful:
            self.screen.say(f"in doubt: {step.step_key}; verify says: {_evidence(step)}", "yellow")
        if self.assume_yes:
            self.screen.say("Go on? yes (--yes)")
        if self.assume_yes or self.screen.ask("Shall the fixer go on?"):
            self._say_yes(asked, doubtful)
        else:
            confirmations.reject(self.home.db, asked.id, by="demo", reason="no, at the demo", now=self.home.now())
        decided = confirmations.find(self.home.db, asked.id)
        return Answer(decided.asked_at, decided.decided_at or 0, decided.status, decided.decided_by)

    def _say_yes(self, asked: Confirmation, doubtful: Sequence[ConfirmationStep]) -> None:
        if not doubtful:
            self.screen.say(f"relight approve {asked.id[-8:]}")
            confirmations.approve(self.home.db, asked.id, by="demo", now=self.home.now())
        for step in doubtful:
            self._resolve(asked, step)

    def _resolve(self, asked: Confirmation, step: ConfirmationStep) -> None:
        """Say of a doubtful write what its evidence says."""
        raise NotImplementedError

    # -- looking ----------------------------------------------------------------------------------------------

    def _until(self, what: str, answer: Callable[[], T | None]) -> T:
        end = time.monotonic() + ACT_S
        while not (found := answer()):
            if fallen := self.crew.fallen():
                raise ActFailed("; ".join(fallen))
            if time.monotonic() > end:
                raise ActFailed(f"after {ACT_S:g} s it is not yet so that {what}")
            self._draw()
            time.sleep(LOOK_S)
        self._draw()
        return found

    def _task(self, name: str) -> AgentTask:
        return tasks.find(self.home.db, self.cast[name])

    def _history(self, name: str) -> list[traces.TaskTrace]:
        return traces.by_task(self.home.db, self.cast[name])

    def _running(self, name: str) -> bool:
        return self._task(name).status == TaskStatus.RUNNING

    def _has_ended(self, name: str) -> bool:
        return self._task(name).status.is_terminal()

    def _owner(self, name: str) -> workers.Worker:
        """The worker that runs a task, from the workers table; it must be one of the demo's own."""
        task = self._task(name)
        for worker in workers.alive(self.home.db):
            if worker.id == task.worker_id and self.crew.name_of(worker.pid):
                return worker
        raise ActFailed(f"no living worker of the demo runs the {name}: it is {task.status}")
