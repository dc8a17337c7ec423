"""Every move of a task's life: the legal ones, the refused ones, and that a loser changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from relight.models import claims, confirmations, events, journal, tasks, traces, transitions, workers
from relight.models.confirmations import StepInDoubt
from relight.models.database import Database
from relight.models.errors import NotFoundError, StaleMove
from relight.models.journal import StepCall
from relight.models.moves import Move
from relight.models.tasks import AgentTask, Lane, TaskStatus
from tests.models.conftest import AGENT, NOW, Claim, Submit, fail_after

P, R, C, F, I, D, S = TaskStatus
LIVE = {P, R, I, D, S}
LEGAL: dict[str, tuple[set[TaskStatus], TaskStatus, str]] = {
    "claim": ({P}, R, "task_started"),
    "unclaim": ({R}, P, "task_unclaimed"),
    "hold": ({P}, P, "task_held"),
    "release": ({P}, P, "task_released"),
    "expire": ({P}, F, "task_failed"),
    "complete": ({R}, C, "task_completed"),
    "fail": ({R}, F, "task_failed"),
    "retry": ({R}, P, "task_retrying"),
    "interrupt": ({R}, I, "task_interrupted"),
    "ask": ({I}, I, "task_interrupted"),
    "suspend": ({R}, D, "task_suspended"),
    "wake": ({D, S}, P, "task_woken"),
    "swap_out": ({D}, S, "task_swapped"),
    "resume": ({R, I}, P, "task_recovered"),
    "decide": ({I}, P, "task_resumed"),
    "reject": (LIVE, F, "task_failed"),
    "quarantine": (LIVE, F, "task_failed"),
    "cancel": (LIVE, F, "task_failed"),
    "retry_by_person": ({F, I}, P, "task_retried"),
}
FENCE = {"attempt": 1, "worker_id": "w1"}


def row(db: Database, id: str = "t1") -> dict[str, Any]:
    return dict(tasks.find(db, id).__data__)


def last_event(db: Database, id: str = "t1") -> str:
    return events.by_task(db, id)[-1].event_type


def put(db: Database, status: TaskStatus, id: str = "t1", **columns: Any) -> AgentTask:
    """Set a row as a fixture: no move is asked."""
    columns = {"completed_at": NOW if status.is_terminal() else None, "hold": None, **columns}
    names = ", ".join(f"{name} = ?" for name in columns)
    with db.write():
        db.change(f"UPDATE agent_tasks SET status = ?, {names} WHERE id = ?", (status, *columns.values(), id))
    return tasks.find(db, id)


def add_worker(db: Database, id: str = "w1", *, dead: bool = False) -> None:
    workers.insert(db, id=id, lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    if dead:
        workers.mark_dead(db, id, now=NOW)


def open_step(db: Database, effect: str, id: str = "t1", key: str = "a#0") -> None:
    with db.write():
        traces.append(
            db, id, traces.INTENT, "{}", attempt=1, now=NOW, step_key=key, digest="d", effect=effect
        )


def close_step(db: Database, effect: str, id: str = "t1", key: str = "a#0", attempt: int = 1) -> None:
    with db.write():
        traces.append(
            db, id, traces.OUTCOME, "{}", attempt=attempt, now=NOW, step_key=key, digest="d", effect=effect
        )


# Every status with every move


@pytest.mark.spec(27)
def test_the_moves_are_those_of_the_design_and_no_others() -> None:
    assert {
        move.value.name: (set(move.value.sources), move.value.target, move.value.event) for move in Move
    } == LEGAL


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("move", Move, ids=lambda move: move.value.name)
@pytest.mark.spec(27)
def test_a_move_starts_only_where_it_may(
    db: Database, submit: Submit, status: TaskStatus, move: Move
) -> None:
    submit("t1")
    put(db, status)
    sources, target, event = LEGAL[move.value.name]
    before, told = row(db), len(events.by_task(db, "t1"))
    extra = {"completed_at": NOW + 5 if target.is_terminal() else None}
    if status not in sources:
        with pytest.raises(StaleMove, match=f"cannot {move.value.name}, it is {status}"), db.write():
            transitions.apply(db, move, "t1", now=NOW + 5, **extra)
        assert (row(db), len(events.by_task(db, "t1"))) == (before, told)
        return
    with db.write():
        moved = transitions.apply(db, move, "t1", now=NOW + 5, **extra)
    assert (moved.status, moved.updated_at) == (target, NOW + 5)
    assert row(db) == moved.__data__
    [added] = events.by_task(db, "t1")[told:]
    assert (added.event_type, added.is_structural, added.timestamp) == (event, 1, NOW + 5)


@pytest.mark.parametrize("move", Move, ids=lambda move: move.value.name)
def test_a_move_of_a_task_that_does_not_exist_says_so(db: Database, move: Move) -> None:
    with pytest.raises(NotFoundError, match="nobody"), db.write():
        transitions.apply(db, move, "nobody", now=NOW)


def test_a_move_and_its_event_are_undone_together(db: Database, claim: Claim) -> None:
    claim("t1")
    before, told = row(db), len(events.by_task(db, "t1"))
    with pytest.raises(ValueError, match="x"):
        fail_after(db, lambda: OWNED["complete"](db, **FENCE))
    assert (row(db), len(events.by_task(db, "t1"))) == (before, told)


# Fencing

OWNED: dict[str, Callable[..., object]] = {
    "complete": lambda db, **fence: transitions.complete(db, "t1", result_json="1", now=NOW, **fence),
    "fail": lambda db, **fence: transitions.fail(db, "t1", reason="error", error_json="{}", now=NOW, **fence),
    "retry": lambda db, **fence: transitions.retry(
        db, "t1", due_at=NOW + 9, retries_left=0, error_json="{}", supersede=[], now=NOW, **fence
    ),
    "interrupt": lambda db, **fence: transitions.interrupt(db, "t1", reason="shutdown", now=NOW, **fence),
    "suspend": lambda db, **fence: transitions.suspend(db, "t1", now=NOW, **fence),
    "unclaim": lambda db, **fence: claims.unclaim(db, "t1", now=NOW, **fence),
}


@pytest.mark.parametrize("verb", OWNED)
@pytest.mark.parametrize(
    "fence", [{"attempt": 2}, {"attempt": 0}, {"worker_id": "w2"}, {"worker_id": ""}], ids=str
)
def test_a_zombie_cannot_finish_a_task_it_lost(
    db: Database, claim: Claim, verb: str, fence: dict[str, Any]
) -> None:
    claim("t1")
    before = row(db)
    with pytest.raises(StaleMove):
        OWNED[verb](db, **{**FENCE, **fence})
    assert row(db) == before
    OWNED[verb](db, **FENCE)
    assert row(db) != before


def test_the_attempt_before_a_recovery_is_a_zombie(db: Database, claim: Claim) -> None:
    old = claim("t1")
    add_worker(db, dead=True)
    transitions.resume(db, old, now=NOW)
    again = claims.claim(db, "subagent", worker_id="w1", now=NOW, known=frozenset({AGENT}))
    assert again is not None
    assert again.attempt == 2
    for verb in OWNED.values():
        with pytest.raises(StaleMove):
            verb(db, attempt=1, worker_id="w1")
    assert tasks.find(db, "t1").status is R


def test_of_many_that_finish_at_once_one_wins(db: Database, claim: Claim) -> None:
    claim("t1")
    won: list[str] = []

    def finish(name: str) -> None:
        try:
            OWNED[name](db, **FENCE)
            won.append(name)
        except StaleMove:
            pass

    threads = [threading.Thread(target=finish, args=(name,)) for name in list(OWNED) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


# Ends


@pytest.mark.parametrize(
    ("verb", "reason"),
    [("complete", None), ("fail", "error"), ("reject", "rejected"), ("cancel", "cancelled")],
)
def test_an_end_is_stamped_once_and_lets_everything_go(
    db: Database, claim: Claim, verb: str, reason: str | None
) -> None:
    claim("t1")
    if verb in OWNED:
        OWNED[verb](db, **FENCE)
    else:
        getattr(transitions, verb)(db, "t1", by="ann", detail="{}", now=NOW)
    ended = tasks.find(db, "t1")
    assert (ended.completed_at, ended.worker_id, ended.hold, ended.reason) == (NOW, None, None, reason)
    assert ended.started_at == NOW + 1


@pytest.mark.parametrize("status", [C, F])
def test_an_ended_task_stays_as_it_ended(db: Database, submit: Submit, status: TaskStatus) -> None:
    submit("t1")
    ended = put(db, status)
    for verb in OWNED.values():
        with pytest.raises(StaleMove):
            verb(db, attempt=0, worker_id=None)
    for name in ("reject", "cancel"):
        with pytest.raises(StaleMove):
            getattr(transitions, name)(db, "t1", by="ann", detail="{}", now=NOW + 9)
    with pytest.raises(StaleMove):
        transitions.resume(db, ended, now=NOW + 9)
    with pytest.raises(StaleMove):
        transitions.quarantine(db, ended, detail="{}", now=NOW + 9)
    assert row(db) == ended.__data__


@pytest.mark.parametrize("status", sorted(LIVE))
def test_a_person_can_cancel_a_task_wherever_it_stands(
    db: Database, submit: Submit, status: TaskStatus
) -> None:
    submit("t1")
    put(db, status)
    cancelled = transitions.cancel(db, "t1", by="ann", detail="{}", now=NOW + 3)
    assert (cancelled.status, cancelled.reason, cancelled.cancel_requested_at) == (F, "cancelled", NOW + 3)


def test_an_expired_task_fails_only_if_it_was_never_claimed(
    db: Database, submit: Submit, claim: Claim
) -> None:
    submit("t1")
    assert transitions.expire(db, "t1", now=NOW).reason == "expired"
    claim("t2")
    claims.unclaim(db, "t2", attempt=1, worker_id="w1", now=NOW)
    with pytest.raises(StaleMove):
        transitions.expire(db, "t2", now=NOW)


def test_an_end_withdraws_the_open_question(db: Database, claim: Claim) -> None:
    task = claim("t1")
    cid = ask(db, task)
    transitions.cancel(db, "t1", by="ann", detail="{}", now=NOW)
    assert confirmations.find(db, cid).status == "withdrawn"


def ask(db: Database, task: AgentTask, *keys: str) -> str:
    steps = [StepInDoubt(StepCall(key, "d", "write"), 1, {}) for key in keys]
    return confirmations.ask(db, task, reason="asked", request={"why": "x"}, steps=steps, now=NOW, lost=True)


# Retry


def test_a_retry_is_due_later_and_keeps_rank_lane_and_priority(db: Database, claim: Claim) -> None:
    before = claim("t1", lane=Lane.MAIN, retries_left=2)
    open_step(db, "read")
    close_step(db, "read")
    task = transitions.retry(
        db, "t1", due_at=NOW + 99, retries_left=1, error_json="{}", supersede=["a#0"], now=NOW, **FENCE
    )
    assert (task.status, task.hold, task.due_at, task.retries_left, task.worker_id) == (
        P,
        "due",
        NOW + 99,
        1,
        None,
    )
    assert (task.rank, task.lane, task.priority) == (before.rank, before.lane, before.priority)
    assert db.rows("SELECT superseded FROM task_traces WHERE event_kind = 'tool_call_completed'") == [(1,)]


# Interrupt and losses


@pytest.mark.parametrize(("reason", "losses"), [("shutdown", 0), ("lost", 1), ("asked", 0)])
def test_only_a_loss_counts_as_one(db: Database, claim: Claim, reason: str, losses: int) -> None:
    claim("t1")
    assert transitions.interrupt(db, "t1", reason=reason, now=NOW, **FENCE).losses == losses  # type: ignore[arg-type]


def test_losses_are_counted_in_a_row(db: Database, claim: Claim) -> None:
    claim("t1")
    counted = []
    for attempt in range(1, 6):
        if attempt == 3:
            close_step(db, "read", attempt=3)
        lost = transitions.interrupt(db, "t1", reason="lost", now=NOW, attempt=attempt)
        counted.append(lost.losses)
        transitions.resume(db, lost, now=NOW)
        claims.claim(db, "subagent", worker_id="w1", now=NOW, known=frozenset({AGENT}))
    assert counted == [1, 2, 1, 2, 3]


def test_an_owner_that_still_executes_a_step_stays_named_until_it_lets_go(db: Database, claim: Claim) -> None:
    claim("t1")
    kept = transitions.interrupt(
        db, "t1", reason="shutdown", now=NOW, attempt=1, worker_id="w1", keep_owner=True
    )
    assert kept.worker_id == "w1"
    journal.let_go(db, "t1", attempt=1, worker_id="w2")
    journal.let_go(db, "t1", attempt=2, worker_id="w1")
    assert tasks.find(db, "t1").worker_id == "w1"
    journal.let_go(db, "t1", attempt=1, worker_id="w1")
    assert tasks.find(db, "t1").worker_id is None


@pytest.mark.parametrize("how", ["ends its step", "dies"])
def test_a_cancelled_task_is_tried_again_once_nobody_can_be_executing_its_write(
    db: Database, claim: Claim, how: str
) -> None:
    """Else a person could allow a write again while the first worker still executes it."""
    workers.insert(db, id="w1", lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    claim("t1")
    owned, write = journal.Claim("t1", 1, "w1"), StepCall("put#1", "d", "write")
    journal.accept_intent(db, owned, write, "{}", told={}, now=NOW)
    assert transitions.cancel(db, "t1", by="ann", detail="{}", now=NOW).worker_id == "w1"
    journal.let_go(db, "t1", attempt=1, worker_id="w1")
    with pytest.raises(StaleMove):
        transitions.retry_by_person(db, "t1", by="ann", now=NOW)
    if how == "dies":
        workers.mark_dead(db, "w1", now=NOW)
    else:
        journal.record_outcome(db, owned, write, "{}", told={}, now=NOW)
        assert tasks.find(db, "t1").worker_id is None
    assert transitions.retry_by_person(db, "t1", by="ann", now=NOW).worker_id is None


def test_letting_go_never_touches_a_running_task(db: Database, claim: Claim) -> None:
    claim("t1")
    journal.let_go(db, "t1", attempt=1, worker_id="w1")
    assert tasks.find(db, "t1").worker_id == "w1"


# Resume

REASONS = [None, "shutdown", "lost", "asked", "diverged", "skipped"]


@pytest.mark.parametrize("reason", REASONS, ids=str)
def test_only_a_task_that_nobody_was_asked_about_resumes_by_itself(
    db: Database, submit: Submit, reason: str | None
) -> None:
    submit("t1")
    task = put(db, I, reason=reason)
    if reason in (None, "shutdown", "lost"):
        assert transitions.resume(db, task, now=NOW).status is P
    else:
        with pytest.raises(StaleMove):
            transitions.resume(db, task, now=NOW)
        assert tasks.find(db, "t1").status is I


@pytest.mark.parametrize("status", [R, I])
@pytest.mark.parametrize("owner", ["nobody", "dead", "alive"])
@pytest.mark.parametrize("step", [None, "read", "write"], ids=str)
@pytest.mark.parametrize("lease_out", [False, True], ids=["lease holds", "lease out"])
def test_a_task_resumes_only_when_its_owner_can_do_no_harm(
    db: Database, claim: Claim, status: TaskStatus, owner: str, step: str | None, lease_out: bool
) -> None:
    claim("t1")
    add_worker(db, dead=owner == "dead")
    if step:
        open_step(db, step)
    task = put(
        db, status, worker_id=None if owner == "nobody" else "w1", reason="lost" if status is I else None
    )
    harmless = owner != "alive" or (step != "write" and lease_out)
    if harmless:
        resumed = transitions.resume(db, task, now=NOW, lease_out=lease_out)
        assert (resumed.status, resumed.worker_id, resumed.reason) == (P, None, None)
    else:
        with pytest.raises(StaleMove):
            transitions.resume(db, task, now=NOW, lease_out=lease_out)
        assert row(db) == task.__data__


def test_a_recovered_task_keeps_its_place(db: Database, claim: Claim) -> None:
    before = claim("t1", lane=Lane.MAIN, retries_left=2)
    add_worker(db, dead=True)
    heard: list[frozenset[str]] = []
    db.ring = heard.append
    after = transitions.resume(db, before, now=NOW + 500_000)
    for name in ("rank", "lane", "priority", "retries_left", "created_at", "started_at", "attempt"):
        assert getattr(after, name) == getattr(before, name)
    assert (after.losses, last_event(db)) == (1, "task_recovered")
    assert "main" in heard[0]


def test_a_recovery_that_read_too_early_changes_nothing(db: Database, claim: Claim) -> None:
    seen = claim("t1")
    add_worker(db, dead=True)
    transitions.complete(db, "t1", result_json="1", now=NOW, **FENCE)  # type: ignore[arg-type]
    before = row(db)
    with pytest.raises(StaleMove):
        transitions.resume(db, seen, now=NOW)
    with pytest.raises(StaleMove):
        transitions.put_aside(db, seen, reason="skipped", now=NOW, lost=True)
    with pytest.raises(StaleMove):
        transitions.quarantine(db, seen, detail="{}", now=NOW)
    assert row(db) == before


def test_of_many_recoveries_of_one_task_one_wins(db: Database, claim: Claim) -> None:
    task = claim("t1")
    add_worker(db, dead=True)
    won: list[int] = []

    def recover() -> None:
        try:
            won.append(transitions.resume(db, task, now=NOW).attempt)
        except StaleMove:
            pass

    threads = [threading.Thread(target=recover) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert [event.event_type for event in events.by_task(db, "t1")].count("task_recovered") == 1


# Put aside, quarantine, decide, retry by a person


@pytest.mark.parametrize("dead", [True, False])
def test_a_task_put_aside_names_its_worker_until_that_is_proved_dead(
    db: Database, claim: Claim, dead: bool
) -> None:
    task = claim("t1")
    add_worker(db, dead=dead)
    aside = transitions.put_aside(db, task, reason="skipped", now=NOW, lost=True, error_json="{}")
    assert (aside.status, aside.reason, aside.losses) == (I, "skipped", 1)
    assert aside.worker_id == (None if dead else "w1")


@pytest.mark.parametrize("reason", ["asked", "diverged", "skipped"])
def test_a_task_that_waits_is_not_put_aside_again(db: Database, submit: Submit, reason: str) -> None:
    submit("t1")
    task = put(db, I, reason=reason)
    told = len(events.by_task(db, "t1"))
    with pytest.raises(StaleMove):
        transitions.put_aside(db, task, reason="skipped", now=NOW, lost=False)
    assert len(events.by_task(db, "t1")) == told


def test_a_quarantined_task_says_why_and_counts_its_last_loss(db: Database, claim: Claim) -> None:
    claim("t1")
    task = put(db, R, losses=2)
    ended = transitions.quarantine(db, task, detail='{"type":"CrashLoop"}', now=NOW)
    assert (ended.status, ended.reason, ended.losses, ended.worker_id) == (F, "crash_loop", 3, None)


@pytest.mark.parametrize("reason", REASONS, ids=str)
def test_a_decision_moves_only_a_task_that_was_asked_about(
    db: Database, submit: Submit, reason: str | None
) -> None:
    submit("t1")
    put(db, I, reason=reason, losses=2)
    if reason in ("asked", "diverged"):
        task = transitions.decide(db, "t1", by="ann", now=NOW)
        assert (task.status, task.losses, task.reason) == (P, 0, None)
    else:
        with pytest.raises(StaleMove):
            transitions.decide(db, "t1", by="ann", now=NOW)


@pytest.mark.parametrize("reason", REASONS, ids=str)
def test_a_person_may_retry_what_failed_or_was_skipped_or_diverged(
    db: Database, submit: Submit, reason: str | None
) -> None:
    submit("t1")
    put(db, I, reason=reason, losses=2)
    if reason in ("skipped", "diverged"):
        assert transitions.retry_by_person(db, "t1", by="ann", now=NOW).losses == 0
    else:
        with pytest.raises(StaleMove):
            transitions.retry_by_person(db, "t1", by="ann", now=NOW)


@pytest.mark.parametrize("reason", ["error", "cancelled", "rejected", "crash_loop", "timeout", "expired"])
def test_a_retry_of_a_failed_task_keeps_its_traces_and_clears_its_end(
    db: Database, claim: Claim, reason: str
) -> None:
    claim("t1")
    close_step(db, "read")
    put(db, F, reason=reason, losses=3, error_json="{}", cancel_requested_at=NOW, worker_id=None)
    task = transitions.retry_by_person(db, "t1", by="ann", now=NOW + 5)
    assert (task.status, task.reason, task.losses, task.error_json) == (P, None, 0, None)
    assert (task.completed_at, task.cancel_requested_at, task.hold) == (None, None, None)
    assert traces.count(db, "t1") == 2
    assert claims.ready(db, "subagent")


# Idle and swapped


@pytest.mark.parametrize("swap", [False, True], ids=["from memory", "from its file"])
def test_a_suspended_task_wakes(db: Database, claim: Claim, swap: bool) -> None:
    claim("t1")
    idle = transitions.suspend(db, "t1", now=NOW, **FENCE)  # type: ignore[arg-type]
    assert (idle.status, idle.worker_id) == (D, None)
    if swap:
        assert transitions.swap_out(db, "t1", swap_path="s/1", now=NOW).swap_path == "s/1"
    assert transitions.wake(db, "t1", now=NOW).status is P
    assert claims.ready(db, "subagent")
