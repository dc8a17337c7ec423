"""Writers pass one by one and in turn; one that is stopped at the gate stops nobody for long."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relight.models import schema
from relight.models.database import Database
from relight.models.gate import WriteGate
from tests.conftest import environment
from tests.models.conftest import NOW

WaitUntil = Callable[..., object]
INSERT = "INSERT INTO kv (queue, key, value) VALUES ('q', ?, ?)"

HOLD = """
import os, sys, time
from pathlib import Path
from relight.models.gate import WriteGate
gate = WriteGate(Path(sys.argv[1]), gate_ms=5000)
assert gate.acquire()
print("inside", flush=True)
sys.stdin.read()
"""
QUEUE = """
import fcntl, os, sys
fd = os.open(sys.argv[1] + "/write.turn", os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
print("inside", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locks(path: Path) -> Path:
    folder = path.parent / "locks"
    folder.mkdir()
    return folder


@pytest.fixture(params=[HOLD, QUEUE], ids=["inside the gate", "waiting in turn"])
def stopped(request: pytest.FixtureRequest, locks: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has come that far and was stopped there."""
    process = subprocess.Popen(
        [sys.executable, "-c", request.param, str(locks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.communicate()


def free(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_one_passes_and_the_next_one_waits(locks: Path) -> None:
    one, two = WriteGate(locks, gate_ms=30), WriteGate(locks, gate_ms=30)
    assert one.acquire()
    assert not two.acquire()
    assert two.passed_without == 1
    one.release()
    assert two.acquire()
    two.release()
    assert free(locks / "write")
    assert free(locks / "write.turn")
    one.close()
    two.close()


def test_the_turn_is_given_back_before_the_transaction_runs(locks: Path) -> None:
    gate = WriteGate(locks, gate_ms=30)
    assert gate.acquire()
    assert free(locks / "write.turn")
    assert not free(locks / "write")
    gate.release()
    gate.close()


def test_giving_up_leaves_nothing_locked(locks: Path) -> None:
    one, two = WriteGate(locks, gate_ms=30), WriteGate(locks, gate_ms=30)
    assert one.acquire()
    assert not two.acquire()
    assert free(locks / "write.turn")
    one.release()
    assert free(locks / "write")
    one.close()
    two.close()


def test_the_holder_is_known_by_its_pid(locks: Path) -> None:
    gate = WriteGate(locks, gate_ms=30)
    assert gate.holder() is None
    gate.acquire()
    assert gate.holder() == os.getpid()
    gate.release()
    gate.close()


def test_a_process_stopped_at_the_gate_does_not_stop_the_others(
    stopped: subprocess.Popen[str], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db = schema.open_database(path, now=NOW, gate_ms=50)
    with caplog.at_level(logging.WARNING, "relight.gate"):
        began = time.monotonic()
        for number in range(3):
            with db.write():
                db.change(INSERT, (str(number), 1))
        assert time.monotonic() - began < 2
    assert db.row("SELECT count(*) FROM kv") == (3,)
    assert db.gate.passed_without >= 3
    reports = [record for record in caplog.records if record.name == "relight.gate"]
    assert len(reports) == 1  # once, not once a write
    assert reports[0].__dict__["gate"] == str(path.parent / "locks" / "write")
    db.close_all()


def test_the_report_names_the_pid_of_the_stopped_holder(
    locks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(locks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    gate = WriteGate(locks, gate_ms=20)
    with caplog.at_level(logging.WARNING, "relight.gate"):
        assert not gate.acquire()
    assert [record.__dict__["holder_pid"] for record in caplog.records] == [process.pid]
    process.kill()
    process.communicate()
    assert gate.acquire()  # death opens the gate
    gate.release()
    gate.close()


def test_a_thread_that_holds_the_gate_for_long_does_not_stop_the_others(locks: Path) -> None:
    gate = WriteGate(locks, gate_ms=30)
    assert gate.acquire()
    passed: list[bool] = []
    thread = threading.Thread(target=lambda: passed.append(gate.acquire()))
    thread.start()
    thread.join(5)
    assert passed == [False]
    gate.release()
    gate.close()


def test_a_write_that_fails_opens_the_gate(db: Database, path: Path) -> None:
    with pytest.raises(ValueError, match="x"), db.write():
        raise ValueError("x")
    assert free(path.parent / "locks" / "write")
    assert db.gate.acquire()
    db.gate.release()


BUSY = """
import sys, time
from pathlib import Path
from relight.models import schema
from relight.models.database import Durability
db = schema.open_database(Path(sys.argv[1]), now=1)
print("ready", flush=True)
while True:
    with db.write(Durability.NORMAL):
        db.change("UPDATE kv SET value = value + 1 WHERE key = ?", (sys.argv[2],))
"""


def test_a_third_writer_is_served_beside_two_that_never_pause(db: Database, path: Path) -> None:
    with db.write():
        for key in ("0", "1", "me"):
            db.change(INSERT, (key, 0))
    busy = [
        subprocess.Popen(
            [sys.executable, "-c", BUSY, str(path), str(number)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for number in range(2)
    ]
    for process in busy:
        assert process.stdout is not None
        process.stdout.readline()
    waits = []
    for _ in range(200):
        began = time.monotonic()
        with db.write():
            db.change("UPDATE kv SET value = value + 1 WHERE key = 'me'")
        waits.append(time.monotonic() - began)
    for process in busy:
        process.kill()
        process.communicate()
    assert sorted(waits)[100] < 0.1
    assert max(waits) < 2  # without the gate, 4.6 s were measured
    assert all(row[0] > 100 for row in db.rows("SELECT value FROM kv"))
