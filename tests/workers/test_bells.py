from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from relight.workers import bells
from relight.workers.bells import Bell, Ringer, listeners, ring
from tests.conftest import environment, wait_until

LISTENER = """
import sys
from pathlib import Path
from relight.workers.bells import Bell
bell = Bell(Path(sys.argv[1]), frozenset(sys.argv[2].split("+")))
bell.start()
seen = bell.generation
print("listening", flush=True)
while True:
    seen = bell.wait(seen)
    print("heard", flush=True)
"""
PRODUCER = """
import sys
from pathlib import Path
from relight.workers.bells import Ringer
ringer, folder = Ringer(Path(sys.argv[1])), Path(sys.argv[1])
for number in range(int(sys.argv[2])):
    with open(folder / "queue", "a") as queue:
        queue.write("x")
    ringer.ring({"main"})
"""


def names(home: Path) -> list[str]:
    return sorted(entry.name for entry in (home / "bells").iterdir())


def listener(home: Path, topics: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, str(home), topics],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_ring_wakes_another_process_that_listens_to_the_topic(tmp_path: Path) -> None:
    main, both = listener(tmp_path, "main"), listener(tmp_path, "main+watch")
    try:
        assert ring(tmp_path, {"watch"}) == 1
        assert both.stdout is not None
        assert both.stdout.readline() == "heard\n"
        assert ring(tmp_path, {"main", "upkeep"}) == 2
        assert main.stdout is not None
        assert main.stdout.readline() == "heard\n"
    finally:
        end(main)
        end(both)


def test_the_bell_of_a_dead_process_is_removed_by_the_next_ring(tmp_path: Path) -> None:
    process = listener(tmp_path, "main")
    ringer = Ringer(tmp_path)
    assert ringer.ring({"main"}) == 1
    end(process)
    assert listeners(tmp_path, "main") == 0
    assert ringer.ring({"main"}) == 0
    assert names(tmp_path) == []
    assert ring(tmp_path, {"main"}) == 0


def test_ringing_where_nobody_ever_listened_is_no_error(tmp_path: Path) -> None:
    assert ring(tmp_path / "nowhere", {"main"}) == 0
    assert listeners(tmp_path, "main") == 0


def test_a_bell_hung_up_after_the_first_ring_is_rung_by_the_same_ringer(tmp_path: Path) -> None:
    ringer = Ringer(tmp_path)
    assert ringer.ring({"main"}) == 0
    for count in range(1, 6):
        bell = Bell(tmp_path, frozenset({"main"}))
        bell.start()
        assert ringer.ring({"main"}) == count
        assert ringer.ring({"main"}) == count


def test_no_ring_is_lost_without_a_poll(tmp_path: Path) -> None:
    """Three processes append and ring; a consumer that waits without a time limit sees everything."""
    bell, queue, count = Bell(tmp_path, frozenset({"main"})), tmp_path / "queue", 300
    queue.touch()
    bell.start()
    producers = [
        subprocess.Popen([sys.executable, "-c", PRODUCER, str(tmp_path), str(count)], env=environment())
        for _ in range(3)
    ]
    done = threading.Event()

    def consume() -> None:
        seen = bell.generation
        while queue.stat().st_size < 3 * count:
            bell.wait(seen)
            seen = bell.generation
        done.set()

    threading.Thread(target=consume, daemon=True).start()
    assert done.wait(30)
    for producer in producers:
        assert producer.wait(10) == 0


def test_a_ring_between_the_look_and_the_wait_is_heard(tmp_path: Path) -> None:
    bell = Bell(tmp_path, frozenset({"main"}))
    bell.start()
    seen = bell.generation
    ring(tmp_path, {"main"})
    assert bell.wait(seen, timeout=0) > seen
    seen = bell.generation
    assert bell.wait(seen, timeout=0) == seen


def test_rings_coalesce_and_a_full_bell_has_rung(tmp_path: Path) -> None:
    bell = Bell(tmp_path, frozenset({"main"}))
    bell.start()
    ringer, seen = Ringer(tmp_path), bell.generation
    assert all(ringer.ring({"main"}) == 1 for _ in range(70_000))
    assert bell.wait(seen, timeout=0) == seen + 1
    assert bell.generation == bell.wait(seen + 1, timeout=0)


