"""A very large result lies in a file of its own: rows, lists and other tasks do not feel it."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from relight.models import space
from relight.models.errors import TooLargeError
from tests.crash import agents_large
from tests.crash.conftest import Forked, Stage

MB = 1_000_000
SIZE = int(os.environ.get("LARGE_RESULT_MB", "20")) * MB  # 200 by hand: it takes that many times longer


class Watched:
    """The most memory that a worker had, at whatever moment it was looked at."""

    def __init__(self, worker: Forked) -> None:
        self.process = psutil.Process(worker.pid)
        self.idle = self.most = self.now()

    def now(self) -> int:
        return int(self.process.memory_info().rss)

    def look(self) -> None:
        self.most = max(self.most, self.now())


def test_a_small_task_hardly_waits_beside_a_very_large_result(stage: Stage) -> None:
    worker = stage.start(agents_large)
    first = stage.enqueue(agents_large.prints_little, "warm")
    stage.wait_for_status(first.id, "completed")
    watched = Watched(worker)
    before = space.size(stage.home.db)
    large = stage.enqueue(agents_large.prints_much, "output of a tool ", size=SIZE)
    waits = []
    while stage.task(large.id).status != "completed":
        began = time.monotonic()
        small = stage.enqueue(agents_large.prints_little, "beside it")
        while stage.task(small.id).status != "completed":
            watched.look()
        waits.append(time.monotonic() - began)
    took = stage.task(large.id)
    after = space.size(stage.home.db)
    print(
        f"result {SIZE // MB} MB in {(took.completed_at or 0) - (took.started_at or 0)} ms; small tasks beside it: {len(waits)}, "
        f"longest {max(waits):.2f} s; memory {watched.idle // MB} → {watched.most // MB} MB"
    )
    assert max(waits) < 1 + 2 * SIZE / (100 * MB)
    assert watched.most - watched.idle < 8 * SIZE + 60 * MB
    assert after.file_bytes - before.file_bytes < 2 * MB
    assert large.result(timeout=30) == SIZE // 17 * 17
    check_that_lists_are_small(stage, large.id)


def check_that_lists_are_small(stage: Stage, task_id: str) -> None:
    for verb in (["list"], ["show", task_id], ["trace", task_id], ["events", task_id]):
        done = stage.cli(*verb)
        assert done.returncode == 0
        assert len(done.stdout) < 100_000
    stored = [file for file in (stage.home.path / "blobs").rglob("*/*") if file.is_file()]
    assert [abs(file.stat().st_size - SIZE) < MB for file in stored] == [True]


def test_large_events_do_not_fill_the_state_and_a_large_prompt_is_refused(stage: Stage) -> None:
    stage.start(agents_large)
    handle = stage.enqueue(agents_large.streams_much, "many", count=200, size=MB)
    stage.wait_for_status(handle.id, "completed", deadline=30)
    assert space.size(stage.home.db).file_bytes < 20 * MB
    done = stage.cli("enqueue", "prints_little", "--input", "{}", "x" * 100_000)
    assert done.returncode == 0
    with pytest.raises(TooLargeError, match="RELIGHT_MAX_PAYLOAD_BYTES"):
        stage.enqueue(agents_large.prints_little, "x" * 20 * MB)
