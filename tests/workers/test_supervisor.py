"""`relight up`: every line of the Procfile runs, what dies is restarted, and one process owns the signals."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from relight.models.errors import SettingError
from relight.workers import supervisor
from relight.workers.supervisor import BUILT_IN, lines_of
from tests.conftest import ROOT, StartRelight, Worker, wait_until

GRACEFUL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), sys.exit(0)))
print("ready", flush=True)
while True: time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
while True: time.sleep(60)
"""
TIED = """
import os, time
from relight.workers import lifeline
print("starting", flush=True)
while os.path.exists("slowly") and os.getppid() == int(os.environ[lifeline.VARIABLE]): time.sleep(0.01)
lifeline.hold()
print("ready", flush=True)
while True: time.sleep(60)
"""

Up = Callable[..., Worker]


@pytest.fixture
def up(tmp_path: Path, start_relight: StartRelight) -> Up:
    """Start `relight --json up` on a Procfile of these lines; {graceful} and so on name the scripts above."""
    scripts = {"graceful": GRACEFUL, "stubborn": STUBBORN, "tied": TIED}
    for name, code in scripts.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")

    def start(*lines: str, grace_ms: int = 10_000) -> Worker:
        python = {name: f"{sys.executable} {tmp_path}/{name}.py" for name in scripts}
        (tmp_path / "Procfile").write_text(
            "\n".join(line.format(**python) for line in lines), encoding="utf-8"
        )
        return start_relight(
            "--json", "up", env={"RELIGHT_GRACE_MS": str(grace_ms), "RELIGHT_HOME": str(tmp_path / "home")}
        )

    return start


def told(worker: Worker, **wanted: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in worker.text().splitlines() if line.startswith("{")]
    return [line for line in lines if wanted.items() <= line.items()]


def running(worker: Worker, name: str) -> int:
    """The pid of a line once its program is ready."""
    event = wait_until(lambda: told(worker, event="started", name=name))[-1]
    wait_until(lambda: re.search(rf" {name} +\| ready$", worker.text(), re.MULTILINE))
    return int(event["pid"])


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_procfile_of_the_repository_is_the_built_in_one(tmp_path: Path) -> None:
    assert (ROOT / "Procfile").read_text(encoding="utf-8") == BUILT_IN
    assert lines_of(tmp_path) == lines_of(ROOT)
    assert list(lines_of(tmp_path)) == ["main", "subagent", "recovery"]


@pytest.mark.parametrize("text", ["", "main worker", "a: x\na: y"])
def test_a_procfile_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "Procfile").write_text(text, encoding="utf-8")
    with pytest.raises(SettingError, match="Procfile"):
        lines_of(tmp_path)


def test_every_line_runs_and_a_term_ends_them_all_with_exit_code_0(up: Up) -> None:
    supervised = up("one: {graceful}", "two: {graceful}")
    pids = [running(supervised, "one"), running(supervised, "two")]
    supervised.signal(signal.SIGTERM)
    assert supervised.wait() == 0
    assert [event["code"] for event in told(supervised, event="ended")] == [0, 0]
    assert all(gone(pid) for pid in pids)
    assert supervised.text().count("asked") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_ctrl_c_and_a_closed_terminal_ask_the_children_to_stop(up: Up, number: int) -> None:
    supervised = up("one: {graceful}")
    running(supervised, "one")
    supervised.signal(number)
    assert supervised.wait() == 0
    assert supervised.text().count("asked") == 1


def test_a_child_that_dies_is_restarted_and_the_others_go_on(up: Up) -> None:
    supervised = up("one: {graceful}", "two: {graceful}")
    first, other = running(supervised, "one"), running(supervised, "two")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(told(supervised, event="started", name="one")) == 2)
    assert told(supervised, event="ended", name="one")[0]["restart_in_ms"] == 200
    assert not gone(other)


def test_a_child_that_keeps_dying_is_restarted_more_and_more_slowly(up: Up) -> None:
    supervised = up("one: false", "two: {graceful}")
    ends = wait_until(lambda: len(found := told(supervised, event="ended", name="one")) >= 4 and found)
    assert [event["restart_in_ms"] for event in ends[:4]] == [200, 400, 800, 1600]
    assert {event["code"] for event in ends} == {1}


