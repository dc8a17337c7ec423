"""Half an emoji, wherever it comes from, is stored with a replacement; the task goes on and everything stays readable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relight import Run, agent, current_step, ref, step
from relight.models import events, pauses, traces
from tests.conftest import Cli
from tests.workers.conftest import Crew

HALF, WHOLE = "before \ud83d after", "before \ufffd after"
VALID = "ü€𝄞 😀"


def read_elsewhere(cli: Cli, *args: str) -> Any:
    """What another process reads, as strict UTF-8 and JSON."""
    done = cli("--json", *args)
    assert done.returncode in (0, 1), done.stderr
    done.stdout.encode("utf-8", errors="strict")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "place", ["prompt", "argument", "result", "error", "pulse", "artifact", "step error"]
)
def test_a_task_with_half_an_emoji_ends_and_is_read_by_another_process(
    crew: Crew, cli: Cli, place: str
) -> None:
    @step(effect="read")
    def echo(text: str) -> str:
        if place == "step error":
            raise ValueError(text)
        if place == "pulse":
            current_step().stream(text)
        return text

    @agent(risk="low")
    def talker(run: Run, prompt: str, *, text: str) -> str:
        if place == "artifact":
            run.artifact("note", text)
        if place == "error":
            raise ValueError(text)
        return echo(text)

    handle = talker.enqueue(HALF if place == "prompt" else VALID, text=VALID if place == "prompt" else HALF)
    outcome = crew.work()
    failed = "error" in place
    assert outcome.kind == ("failed" if failed else "completed")
    row = read_elsewhere(cli, "show", handle.id)
    assert row["task_prompt"] == (WHOLE if place == "prompt" else VALID)
    if failed:
        assert row["error"]["text"] == WHOLE
    else:
        assert row["result"] == (VALID if place == "prompt" else WHOLE)
    for verb in ("trace", "events", "why"):
        read_elsewhere(cli, verb, handle.id)
    stored = [trace.event_json for trace in traces.by_task(crew.db, handle.id)]
    stored += [event.payload_json for event in events.by_task(crew.db, handle.id)]
    assert all(json.loads(text) is not None for text in stored)
    assert not any("\ud83d" in json.dumps(json.loads(text), ensure_ascii=False) for text in stored)


def test_a_resumed_run_sees_the_text_that_was_stored(crew: Crew) -> None:
    """The live run and the replay get the same text, so nothing diverges over a replacement."""
    seen: list[str] = []

    @step(effect="read")
    def echo(text: str) -> str:
        return text

    @step(effect="read")
    def stop(text: str) -> str:
        if len(seen) == 1:
            crew.interrupt()
        return text

    @agent(risk="low")
    def talker(run: Run, prompt: str) -> str:
        seen.append(echo(HALF))
        return stop(seen[-1])

    handle = talker.enqueue(HALF)
    assert crew.work().kind == "lost"
    crew.relight()
    assert crew.work().kind == "completed"
    assert seen == [WHOLE, WHOLE]
    assert handle.result(0) == WHOLE


@pytest.mark.parametrize("name", ["agent", "session", "key"])
def test_half_an_emoji_in_a_name_is_stored_and_found(crew: Crew, cli: Cli, name: str) -> None:
    said: dict[str, str] = {name: HALF} if name != "agent" else {}
    handle = ref(HALF if name == "agent" else "elsewhere").options(**said).enqueue("go")
    row = read_elsewhere(cli, "show", handle.id)
    column = {"agent": "agent_id", "session": "parent_session_id", "key": "key"}[name]
    assert row[column] == WHOLE
    again = ref(HALF if name == "agent" else "elsewhere").options(**said).enqueue("go")
    assert (again.id == handle.id) == (name == "key")


def test_who_speaks_may_have_half_an_emoji_in_the_name(crew: Crew, cli: Cli) -> None:
    handle = ref("elsewhere").enqueue("go")
    pauses.pause_task(crew.db, handle.id, by=HALF, now=1)
    assert read_elsewhere(cli, "why", handle.id)["facts"]["paused_by"] == WHOLE
    handle.cancel(reason=HALF)
    assert read_elsewhere(cli, "show", handle.id)["error"]["text"] == WHOLE
