"""How long recovery takes: a pass over ten thousand orphans, the replay of a thousand steps."""

from __future__ import annotations

import time
from pathlib import Path

from relight.models import claims, traces, workers
from relight.recovery import policy, replay, sweep
from relight.recovery.policy import RecoveryPolicy
from relight.workers.agents import enqueue_many
from relight.workers.home import Home
from relight.workers.lanes import LaneHuey

from . import agents
from .throughput import home_in

ORPHANS = 10_000


def sweep_s(folder: Path) -> float:
    """Seconds of one pass over ten thousand low-risk orphans."""
    home = home_in(folder, "power")
    _make_orphans(home)
    found = policy.parse(policy.DEFAULT_TEXT, path="policy.toml")
    assert isinstance(found, RecoveryPolicy)
    began = time.perf_counter()
    report = sweep.sweep(home.db, sweep.Rules(found, max_losses=3), now=home.now())
    took = time.perf_counter() - began
    assert len(report.resumed) == ORPHANS
    home.close()
    return took


def replay_ms(folder: Path) -> float:
    """Milliseconds to read the record of a thousand steps back."""
    home = home_in(folder, "process")
    task = agents.steps.options(home=home).enqueue(1_000)
    lane = LaneHuey("subagent", home=home)
    lane.execute(lane.dequeue())
    began = time.perf_counter()
    replay.history(traces.step_records(home.db, task.id))
    took = 1000 * (time.perf_counter() - began)
    home.close()
    return took


def _make_orphans(home: Home) -> None:
    bound = agents.noop.options(home=home)
    enqueue_many([bound.call() for _ in range(ORPHANS)])
    now = home.now()
    workers.insert(home.db, id="gone", lane="subagent", pid=1, host="here", lock_inode=0, nonce="", now=now)
    known = frozenset({"noop"})
    with home.db.write():
        while claims.claim(home.db, "subagent", worker_id="gone", now=now, known=known) is not None:
            pass
    workers.mark_dead(home.db, "gone", now=now)
