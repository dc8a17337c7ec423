"""Worker rows: who is alive, who is proved dead, and what they were running."""

from __future__ import annotations

from relight.models import transitions, workers
from relight.models.database import Database
from tests.models.conftest import NOW, Claim


def insert(db: Database, id: str) -> None:
    workers.insert(db, id=id, lane="main", pid=7, host="h", lock_inode=3, nonce="n", now=NOW)


def test_a_worker_is_alive_until_it_is_proved_dead(db: Database) -> None:
    insert(db, "w1")
    insert(db, "w2")
    workers.mark_dead(db, "w1", now=NOW + 5)
    assert [worker.id for worker in workers.alive(db)] == ["w2"]
    [worker] = workers.alive(db)
    assert (worker.lane, worker.pid, worker.host, worker.lock_inode, worker.nonce) == ("main", 7, "h", 3, "n")
    assert (worker.started_at, worker.renewed_at, worker.dead_at) == (NOW, NOW, None)


def test_the_first_proof_of_a_death_stays(db: Database) -> None:
    insert(db, "w1")
    workers.mark_dead(db, "w1", now=NOW + 5)
    workers.mark_dead(db, "w1", now=NOW + 9)
    assert db.row("SELECT dead_at FROM workers") == (NOW + 5,)


def test_renewing_informs_and_does_not_revive(db: Database) -> None:
    insert(db, "w1")
    workers.renew(db, "w1", now=NOW + 3)
    assert workers.alive(db)[0].renewed_at == NOW + 3
    workers.mark_dead(db, "w1", now=NOW + 5)
    workers.renew(db, "w1", now=NOW + 9)
    assert workers.alive(db) == []


def test_claims_are_those_running_under_the_name(db: Database, claim: Claim) -> None:
    claim("t1", worker="w1")
    claim("t2", worker="w1")
    claim("t3", worker="w2")
    transitions.interrupt(db, "t2", reason="shutdown", now=NOW, attempt=1, keep_owner=True)
    assert workers.running_claims(db, "w1") == [("t1", 1)]
    assert workers.running_claims(db, "nobody") == []


def test_the_dead_are_forgotten_once_no_task_names_them(db: Database, claim: Claim) -> None:
    for id in ("w1", "w2", "w3"):
        insert(db, id)
    claim("t1", worker="w1")
    workers.mark_dead(db, "w1", now=NOW)
    workers.mark_dead(db, "w2", now=NOW)
    workers.forget_dead(db, before=NOW)
    assert db.row("SELECT count(*) FROM workers") == (3,)
    workers.forget_dead(db, before=NOW + 1)
    assert db.rows("SELECT id FROM workers ORDER BY id") == [("w1",), ("w3",)]
