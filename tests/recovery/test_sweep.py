"""One recovery pass over a real state file: what it decides becomes moves, each guarded, each once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cysqlite
import pytest

from relight.models import claims, confirmations, database, events, schema, tasks, transitions, workers
from relight.models.database import Database
from relight.models.errors import ConflictError, StepInDoubtError
from relight.models.events import AgentEvent
from relight.models.tasks import AgentTask, RiskLevel, TaskStatus
from relight.recovery import policy
from relight.recovery.decision import NO_TRACES
from relight.recovery.replay import RecordedStep
from relight.recovery.sweep import Report, sweep
from tests.models.conftest import AGENT, NOW, new_task
from tests.recovery.conftest import LATER, Orphanage, claim_of, rules, shipped

LOW, HIGH = RiskLevel.LOW, RiskLevel.HIGH


def run(db: Database, *, now: int = LATER, **told: Any) -> Report:
    return sweep(db, rules(**told), now=now)


def ids(entries: list[dict[str, str]]) -> list[str]:
    return [entry["id"] for entry in entries]


def row(db: Database, id: str = "t1") -> AgentTask:
    return tasks.find(db, id)


def count(db: Database, id: str, kind: str) -> int:
    return [event.event_type for event in events.by_task(db, id)].count(kind)


def question(db: Database) -> confirmations.Confirmation:
    [asked] = confirmations.listing(db)
    return asked


# -- the three verdicts of the tree ---------------------------------------------------------------------------


@pytest.mark.spec(29)
def test_a_task_without_traces_is_skipped_visibly_and_once(db: Database, orphanage: Orphanage) -> None:
    orphanage.take("t1")
    db.change("DELETE FROM task_traces")
    report = run(db)
    assert report.skipped == [{"id": "t1", "agent": AGENT, "reason": NO_TRACES}]
    found = row(db)
    assert (found.status, found.reason, found.worker_id) == (TaskStatus.INTERRUPTED, "skipped", None)
    assert NO_TRACES in str(found.error_json)
    before = len(events.by_task(db, "t1"))
    for _ in range(3):
        assert run(db).is_empty()
    assert len(events.by_task(db, "t1")) == before
    transitions.retry_by_person(db, "t1", by="ann", now=LATER)
    assert row(db).status == TaskStatus.PENDING


@pytest.mark.spec(30)
def test_a_low_risk_task_goes_back_to_its_lane_and_ends_up_running(
    db: Database, orphanage: Orphanage
) -> None:
    before = orphanage.take("t1")
    orphanage.step(before, "look#1")
    rung: list[frozenset[str]] = []
    db.ring = rung.append
    report = run(db)
    assert ids(report.resumed) == ["t1"]
    found = row(db)
    assert (found.status, found.worker_id, found.reason, found.losses) == (TaskStatus.PENDING, None, None, 1)
    assert (found.rank, found.lane, found.priority) == (before.rank, before.lane, before.priority)
    assert count(db, "t1", "task_recovered") == 1
    assert "subagent" in rung[-1]
    assert orphanage.claim("t1", worker="alive").attempt == 2
    assert run(db).is_empty()


@pytest.mark.spec(31)
def test_a_high_risk_task_waits_for_a_person_and_moves_only_after_a_yes(
    db: Database, orphanage: Orphanage
) -> None:
    orphanage.take("t1", HIGH)
    assert ids(run(db).asked) == ["t1"]
    found = row(db)
    assert (found.status, found.reason, found.worker_id) == (TaskStatus.INTERRUPTED, "asked", None)
    assert claims.claim(db, "subagent", worker_id="alive", now=LATER, known=frozenset({AGENT})) is None
    asked = question(db)
    confirmations.approve(db, asked.id, by="ann", now=LATER)
    assert row(db).status == TaskStatus.PENDING


@pytest.mark.spec(31)
def test_a_no_ends_the_task_for_good(db: Database, orphanage: Orphanage) -> None:
    orphanage.take("t1", HIGH)
    run(db)
    confirmations.reject(db, question(db).id, by="ann", reason="not this", now=LATER)
    found = row(db)
    assert (found.status, found.reason) == (TaskStatus.FAILED, "rejected")
    before = len(events.by_task(db, "t1"))
    for _ in range(20):
        assert run(db).is_empty()
    assert len(events.by_task(db, "t1")) == before
    assert confirmations.listing(db) == []


def test_a_pass_counts_what_it_did(db: Database, orphanage: Orphanage) -> None:
    for number in range(3):
        orphanage.take(f"l{number}")
    for number in range(2):
        orphanage.take(f"h{number}", HIGH)
    report = run(db)
    assert [len(entries) for entries in vars(report).values()] == [3, 2, 0, 0, 0]
    assert report.ids()["resumed"] == ["l0", "l1", "l2"]


def test_a_hundred_passes_ask_once(db: Database, orphanage: Orphanage, path: Path) -> None:
    orphanage.take("t1", HIGH)
    for number in range(100):
        run(db)
        if number % 33 == 0:
            db.close_all()  # as after a restart
    assert len(confirmations.listing(db, only_open=False)) == 1
    assert count(db, "t1", AgentEvent.TYPE_CONFIRMATION_REQUESTED) == 1


# -- the order and the length of the list ---------------------------------------------------------------------


def test_what_must_wait_blocks_nothing_behind_it(db: Database, orphanage: Orphanage) -> None:
    with db.write():
        for number in range(1000):
            orphanage_row(db, f"h{number:04}", HIGH, created_at=1)
        for number in range(10):
            orphanage_row(db, f"l{number}", LOW, created_at=NOW)
    report = run(db)
    assert ids(report.resumed) == [f"l{number}" for number in range(10)]
    assert len(report.asked) == 1000
    assert run(db).is_empty()


def orphanage_row(db: Database, id: str, risk: RiskLevel, *, created_at: int) -> None:
    """A task that was claimed by the dead worker, as its rows lie in the file."""
    task = new_task(id, risk=risk, now=created_at)
    task.attempt, task.worker_id = 1, "dead"
    task.__data__["status"] = TaskStatus.RUNNING
    db.insert(task)
    db.change(
        "INSERT INTO task_traces (task_id, step_index, event_kind, event_json, timestamp) VALUES (?, 0, ?, '{}', 1)",
        (id, "turn_started"),
    )


def test_tasks_are_taken_low_risk_first_and_the_oldest_first(db: Database, orphanage: Orphanage) -> None:
    for id, risk, age in (("h1", HIGH, 9), ("l1", LOW, 1), ("l2", LOW, 5), ("h2", HIGH, 2)):
        orphanage.take(id, risk, now=NOW - age)
    report = run(db)
    assert (ids(report.resumed), ids(report.asked)) == (["l2", "l1"], ["h1", "h2"])


# -- losses ---------------------------------------------------------------------------------------------------


def lose(db: Database, orphanage: Orphanage, *, max_losses: int = 3) -> Report:
    report = run(db, max_losses=max_losses)
    if row(db).status == TaskStatus.PENDING:
        orphanage.claim("t1")
    return report


def test_a_task_that_takes_its_workers_down_is_given_up_and_names_the_suspect(
    db: Database, orphanage: Orphanage
) -> None:
    task = orphanage.take("t1")
    orphanage.begin(task, "look#1")
    assert lose(db, orphanage).resumed
    orphanage.begin(row(db), "look#1")
    assert lose(db, orphanage).resumed
    orphanage.begin(row(db), "look#1")
    report = lose(db, orphanage)
    assert ids(report.quarantined) == ["t1"]
    found = row(db)
    assert (found.status, found.reason, found.losses) == (TaskStatus.FAILED, "crash_loop", 3)
    assert "3 times" in str(found.error_json)
    assert "look#1" in str(found.error_json)
    assert run(db).is_empty()
    transitions.retry_by_person(db, "t1", by="ann", now=LATER)
    assert (row(db).status, row(db).losses) == (TaskStatus.PENDING, 0)


def test_from_the_second_loss_in_a_row_on_a_task_waits_and_keeps_its_place(
    db: Database, orphanage: Orphanage
) -> None:
    first = orphanage.take("t1")
    lose(db, orphanage, max_losses=9)
    assert [row(db).hold, row(db).due_at] == [None, None], "the first loss costs nothing"
    for losses, wait_ms in ((2, 1_000), (3, 2_000), (4, 4_000)):
        run(db, max_losses=9)
        held = row(db)
        assert (held.status, held.hold, held.losses) == (TaskStatus.PENDING, "due", losses)
        assert held.due_at == LATER + wait_ms
        assert (held.rank, held.priority, held.lane) == (first.rank, first.priority, first.lane)
        claims.release_due(db, now=LATER + wait_ms - 1)
        assert row(db).hold == "due"
        claims.release_due(db, now=LATER + wait_ms)
        assert row(db).hold is None
        orphanage.claim("t1")


def test_losses_count_in_a_row_and_a_finished_step_begins_a_new_one(
    db: Database, orphanage: Orphanage
) -> None:
    orphanage.take("t1")
    for number in range(1, 8):
        orphanage.step(row(db), f"look#{number}")
        assert lose(db, orphanage, max_losses=2).resumed, f"loss {number}"
        assert row(db).losses == 1
    lose(db, orphanage, max_losses=2)
    assert row(db).reason == "crash_loop"


def test_a_shutdown_is_no_loss(db: Database, orphanage: Orphanage) -> None:
    orphanage.take("t1")
    for _ in range(5):
        found = row(db)
        transitions.interrupt(
            db, "t1", reason="shutdown", now=LATER, attempt=found.attempt, worker_id="dead", keep_owner=True
        )
        assert lose(db, orphanage, max_losses=1).resumed
    assert row(db).losses == 0


# -- steps in doubt -------------------------------------------------------------------------------------------


def test_a_write_in_doubt_is_asked_about_whatever_the_risk(db: Database, orphanage: Orphanage) -> None:
    task = orphanage.take("t1")
    orphanage.step(task, "look#1")
    orphanage.begin(task, "put#1", "write")
    db.change("UPDATE agent_tasks SET risk_level = 'low'")
    report = run(db)
    assert report.asked[0]["reason"] == "may have happened: put#1"
    asked = question(db)
    assert asked.request["restored"] == {"finished_steps": 1, "last": ["look#1"]}
    assert asked.request["next"] == "step put#1 again"
    [step] = confirmations.steps(db, asked.id)
    shown = json.loads(step.shown_json)
    assert (shown["name"], shown["input"], shown["attempt"]) == ("put", {"n": 1}, 1)
    assert shown["verify"] == {"status": "not asked"}
    with pytest.raises(StepInDoubtError, match="put#1"):
        confirmations.approve(db, asked.id, by="ann", now=LATER)


def test_a_read_in_doubt_of_a_low_risk_task_is_no_question(db: Database, orphanage: Orphanage) -> None:
    task = orphanage.take("t1")
    orphanage.begin(task, "look#1")
    assert ids(run(db).resumed) == ["t1"]


def test_every_write_in_doubt_is_listed_with_what_verify_says(db: Database, orphanage: Orphanage) -> None:
    task = orphanage.take("t1", HIGH)
    for key in ("1/put#1", "2/put#1"):
        orphanage.begin(task, key, "write")
    orphanage.begin(task, "3/look#1")

    def evidence(task: AgentTask, step: RecordedStep) -> dict[str, Any]:
        return {"status": "answered", "landed": step.key == "1/put#1"}

    sweep(db, rules(), now=LATER, evidence=evidence)
    found = {step.step_key: json.loads(step.shown_json)["verify"] for step in asked_steps(db)}
    assert found == {
        "1/put#1": {"status": "answered", "landed": True},
        "2/put#1": {"status": "answered", "landed": False},
    }


def asked_steps(db: Database) -> list[confirmations.ConfirmationStep]:
    return confirmations.steps(db, question(db).id)


def test_evidence_is_looked_for_outside_of_any_transaction(db: Database, orphanage: Orphanage) -> None:
    orphanage.begin(orphanage.take("t1"), "put#1", "write")
    other = schema.open_database(db.path, now=NOW)

    def evidence(task: AgentTask, step: RecordedStep) -> None:
        with other.write():
            other.change("UPDATE agent_tasks SET metadata_json = 'looked' WHERE id = 't1'")

    sweep(db, rules(), now=LATER, evidence=evidence)
    other.close_all()
    assert row(db).metadata_json == "looked"


def test_a_step_that_a_person_allowed_again_is_not_asked_about_again(
    db: Database, orphanage: Orphanage
) -> None:
    orphanage.begin(orphanage.take("t1", HIGH), "put#1", "write")
    run(db)
    confirmations.answer_again(db, question(db).id, "put#1", by="ann", now=LATER)
    orphanage.claim("t1")
    report = run(db)
    assert report.asked[0]["reason"] == "high risk"
    assert asked_steps(db) == []


def test_a_used_yes_is_not_used_again_after_the_next_crash(db: Database, orphanage: Orphanage) -> None:
    orphanage.begin(orphanage.take("t1", HIGH), "put#1", "write")
    run(db)
    first = question(db).id
    confirmations.answer_again(db, first, "put#1", by="ann", now=LATER)
    orphanage.begin(orphanage.claim("t1"), "put#1", "write")
    assert ids(run(db).asked) == ["t1"]
    assert [step.step_key for step in asked_steps(db)] == ["put#1"]
    assert question(db).id != first
    [used] = confirmations.steps(db, first)
    assert used.consumed_at is not None


def test_a_later_write_is_a_new_question_with_its_own_digest(db: Database, orphanage: Orphanage) -> None:
    task = orphanage.take("t1", HIGH)
    orphanage.begin(task, "put#1", "write", digest="d1")
    run(db)
    confirmations.answer_again(db, question(db).id, None, by="ann", now=LATER)
    task = orphanage.claim("t1")
    orphanage.finish(task, orphanage.begin(task, "put#1", "write", digest="d1"))
    orphanage.begin(task, "put#2", "write", digest="d2")
    run(db)
    assert [(step.step_key, step.digest) for step in asked_steps(db)] == [("put#2", "d2")]


@pytest.mark.parametrize("damaged", ["not json", "[]", '{"call":7}'])
def test_a_record_that_cannot_be_read_is_asked_about_and_blocks_nothing(
    db: Database, orphanage: Orphanage, damaged: str
) -> None:
    orphanage.begin(orphanage.take("t1"), "put#1", "write")
    db.change("UPDATE task_traces SET event_json = ? WHERE step_key = 'put#1'", (damaged,))
    orphanage.take("t2")
    report = run(db)
    assert (ids(report.asked), ids(report.resumed)) == (["t1"], ["t2"])
    assert [step.step_key for step in asked_steps(db)] == ["put#1"]


# -- policy and risk that cannot be followed ------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [None, "", "version = 1", policy.DEFAULT_TEXT.replace('"resume"', '"Resume"'), "version = 1\n[recovery"],
)
def test_a_policy_that_cannot_be_followed_resumes_nothing_and_names_the_file(
    db: Database, orphanage: Orphanage, text: str | None
) -> None:
    orphanage.take("t1")
    report = run(db, followed=policy.parse(text, path="/etc/policy.toml"))
    assert report.resumed == []
    assert "/etc/policy.toml" in report.asked[0]["reason"]
    assert "/etc/policy.toml" in question(db).request["why"]


@pytest.mark.spec(2)
@pytest.mark.parametrize("text", ["lo", "", "none", "LOW ", "medium"])
def test_an_unknown_risk_resumes_nothing_and_is_named(db: Database, orphanage: Orphanage, text: str) -> None:
    orphanage.take("t1")
    db.change("UPDATE agent_tasks SET risk_level = ?", (text,))
    report = run(db)
    assert report.resumed == []
    assert report.asked[0]["reason"] == f"unknown risk level {text!r}"


def test_an_exempt_agent_resumes_although_its_risk_is_high_but_not_past_a_write_in_doubt(
    db: Database, orphanage: Orphanage
) -> None:
    exempt = policy.parse(policy.DEFAULT_TEXT.replace("exempt = []", f'exempt = ["{AGENT}"]'), path="p")
    orphanage.take("t1", HIGH)
    orphanage.begin(orphanage.take("t2", HIGH), "put#1", "write")
    report = run(db, followed=exempt)
    assert (ids(report.resumed), ids(report.asked)) == (["t1"], ["t2"])


# -- who is an orphan -----------------------------------------------------------------------------------------


def test_paused_and_ended_tasks_are_left_alone_however_old(db: Database, orphanage: Orphanage) -> None:
    with db.write():
        for status in TaskStatus:
            orphanage_row(db, str(status), LOW, created_at=1)
            ended = 2 if status.is_terminal() else None
            db.change(
                "UPDATE agent_tasks SET status = ?, completed_at = ?, updated_at = 1, reason = ? WHERE id = ?",
                (str(status), ended, "lost" if status == TaskStatus.INTERRUPTED else None, str(status)),
            )
        db.change("UPDATE agent_tasks SET worker_id = 'alive' WHERE id = 'running'")
    table = "SELECT * FROM agent_tasks WHERE id <> 'interrupted' ORDER BY id"
    before = db.rows(table)
    assert ids(run(db).resumed) == ["interrupted"]
    assert db.rows(table) == before


@pytest.mark.parametrize("reason", ["asked", "diverged", "skipped"])
def test_what_waits_for_a_person_is_left_alone(db: Database, orphanage: Orphanage, reason: str) -> None:
    orphanage.take("t1")
    db.change("UPDATE agent_tasks SET status = 'interrupted', reason = ?", (reason,))
    assert run(db).is_empty()


def test_an_orphan_by_lease_resumes_only_without_an_open_write(db: Database, orphanage: Orphanage) -> None:
    reading = orphanage.take("reading", worker="alive")
    orphanage.begin(reading, "look#1")
    writing = orphanage.take("writing", worker="alive")
    orphanage.begin(writing, "put#1", "write")
    assert run(db).is_empty()
    report = run(db, lease_out=("alive",))
    assert (ids(report.resumed), ids(report.asked)) == (["reading"], ["writing"])
    assert row(db, "writing").worker_id == "alive"
    assert "not proved dead" in question(db).request["owner"]
    with pytest.raises(ConflictError, match="not proved dead"):
        confirmations.answer_again(db, question(db).id, None, by="ann", now=LATER)
    workers.mark_dead(db, "alive", now=LATER)
    confirmations.answer_again(db, question(db).id, None, by="ann", now=LATER)
    assert row(db, "writing").status == TaskStatus.PENDING


def test_a_task_that_was_never_claimed_in_its_time_is_expired(db: Database) -> None:
    late, kept = new_task("late", expires_at=LATER), new_task("kept", expires_at=LATER + 1)
    for task in (late, kept):
        tasks.submit(db, task, now=NOW)
    assert run(db, now=LATER).is_empty()
    assert (row(db, "late").status, row(db, "late").reason) == (TaskStatus.FAILED, "expired")
    assert row(db, "kept").status == TaskStatus.PENDING


# -- others at the same time, and troubles --------------------------------------------------------------------


def test_a_dry_run_says_what_it_would_do_and_moves_nothing(db: Database, orphanage: Orphanage) -> None:
    orphanage.take("low")
    orphanage.begin(orphanage.take("high", HIGH), "put#1", "write")
    tasks.submit(db, new_task("late", expires_at=1), now=NOW)
    tables = ("agent_tasks", "agent_events", "task_traces", "confirmations")
    before = {name: db.rows(f"SELECT * FROM {name}") for name in tables}
    report = sweep(db, rules(), now=LATER, dry_run=True)
    assert (ids(report.resumed), ids(report.asked)) == (["low"], ["high"])
    assert {name: db.rows(f"SELECT * FROM {name}") for name in tables} == before


class Meddling:
    """A policy that, while a pass reads it, lets a task end."""

    def __init__(self, db: Database, ending: AgentTask) -> None:
        self.db, self.ending = db, ending
        self.path, self.high, self.exempt = "p", "ask", frozenset[str]()

    @property
    def low(self) -> str:
        ending = self.ending
        if row(self.db, ending.id).status == TaskStatus.RUNNING:
            fence = claim_of(ending)
            transitions.complete(
                self.db,
                ending.id,
                attempt=fence.attempt,
                worker_id=fence.worker_id,
                result_json="1",
                now=LATER,
            )
        return "resume"


def test_a_task_that_ended_while_the_pass_was_thinking_stays_ended(
    db: Database, orphanage: Orphanage
) -> None:
    others = [orphanage.take(f"t{number}") for number in range(5)]
    meddling: Any = Meddling(db, others[2])
    report = run(db, followed=meddling)
    assert ids(report.resumed) == ["t0", "t1", "t3", "t4"]
    assert report.errors == []
    ended = row(db, "t2")
    assert (ended.status, ended.result_json) == (TaskStatus.COMPLETED, "1")
    assert count(db, "t2", "task_recovered") == 0


def test_a_question_about_a_task_that_ended_meanwhile_is_not_filed(
    db: Database, orphanage: Orphanage
) -> None:
    task = orphanage.take("t1", HIGH)
    orphanage.begin(task, "put#1", "write")

    def evidence(task: AgentTask, step: RecordedStep) -> None:
        transitions.cancel(db, task.id, by="ann", detail="{}", now=LATER)

    assert sweep(db, rules(), now=LATER, evidence=evidence).is_empty()
    assert confirmations.listing(db, only_open=False) == []
    assert row(db).reason == "cancelled"


def test_four_passes_at_once_recover_each_orphan_once(path: Path, db: Database, orphanage: Orphanage) -> None:
    homes = [schema.open_database(path, now=NOW) for _ in range(4)]
    for round_ in range(4):
        names = [f"{round_}-{number}" for number in range(20)]
        for number, name in enumerate(names):
            orphanage.take(name, HIGH if number % 4 == 0 else LOW)
        start = threading.Barrier(4)

        def go(
            home: Database, start: threading.Barrier = start
        ) -> tuple[list[str], list[str], list[dict[str, str]]]:
            start.wait(10)
            report = run(home)
            return ids(report.resumed), ids(report.asked), report.errors

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(go, homes))
        assert [errors for _, _, errors in found if errors] == []
        moved = sorted(id for resumed, asked, _ in found for id in (*resumed, *asked))
        assert moved == sorted(names)
        assert all(
            count(db, name, "task_recovered") + count(db, name, AgentEvent.TYPE_CONFIRMATION_REQUESTED) == 1
            for name in names
        )
        for name in names:
            transitions.cancel(db, name, by="t", detail="{}", now=LATER)
    for home in homes:
        home.close_all()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the write lock, past every patience."""
    conn = cysqlite.connect(str(path))  # type: ignore[attr-defined]  # it ships no types
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        conn.rollback()
        conn.close()


def test_what_a_locked_store_refused_is_counted_and_taken_by_the_next_pass(
    path: Path, db: Database, orphanage: Orphanage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        orphanage.take(f"t{number:02}", HIGH if number < 3 else LOW)
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.01)
    db.close_all()
    before = db.rows("SELECT * FROM agent_tasks ORDER BY id"), db.row("SELECT count(*) FROM agent_events")
    with locked(path):
        report = run(db)
    assert len(report.errors) == 50
    assert (report.resumed, report.asked) == ([], [])
    assert all("locked" in entry["reason"] or "lock" in entry["reason"] for entry in report.errors)
    after = db.rows("SELECT * FROM agent_tasks ORDER BY id"), db.row("SELECT count(*) FROM agent_events")
    assert after == before
    report = run(db)
    assert (len(report.resumed), len(report.asked), report.errors) == (47, 3, [])
    assert len(db.rows("SELECT 1 FROM agent_events WHERE event_type = 'task_recovered'")) == 47


def test_the_shipped_policy_is_the_one_these_tests_follow() -> None:
    assert (shipped().low, shipped().high, shipped().exempt) == ("resume", "ask", frozenset())
