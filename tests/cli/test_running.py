"""The verbs that make things run: init, worker, up, recover."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Asked
from tests.conftest import Cli, StartRelight, StartWorker, Worker, environment, wait_until


def test_init_creates_the_home_whole_and_for_its_owner_alone(asked: Asked, home: Path) -> None:
    assert asked("init") == {"home": str(home)}
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "policy.toml").stat().st_mode & 0o777 == 0o600
    before = {path.name: path.stat().st_mtime_ns for path in (home / "policy.toml", home / "state.db")}
    asked("init")
    assert {
        path.name: path.stat().st_mtime_ns for path in (home / "policy.toml", home / "state.db")
    } == before


def test_long_work_is_told_to_a_person_who_looks_and_to_nobody_else(cli: Cli, home: Path) -> None:
    cli("init")
    assert cli("recover").stderr == ""
    seen, terminal = pty.openpty()
    command = [sys.executable, "-m", "relight.workers.cli", "recover"]
    env = environment(TERM="xterm")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, text=True, env=env, check=True)
    os.close(terminal)
    assert b"recovering" in os.read(seen, 4096)
    os.close(seen)
    assert done.stdout == "nothing to recover\n"


@pytest.mark.parametrize(
    ("lane", "kind"), [("main", "thread"), ("subagent", "process"), ("all", "thread"), ("all", "process")]
)
def test_a_worker_runs_its_lane_and_ends_with_0_when_told_to(
    asked: Asked, home: Path, app: Path, start_worker: StartWorker, lane: str, kind: str
) -> None:
    worker = start_worker(home, app, lane, "--kind", kind, "--concurrency", "1")
    wanted = "main" if lane == "all" else lane
    task = asked("-A", str(app), "enqueue", "adder", "Add", "--lane", wanted)["id"]
    assert asked("wait", task, "--timeout", "20")["result"] == 2
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("wrong", [["elsewhere"], ["--kind", "greenlet"], ["--concurrency", "none"]])
def test_a_worker_that_was_asked_for_nonsense_does_not_start(
    home: Path, start_worker: StartWorker, wrong: list[str]
) -> None:
    assert start_worker(home, None, *wrong).wait() == 2


def test_a_worker_whose_agents_cannot_be_loaded_says_why(
    home: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    (tmp_path / "broken.py").write_text("import nothing_like_this", encoding="utf-8")
    worker = start_worker(home, tmp_path / "broken.py", "main")
    assert worker.wait() == 2
    assert "nothing_like_this" in worker.text()


def test_a_worker_logs_json_lines_with_the_task_and_attempt(
    asked: Asked, home: Path, app: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(home, app, "all", env={"RELIGHT_LOG_FORMAT": "json"})
    task = asked("-A", str(app), "enqueue", "adder", "Add")["id"]
    asked("wait", task, "--timeout", "20")
    lines = wait_until(lambda: [json.loads(line) for line in worker.text().splitlines() if task in line])
    assert {"task": task, "attempt": 1}.items() <= lines[0].items()


def test_a_dry_run_of_recovery_says_what_would_be_done_and_moves_nothing(
    asked: Asked, home: Path, app: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(home, app, "subagent")
    task = _reading(asked, app, tmp_path)
    worker.kill()
    assert [entry["id"] for entry in asked("recover", "--dry-run")["resumed"]] == [task]
    assert asked("show", task)["status"] == "running"
    assert [entry["id"] for entry in asked("recover")["resumed"]] == [task]
    assert asked("show", task)["status"] == "pending"
    assert not any(asked("recover").values())


def test_up_runs_the_built_in_lines_and_a_killed_worker_is_replaced_without_repeating_a_step(
    asked: Asked, home: Path, app: Path, tmp_path: Path, start_relight: StartRelight
) -> None:
    up = start_relight("--json", "-A", str(app), "up")
    task = _reading(asked, app, tmp_path)
    pids = {event["name"]: event["pid"] for event in _told(up)}
    assert list(pids) == ["main", "subagent", "recovery"]
    os.kill(pids["subagent"], signal.SIGKILL)
    wait_until(lambda: [event for event in _told(up) if event["event"] == "ended"])
    (tmp_path / "go").touch()
    assert asked("wait", task, "--timeout", "20")["attempt"] == 2
    up.signal(signal.SIGTERM)
    assert up.wait() == 0
    intents = asked("trace", task, "--kind", "tool_call_started")["traces"]
    assert [trace["step_key"] for trace in intents] == ["look#1", "look_at#1", "look_at#1"]


def test_a_task_that_outlasts_the_grace_time_of_up_is_interrupted_and_goes_on_later(
    asked: Asked, home: Path, app: Path, tmp_path: Path, start_relight: StartRelight
) -> None:
    up = start_relight("-A", str(app), "up", "--grace-ms", "300")
    task = _reading(asked, app, tmp_path)
    up.signal(signal.SIGTERM)
    assert up.wait() == 0
    shown = asked("show", task)
    assert (shown["status"], shown["reason"], shown["losses"]) == ("interrupted", "shutdown", 0)
    (tmp_path / "go").touch()
    start_relight("-A", str(app), "up")
    assert asked("wait", task, "--timeout", "20")["result"] == "seen"


def _reading(asked: Asked, app: Path, tmp_path: Path) -> str:
    """A task that is inside its second step, where it waits for the file `go`."""
    files = json.dumps({"first": f"{tmp_path}/go", "witness": f"{tmp_path}/witness"})
    task: str = asked("-A", str(app), "enqueue", "reader", "Read", "--input", files)["id"]
    wait_until((tmp_path / "witness").exists)
    return task


def _told(up: Worker) -> list[dict[str, object]]:
    return [json.loads(line) for line in up.text().splitlines() if line.startswith("{")]


def test_a_hangup_starts_the_worker_again_with_its_settings_read_anew(
    asked: Asked, home: Path, app: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    (tmp_path / "relight.toml").write_text('log_format = "text"', encoding="utf-8")
    asked("init")
    worker = start_worker(home, app, "all")
    wait_until(lambda: asked("status")["listening"]["main"])
    (tmp_path / "relight.toml").write_text('log_format = "json"', encoding="utf-8")
    worker.signal(signal.SIGHUP)
    wait_until(lambda: "stopping" in worker.text())
    task = asked("-A", str(app), "enqueue", "adder", "Add")["id"]
    asked("wait", task, "--timeout", "20")
    wait_until(lambda: [line for line in worker.text().splitlines() if line.startswith("{") and task in line])
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
