"""What is old leaves in bounded pages; what recovery, a person's retry or a reader's cursor needs stays."""

from __future__ import annotations

import pytest

from relight.models import (
    confirmations,
    events,
    journal,
    plain_messages,
    recovery_runs,
    retention,
    tasks,
    traces,
    transitions,
    workers,
)
from relight.models.database import Database
from relight.models.errors import NotFoundError, StaleMove
from relight.models.journal import StepCall
from relight.models.retention import GRAIN, Place
from relight.models.tasks import AgentTask
from tests.models.conftest import NOW, Claim, Submit

LOOK = StepCall("look#0", "d1", "read")
LATER = NOW + 1_000


def claim_of(task: AgentTask) -> journal.Claim:
    return journal.Claim(task.id, task.attempt, str(task.worker_id))


def stream(db: Database, task_id: str, count: int, *, now: int = NOW) -> None:
    events.record_pulses(db, task_id, [({"text": "word"}, now)] * count)


def step(db: Database, task: AgentTask, call: StepCall = LOOK) -> None:
    journal.accept_intent(db, claim_of(task), call, "{}", told={}, now=NOW)
    journal.record_outcome(db, claim_of(task), call, "{}", told={}, now=NOW)


def end(db: Database, task: AgentTask, *, now: int = NOW + 2, fails: bool = False) -> None:
    fence = {"attempt": task.attempt, "worker_id": str(task.worker_id)}
    if fails:
        transitions.fail(db, task.id, reason="error", error_json="{}", now=now, **fence)  # type: ignore[arg-type]
    else:
        transitions.complete(db, task.id, result_json="1", now=now, **fence)  # type: ignore[arg-type]


def remove_pulses(db: Database, *, before: int = LATER) -> int:
    gone, place = 0, Place(0, 0)
    while place is not None:
        page, place = retention.old_pulses(db, after=place, before=before)  # type: ignore[assignment]
        with db.write():
            gone += retention.remove_pulses(db, page)
    return gone


def trim(db: Database, task_id: str, *, before: int = LATER) -> int:
    with db.write():
        return retention.trim(db, task_id, before=before)


def trim_all(db: Database, task_id: str, *, before: int = LATER) -> None:
    while trim(db, task_id, before=before) == GRAIN:
        pass


def remove(db: Database, task_id: str, *, before: int = LATER) -> bool:
    with db.write():
        return retention.remove(db, task_id, before=before)


def types(db: Database, task_id: str = "t1") -> list[str]:
    return [event.event_type for event in events.by_task(db, task_id)]


# -- pulses ---------------------------------------------------------------------------------------------------


def test_old_pulses_leave_and_the_skeleton_stays(db: Database, claim: Claim) -> None:
    task = claim("t1")
    stream(db, "t1", 3)
    step(db, task)
    skeleton = [event.seq for event in events.structural(db, "t1")]
    assert remove_pulses(db) == 3
    assert [event.seq for event in events.by_task(db, "t1")] == skeleton


def test_young_pulses_stay(db: Database, claim: Claim) -> None:
    claim("t1")
    stream(db, "t1", 2, now=NOW)
    stream(db, "t1", 2, now=NOW + 500)
    assert remove_pulses(db, before=NOW + 500) == 2
    assert types(db).count("ai_streaming") == 2


def test_what_was_trimmed_is_marked_so_that_a_reader_knows_it_from_a_loss(db: Database, claim: Claim) -> None:
    task = claim("t1")
    stream(db, "t1", 3)
    step(db, task)
    stream(db, "t1", 2, now=LATER)
    last = max(
        event.seq for event in events.by_task(db, "t1") if event.timestamp < LATER and not event.is_structural
    )
    remove_pulses(db)
    assert events.trimmed_below(db, "t1") == last + 1


def test_numbers_go_on_after_everything_was_trimmed(db: Database, claim: Claim) -> None:
    end(db, claim("t1"), fails=True)
    newest = events.latest_seq(db, "t1") or 0
    trim_all(db, "t1")
    assert events.latest_seq(db, "t1") is None
    with db.write():
        events.record(db, "t1", "note", {}, now=LATER)
    assert events.latest_seq(db, "t1") == newest + 1


