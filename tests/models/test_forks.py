"""A fork, whoever makes it and whatever runs meanwhile, loses no commit and keeps no lock alive."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from relight.models import forks, schema
from relight.models.database import Database
from tests.models.conftest import NOW

INSERT = "INSERT INTO kv (queue, key, value) VALUES ('q', ?, ?)"


@pytest.fixture(autouse=True)
def forks_beside_threads_are_the_point() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a forked child; its exit code (1 when it raised)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def insert(db: Database, key: str) -> None:
    with db.write():
        db.change(INSERT, (key, 1))


def keys(db: Database) -> set[str]:
    return {row[0] for row in db.rows("SELECT key FROM kv")}


def test_a_child_writes_through_a_connection_of_its_own(db: Database) -> None:
    insert(db, "before")
    used: list[object] = [db.connection()]

    def work() -> None:
        assert db.connection() is not used[0]
        insert(db, "child")

    assert forked(work) == 0
    insert(db, "after")
    assert keys(db) == {"before", "child", "after"}
    assert db.row("PRAGMA integrity_check") == ("ok",)


def test_a_child_has_closed_every_connection_of_its_parent_before_anything_else_runs(
    db: Database, path: Path
) -> None:
    threads = [threading.Thread(target=lambda: keys(db)) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    keys(db)

    def work() -> None:
        if sys.platform == "linux":
            held = [
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")
            ]
            assert [name for name in held if str(path.parent) in name] == []

    assert forked(work) == 0


def test_a_child_that_does_nothing_leaves_the_parent_s_locks_alone(db: Database, path: Path) -> None:
    assert db.gate.acquire()
    assert forked(lambda: None) == 0
    other = os.open(path.parent / "locks" / "write", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    db.gate.release()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_child_that_lives_on_keeps_no_lock_of_its_parent(db: Database, path: Path) -> None:
    assert db.gate.acquire()
    (reading, writing), (ready, lives) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.write(lives, b".")
        os.read(reading, 1)
        os._exit(0)
    os.read(ready, 1)
    db.gate.close()  # what the death of the parent would do
    other = os.open(path.parent / "locks" / "write", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for descriptor in (other, writing, reading, ready, lives):
        os.close(descriptor)
    assert os.waitpid(pid, 0)[1] == 0


def test_forking_while_threads_write_loses_no_commit(db: Database) -> None:
    stop = threading.Event()
    written: list[str] = []

    def work(name: str) -> None:
        number = 0
        while not stop.is_set():
            insert(db, f"{name}-{number}")
            written.append(f"{name}-{number}")
            number += 1

    threads = [threading.Thread(target=work, args=(f"thread{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    codes = [forked(lambda n=n: insert(db, f"child-{n}")) for n in range(20)]  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 20
    assert keys(db) == {*written, *(f"child-{n}" for n in range(20))}
    assert db.row("PRAGMA integrity_check") == ("ok",)


def test_a_child_forked_inside_a_write_neither_commits_nor_breaks_it(db: Database) -> None:
    with db.write():
        db.change(INSERT, ("parent", 1))
        code = forked(lambda: None)
    assert code == 0
    assert keys(db) == {"parent"}
    assert db.row("PRAGMA integrity_check") == ("ok",)


def test_grandchildren_write_too(db: Database) -> None:
    def child() -> None:
        insert(db, "child")
        assert forked(lambda: insert(db, "grandchild")) == 0
        insert(db, "child again")

    assert forked(child) == 0
    assert keys(db) == {"child", "grandchild", "child again"}


def _insert_many(path: Path, name: str) -> int:
    db = schema.open_database(path, now=NOW)
    for number in range(20):
        insert(db, f"{name}-{number}")
    db.close_all()
    return os.getpid()


def test_a_process_pool_of_forks_writes_beside_its_parent(db: Database, path: Path) -> None:
    insert(db, "first")
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        done = [pool.submit(_insert_many, path, str(number)) for number in range(6)]
        for number in range(20):
            insert(db, f"parent-{number}")
        pids = {future.result(timeout=60) for future in done}
    assert os.getpid() not in pids
    assert len(keys(db)) == 1 + 6 * 20 + 20
    assert db.row("PRAGMA integrity_check") == ("ok",)


def test_a_program_started_meanwhile_inherits_no_descriptor(db: Database, path: Path) -> None:
    insert(db, "a")
    assert db.gate.acquire()
    script = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 60) if os.path.exists(f'/proc/self/fd/{n}')])"
    held = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, close_fds=False
    )
    db.gate.release()
    assert str(path.parent) not in held.stdout


def test_a_holder_that_is_gone_is_not_called_in_a_child() -> None:
    class Holder:
        def close_inherited(self) -> None:
            os._exit(9)

    forks.guard.register(Holder())
    assert forked(lambda: None) == 0


def test_a_fork_waits_for_the_statement_of_another_thread_and_not_for_itself(db: Database) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with forks.guard:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    threading.Timer(0.1, leave.set).start()
    with forks.guard:
        assert forked(lambda: None) == 0
    assert leave.is_set()
    thread.join()
