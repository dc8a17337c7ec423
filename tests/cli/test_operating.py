"""The verbs of whoever runs an installation: doctor, migrate, backup, restore, prune."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relight.models import tasks, transitions
from relight.models.tasks import AgentTask, RiskLevel
from relight.workers import settings
from relight.workers.home import Home
from tests.cli.conftest import Asked
from tests.conftest import Cli

DAY_MS = 24 * 3_600_000


@pytest.fixture
def state(home: Path) -> Path:
    Home.open(settings.load()).close()
    return home


def end_a_task(task_id: str, *, age_days: int) -> None:
    opened = Home.open(settings.load())
    then = opened.now() - age_days * DAY_MS
    tasks.submit(opened.db, AgentTask.new(task_id, "s", "explorer", "go", RiskLevel.LOW, now=then), now=then)
    transitions.cancel(opened.db, task_id, by="ada", detail="{}", now=then)
    opened.close()


def make_older() -> None:
    """Take the last migration back, as an older version left the file."""
    opened = Home.open(settings.load())
    with opened.db.write():
        for statement in (
            "DROP TABLE upkeep_marks",
            "DROP INDEX agent_tasks_ended",
            "DROP INDEX agent_tasks_blob",
            "DROP INDEX task_traces_blob",
            "DROP INDEX kv_stored_at",
            "ALTER TABLE kv DROP COLUMN stored_at",
            "DELETE FROM schema_migration WHERE name = '0003_retention'",
        ):
            opened.db.change(statement)
    opened.close()


@pytest.mark.parametrize("verb", [["migrate"], ["migrate", "--dry-run"], ["backup", "there"], ["prune"]])
def test_no_verb_of_these_makes_a_state(home: Path, asked: Asked, verb: list[str]) -> None:
    assert asked(*verb, code=7)["error"]["type"] == "StorageUnreadableError"
    assert not home.exists()


def test_what_is_pending_is_told_and_not_applied(state: Path, asked: Asked, cli: Cli) -> None:
    make_older()
    assert asked("migrate", "--dry-run")["pending"] == ["0003_retention"]
    assert "0003_retention" in cli("migrate", "--dry-run").stdout
    assert asked("migrate", "--dry-run")["pending"] == ["0003_retention"]


def test_migrate_applies_what_is_pending_once_and_keeps_a_copy(state: Path, asked: Asked) -> None:
    make_older()
    done = asked("migrate")
    assert (done["now"], done["pending"]) == (["0003_retention"], [])
    assert set(done["applied"]) >= {"0001_first_schema", "0003_retention"}
    assert len(list((state / "backups").glob("before-0003_retention-*.db"))) == 1
    assert asked("migrate")["now"] == []


def test_a_newer_schema_is_refused_also_by_a_look(state: Path, asked: Asked) -> None:
    opened = Home.open(settings.load())
    with opened.db.write():
        opened.db.change("INSERT INTO schema_migration (name, applied) VALUES ('0999_future', 1)")
    opened.close()
    for verb in (["migrate"], ["migrate", "--dry-run"]):
        assert asked(*verb, code=7)["error"]["type"] == "NewerSchemaError"


def test_a_backup_is_made_before_a_migration_and_does_not_migrate(
    state: Path, tmp_path: Path, asked: Asked
) -> None:
    make_older()
    assert asked("backup", str(tmp_path / "backup"))["path"] == str(tmp_path / "backup")
    assert asked("migrate", "--dry-run")["pending"] == ["0003_retention"]


def test_a_backup_comes_back(state: Path, tmp_path: Path, asked: Asked, cli: Cli) -> None:
    task = asked("enqueue", "elsewhere", "Go")["id"]
    made = asked("backup", "there")
    assert (made["tasks"], made["missing"], made["has_policy"]) == (1, [], True)
    later = asked("enqueue", "elsewhere", "Go")["id"]
    done = asked("restore", "there")
    assert (done["tasks"], done["policy"]) == (1, "kept")
    assert [one["id"] for one in asked("list")["tasks"]] == [task]
    assert asked("--home", str(tmp_path / "new"), "restore", done["replaced"])["policy"] == "missing"
    assert asked("--home", str(tmp_path / "new"), "show", later)["id"] == later
    assert cli("doctor").returncode == 0


def test_a_second_backup_to_the_same_folder_is_a_conflict(state: Path, asked: Asked) -> None:
    asked("backup", "there")
    assert asked("backup", "there", code=4)["error"]["type"] == "ConflictError"


def test_what_is_no_backup_is_not_restored(state: Path, tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "nothing").mkdir()
    assert asked("restore", "nothing", code=7)["error"]["type"] == "StorageUnreadableError"
    assert asked("list")["tasks"] == []


def test_prune_removes_what_is_old_and_says_so(state: Path, asked: Asked, cli: Cli) -> None:
    end_a_task("old", age_days=31)
    end_a_task("young", age_days=29)
    due = asked("prune", "--dry-run")
    assert (due["tasks"], due["dry_run"]) == (1, True)
    assert "1 ended tasks" in cli("prune", "--dry-run").stdout
    done = asked("prune")
    assert (done["tasks"], done["records"], done["finished"]) == (1, 2, True)
    assert [task["id"] for task in asked("list")["tasks"]] == ["young"]
    assert "removed: 0 pulse events" in cli("prune").stdout


def test_retention_follows_its_settings(state: Path, cli: Cli, asked: Asked) -> None:
    end_a_task("t1", age_days=5)
    assert cli("prune", env={"RELIGHT_TRACE_RETENTION_DAYS": "4"}).returncode == 0
    assert asked("events", "t1")["events"] == [
        {"event_type": "gap", "since": 0, "next": 3, "reason": "trimmed"}
    ]
    assert cli("prune", env={"RELIGHT_RETENTION_DAYS": "4"}).returncode == 0
    assert asked("list")["tasks"] == []


def test_the_room_that_is_taken_is_in_the_status(state: Path, asked: Asked, cli: Cli) -> None:
    storage = asked("status")["storage"]
    assert storage["file_bytes"] == (state / "state.db").stat().st_size
    assert set(storage) == {"file_bytes", "wal_bytes", "free_bytes", "blob_bytes"}
    assert "file_bytes" in cli("status").stdout


def test_nothing_but_the_document_is_on_stdout(state: Path, cli: Cli) -> None:
    for verb in (["doctor"], ["migrate"], ["backup", "there"], ["prune"]):
        assert json.loads(cli("--json", *verb).stdout)
