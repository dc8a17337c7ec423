"""Pulses: written in batches, never in the way of a step, dropped and counted when they must be."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from relight import Run, agent, current_step, ref, step
from relight.models import events
from relight.models.errors import StorageLockedError
from relight.models.events import AgentEvent
from relight.workers import pulses as pulses_module
from relight.workers import serving
from relight.workers.pulses import BATCH, CAPACITY, Pulses
from tests.conftest import wait_until
from tests.workers.conftest import Crew


@pytest.fixture
def task(crew: Crew) -> str:
    return ref("any").enqueue("a").id


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the size of a batch makes it due."""
    monkeypatch.setattr(pulses_module, "FLUSH_S", 60.0)


@pytest.fixture
def pulses(crew: Crew) -> Pulses:
    return Pulses(crew.db, crew.home.path)


def stored(crew: Crew, task: str) -> list[Any]:
    found = events.by_task(crew.db, task)
    return [
        json.loads(one.payload_json)["token"]
        for one in found
        if one.event_type == AgentEvent.TYPE_AI_STREAMING
    ]


@pytest.mark.spec(11)
def test_49_pulses_write_nothing_and_the_50th_writes_one_batch(
    crew: Crew, pulses: Pulses, task: str, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    record = events.record_pulses

    def counting(db: Any, task_id: str, payloads: Any) -> None:
        batches.append(len(payloads))
        record(db, task_id, payloads)

    monkeypatch.setattr(events, "record_pulses", counting)
    for number in range(BATCH - 1):
        pulses.add(task, {"token": number})
    assert stored(crew, task) == []
    pulses.add(task, {"token": BATCH - 1})
    wait_until(lambda: batches)
    assert batches == [50]
    assert stored(crew, task) == list(range(50))


@pytest.mark.spec(11)
def test_a_pulse_is_stored_within_the_flush_time(crew: Crew, pulses: Pulses, task: str) -> None:
    began = time.monotonic()
    pulses.add(task, {"token": "slow"})
    wait_until(lambda: stored(crew, task) == ["slow"])
    assert time.monotonic() - began < 2.0
    assert pulses_module.FLUSH_S == 0.5


def test_a_pulse_is_stored_soon_while_someone_follows(
    crew: Crew, pulses: Pulses, task: str, unhurried: None
) -> None:
    crew.home.bell("watch", "follow").start()
    pulses.add(task, {"token": "soon"})
    wait_until(lambda: stored(crew, task) == ["soon"])


def test_a_flush_stores_what_is_held_of_one_task_now_in_its_order(
    crew: Crew, pulses: Pulses, task: str, unhurried: None
) -> None:
    other = ref("any").enqueue("b").id
    for number in range(5):
        pulses.add(task, {"token": number})
        pulses.add(other, {"token": -number})
    pulses.flush(task)
    assert stored(crew, task) == list(range(5))
    assert stored(crew, other) == []
    pulses.flush_all()
    assert stored(crew, other) == [0, -1, -2, -3, -4]


def test_a_flush_waits_for_pulses_of_its_task_that_are_on_their_way(
    crew: Crew, pulses: Pulses, task: str, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    record = events.record_pulses

    def flush() -> None:
        pulses.flush(task)
        order.append("skeleton")

    skeleton = threading.Thread(target=flush)

    def slow(db: Any, task_id: str, payloads: Any) -> None:
        skeleton.start()
        skeleton.join(0.2)
        record(db, task_id, payloads)
        order.append("pulses")

    monkeypatch.setattr(events, "record_pulses", slow)
    pulses.add(task, {"token": 1})
    pulses.flush_all()
    skeleton.join(10)
    assert order == ["pulses", "skeleton"]


def test_what_does_not_fit_is_dropped_and_counted_and_nothing_waits(
    crew: Crew, pulses: Pulses, task: str, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, locked = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        reached.set()
        locked.wait(10)

    monkeypatch.setattr(events, "record_pulses", wait)
    for number in range(BATCH):
        pulses.add(task, {"token": number})
    assert reached.wait(10)
    for number in range(CAPACITY + 100):
        pulses.add(task, {"token": number})
    assert pulses.dropped == 100
    locked.set()


def test_a_batch_that_cannot_be_written_is_dropped_and_counted_and_fails_no_step(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: Any) -> None:
        raise StorageLockedError("locked")

    @step(effect="read")
    def streaming() -> str:
        for token in "abc":
            current_step().stream(token)
        return "done"

    @agent(risk="low")
    def streaming_agent(run: Run) -> str:
        return streaming()

    monkeypatch.setattr(events, "record_pulses", locked)
    task = streaming_agent.enqueue()
    assert crew.work().kind == "completed"
    assert task.result() == "done"
    assert stored(crew, task.id) == []
    assert serving.pulses(crew.home).dropped == 3


@pytest.mark.parametrize(
    "token", ["half an emoji \ud83d", "a\x00b", float("nan"), {"any": {1, 2}}, object(), 10**30]
)
def test_a_token_of_any_kind_fails_no_step_and_is_stored_as_valid_json(crew: Crew, token: Any) -> None:
    @step(effect="read")
    def streaming() -> str:
        current_step().stream(token)
        current_step().stream("after")
        return "done"

    @agent(risk="low")
    def streaming_agent(run: Run) -> str:
        return streaming()

    task = streaming_agent.enqueue()
    assert crew.work().kind == "completed"
    assert stored(crew, task.id)[1] == "after"
    valid = "SELECT count(*) FROM agent_events WHERE task_id = ? AND NOT json_valid(payload_json)"
    assert crew.db.row(valid, (task.id,)) == (0,)


def test_a_token_is_bounded(crew: Crew) -> None:
    @step(effect="read")
    def streaming() -> None:
        current_step().stream("x" * 5_000_000)

    @agent(risk="low")
    def streaming_agent(run: Run) -> None:
        streaming()

    task = streaming_agent.enqueue()
    crew.work()
    [token] = stored(crew, task.id)
    assert len(token) <= 65_536
    assert "5000000 bytes" in token


@pytest.mark.spec(11)
def test_losing_every_pulse_changes_no_state_of_the_task(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once() -> dict[str, Any]:
        @step(effect="read")
        def streaming() -> str:
            current_step().stream("a")
            return "done"

        @agent(risk="low")
        def streaming_agent(run: Run) -> str:
            return streaming()

        task = streaming_agent.enqueue()
        crew.work()
        row = dict(task.task().__data__)
        return {name: row[name] for name in row if not name.endswith("_at") and name not in ("id", "rank")}

    with_pulses = run_once()
    monkeypatch.setattr(Pulses, "add", lambda *_: None)
    without = run_once()
    without["worker_id"] = with_pulses["worker_id"]
    assert with_pulses.pop("handler_version") == without.pop("handler_version")
    assert with_pulses == without


def test_an_idle_process_keeps_no_thread_for_pulses(crew: Crew, pulses: Pulses, task: str) -> None:
    pulses.add(task, {"token": 1})
    wait_until(lambda: pulses._thread is None and stored(crew, task) == [1])
    pulses.add(task, {"token": 2})
    wait_until(lambda: stored(crew, task) == [1, 2])


def test_a_forked_child_does_not_store_the_pulses_of_its_parent(
    crew: Crew, pulses: Pulses, task: str, unhurried: None
) -> None:
    pulses.add(task, {"token": 1})
    pulses.close_inherited()  # what a fork calls in the child
    pulses.flush(task)
    assert stored(crew, task) == []
