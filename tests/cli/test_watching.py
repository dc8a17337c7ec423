"""The verbs that only read: status, list, show, trace, events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Asked
from tests.conftest import Cli, StartRelight, StartWorker, wait_until


def test_pages_of_a_list_visit_every_task_once_and_newest_first(asked: Asked) -> None:
    made = [asked("enqueue", "elsewhere", str(number))["id"] for number in range(5)]
    seen, cursor = [], []
    while True:
        page = asked("list", "--limit", "2", *cursor)
        seen += [task["id"] for task in page["tasks"]]
        if page["next_cursor"] is None:
            break
        cursor = ["--cursor", page["next_cursor"]]
    assert seen == made[::-1]


@pytest.mark.parametrize(
    ("filter", "prompts"),
    [
        (["--lane", "main"], ["b"]),
        (["--session", "s1"], ["a"]),
        (["--status", "failed"], ["c"]),
        (["--status", "running"], []),
    ],
)
def test_a_list_is_filtered(asked: Asked, filter: list[str], prompts: list[str]) -> None:
    asked("enqueue", "elsewhere", "a", "--session", "s1")
    asked("enqueue", "elsewhere", "b", "--lane", "main")
    asked("cancel", asked("enqueue", "elsewhere", "c")["id"])
    assert [task["task_prompt"] for task in asked("list", *filter)["tasks"]] == prompts


def test_show_gives_every_column_and_the_values_in_it(asked: Asked) -> None:
    task = asked("enqueue", "elsewhere", "Go", "--input", '{"root": "src"}')["id"]
    shown = asked("show", task[:-1])
    assert {"attempt", "losses", "reason", "hold", "worker_id", "result", "error"} <= set(shown)
    assert shown["input"] == {"args": ["Go"], "kwargs": {"root": "src"}}


def test_an_id_may_be_short_but_not_ambiguous(asked: Asked) -> None:
    one, two = (asked("enqueue", "elsewhere", "Go")["id"] for _ in range(2))
    assert asked("show", one[-8:])["id"] == one
    assert asked("show", two[:2], code=4)["error"]["type"] == "ConflictError"


def test_text_of_a_task_reaches_no_terminal_as_control_codes(cli: Cli, asked: Asked) -> None:
    task = asked("enqueue", "elsewhere", "red \x1b[31m alert\r\n\u202e")["id"]
    for verb in (["list"], ["show", task], ["trace", task], ["events", task]):
        printed = cli(*verb).stdout
        assert all(letter.isprintable() for letter in printed.replace("\n", ""))
    assert r"red \x1b[31m alert" in cli("list").stdout


def test_a_list_in_a_pipe_is_not_cut(cli: Cli, asked: Asked) -> None:
    asked("enqueue", "elsewhere", "long " * 100 + "end")
    assert "long end" in cli("list").stdout


def test_trace_and_events_tell_what_a_task_did(
    cli: Cli, asked: Asked, home: Path, app: Path, start_worker: StartWorker
) -> None:
    start_worker(home, app, "all")
    task = asked("-A", str(app), "enqueue", "adder", "Add")["id"]
    asked("wait", task, "--timeout", "20")
    kinds = ["turn_started", "tool_call_started", "tool_call_completed"]
    assert [trace["event_kind"] for trace in asked("trace", task)["traces"]] == kinds
    assert len(asked("trace", task, "--kind", "turn_started")["traces"]) == 1
    events = asked("events", task)["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["seq"] for event in asked("events", task, "--since", "2")["events"]] == list(
        range(3, len(events) + 1)
    )
    followed = cli("--json", "events", task, "--follow").stdout.splitlines()
    assert [json.loads(line) for line in followed] == events
    assert "task_completed" in cli("events", task).stdout


def test_a_cursor_that_was_never_given_out_is_answered_with_a_gap(asked: Asked, cli: Cli) -> None:
    task = asked("enqueue", "elsewhere", "Go")["id"]
    (gap,) = asked("events", task, "--since", "99")["events"]
    assert gap == {"event_type": "gap", "since": 99, "next": 2, "reason": "ahead"}
    assert "gap: events after 99" in cli("events", task, "--since", "99").stdout


def test_follow_shows_each_event_as_it_is_committed_and_ends_with_the_task(
    asked: Asked,
    home: Path,
    app: Path,
    tmp_path: Path,
    start_worker: StartWorker,
    start_relight: StartRelight,
) -> None:
    files = f'{{"first": "{tmp_path}/go", "witness": "{tmp_path}/witness"}}'
    task = asked("-A", str(app), "enqueue", "reader", "Read", "--input", files)["id"]
    follower = start_relight("--json", "events", task, "--follow")
    wait_until(lambda: "task_enqueued" in follower.text())
    start_worker(home, app, "subagent")
    wait_until(lambda: "look_at" in follower.text())
    assert "task_completed" not in follower.text()
    (tmp_path / "go").touch()
    assert follower.wait() == 0
    told = [json.loads(line) for line in follower.text().splitlines()]
    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    assert told[-1]["event_type"] == "task_completed"


def test_status_tells_who_works_and_what_waits(
    cli: Cli, asked: Asked, home: Path, app: Path, start_worker: StartWorker
) -> None:
    asked("enqueue", "elsewhere", "Go", "--lane", "main")
    start_worker(home, app, "subagent")
    wait_until(lambda: asked("status")["listening"] == {"main": 0, "subagent": 1})
    status = asked("status")
    assert status["tasks"]["pending"] == 1
    assert status["ready"] == {"main": 1, "subagent": 0}
    assert status["open_confirmations"] == 0
    assert "pending 1" in cli("status").stdout