def test_one_ring_wakes_every_thread_that_waits(tmp_path: Path) -> None:
    bell, woken = Bell(tmp_path, frozenset({"main"})), threading.Semaphore(0)
    bell.start()
    seen = bell.generation

    def wait() -> None:
        if bell.wait(seen, timeout=20) > seen:
            woken.release()

    for _ in range(5):
        threading.Thread(target=wait, daemon=True).start()
    wait_until(lambda: bell._polling)
    ring(tmp_path, {"main"})
    assert all(woken.acquire(timeout=5) for _ in range(5))


def test_a_poke_wakes_and_a_time_limit_ends_a_wait(tmp_path: Path) -> None:
    bell = Bell(tmp_path, frozenset({"main"}))
    bell.start()
    started, seen = time.monotonic(), bell.generation
    assert bell.wait(seen, timeout=0.05) == seen
    assert 0.045 < time.monotonic() - started < 1
    waiting = threading.Thread(target=bell.wait, args=(seen,), daemon=True)
    waiting.start()
    wait_until(lambda: bell._polling)
    bell.poke()
    waiting.join(5)
    assert not waiting.is_alive()


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.rename(path.with_name("main.other"))])
def test_a_deaf_bell_is_rebuilt_and_counted(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    bell = Bell(tmp_path, frozenset({"main"}))
    bell.start()
    assert bell.path is not None
    harm(bell.path)
    seen = bell.generation
    assert bell.wait(seen, timeout=0.01) > seen, "what was missed while deaf must be looked for"
    assert bell.rebuilt == 1
    seen = bell.generation
    assert ring(tmp_path, {"main"}) == 1
    assert bell.wait(seen, timeout=5) > seen
    assert bell.rebuilt == 1


def test_a_closed_bell_leaves_no_file_and_wakes_its_waiters(tmp_path: Path) -> None:
    bell = Bell(tmp_path, frozenset({"main"}))
    bell.start()
    waiting = threading.Thread(target=bell.wait, args=(bell.generation,), daemon=True)
    waiting.start()
    wait_until(lambda: bell._polling)
    bell.close()
    waiting.join(5)
    assert not waiting.is_alive()
    assert names(tmp_path) == []
    assert bell.wait(bell.generation, timeout=0.01) == bell.generation


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # forking beside threads is what is tested
def test_a_forked_child_neither_hears_nor_removes_its_parents_bell(tmp_path: Path) -> None:
    bell = Bell(tmp_path, frozenset({"main"}))
    bell.start()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            bell.wait(bell.generation, timeout=0)
            own = bell.path
            os.write(write_end, str(own).encode())
            seen = bell.generation
            status = 0 if bell.wait(seen, timeout=10) > seen else 2
            bell.close()
        finally:
            os._exit(status)
    os.close(write_end)
    child_bell = Path(os.read(read_end, 1000).decode())
    os.close(read_end)
    assert child_bell != bell.path
    assert len(names(tmp_path)) == 2
    seen = bell.generation
    assert ring(tmp_path, {"main"}) == 2
    assert bell.wait(seen, timeout=5) > seen
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert names(tmp_path) == [bell.path.name if bell.path else ""]


def test_a_forked_child_does_not_keep_a_dead_parents_bell_alive(tmp_path: Path) -> None:
    """A grandchild outlives the listener that forked it; its bell must count as dead all the same."""
    code = """
import os, sys, time
from pathlib import Path
from relight.workers.bells import Bell
bell = Bell(Path(sys.argv[1]), frozenset({"main"}))
bell.start()
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print("forked", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        assert listeners(tmp_path, "main") == 1
        process.kill()
        process.wait()
        assert listeners(tmp_path, "main") == 0
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def test_a_long_state_directory_is_no_obstacle(tmp_path: Path) -> None:
    home = tmp_path / ("a" * 100) / ("b" * 100)
    home.mkdir(parents=True)
    bell = Bell(home, frozenset({"main"}))
    bell.start()
    assert bells.ring(home, {"main"}) == 1
