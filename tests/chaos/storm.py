"""The cast of processes, and the blows that fall on them: SIGKILL, SIGSTOP with SIGCONT, SIGTERM, of any process at any
moment, its children included. What dies or ends is started anew.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from relight.workers import settings
from relight.workers.home import Home
from tests.conftest import environment
from tests.crash import witness
from tests.crash.conftest import Forked, Nursery, processes_in

APP, PEOPLE = "tests.chaos.agents", "tests.chaos.people"
LEASE_MS = 500
SETTINGS = {
    "RELIGHT_APP": APP,
    "RELIGHT_SWEEP_MS": "100",
    "RELIGHT_LEASE_MS": str(LEASE_MS),
    "RELIGHT_GATE_MS": "100",
    "RELIGHT_GRACE_MS": "400",
    "RELIGHT_MAX_LOSSES": "4",
}
WORKERS = {
    "main": ["worker", "main", "--concurrency", "2"],
    "subagent": ["worker", "subagent", "--concurrency", "3"],
    "forking": ["worker", "subagent", "--kind", "process", "--concurrency", "2"],
    "all": ["worker", "all", "--concurrency", "2"],
    "upkeep": ["worker", "upkeep"],
    "up": ["up"],
}
FEW = ("subagent", "forking", "main")
KILL, STOP, TERM = "kill", "stop", "term"
LONGEST_STOP_S = 3 * LEASE_MS / 1000
SLOWEST_END_S = 10.0  # from TERM, on a machine that has other things to do


@dataclass
class Role:
    """One part in the play, and the process that plays it now."""

    name: str
    module: str
    args: list[str]
    process: Forked | None = None
    ending_since: float | None = None

    @property
    def is_person(self) -> bool:
        return self.module == PEOPLE


@dataclass
class Tally:
    """What the storm did."""

    blows: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    strange: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(count for name, count in self.blows.items() if name.startswith(KILL))


class Storm:
    """One run of chaos on one state directory."""

    def __init__(self, folder: Path, nursery: Nursery, *, seed: int, few: bool) -> None:
        self.folder, self.nursery, self.seed = folder, nursery, seed
        self.dice = random.Random(seed)
        self.tally = Tally()
        self.witness = folder / "witness"
        self.witness.mkdir()
        self.home = Home.open(settings.load(home=folder / "home", env=SETTINGS))
        workers = {name: WORKERS[name] for name in FEW} if few else WORKERS
        self.roles = [Role(name, "relight.workers.cli", args) for name, args in workers.items()]
        people = [["client", f"{seed}", f"{number}"] for number in range(1 if few else 2)]
        people += [["operator", f"{seed}"], ["recoverer", f"{seed}"]]
        self.roles += [Role("-".join(args[::2]), PEOPLE, args) for args in people]
        self._stopped: list[
            tuple[float, psutil.Process, bool]
        ] = []  # until when, who, and whether it is killed then

    def env(self) -> dict[str, str]:
        told = {name: text for name, text in environment().items() if not name.startswith("RELIGHT_")}
        return {**told, **SETTINGS, "RELIGHT_HOME": str(self.home.path), witness.VARIABLE: str(self.witness)}

    # -- the cast ---------------------------------------------------------------------------------------------

    def start(self, role: Role) -> None:
        log = self.folder / f"{role.name}.log"
        order: dict[str, Any] = {"module": role.module, "args": role.args, "cwd": str(self.folder)}
        pid = self.nursery.ask(**order, env=self.env(), log=str(log))
        role.process = Forked(self.nursery, pid, log)
        role.ending_since = None
        self.tally.starts += 1

    def keep_going(self) -> None:
        """Start anew what has ended; wake what was stopped for long enough."""
        now = time.monotonic()
        for until, victim, dies in [one for one in self._stopped if one[0] <= now]:
            self._stopped.remove((until, victim, dies))
            number, name = (signal.SIGKILL, f"{KILL} stopped") if dies else (signal.SIGCONT, "continue")
            self._hit(victim, number, name)
        for role in self.roles:
            if role.process is None:
                self.start(role)
            elif role.process.has_ended():
                if role.ending_since is None and role.process.code not in (0, -signal.SIGKILL):
                    self.tally.strange.append(f"{role.name} ended by itself with {role.process.code}")
                self.start(role)
            elif role.ending_since is not None and now - role.ending_since > SLOWEST_END_S + LONGEST_STOP_S:
                self.tally.strange.append(f"{role.name} did not end after TERM")
                role.process.kill()

    # -- blows ------------------------------------------------------------------------------------------------

    def rage(self, kills: int, *, pace_s: float, until: float) -> None:
        """Strike until so many processes were killed, or the time is over."""
        while self.tally.kills < kills and time.monotonic() < until:
            self.keep_going()
            self.strike()
            threading.Event().wait(self.dice.expovariate(1 / pace_s))

    def strike(self) -> None:
        role = self.dice.choice(self.roles + [role for role in self.roles if not role.is_person])
        if role.process is None or not (family := role.process.family()):
            return
        victim, what = family[0], role.name
        if len(family) > 1 and self.dice.random() < 0.6:
            victim, what = self.dice.choice(family[1:]), f"child of {role.name}"
        match self.dice.random():
            case p if p < 0.7:
                self._hit(victim, signal.SIGKILL, f"{KILL} {what}")
            case p if p < 0.92:
                if self._hit(victim, signal.SIGSTOP, f"{STOP} {what}"):
                    until = time.monotonic() + self.dice.random() * LONGEST_STOP_S
                    self._stopped.append((until, victim, self.dice.random() < 0.3))
            case _ if not role.is_person and role.ending_since is None:
                if self._hit(family[0], signal.SIGTERM, f"{TERM} {role.name}"):
                    role.ending_since = time.monotonic()

    def _hit(self, victim: psutil.Process, number: int, name: str) -> bool:
        """Signal a process, and no other that has got its number meanwhile."""
        try:
            victim.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        self.tally.blows[name] += 1
        return True

    # -- calm -------------------------------------------------------------------------------------------------

    def calm_down(self, is_settled: Callable[[], bool], *, patience_s: float) -> bool:
        """Strike no more; whether everything came to rest in time."""
        self._stopped = [(0.0, victim, False) for _, victim, _ in self._stopped]
        deadline = time.monotonic() + patience_s
        while not (settled := is_settled()) and time.monotonic() < deadline:
            self.keep_going()
            threading.Event().wait(0.05)
        return settled

    def end(self) -> None:
        """Ask everybody to end, and see that they do."""
        for role in self.roles:
            if role.process is not None and not role.process.has_ended():
                with suppress(ProcessLookupError):
                    role.process.signal(signal.SIGTERM)
        deadline = time.monotonic() + SLOWEST_END_S
        for role in self.roles:
            while role.process is not None and not role.process.has_ended():
                if time.monotonic() > deadline:
                    self.tally.strange.append(f"{role.name} did not end after TERM")
                    break
                threading.Event().wait(0.02)

    def clear(self) -> None:
        """Leave nothing running."""
        for process in processes_in(self.folder):
            with suppress(psutil.Error):
                process.kill()
        for role in self.roles:
            if role.process is not None:
                role.process.kill()
        self.home.close()
