"""A real state file, tasks that have lost their worker, and the rules of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.models import claims, journal, schema, tasks, workers
from relight.models.database import Database
from relight.models.journal import Claim, StepCall
from relight.models.tasks import AgentTask, RiskLevel
from relight.recovery import policy
from relight.recovery.policy import PolicyFault, RecoveryPolicy
from relight.recovery.sweep import Rules
from tests.models.conftest import AGENT, NOW, new_task

LATER = NOW + 60_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    opened = schema.open_database(path, now=NOW)
    for name in ("dead", "alive"):
        workers.insert(opened, id=name, lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    workers.mark_dead(opened, "dead", now=NOW)
    yield opened
    opened.close_all()


class Orphanage:
    """Makes tasks that were running under a worker that is dead."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def take(
        self, id: str, risk: RiskLevel = RiskLevel.LOW, *, worker: str = "dead", now: int = NOW
    ) -> AgentTask:
        """A task that this worker runs."""
        tasks.submit(self.db, new_task(id, risk=risk, now=now), now=now)
        return self.claim(id, worker=worker)

    def claim(self, id: str, *, worker: str = "dead") -> AgentTask:
        now = LATER + 60_000  # the longest back-off is over
        found = claims.claim(self.db, "subagent", worker_id=worker, now=now, known=frozenset({AGENT}))
        assert found is not None
        assert found.id == id
        return found

    def begin(self, task: AgentTask, key: str, effect: str = "read", digest: str = "d1") -> StepCall:
        """Store the intent of a step."""
        call = StepCall(key, digest, effect)
        name = key.partition("#")[0]
        event = f'{{"kind":"tool_call_started","call":{{"tool_id":"{key}","tool_name":"{name}","input":{{"n":1}}}}}}'
        journal.accept_intent(self.db, claim_of(task), call, event, told={"step": key}, now=LATER)
        return call

    def finish(self, task: AgentTask, call: StepCall) -> None:
        """Store the outcome of a step."""
        event = '{"kind":"tool_call_completed","result":{"status":"success","output":1}}'
        journal.record_outcome(self.db, claim_of(task), call, event, told={"step": call.key}, now=LATER)

    def step(self, task: AgentTask, key: str, effect: str = "read") -> None:
        self.finish(task, self.begin(task, key, effect))


def claim_of(task: AgentTask) -> Claim:
    return Claim(task.id, task.attempt, str(task.worker_id))


@pytest.fixture
def orphanage(db: Database) -> Orphanage:
    return Orphanage(db)


def shipped() -> RecoveryPolicy:
    found = policy.parse(policy.DEFAULT_TEXT, path="policy.toml")
    assert not isinstance(found, PolicyFault)
    return found


def rules(
    followed: RecoveryPolicy | PolicyFault | None = None,
    *,
    max_losses: int = 3,
    lease_out: tuple[str, ...] = (),
) -> Rules:
    return Rules(followed or shipped(), max_losses, frozenset(lease_out))
