"""`relight demo` as anybody runs it: four facts, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import Cli, StartRelight, environment

Waiter = Callable[..., object]


@pytest.fixture(autouse=True)
def temporary_folders_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its folder: not even a killed one leaves something outside of the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def facts_of(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^([1-4])\. (true|FALSE) ", text, re.MULTILINE)


def test_all_four_facts_are_true(cli: Cli, tmp_path: Path) -> None:
    """The folder that was named stays, and tells the same story to the command line."""
    done = cli("--home", str(tmp_path / "kept"), "demo", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert facts_of(done.stdout) == [("1", "true"), ("2", "true"), ("3", "true"), ("4", "true")]
    listed = json.loads(cli("--home", str(tmp_path / "kept"), "--json", "list").stdout)["tasks"]
    assert {task["status"] for task in listed} == {"completed"}
    assert {task["attempt"] for task in listed if task["agent_id"] == "fixer"} == {2}


def test_without_a_terminal_the_answer_must_be_given_beforehand(cli: Cli) -> None:
    done = cli("demo")
    assert (done.returncode, facts_of(done.stdout)) == (2, [])
    assert "--yes" in done.stderr


def test_a_folder_with_something_in_it_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    assert cli("--home", str(tmp_path / "mine"), "demo", "--yes").returncode == 6
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_no_at_the_terminal_ends_the_fixer_and_makes_the_demo_fail(tmp_path: Path) -> None:
    code, text = at_a_terminal(["demo"], answer="n\n", question="Shall the fixer go on?", cwd=tmp_path)
    assert facts_of(text) == [("1", "true"), ("2", "true"), ("3", "true"), ("4", "FALSE")]
    assert "the question was rejected" in text
    assert code == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_stopped_leaves_no_process_and_no_folder(
    number: int, start_relight: StartRelight, wait_until: Waiter, temporary_folders_of_this_test: Path
) -> None:
    demo = start_relight("demo", "--yes")
    wait_until(lambda: "enqueued" in demo.text(), 20.0)
    assert len(list(temporary_folders_of_this_test.iterdir())) == 1
    workers = psutil.Process(demo.pid).children(recursive=True)
    assert len(workers) == 3
    demo.signal(number)
    assert demo.wait(30) == 130
    assert list(temporary_folders_of_this_test.iterdir()) == []
    assert [worker for worker in workers if worker.is_running()] == []


def test_a_demo_that_a_shell_started_in_the_background_is_stopped_by_int_too(
    start_relight: StartRelight, wait_until: Waiter, temporary_folders_of_this_test: Path
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what the demo inherits there
    try:
        demo = start_relight("demo", "--yes")
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: "enqueued" in demo.text(), 20.0)
    demo.signal(signal.SIGINT)
    assert demo.wait(30) == 130
    assert list(temporary_folders_of_this_test.iterdir()) == []


def test_a_demo_that_is_killed_takes_its_workers_with_it(
    start_relight: StartRelight, wait_until: Waiter
) -> None:
    demo = start_relight("demo", "--yes")
    wait_until(lambda: "enqueued" in demo.text(), 20.0)
    workers = psutil.Process(demo.pid).children(recursive=True)
    demo.kill()
    wait_until(lambda: not any(worker.is_running() for worker in workers), 20.0)


def at_a_terminal(words: list[str], *, answer: str, question: str, cwd: Path) -> tuple[int, str]:
    """Run `relight WORDS` with a terminal for everything, and type the answer when it asks."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "relight.workers.cli", *words]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env=environment(TERM="xterm"),
        start_new_session=True,
    ) as process:
        os.close(theirs)
        seen = b""
        while chunk := read_terminal(ours):
            before, seen = seen, seen + chunk
            if question.encode() in seen and question.encode() not in before:
                os.write(ours, answer.encode())
        os.close(ours)
        code = process.wait(20)
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", seen.decode(errors="replace"))


def read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # how Linux says that the other end of a terminal is closed
        return b""
