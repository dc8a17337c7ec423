"""A backup of a running system holds every task that was acknowledged before it began, and works on its own elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.models import inspection, schema, tasks
from relight.workers import settings
from relight.workers.home import Home
from tests.conftest import wait_until
from tests.crash import agents_large
from tests.crash.conftest import Stage

WRITERS = 2
PRODUCER = """
import sys
from tests.crash import agents_large
from relight.workers import settings
from relight.workers.home import Home
home = Home.open(settings.load())
with open(sys.argv[1], "a", buffering=1) as acknowledged:
    for number in range(1 << 30):
        if number % 10:
            task = agents_large.prints_little.options(home=home).enqueue(f"task {number}")
        else:
            task = agents_large.prints_much.options(home=home).enqueue("words ", size=100_000)
        acknowledged.write(task.id + "\\n")
"""


@pytest.fixture
def acknowledged(stage: Stage) -> Iterator[Path]:
    """Processes that enqueue as fast as they can, and the file of what they were told."""
    file = stage.folder / "acknowledged"
    file.touch()
    producers = [
        subprocess.Popen(
            [sys.executable, "-c", PRODUCER, str(file)], stderr=subprocess.DEVNULL, env=stage.env()
        )
        for _ in range(WRITERS)
    ]
    yield file
    for producer in producers:
        producer.kill()
        producer.wait()


def test_a_backup_under_load_holds_every_acknowledged_task_and_goes_on_elsewhere(
    stage: Stage, acknowledged: Path
) -> None:
    stage.start(agents_large)
    wait_until(lambda: len(acknowledged.read_text().split()) >= 150, 30)
    before = acknowledged.read_text().split()
    done = stage.cli("backup", str(stage.folder / "backup"))
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    with inspection.look(stage.folder / "backup" / "state.db") as copy:
        assert inspection.faults(copy, whole=True) == []
        held = {row[0] for row in copy.rows("SELECT id FROM agent_tasks")}
    assert set(before) <= held
    assert made["tasks"] == len(held)
    assert made["blobs"] == len(list((stage.folder / "backup" / "blobs").rglob("*/*")))
    for worker in stage.started:
        worker.kill()
    check_that_it_goes_on(stage, stage.folder / "backup", held)


def check_that_it_goes_on(stage: Stage, backup: Path, held: set[str]) -> None:
    """Restored to another directory, the tasks that were running or waiting at that moment come to their end."""
    elsewhere = stage.folder / "elsewhere"
    assert stage.cli("--home", str(elsewhere), "restore", str(backup)).returncode == 0
    stage.start(agents_large, env={"RELIGHT_HOME": str(elsewhere)})
    db = schema.open_existing(elsewhere / "state.db")
    try:
        wait_until(lambda: tasks.counts(db)["completed"] == len(held), 60)
    finally:
        db.close_all()


def test_a_directory_whose_backup_lacks_blobs_says_which(stage: Stage) -> None:
    home = Home.open(settings.load(home=stage.home.path, env={}))
    worker = stage.start(agents_large)
    handle = stage.enqueue(agents_large.prints_much, "words ", size=100_000)
    stage.wait_for_status(handle.id, "completed")
    worker.kill()
    (blob,) = [file for file in (home.path / "blobs").rglob("*/*") if file.is_file()]
    blob.unlink()
    done = stage.cli("backup", str(stage.folder / "backup"))
    assert done.returncode == 1
    assert json.loads(done.stdout)["missing"] == [blob.name]
    home.close()
