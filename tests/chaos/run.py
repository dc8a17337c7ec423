"""One run of chaos, from the first process to the verdict."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.people import ACKS, OVER, lines_in
from tests.chaos.storm import APP, PEOPLE, Storm, Tally
from tests.chaos.verdict import Fault, Verdict, history, is_settled
from tests.crash.conftest import Nursery, processes_in

STEADY_S = 1.0  # how long everything has to be at rest before it is over
SHOWN = 5  # offending tasks whose history is printed
COUNTS = {
    "tasks": "SELECT status || coalesce(' ' || reason, ''), count(*) FROM agent_tasks GROUP BY 1 ORDER BY 2 DESC",
    "questions": "SELECT status, count(*) FROM confirmations GROUP BY 1 ORDER BY 2 DESC",
    "answers": "SELECT coalesce(decision, 'none'), count(*) FROM confirmation_steps GROUP BY 1 ORDER BY 2 DESC",
    "events": """
        SELECT event_type, count(*) FROM agent_events WHERE event_type IN
        ('task_started', 'task_recovered', 'task_interrupted', 'task_retrying', 'task_retried', 'task_spawned')
        GROUP BY 1 ORDER BY 2 DESC
    """,
}
PASSES = "SELECT max(id), sum(resumed + asked + skipped + quarantined > 0) FROM recovery_runs"
EXPECTED = "ValueError: the first time"  # of an agent that stumbles


@dataclass
class Result:
    """What a run did and found."""

    seed: int
    seconds: float
    tally: Tally
    faults: list[Fault]
    told: list[str]

    def text(self) -> str:
        return "\n".join(self.told)


def run(
    *, seed: int, kills: int, seconds: float, pace_s: float, patience_s: float = 90.0, few: bool = False
) -> Result:
    """Let the storm rage for so many kills, at most so many seconds; then let everything come to rest, and judge."""
    with _storm(seed, few=few) as storm:
        began = time.monotonic()
        storm.rage(kills, pace_s=pace_s, until=began + seconds)
        raged = time.monotonic() - began
        (storm.witness / OVER).touch()
        settled = storm.calm_down(_Steady(storm), patience_s=patience_s)
        (storm.witness / f"{OVER}-for-all").touch()
        storm.end()
        verdict = Verdict(storm.home, storm.witness, seed)
        faults = [("-", what) for what in storm.tally.strange]
        faults += [
            ("-", f"process {one.pid} is left behind: {one.cmdline()}") for one in processes_in(storm.folder)
        ]
        faults += [] if settled else [("-", f"not at rest after {patience_s:g} s")]
        faults += verdict.faults()
        told = [f"raged for {raged:.0f} s, at rest {time.monotonic() - began - raged:.0f} s later"]
        told += [*_totals(storm), *_logged(storm), *_accused(storm, faults)]
        return Result(seed, time.monotonic() - began, storm.tally, faults, told)


@contextmanager
def _storm(seed: int, *, few: bool) -> Iterator[Storm]:
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        nursery = Nursery(APP, PEOPLE)
        storm = Storm(Path(folder), nursery, seed=seed, few=few)
        try:
            yield storm
        finally:
            storm.clear()
            nursery.close()


class _Steady:
    """Whether everything has been at rest for a while: an operator may still have something tried again."""

    def __init__(self, storm: Storm) -> None:
        self.storm, self.since = storm, 0.0

    def __call__(self) -> bool:
        if not is_settled(self.storm.home, self.storm.seed):
            self.since = 0.0
            return False
        self.since = self.since or time.monotonic()
        return time.monotonic() - self.since > STEADY_S


def _totals(storm: Storm) -> list[str]:
    rows = storm.home.db.rows
    tally = storm.tally
    blows = Counter(name.partition(" ")[0] for name in tally.blows.elements())
    shown = [f"{title}: {_list(rows(sql))}" for title, sql in COUNTS.items()]
    (late,) = rows("SELECT count(*) FROM task_traces WHERE late = 1")[0]
    (passes, busy) = rows(PASSES)[0]
    acknowledged, ran = (len(lines_in(storm.witness, file)) for file in (ACKS, "lines"))
    return [
        f"blows: {_list(blows.items())}; processes started: {tally.starts}",
        f"on: {_list(tally.blows.most_common())}",
        *shown,
        f"acknowledged: {acknowledged}; steps that really ran: {ran}, ended late: {late}",
        f"recovery passes: {passes}, with something to do: {busy}",
    ]


def _logged(storm: Storm) -> list[str]:
    """What the processes complained about, each complaint once."""
    found: Counter[str] = Counter()
    for log in storm.folder.glob("*.log"):
        for line in log.read_text(errors="replace").splitlines():
            if "Error:" in line[:80] and EXPECTED not in line:
                found[line[:120]] += 1
    return [f"logged {count} times: {line}" for line, count in found.most_common(10)]


def _accused(storm: Storm, faults: list[Fault]) -> list[str]:
    told = [f"FAULT {task_id}: {what}" for task_id, what in faults]
    accused = list(dict.fromkeys(task_id for task_id, _ in faults if task_id != "-"))
    return [*told, *(history(storm.home, storm.witness, task_id) for task_id in accused[:SHOWN])]


def _list(pairs: object) -> str:
    return ", ".join(f"{name} {count}" for name, count in pairs)  # type: ignore[attr-defined]
