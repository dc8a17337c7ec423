"""The demo, act by act: enqueue, kill the working process half-way, watch another take over, ask, and judge.

Invariant: every fact is worked out from the state file and the witness file when its act is over. An act that does
not come to its end in time ends the demo; what was not shown counts as false.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ...models.errors import InputError, RefusedError
from ...models.tasks import AgentTask, Lane
from .. import apps, bells, settings
from ..agents import ref
from ..home import Home
from . import asking, facts, stage
from .crew import Crew, crew
from .facts import APPROVED, CLAIMS, Fact, Kill
from .screen import Screen, screen
from .view import ActFailed, View

# Beside the rooms, in a checkout as well as where Relight is installed.
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
APPS = [EXAMPLES / name for name in ("explorer.py", "fixer.py", "answer.py")]
QUESTIONS = (
    "asyncio.gather",
    "json.dumps",
    "asyncio.Queue.get",
    "json.JSONDecoder.decode",
    "asyncio.wait_for",
)
BACKGROUND = ("subagent", "--concurrency", "2")  # a slot for the explorer and one for the fixer
FIRST_WORKERS = {"main": ("main",), "background-1": BACKGROUND, "upkeep": ("upkeep",)}
# A step takes so long that half of the fixer's 35 last three times as long as a worker needs to start, or longer.
PACE_MS, SLOWEST_PACE_MS, STEPS_PER_START = 120, 500, 6


def run(*, home: Path | None, yes: bool) -> int:
    """Play the demo in `home`, or in a temporary folder; 0 only if all four facts are true."""
    if not yes and not sys.stdin.isatty():
        raise InputError("there is no terminal to ask at; answer yes beforehand with --yes")
    apps.load(map(str, APPS))  # so that the tasks carry the risk that their agents declare
    with ExitStack() as ends:
        ends.enter_context(_stopped_by_signals())
        folder = ends.enter_context(_folder(home))
        opened = ends.enter_context(_opened(folder))
        workers = ends.enter_context(crew(folder, APPS))
        shown = screen()
        ends.callback(shown.close)
        view = View(opened, workers, shown)
        return Play(opened, workers, shown, view, stage.build(folder / "demo"), assume_yes=yes).perform()


@dataclass
class Play:
    """What the acts share."""

    home: Home
    crew: Crew
    screen: Screen
    view: View
    stage: stage.Stage
    assume_yes: bool
    facts: dict[int, Fact] = field(default_factory=dict)

    def perform(self) -> int:
        """Play all acts, then print the facts."""
        try:
            self._start()
            asked = self._ask_main_lane()
            kill = self._kill_half_way()
            self._judge(3, facts.question_did_not_wait(asked, *self._background(), kill=kill))
            self._watch_takeover(kill)
            self._ask_for_yes(kill)
        except ActFailed as failure:
            self.screen.say(f"stopped: {failure}", "bold red")
        self.view.draw()
        self.screen.close()
        return self._verdict()

    def _start(self) -> None:
        self.screen.say(f"state: {self.home.db.path}")
        began = time.monotonic()
        for name, words in FIRST_WORKERS.items():
            self._start_worker(name, *words)
        for lane in Lane:
            self._wait_for_workers(lane)
        self._enqueue_background(start_ms=round((time.monotonic() - began) * 1000))
        self.screen.say(
            "enqueued explorer (low risk, reads), fixer (high risk, writes), one more behind them"
        )
        self.view.until("both tasks run", lambda: all(map(self.view.running, ("explorer", "fixer"))))

    def _enqueue_background(self, *, start_ms: int) -> None:
        roots = stage.standard_packages()
        steps = [1 + len(list(Path(root).rglob("*.py"))) for root in roots]  # the list, then each file
        pace_ms = min(max(PACE_MS, start_ms // STEPS_PER_START), SLOWEST_PACE_MS)
        pace = {"pace_ms": pace_ms, "witness": str(self.stage.witness)}
        tree = {"source": str(self.stage.original), "target": str(self.stage.copy)}
        self._enqueue("explorer", "explorer", "Survey", {"roots": roots, **pace}, steps=sum(steps) - 1)
        self._enqueue("fixer", "fixer", "Tidy a copy", {**tree, **pace}, steps=2 + len(self.stage.untidy))
        self._enqueue("next in line", "explorer", "Survey", {"roots": roots[:1]}, steps=steps[0])

    def _ask_main_lane(self) -> list[AgentTask]:
        self._ask_question("asyncio.run")  # until it is answered, the Main worker may still be starting
        asked = [self._ask_question(name) for name in QUESTIONS]
        for task in asked:
            waited = (task.started_at or task.created_at) - task.created_at
            self.screen.say(
                f"{task.task_prompt} {json.loads(task.result_json or 'null')} Started after {waited} ms."
            )
        return asked

    def _ask_question(self, name: str) -> AgentTask:
        self._enqueue("question", "answer", f"Where is {name} defined?", {}, steps=1, lane=Lane.MAIN)
        self.view.until("the Main worker answers", lambda: self.view.has_ended("question"))
        return self.view.task("question")

    def _kill_half_way(self) -> Kill:
        self._start_worker("background-2", *BACKGROUND)
        self.view.until(
            "the second background worker works", lambda: self.view.task("next in line").started_at
        )
        self.view.until("both tasks are half done, the fixer inside a write", self._half_way)
        victim = self.view.owner("fixer")
        self.crew.kill(victim.pid)
        kill = Kill(victim.id, self.home.now())
        self.screen.say(
            f"SIGKILL to {self.crew.name_of(victim.pid)}, pid {victim.pid}, half-way in both tasks",
            "bold red",
        )
        return kill

    def _half_way(self) -> bool:
        explorer, fixer = self.view.steps("explorer"), self.view.steps("fixer")
        return explorer.done >= explorer.total // 2 and fixer.done >= fixer.total // 2 and fixer.writing

    def _background(self) -> tuple[list[AgentTask], AgentTask]:
        return [self.view.task("explorer"), self.view.task("fixer")], self.view.task("next in line")

    def _watch_takeover(self, kill: Kill) -> None:
        self.view.until("another worker runs the explorer", lambda: self.view.task("explorer").attempt > 1)
        self._judge(1, facts.takeover(self.view.history("explorer"), kill))
        self.view.until("the explorer ends", lambda: self.view.has_ended("explorer"))
        self.screen.say(f"the explorer reports: {_report(self.view.task('explorer'))}")

    def _ask_for_yes(self, kill: Kill) -> None:
        about = self.view.cast["fixer"]
        asked = self.view.until(
            "the question about the fixer is filed", lambda: asking.question(self.home, about)
        )
        answer = asking.answer(self.home, self.crew, self.screen, asked, assume_yes=self.assume_yes)
        if answer.status in APPROVED:
            self.view.until("the fixer ends", lambda: self.view.has_ended("fixer"))
        histories = {name: self.view.history(name) for name in ("explorer", "fixer")}
        self._judge(2, facts.no_repeat(histories, facts.executions(self.stage.executed()), kill))
        wrong = self.stage.wrong_files()
        self._judge(4, facts.waited_for_yes(self.view.task("fixer"), histories["fixer"], answer, wrong))

    def _start_worker(self, name: str, *lane: str) -> None:
        self.screen.say(
            f"started {name}, pid {self.crew.start(name, *lane)}: relight worker {' '.join(lane)}"
        )

    def _wait_for_workers(self, lane: Lane) -> None:
        self.view.until(f"a worker serves the {lane} lane", lambda: bells.listeners(self.home.path, lane))

    def _enqueue(
        self,
        name: str,
        agent: str,
        prompt: str,
        given: dict[str, Any],
        *,
        steps: int,
        lane: Lane = Lane.SUBAGENT,
    ) -> None:
        handle = ref(agent).options(lane=lane, home=self.home).enqueue(prompt, **given)
        self.view.cast[name], self.view.totals[name] = handle.id, steps

    def _judge(self, number: int, fact: Fact) -> None:
        self.facts[number] = fact
        word, style = _WORDS[fact.holds]
        self.screen.say(f"{word.strip()}: {CLAIMS[number]}", style)

    def _verdict(self) -> int:
        """Print the four facts; what an act did not get to is false."""
        self.screen.print("")
        missing = Fact(False, "the demo did not get there")
        found = {number: self.facts.get(number, missing) for number in CLAIMS}
        for number, fact in found.items():
            word, style = _WORDS[fact.holds]
            self.screen.print(f"{number}. {word} {CLAIMS[number]}: {fact.evidence}.", style)
        return 0 if all(fact.holds for fact in found.values()) else 1


_WORDS = {True: ("true ", "green"), False: ("FALSE", "bold red")}


def _report(task: AgentTask) -> str:
    report = json.loads(task.result_json or "{}")
    longest = report.get("longest") or {}
    return (
        f"{report.get('files')} files, {report.get('functions')} functions, the longest is {longest.get('name')} with "
        f"{longest.get('lines')} lines ({longest.get('file')}:{longest.get('line')}), "
        f"{len(report.get('marks', []))} comments leave work for later"
    )


@contextmanager
def _opened(folder: Path) -> Iterator[Home]:
    """The state directory with nothing but defaults: neither this person's settings nor those of this folder."""
    opened = Home.open(settings.load(home=folder, env={}, cwd=folder))
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def _folder(home: Path | None) -> Iterator[Path]:
    """A temporary folder that is gone afterwards, or the one that was named, which stays."""
    if home is None:
        with tempfile.TemporaryDirectory(prefix="relight-demo-") as name:
            yield Path(name)
        return
    folder = home.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise RefusedError(f"{folder} is not empty; the demo wants a folder of its own")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    yield folder


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """TERM, HUP and INT end the demo with everything put away."""
    # INT too: a shell starts what it runs in the background with INT ignored, and Python keeps it so.
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
