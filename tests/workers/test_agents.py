"""Enqueueing: what a call becomes, what is refused and how it is named, keys, order, and children."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from relight import Lane, RiskLevel, Run, TaskStatus, agent, enqueue_many, get_task, ref
from relight.models import events, tasks
from relight.models.errors import ConflictError, InputError, KeyConflictError, NotFoundError, TooLargeError
from relight.workers import agents, recovery_job, settings
from relight.workers.home import Home
from tests.conftest import Cli
from tests.workers.conftest import Crew


def declare(**options: Any) -> agents.Agent[Any, Any]:
    def explore(run: Run, prompt: str, *, depth: int = 1) -> str:
        return f"{prompt} {depth}"

    made: agents.Agent[Any, Any] = agent(**options)(explore)
    return made


def rows(crew: Crew) -> int:
    return len(crew.db.rows("SELECT 1 FROM agent_tasks"))


# -- what a call becomes --------------------------------------------------------------------------------------


def test_a_call_becomes_a_pending_row_and_its_first_event_in_one_transaction(crew: Crew) -> None:
    task = declare(risk="low").options(session="s1").enqueue("where?", depth=2)
    row = task.task()
    assert (row.agent_id, row.task_prompt, row.parent_session_id) == ("explore", "where?", "s1")
    assert (row.status, row.lane, row.risk_level) == (TaskStatus.PENDING, Lane.SUBAGENT, RiskLevel.LOW)
    assert (row.attempt, row.losses, row.recursion_depth, row.parent_task_id) == (0, 0, 0, None)
    assert row.input_json == '{"args":[],"kwargs":{"prompt":"where?","depth":2}}'
    assert [event.event_type for event in events.by_task(crew.db, task.id)] == ["task_enqueued"]


@pytest.mark.spec(2)
def test_an_agent_that_says_nothing_is_high_and_a_call_may_say_otherwise(crew: Crew) -> None:
    assert declare().enqueue("a").task().risk_level == RiskLevel.HIGH
    assert declare(risk="low").options(risk="high").enqueue("a").task().risk_level == RiskLevel.HIGH
    assert declare().options(risk=RiskLevel.LOW).enqueue("a").task().risk_level == RiskLevel.LOW
    assert ref("unknown").enqueue("a").task().risk_level == RiskLevel.HIGH


@pytest.mark.spec(3)
def test_a_task_goes_to_the_subagent_lane_unless_told_otherwise(crew: Crew) -> None:
    explore = declare()
    assert explore.enqueue("a").task().lane == Lane.SUBAGENT
    assert explore.options(lane="main").enqueue("a").task().lane == Lane.MAIN
    assert explore.options(lane=Lane.MAIN).enqueue("a").task().priority > explore.enqueue("a").task().priority


def test_options_add_up_and_leave_the_agent_as_it_is(crew: Crew) -> None:
    explore = declare()
    bound = explore.options(lane="main", session="s1").options(session="s2", priority=3)
    row = bound.enqueue("a").task()
    assert (row.lane, row.parent_session_id, row.priority) == (Lane.MAIN, "s2", 3)
    assert explore.enqueue("a").task().parent_session_id == ""


def test_a_child_of_a_named_parent_is_one_level_deeper(crew: Crew) -> None:
    explore = declare()
    parent = explore.enqueue("a")
    child = explore.options(parent=parent.id).enqueue("b")
    grandchild = explore.options(parent=child.id).enqueue("c").task()
    assert (grandchild.parent_task_id, grandchild.recursion_depth) == (child.id, 2)
    with pytest.raises(NotFoundError):
        explore.options(parent="nobody").enqueue("d")
    assert rows(crew) == 3


def test_an_agent_stays_a_function_that_can_be_called() -> None:
    assert declare(risk="low")(None, "a", depth=3) == "a 3"


def test_two_agents_of_one_name_in_two_files_are_refused_and_a_second_declaration_replaces_the_first(
    crew: Crew, tmp_path: Path
) -> None:
    declare()
    again = declare(risk="low")
    assert agents.known()["explore"] is again
    source = "def explore(run): ..."
    made: dict[str, Any] = {}
    exec(compile(source, str(tmp_path / "other.py"), "exec"), made)
    with pytest.raises(InputError, match="two agents are called 'explore'"):
        agent(made["explore"])


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "'prompt'"),
        ((1, 2), {}, "too many"),
        (("a",), {"dept": 1}, "'dept'"),
        (("a",), {"depth": "x"}, "'depth'"),
    ],
)
def test_a_bad_call_names_the_parameter_and_stores_nothing(
    crew: Crew, args: tuple[Any, ...], kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=f"agent explore.*{named}") as caught:
        declare().enqueue(*args, **kwargs)
    assert caught.value.exit_code == 2
    assert rows(crew) == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lne": "main"}, "lne.*lane"),
        ({"lane": "mian"}, "'mian' is not one of main, subagent"),
        ({"risk": "medium"}, "'medium' is not one of low, high"),
        ({"delay": 1, "at": 2}, "delay= or at=, not both"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001  # a naive time is the point
        ({"at": "tomorrow"}, "at="),
        ({"delay": "soon"}, "delay="),
        ({"delay": float("nan")}, "delay="),
        ({"expires": "never"}, "expires="),
        ({"priority": "high"}, "priority="),
        ({"priority": 1.5}, "priority="),
        ({"retries": -1}, "retries="),
        ({"retries": "many"}, "retries="),
        ({"key": ""}, "key="),
        ({"key": 7}, "key="),
        ({"session": 7}, "session="),
    ],
)
def test_bad_options_are_named_and_store_nothing(crew: Crew, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        declare().options(**options).enqueue("a")
    assert rows(crew) == 0


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"risk": "medium"}, "'medium'"),
        ({"retries": -1}, "retries="),
        ({"retry_delay": -1}, "retry_delay="),
        ({"version": "two"}, "version="),
    ],
)
def test_a_bad_declaration_is_named_where_it_stands(declared: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        declare(**declared)


def test_an_input_over_the_limit_is_refused_with_its_size_and_the_setting(crew: Crew) -> None:
    explore = declare()
    limit = crew.home.settings.max_payload_bytes
    with pytest.raises(TooLargeError, match="RELIGHT_MAX_PAYLOAD_BYTES") as caught:
        explore.enqueue("x" * limit)
    assert caught.value.exit_code == 6
    assert caught.value.limit == limit
    assert rows(crew) == 0
    room = limit - len('{"args":[],"kwargs":{"prompt":"","depth":1}}')
    assert explore.enqueue("x" * room).status == TaskStatus.PENDING
    crew.home.settings = replace(crew.home.settings, max_payload_bytes=60)
    with pytest.raises(TooLargeError):
        explore.enqueue("ü" * 20)


def test_the_command_line_refuses_an_input_over_the_limit_with_exit_code_6(cli: Cli, home: Path) -> None:
    done = cli("enqueue", "any", "x" * 200, env={"RELIGHT_MAX_PAYLOAD_BYTES": "100"})
    assert done.returncode == 6
    assert "RELIGHT_MAX_PAYLOAD_BYTES" in done.stderr


# -- keys and many at once ------------------------------------------------------------------------------------


def test_a_key_gives_the_same_task_for_the_same_input(crew: Crew) -> None:
    explore = declare()
    first = explore.options(key="q-42").enqueue("a")
    assert explore.options(key="q-42", lane="main").enqueue("a").id == first.id
    assert explore.options(key="q-43").enqueue("a").id != first.id
    assert rows(crew) == 2
    assert [event.event_type for event in events.by_task(crew.db, first.id)] == ["task_enqueued"]


def test_a_key_stays_taken_when_its_task_has_ended(crew: Crew) -> None:
    explore = declare(risk="low")
    first = explore.options(key="q").enqueue("a")
    crew.work()
    assert explore.options(key="q").enqueue("a").id == first.id
    assert first.result() == "a 1"


def test_a_key_with_another_input_is_a_conflict_that_names_the_task(crew: Crew) -> None:
    explore = declare()
    first = explore.options(key="q-42").enqueue("a")
    with pytest.raises(KeyConflictError, match=first.id) as caught:
        explore.options(key="q-42").enqueue("b")
    assert caught.value.exit_code == 4
    assert rows(crew) == 1


def test_a_key_belongs_to_its_agent(crew: Crew) -> None:
    first = declare().options(key="q").enqueue("a")
    assert ref("other").options(key="q").enqueue("b").id != first.id


def test_a_key_that_many_threads_use_at_once_makes_one_task(crew: Crew) -> None:
    explore = declare()
    start = threading.Barrier(8)

    def enqueue(_: int) -> str:
        start.wait(10)
        return explore.options(key="same").enqueue("a").id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(enqueue, range(8)))) == 1
    assert rows(crew) == 1


def test_many_calls_are_stored_all_or_none(crew: Crew) -> None:
    explore = declare()
    handles = enqueue_many(
        explore.options(session=str(number)).call("a", depth=number) for number in range(5)
    )
    assert [handle.task().parent_session_id for handle in handles] == list("01234")
    taken = explore.options(key="taken").enqueue("a")
    with pytest.raises(KeyConflictError):
        enqueue_many([explore.call("b"), explore.options(key="taken").call("other"), explore.call("c")])
    with pytest.raises(InputError):
        enqueue_many([explore.call("b"), explore.call("b", depth="x")])
    assert rows(crew) == 6
    assert taken.status == TaskStatus.PENDING
    assert enqueue_many([]) == []


# -- order and time -------------------------------------------------------------------------------------------


def test_priority_time_and_lane_make_one_rank_in_which_a_point_is_worth_a_minute(crew: Crew) -> None:
    explore = declare()
    plain = explore.enqueue("a").task()
    urgent = explore.options(priority=2).enqueue("a").task()
    low = explore.options(priority=-1).enqueue("a").task()
    delayed = explore.options(delay=60).enqueue("a").task()
    for row in (plain, urgent, low, delayed):
        assert row.rank == max(row.created_at, row.due_at or 0) - row.priority * 60_000
    assert delayed.due_at == delayed.created_at + 60_000
    known = [row.id for row in sorted((plain, urgent, low), key=lambda row: row.rank)]
    assert (
        [row.id for row in (crew.claim(), crew.claim(), crew.claim()) if row]
        == known
        == [
            urgent.id,
            plain.id,
            low.id,
        ]
    )


def test_a_delayed_task_is_held_until_its_time_whatever_form_the_time_has(crew: Crew) -> None:
    explore = declare(risk="low")
    soon = datetime.now(UTC) + timedelta(hours=1)
    for options in ({"delay": 3600}, {"at": soon}, {"at": round(soon.timestamp() * 1000)}):
        row = explore.options(**options).enqueue("a").task()
        assert (row.status, row.hold) == (TaskStatus.PENDING, "due")
        assert row.due_at is not None
        assert abs(row.due_at - soon.timestamp() * 1000) < 5_000
    assert crew.claim() is None


def test_a_time_that_is_over_already_is_now(crew: Crew) -> None:
    explore = declare(risk="low")
    for options in ({"delay": 0}, {"at": 1}):
        explore.options(**options).enqueue("a")
        assert crew.work().kind == "completed"


def test_a_task_that_nobody_took_in_its_time_fails_as_expired(crew: Crew) -> None:
    explore = declare(risk="low")
    late = explore.options(expires=0).enqueue("a")
    kept = explore.options(expires=60).enqueue("a")
    assert crew.work().kind == "completed"
    assert crew.claim() is None
    crew.recover()
    assert (late.task().status, late.task().reason) == (TaskStatus.FAILED, "expired")
    assert kept.status == TaskStatus.COMPLETED


# -- unknown agents, handles, warnings ------------------------------------------------------------------------


def test_a_task_of_an_unknown_agent_is_held_unclaimed_and_released_by_a_process_that_knows_it(
    crew: Crew,
) -> None:
    task = ref("explore").enqueue("a", depth=2)
    assert crew.claim() is None
    assert (task.task().hold, task.task().attempt) == ("unknown_agent", 0)
    declare(risk="low")
    assert crew.claim() is None
    recovery_job.sweep_tick(crew.home)
    assert crew.work().kind == "completed"
    assert task.result() == "a 2"


def test_a_task_of_an_unknown_agent_does_not_hold_up_those_behind_it(crew: Crew) -> None:
    ref("nobody").options(priority=9).enqueue("a")
    known = declare(risk="low").enqueue("b")
    assert crew.work().kind == "completed"
    assert known.result() == "b 1"


def test_an_agent_by_its_name_is_the_agent_where_it_is_known(crew: Crew) -> None:
    declare(risk="low", retries=2)
    row = ref("explore").enqueue("a").task()
    assert (row.risk_level, row.retries_left) == (RiskLevel.LOW, 2)
    with pytest.raises(InputError):
        ref("explore").enqueue(prompt=1)


def test_a_task_is_found_by_any_unique_beginning_or_end_of_its_id(crew: Crew) -> None:
    explore = declare()
    first = explore.enqueue("a")
    explore.enqueue("b")
    assert get_task(first.id[-8:]).id == first.id
    assert get_task(first.id).id == first.id
    with pytest.raises(NotFoundError):
        get_task("nothing")
    with pytest.raises(ConflictError, match="not unique"):
        get_task(first.id[:4])


def test_enqueue_warns_once_where_nobody_serves_the_lane(
    crew: Crew, capsys: pytest.CaptureFixture[str]
) -> None:
    explore = declare()
    explore.enqueue("a")
    explore.enqueue("a")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("no worker serves its subagent lane") == 1
    assert str(crew.home.path) in said.err
    bell = crew.home.bell("main")
    bell.start()
    explore.options(lane="main").enqueue("a")
    assert capsys.readouterr().err == ""


@pytest.mark.spec(68)
def test_two_state_directories_in_one_process_do_not_touch(crew: Crew, tmp_path: Path) -> None:
    other = Home.open(settings.load(home=tmp_path / "other"))
    task = declare().options(home=other).enqueue("a")
    assert rows(crew) == 0
    assert tasks.find(other.db, task.id).status == TaskStatus.PENDING
    other.close()


# -- what is said in a form that cannot be meant ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"delay": -5}, "delay=-5"),
        ({"expires": -1}, "expires=-1"),
        ({"home": "/tmp/x"}, "home='/tmp/x'"),
        ({"dealy": 1}, "there is no dealy; there are: lane, .*delay"),
    ],
)
def test_an_option_that_cannot_be_used_is_named_without_a_word_of_the_inside(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named) as caught:
        declare().options(**options)
    assert "__init__" not in str(caught.value)


def test_a_call_in_the_wrong_form_names_the_right_one(crew: Crew) -> None:
    explore = declare()
    for calls in ([explore.enqueue], explore.call("a"), [explore], None):
        with pytest.raises(InputError, match=r"\[some_agent\.call\(…\)\]"):
            enqueue_many(calls)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"explore\.options\(…\)\.enqueue\(…\)"):
        explore.options(key="k")("a")
    assert rows(crew) == 0


def test_an_agent_is_a_reference_to_itself_and_a_function_is_asked_for_its_name() -> None:
    explore = declare()
    assert ref(explore).callee is explore
    for odd in (len, 3, None):
        with pytest.raises(InputError, match="give the name"):
            ref(odd)  # type: ignore[arg-type]