def test_a_program_that_is_not_there_is_tried_again_and_stops_nobody(up: Up) -> None:
    supervised = up("one: no-such-program --here", "two: {graceful}")
    running(supervised, "two")
    assert wait_until(lambda: told(supervised, event="ended", name="one"))[0]["code"] == 127
    supervised.signal(signal.SIGTERM)
    assert supervised.wait() == 0


def test_the_pause_grows_to_ten_seconds_and_falls_back_after_a_steady_run() -> None:
    pauses = [supervisor.pause_after(lasted=0.1, before=pause) for pause in (None, 0.2, 6.4, 10.0)]
    assert pauses == [0.2, 0.4, 10.0, 10.0]
    assert supervisor.pause_after(lasted=30.0, before=10.0) == 0.2


def test_whoever_does_not_end_in_the_grace_time_is_killed(up: Up) -> None:
    supervised = up("one: {stubborn}", "two: {graceful}", grace_ms=100)
    pid = running(supervised, "one")
    running(supervised, "two")
    began = time.monotonic()
    supervised.signal(signal.SIGTERM)
    assert supervised.wait() == 1
    assert 2.0 <= time.monotonic() - began < 6.0
    assert told(supervised, event="ended", name="one")[0]["code"] == -signal.SIGKILL
    assert gone(pid)


def test_a_second_signal_kills_at_once(up: Up) -> None:
    supervised = up("one: {stubborn}")
    pid = running(supervised, "one")
    supervised.signal(signal.SIGTERM)
    wait_until(lambda: "asked" in supervised.text())
    supervised.signal(signal.SIGTERM)
    assert supervised.wait(2.0) == 1
    assert gone(pid)


def test_a_line_for_the_shell_is_asked_to_stop_once(up: Up) -> None:
    supervised = up("one: X=1 {graceful} && echo after", "two: cd / && {graceful}; true")
    running(supervised, "one")
    running(supervised, "two")
    supervised.signal(signal.SIGTERM)
    supervised.wait()
    assert supervised.text().count("asked") == 2


def test_when_the_supervisor_is_killed_its_children_stop(up: Up) -> None:
    supervised = up("one: {tied}")
    pid = running(supervised, "one")
    os.kill(supervised.pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))


def test_a_child_that_comes_to_life_after_the_supervisor_s_death_stops(up: Up, tmp_path: Path) -> None:
    (tmp_path / "slowly").touch()
    supervised = up("one: {tied}")
    wait_until(lambda: re.search(r" one +\| starting$", supervised.text(), re.MULTILINE))
    pid = told(supervised, event="started", name="one")[0]["pid"]
    os.kill(supervised.pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))


def test_children_find_the_home_and_the_agents_that_up_was_given(
    tmp_path: Path, start_relight: StartRelight
) -> None:
    (tmp_path / "Procfile").write_text("one: env", encoding="utf-8")
    supervised = start_relight("--home", "there", "-A", "agents.py", "up")
    wait_until(lambda: "RELIGHT_GRACE_MS=10000" in supervised.text())
    assert f"RELIGHT_HOME={tmp_path}/there" in supervised.text()
    assert f"RELIGHT_APP={tmp_path}/agents.py" in supervised.text()


def test_with_json_logs_every_line_on_stderr_is_a_document(
    tmp_path: Path, start_relight: StartRelight
) -> None:
    (tmp_path / "Procfile").write_text("one: relight worker main", encoding="utf-8")
    supervised = start_relight(
        "up", env={"RELIGHT_LOG_FORMAT": "json", "RELIGHT_HOME": str(tmp_path / "home")}
    )
    wait_until(lambda: "a line started" in supervised.text())
    supervised.signal(signal.SIGTERM)
    assert supervised.wait() == 0
    lines = [json.loads(line) for line in supervised.text().splitlines()]
    assert {"a line started", "a line ended"} <= {line["message"] for line in lines}
