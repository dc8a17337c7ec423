"""The verbs that ask for work and for its end: enqueue, wait, result, cancel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Asked
from tests.conftest import Cli, StartWorker, wait_until


def test_enqueue_prints_the_id_and_under_json_the_stored_row(cli: Cli, asked: Asked, app: Path) -> None:
    plain = cli("-A", str(app), "enqueue", "adder", "Add")
    row = asked(
        "-A", str(app), "enqueue", "adder", "Add", "--lane", "main", "--session", "s1", "--priority", "-3"
    )
    assert asked("show", plain.stdout.strip())["status"] == "pending"
    assert {
        "status": "pending",
        "lane": "main",
        "parent_session_id": "s1",
        "priority": -3,
    }.items() <= row.items()
    assert row["risk_level"] == "low"


def test_enqueue_warns_where_no_worker_serves_the_lane(cli: Cli, home: Path, app: Path) -> None:
    done = cli("-A", str(app), "enqueue", "adder", "Add", "--json")
    assert done.returncode == 0
    assert "no worker serves its subagent lane" in done.stderr


def test_an_agent_that_is_known_by_name_only_is_of_high_risk(asked: Asked) -> None:
    assert asked("enqueue", "elsewhere", "Go")["risk_level"] == "high"
    assert asked("enqueue", "elsewhere", "--risk", "low")["risk_level"] == "low"


def test_an_agent_that_the_given_modules_lack_is_refused_with_the_nearest_one(
    cli: Cli, home: Path, app: Path
) -> None:
    done = cli("-A", str(app), "enqueue", "addr", "Add")
    assert done.returncode == 3
    assert "did you mean adder?" in done.stderr


@pytest.mark.parametrize(
    ("given", "named"),
    [('{"number": "x"}', "number"), ('{"nmber": 1}', "nmber"), ("[1]", "--input"), ("{", "--input")],
)
def test_an_input_that_does_not_fit_is_refused_and_names_the_parameter(
    cli: Cli, home: Path, app: Path, given: str, named: str
) -> None:
    done = cli("-A", str(app), "enqueue", "adder", "Add", "--input", given)
    assert done.returncode == 2
    assert named in done.stderr


def test_a_key_gives_the_same_task_and_another_input_under_it_is_a_conflict(asked: Asked, app: Path) -> None:
    call = ["-A", str(app), "enqueue", "adder", "Add", "--key", "k1"]
    assert asked(*call)["id"] == asked(*call)["id"]
    assert asked(*call, "--input", '{"number": 2}', code=4)["error"]["type"] == "KeyConflictError"


def test_an_input_over_the_limit_is_refused(cli: Cli, home: Path, app: Path) -> None:
    done = cli("-A", str(app), "enqueue", "adder", "x" * 2000, env={"RELIGHT_MAX_PAYLOAD_BYTES": "1000"})
    assert done.returncode == 6
    assert "RELIGHT_MAX_PAYLOAD_BYTES" in done.stderr


def test_a_delayed_task_is_held_until_it_is_due(asked: Asked, app: Path) -> None:
    row = asked("-A", str(app), "enqueue", "adder", "Add", "--delay", "60")
    assert (row["hold"], row["due_at"] - row["created_at"]) == ("due", 60_000)


def test_a_child_is_one_level_deeper_than_its_parent(asked: Asked, app: Path) -> None:
    parent = asked("enqueue", "elsewhere", "Go")["id"]
    row = asked("enqueue", "elsewhere", "Go", "--parent", parent[-8:])
    assert (row["parent_task_id"], row["recursion_depth"]) == (parent, 1)


def test_wait_and_result_give_the_end_of_a_task(
    cli: Cli, asked: Asked, home: Path, app: Path, start_worker: StartWorker
) -> None:
    start_worker(home, app, "all")
    good = asked("-A", str(app), "enqueue", "adder", "Add", "--input", '{"number": 41}')["id"]
    assert {"status": "completed", "result": 42}.items() <= asked("wait", good, "--timeout", "20").items()
    assert asked("result", good) == {"id": good, "status": "completed", "result": 42}
    assert cli("result", good[-8:]).stdout == "42\n"
    bad = asked("-A", str(app), "enqueue", "failing", "Fail")["id"]
    ended = asked("wait", bad, "--timeout", "20", code=1)
    assert (ended["status"], ended["reason"], ended["error"]["text"]) == ("failed", "error", "it is broken")
    assert "it is broken" in asked("result", bad, code=1)["error"]["message"]


def test_waiting_for_a_task_that_does_not_end_is_exit_code_5(asked: Asked) -> None:
    task = asked("enqueue", "elsewhere", "Go")["id"]
    assert asked("wait", task, "--timeout", "0.05", code=5)["error"]["status"] == "pending"
    assert asked("result", task, code=5)["error"]["type"] == "WaitTimeoutError"


def test_a_pending_task_is_cancelled_at_once_and_only_once(asked: Asked) -> None:
    task = asked("enqueue", "elsewhere", "Go")["id"]
    ended = asked("cancel", task, "--reason", "not needed")
    assert (ended["status"], ended["reason"]) == ("failed", "cancelled")
    assert asked("show", task)["error"]["text"] == "not needed"
    assert asked("cancel", task, code=4)["error"]["type"] == "StaleMove"


def test_a_running_task_is_cancelled_and_stops_at_its_next_step(
    asked: Asked, home: Path, app: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(home, app, "subagent")
    files = f'{{"first": "{tmp_path}/go", "witness": "{tmp_path}/witness"}}'
    task = asked("-A", str(app), "enqueue", "reader", "Read", "--input", files)["id"]
    wait_until((tmp_path / "witness").exists)
    assert asked("cancel", task)["reason"] == "cancelled"
    (tmp_path / "go").touch()
    wait_until(lambda: "outcome=cancelled" in worker.text())
    assert asked("show", task)["status"] == "failed"


def test_a_wait_that_is_over_says_why_the_task_has_not_ended(cli: Cli, asked: Asked, home: Path) -> None:
    task = asked("enqueue", "elsewhere", "Go")["id"]
    said = cli("wait", task, "--timeout", "0.01").stderr
    assert "after 0.01 s: No process serves the subagent lane" in said
    assert "[relight worker subagent]" in said
    assert "after 0 s" not in cli("result", task).stderr


def test_a_failed_task_tells_its_error_to_who_waits_and_its_traceback_to_who_looks(
    cli: Cli, asked: Asked, home: Path, app: Path, start_worker: StartWorker
) -> None:
    worker = start_worker(home, app, "subagent")
    task = asked("-A", str(app), "enqueue", "failing", "Go")["id"]
    done = cli("wait", task, "--timeout", "20")
    assert (done.returncode, "ValueError: it is broken" in done.stdout) == (1, True)
    shown = cli("show", task).stdout
    assert f'File "{app}", line' in shown
    assert "workers/execution.py" not in shown
    wait_until(lambda: "attempt ended" in worker.text() and f'File "{app}", line' in worker.text())
    assert f"serving subagent in {home}; agents: adder, failing, reader, writer" in worker.text()


def test_the_hint_names_the_file_of_the_agent(cli: Cli, home: Path, app: Path) -> None:
    said = cli("-A", str(app), "enqueue", "adder", "Add").stderr
    assert f"relight -A {app.name} worker subagent" in said


def test_a_verb_that_reads_names_a_state_that_is_not_there_and_makes_none(cli: Cli, home: Path) -> None:
    done = cli("list")
    assert (done.returncode, f"no state in {home}: relight init creates it" in done.stderr) == (7, True)
    assert not home.exists()


def test_a_file_is_no_home_and_what_is_not_found_is_not_found_in_a_home(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for verb in ("list", "init"):
        done = cli("--home", str(tmp_path / "file"), verb)
        assert (done.returncode, "is a file, not a directory" in done.stderr) == (7, True)
    assert cli("init").returncode == 0
    assert f"(in {home})" in cli("show", "nothing").stderr
