from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from relight.models import claims, tasks, workers
from relight.models.database import Database
from relight.models.errors import StorageLockedError
from relight.models.schema import open_database
from relight.models.tasks import AgentTask, RiskLevel, TaskStatus
from relight.workers.ownership import Owner, Prober, Proofs
from tests.conftest import environment, wait_until

LEASE_MS = 30_000
OWNER = """
import os, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from relight.models.schema import open_database
from relight.workers.ownership import Owner

home = Path(sys.argv[1])
clock = lambda: time.time_ns() // 1_000_000
db = open_database(home / "state.db", now=clock())
owner = Owner.start(db, home, "main", clock=clock, lease_ms=int(sys.argv[2]))
children = sys.argv[3]
if children == "fork" and os.fork() == 0:
    os.close(1)
    time.sleep(60)
elif children == "Popen":
    subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, close_fds=False)
elif children == "shell":
    os.system("sleep 60 >/dev/null &")
elif children == "pool":
    pool = ProcessPoolExecutor(2, mp_context=get_context("fork"))
    pool.submit(abs, 1).result()
    for _ in range(2):
        pool.submit(time.sleep, 60)
print(owner.id, flush=True)
time.sleep(60)
"""


class Running:
    """An owner in a process of its own."""

    def __init__(self, home: Path, *, lease_ms: int = LEASE_MS, children: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(home), str(lease_ms), children],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.id = self.process.stdout.readline().strip()
        assert self.id

    def kill_owner_only(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


StartOwner = Callable[..., Running]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    database = open_database(folder / "state.db", now=clock())
    yield database
    database.close_all()


@pytest.fixture
def start_owner(folder: Path, db: Database) -> Iterator[StartOwner]:
    started: list[Running] = []

    def start(**options: object) -> Running:
        started.append(Running(folder, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for running in started:
        running.end()


def clock() -> int:
    return time.time_ns() // 1_000_000


def probe(prober: Prober, db: Database, *, monotonic: int = 0, lease_ms: int = LEASE_MS) -> Proofs:
    return prober.probe(db, now=clock(), monotonic=monotonic, lease_ms=lease_ms)


def claimed(db: Database, task_id: str, owner_id: str) -> AgentTask:
    tasks.submit(db, AgentTask.new(task_id, "s", "agent", "", RiskLevel.LOW, now=clock()), now=clock())
    task = claims.claim(db, "subagent", worker_id=owner_id, now=clock(), known=frozenset({"agent"}))
    assert task is not None
    return task


def test_a_killed_owner_is_proved_dead_at_the_next_probe(
    folder: Path, db: Database, start_owner: StartOwner
) -> None:
    owner, prober = start_owner(), Prober(folder)
    assert probe(prober, db) == Proofs()
    owner.kill_owner_only()
    assert probe(prober, db) == Proofs(dead=frozenset({owner.id}))
    assert workers.alive(db) == []
    assert not (folder / "locks" / owner.id).exists()
    assert probe(prober, db) == Proofs()


def test_a_stopped_owner_loses_its_lease_and_is_not_proved_dead(
    folder: Path, db: Database, start_owner: StartOwner
) -> None:
    owner, prober = start_owner(), Prober(folder)
    os.kill(owner.process.pid, signal.SIGSTOP)
    step = LEASE_MS // 3
    found = [probe(prober, db, monotonic=at * step) for at in range(4)]
    assert [sorted(proofs.lease_out) for proofs in found] == [[], [], [], [owner.id]]
    assert not any(proofs.dead for proofs in found)
    os.kill(owner.process.pid, signal.SIGCONT)
    wait_until(lambda: not probe(prober, db, monotonic=4 * step).lease_out)


def test_a_pause_of_the_watcher_expires_nobodys_lease(
    folder: Path, db: Database, start_owner: StartOwner
) -> None:
    """Both may have been stopped together, a suspended container for instance."""
    owner, prober = start_owner(), Prober(folder)
    os.kill(owner.process.pid, signal.SIGSTOP)
    probe(prober, db, monotonic=0)
    assert probe(prober, db, monotonic=100 * LEASE_MS) == Proofs()


def test_a_living_owner_keeps_its_lease_however_long_one_watches(
    folder: Path, db: Database, start_owner: StartOwner
) -> None:
    owner, prober = start_owner(lease_ms=100), Prober(folder)
    seen = (folder / "locks" / owner.id).read_bytes()
    for at in range(20):
        wait_until(lambda before=seen: (folder / "locks" / owner.id).read_bytes() != before)
        seen = (folder / "locks" / owner.id).read_bytes()
        assert probe(prober, db, monotonic=at * 1000, lease_ms=100) == Proofs()


def test_a_watch_begins_anew_after_our_own_writes_failed(
    folder: Path, db: Database, start_owner: StartOwner
) -> None:
    owner, prober = start_owner(), Prober(folder)
    os.kill(owner.process.pid, signal.SIGSTOP)
    step = LEASE_MS // 3
    for at in range(3):
        probe(prober, db, monotonic=at * step)
    prober.forget()
    assert probe(prober, db, monotonic=3 * step) == Proofs()
    assert probe(prober, db, monotonic=4 * step) == Proofs()


@pytest.mark.parametrize("children", ["fork", "Popen", "shell", "pool"])
def test_no_child_keeps_a_dead_owners_lock_alive(
    folder: Path, db: Database, start_owner: StartOwner, children: str
) -> None:
    owner, prober = start_owner(children=children), Prober(folder)
    assert probe(prober, db) == Proofs()
    owner.kill_owner_only()
    # A child that was forked a moment ago may not have come to closing its copy yet.
    wait_until(lambda: probe(prober, db).dead == {owner.id})


@pytest.mark.parametrize("children", ["fork", "pool"])
def test_a_child_that_ends_frees_no_lock(
    folder: Path, db: Database, start_owner: StartOwner, children: str
) -> None:
    owner = start_owner(children=children)
    for child in _children_of(owner.process.pid):
        with suppress(ProcessLookupError):  # a pool ends its other processes when one is killed
            os.kill(child, signal.SIGKILL)
    wait_until(lambda: not _living_children_of(owner.process.pid))
    assert probe(Prober(folder), db) == Proofs()


def test_a_lock_file_that_is_gone_or_another_proves_nothing_but_lets_the_lease_run_out(
    folder: Path, db: Database, start_owner: StartOwner
) -> None:
    removed, replaced, emptied = start_owner(), start_owner(), start_owner()
    locks = folder / "locks"
    (locks / removed.id).unlink()
    shutil.copy(locks / replaced.id, locks / "copy")
    (locks / "copy").rename(locks / replaced.id)
    os.truncate(locks / emptied.id, 0)
    os.kill(emptied.process.pid, signal.SIGSTOP)
    prober = Prober(folder)
    found = [probe(prober, db, monotonic=at * LEASE_MS // 3) for at in range(4)]
    assert not any(proofs.dead for proofs in found)
    assert found[-1].lease_out == {removed.id, replaced.id, emptied.id}
    assert (locks / replaced.id).exists(), "only its owner's death may remove it"
    assert not (locks / removed.id).exists(), "who looks creates nothing"


def test_death_is_committed_before_the_lock_file_goes(
    folder: Path, db: Database, start_owner: StartOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, prober = start_owner(), Prober(folder)
    owner.kill_owner_only()

    def locked(*_: object, **__: object) -> None:
        raise StorageLockedError("busy")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "mark_dead", locked)
        with pytest.raises(StorageLockedError):
            probe(prober, db)
    assert (folder / "locks" / owner.id).exists()
    assert probe(prober, db).dead == {owner.id}


def test_a_lock_file_that_nobody_names_or_holds_is_removed(
    folder: Path, db: Database, start_owner: StartOwner
) -> None:
    """What a sweeper leaves that dies between its commit and the removal; other files stay."""
    dead, living = start_owner(), start_owner()
    dead.kill_owner_only()
    workers.mark_dead(db, dead.id, now=clock())
    probe(Prober(folder), db)
    assert {entry.name for entry in (folder / "locks").iterdir()} >= {living.id, "write"}
    assert not (folder / "locks" / dead.id).exists()


def test_an_owner_that_signs_off_needs_no_proof(folder: Path, db: Database) -> None:
    owner = Owner.start(db, folder, "main", clock=clock, lease_ms=LEASE_MS)
    assert owner.alive
    assert [worker.id for worker in workers.alive(db)] == [owner.id]
    assert probe(Prober(folder), db) == Proofs(), "a process does not take its own lock for a dead one's"
    owner.retire()
    assert not owner.alive
    assert workers.alive(db) == []


def test_an_owner_that_leaves_work_behind_does_not_sign_off(folder: Path, db: Database) -> None:
    owner = Owner.start(db, folder, "main", clock=clock, lease_ms=LEASE_MS)
    task = claimed(db, "t", owner.id)
    owner.take(task.id, task.attempt)
    owner.retire()
    assert [worker.id for worker in workers.alive(db)] == [owner.id]
    assert probe(Prober(folder), db).dead == {owner.id}


def test_a_claim_that_is_missing_from_memory_is_interrupted_as_lost(folder: Path, db: Database) -> None:
    owner = Owner.start(db, folder, "main", clock=clock, lease_ms=300)
    known, lost = claimed(db, "known", owner.id), claimed(db, "lost", owner.id)
    owner.take(known.id, known.attempt)
    wait_until(lambda: tasks.find(db, lost.id).status == TaskStatus.INTERRUPTED)
    found = tasks.find(db, lost.id)
    assert (found.reason, found.worker_id, found.losses) == ("lost", None, 1)
    assert tasks.find(db, known.id).status == TaskStatus.RUNNING
    owner.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # forking beside threads is what is tested
def test_a_forked_child_is_not_its_parent(folder: Path, db: Database) -> None:
    owner = Owner.start(db, folder, "main", clock=clock, lease_ms=LEASE_MS)
    owner.take("t", 1)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            own = Owner.start(db, folder, "main", clock=clock, lease_ms=LEASE_MS)
            alone = not owner.alive and not owner.claims and own.id != owner.id
            owner.close()
            own.retire()
            status = 0 if alone else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert owner.alive
    assert owner.claims == {("t", 1)}
    assert probe(Prober(folder), db) == Proofs()
    assert [worker.id for worker in workers.alive(db)] == [owner.id]
    owner.close()


def _children_of(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _living_children_of(pid: int) -> list[int]:
    import psutil

    children = psutil.Process(pid).children(recursive=True)
    return [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]