def test_a_look_at_old_pulses_reads_a_bounded_page(
    db: Database, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SCAN", 4)
    claim("t1")
    stream(db, "t1", 10)
    page, place = retention.old_pulses(db, after=Place(0, 0), before=LATER)
    assert len(page) <= 4
    assert place is not None
    assert remove_pulses(db) == 10


# -- traces and events of tasks that have ended ---------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True], ids=["completed", "failed"])
def test_an_ended_task_loses_its_traces_and_events_and_keeps_its_row(
    db: Database, claim: Claim, fails: bool
) -> None:
    task = claim("t1")
    step(db, task)
    end(db, task, fails=fails)
    trim_all(db, "t1")
    assert (traces.count(db, "t1"), events.by_task(db, "t1")) == (0, [])
    assert tasks.find(db, "t1").status.is_terminal()


def test_an_unfinished_task_loses_nothing_however_old_it_is(db: Database, claim: Claim) -> None:
    task = claim("t1")
    step(db, task)
    before = traces.count(db, "t1"), len(types(db))
    assert trim(db, "t1", before=NOW * 2) == 0
    assert not remove(db, "t1", before=NOW * 2)
    assert (traces.count(db, "t1"), len(types(db))) == before


def test_a_young_task_loses_nothing(db: Database, claim: Claim) -> None:
    end(db, claim("t1"), now=NOW + 10)
    assert trim(db, "t1", before=NOW + 10) == 0
    assert trim(db, "t1", before=NOW + 11) > 0


def test_ended_tasks_are_found_in_the_order_of_their_ends_and_page_by_page(
    db: Database, claim: Claim
) -> None:
    for number, ended_at in enumerate((30, 10, 20, 20)):
        end(db, claim(f"t{number}"), now=NOW + ended_at)
    claim("t9")
    seen, after = [], Place(0, 0)
    while page := retention.ended(db, after=after, before=LATER, limit=1):
        seen += [one.task_id for one in page]
        after = page[-1].place
    assert seen == ["t1", "t2", "t3", "t0"]


def test_a_large_task_is_trimmed_grain_by_grain(db: Database, claim: Claim) -> None:
    task = claim("t1")
    stream(db, "t1", 3 * GRAIN)
    end(db, task)
    sizes = []
    while not sizes or sizes[-1] == GRAIN:
        sizes.append(trim(db, "t1"))
    assert sum(sizes) == 1 + 3 * GRAIN + 3  # turn_started; pulses; enqueued, started, completed
    assert max(sizes) == GRAIN


def test_a_failed_task_whose_traces_began_to_go_cannot_be_retried(
    db: Database, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finished steps would run again."""
    monkeypatch.setattr(retention, "GRAIN", 1)
    task = claim("t1")
    step(db, task)
    end(db, task, fails=True)
    trim(db, "t1")
    assert traces.count(db, "t1") == 2
    with pytest.raises(StaleMove):
        transitions.retry_by_person(db, "t1", by="ada", now=LATER)


def test_a_failed_task_that_keeps_its_traces_can_be_retried(db: Database, claim: Claim) -> None:
    task = claim("t1")
    end(db, task, fails=True)
    assert transitions.retry_by_person(db, "t1", by="ada", now=LATER).status == "pending"


def test_a_task_that_is_retried_between_two_grains_keeps_the_rest(db: Database, submit: Submit) -> None:
    """One that was never claimed has no traces to lose, so that it may go on."""
    submit("t1")
    transitions.cancel(db, "t1", by="ada", detail="{}", now=NOW)
    transitions.retry_by_person(db, "t1", by="ada", now=NOW + 1)
    assert trim(db, "t1") == 0
    assert types(db)[0] == "task_enqueued"


def test_a_task_that_was_ended_under_a_living_worker_stays_until_that_is_out_of_it(
    db: Database, claim: Claim
) -> None:
    """Its late outcome needs the row."""
    workers.insert(db, id="w1", lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    task = claim("t1")
    end(db, task, fails=True)
    with db.write():
        db.change("UPDATE agent_tasks SET worker_id = 'w1'")
    assert trim(db, "t1") == 0
    workers.mark_dead(db, "w1", now=NOW)
    assert trim(db, "t1") > 0


def test_a_decided_question_goes_with_the_traces(db: Database, claim: Claim) -> None:
    task = claim("t1")
    cid = confirmations.ask(
        db, task, reason="asked", request={"why": "why"}, steps=[], now=NOW, owner=str(task.worker_id)
    )
    confirmations.reject(db, cid, by="ada", reason="", now=NOW + 1)
    trim_all(db, "t1")
    with pytest.raises(NotFoundError):
        confirmations.find(db, cid)


# -- rows -----------------------------------------------------------------------------------------------------


def test_a_trimmed_row_goes_and_gives_its_key_back(db: Database, claim: Claim, submit: Submit) -> None:
    end(db, claim("t1", key="q-42"))
    assert not remove(db, "t1"), "its traces are still there"
    trim_all(db, "t1")
    assert remove(db, "t1")
    assert submit("t2", key="q-42").id == "t2"


@pytest.mark.parametrize(
    ("parent_ends", "goes"), [("failed", False), ("running", False), ("completed", True)]
)
def test_a_child_stays_as_long_as_its_parent_could_ask_for_it(
    db: Database, claim: Claim, parent_ends: str, goes: bool
) -> None:
    parent = claim("parent")
    end(db, claim("child", parent_task_id="parent"))
    if parent_ends != "running":
        end(db, parent, fails=parent_ends == "failed")
    trim_all(db, "child")
    assert remove(db, "child") is goes


def test_a_child_goes_once_its_failed_parent_has_gone(db: Database, claim: Claim) -> None:
    end(db, claim("parent"), fails=True)
    end(db, claim("child", parent_task_id="parent"))
    for task_id in ("parent", "child"):
        trim_all(db, task_id)
    assert [remove(db, task_id) for task_id in ("child", "parent", "child")] == [False, True, True]


def test_what_would_go_is_counted_beforehand(db: Database, claim: Claim) -> None:
    task = claim("t1")
    stream(db, "t1", 4)
    end(db, task)
    claim("t2")
    stream(db, "t2", 2)
    counts = retention.due(db, pulses=LATER, records=LATER, tasks=LATER)
    assert counts == {"pulses": 6, "records": 1 + 3, "tasks": 1}
    assert retention.due(db, pulses=NOW, records=NOW, tasks=NOW) == {"pulses": 0, "records": 0, "tasks": 0}


# -- the rest -------------------------------------------------------------------------------------------------


def test_old_recovery_passes_go_and_the_last_one_stays(db: Database) -> None:
    for number in range(3):
        recovery_runs.record(
            db, started_at=NOW + number, finished_at=NOW + number, pid=1, verdicts={"resumed": ["t1"]}
        )
    with db.write():
        assert retention.remove_runs(db, before=LATER) == 2
    assert [run.started_at for run in recovery_runs.recent(db)] == [NOW + 2]


def test_results_of_plain_tasks_that_nobody_read_go_and_other_values_stay(db: Database) -> None:
    plain_messages.put_result(db, "main", "old", b"1", now=NOW)
    plain_messages.put_result(db, "main", "young", b"1", now=LATER)
    plain_messages.put_if_absent(db, "main", "lock", b"1")
    with db.write():
        assert retention.remove_plain_results(db, before=LATER) == 1
    assert [row[0] for row in db.rows("SELECT key FROM kv ORDER BY key")] == ["lock", "young"]


def test_a_mark_is_where_it_was_put(db: Database) -> None:
    assert retention.mark(db, "pulses") == 0
    for value in (5, 3):
        with db.write():
            retention.set_mark(db, "pulses", value)
        assert retention.mark(db, "pulses") == value


@pytest.mark.parametrize(
    "query",
    [
        retention._OLD_EVENTS.replace("?", "1"),
        retention._ENDED.replace("?", "1"),
        "SELECT id FROM task_traces WHERE instr(event_json, '{\"$blob\"') > 0 AND id > 0 ORDER BY id LIMIT 5",
        "SELECT id FROM agent_tasks WHERE instr(result_json, '{\"$blob\"') > 0 AND id > '' ORDER BY id LIMIT 5",
    ],
    ids=["pulses", "ended", "blobs of traces", "blobs of tasks"],
)
def test_a_scan_reads_an_index_in_its_order(db: Database, query: str) -> None:
    plan = " / ".join(row[3] for row in db.rows(f"EXPLAIN QUERY PLAN {query}"))
    assert "USING" in plan
    assert "INDEX" in plan
    assert "TEMP B-TREE" not in plan
