"""What is looked up about a task when somebody asks why it is where it is; nothing is changed by asking."""

from __future__ import annotations

import pytest

from relight import Run, agent, ref, step
from relight.models import claims, pauses, tasks, workers
from relight.models.errors import StaleMove
from relight.recovery.why import Why, why
from relight.workers import situation
from relight.workers.handles import TaskHandle
from tests.workers.conftest import Crew


def ask(crew: Crew, task: TaskHandle) -> Why:
    """What is said about a task; asking writes nothing."""
    before = crew.db.row("PRAGMA data_version"), crew.db.connection().total_changes()
    answer = why(situation.look(crew.home, task.task()))
    assert (crew.db.row("PRAGMA data_version"), crew.db.connection().total_changes()) == before
    return answer


def test_the_place_in_the_lane_counts_what_would_be_claimed_before(crew: Crew) -> None:
    handles = [ref("elsewhere").enqueue(str(number)) for number in range(5)]
    urgent = ref("elsewhere").options(priority=5).enqueue("now")
    pauses.pause_task(crew.db, handles[1].id, by="ann", now=crew.home.now())
    places = [ask(crew, task).facts["position"] for task in (urgent, handles[0], handles[2], handles[4])]
    assert places == [1, 2, 3, 5]
    assert ask(crew, handles[0]).code == "no_worker"


def test_a_process_that_listens_serves_the_lane(crew: Crew) -> None:
    task = ref("elsewhere").enqueue("go")
    crew.home.bell("subagent").start()
    answer = ask(crew, task)
    assert (answer.code, answer.facts["serving"]) == ("queued", 1)


def test_a_running_task_names_its_worker_and_its_step(crew: Crew) -> None:
    asked: list[Why] = []

    @step(effect="read")
    def look() -> None:
        asked.append(ask(crew, task))

    @agent(risk="low")
    def looker(run: Run) -> None:
        look()

    task = looker.enqueue()
    assert crew.work().kind == "completed"
    [answer] = asked
    assert answer.code == "running"
    assert answer.facts["open_steps"] == ["look#1"]
    assert answer.facts["worker"] == crew.owner.id
    assert ask(crew, task).code == "completed"


def test_a_dead_owner_is_seen_by_its_lock_before_any_pass_has_proved_it(crew: Crew) -> None:
    @agent(risk="low")
    def idler(run: Run) -> None: ...

    task = idler.enqueue()
    crew.claim()
    assert ask(crew, task).code == "running"
    owner = crew.owner
    crew.die()
    answer = ask(crew, task)
    assert (answer.code, answer.facts["worker"]) == ("owner_dead", owner.id)
    assert [worker.id for worker in workers.alive(crew.db)] == [owner.id], "asking proves nothing to others"
    assert crew.recover().resumed, "the lock is left for the pass that proves it"
    assert ask(crew, task).code in ("no_worker", "queued")


def test_an_owner_whose_lock_file_is_not_its_own_is_not_taken_for_dead(crew: Crew) -> None:
    @agent(risk="low")
    def idler(run: Run) -> None: ...

    task = idler.enqueue()
    crew.claim()
    crew.db.change("UPDATE workers SET nonce = 'other'")
    crew.die()
    assert ask(crew, task).code == "running"
    crew.db.change("UPDATE workers SET renewed_at = renewed_at - 200000")
    assert ask(crew, task).code == "owner_silent"


def test_a_task_that_takes_its_workers_down_tells_how_long_it_waits_and_where_it_died(crew: Crew) -> None:
    @step(effect="read")
    def burn() -> None:
        raise KeyboardInterrupt

    @agent(risk="low")
    def burning(run: Run) -> None:
        burn()

    task = burning.enqueue()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            crew.work()
        crew.relight()
    answer = ask(crew, task)
    assert (answer.code, answer.facts["losses"], answer.facts["suspect"]) == ("backing_off", 2, ["burn#1"])
    assert 0 < answer.facts["left_ms"] <= 1_000


def test_a_retry_tells_the_error_that_it_waits_after(crew: Crew) -> None:
    @agent(risk="low", retries=3, retry_delay=60)
    def failing(run: Run) -> None:
        raise ValueError("broken")

    task = failing.enqueue()
    assert crew.work().kind == "retrying"
    answer = ask(crew, task)
    assert (answer.code, answer.facts["retries_left"]) == ("retrying", 2)
    assert "ValueError: broken" in answer.sentence


def test_the_person_who_paused_or_cancelled_is_named(crew: Crew) -> None:
    task = ref("elsewhere").enqueue("go")
    pauses.pause_task(crew.db, task.id, by="ann", now=crew.home.now())
    assert ask(crew, task).facts == {"paused_by": "ann"}
    task.cancel(reason="not needed")
    answer = ask(crew, task)
    assert answer.code == "cancelled"
    assert answer.facts["by"]
    assert "not needed" in answer.sentence


def test_an_unknown_agent_is_named_once_a_worker_has_looked(crew: Crew) -> None:
    task = ref("elsewhere").enqueue("go")
    assert crew.claim() is None
    assert (ask(crew, task).code, ask(crew, task).facts) == ("unknown_agent", {"agent": "elsewhere"})


def test_a_question_comes_with_the_commands_that_answer_it(crew: Crew) -> None:
    @agent(risk="high")
    def writer(run: Run) -> None: ...

    task = writer.enqueue()
    crew.claim()
    crew.relight()
    [asked] = crew.asked()
    answer = ask(crew, task)
    assert (answer.code, answer.facts["confirmation"]) == ("asked", asked.id)
    assert answer.next == (f"approve {asked.id[-8:]}", f"reject {asked.id[-8:]}")


def test_a_task_that_somebody_took_meanwhile_is_told_as_it_was_read(crew: Crew) -> None:
    task = ref("elsewhere").enqueue("go")
    row = task.task()
    task.cancel()
    assert situation.look(crew.home, row).task.status == "pending"
    with pytest.raises(StaleMove):
        pauses.pause_task(crew.db, tasks.find(crew.db, task.id).id, by="ann", now=1)
    assert claims.ready_count(crew.db, "subagent") == 0
