"""What is asked of the queue library's own tables."""

from __future__ import annotations

import threading

from relight.models import plain_messages
from relight.models.database import Database


def test_a_scheduled_message_is_due_at_its_time_and_in_its_queue(db: Database) -> None:
    with db.write():
        db.change("INSERT INTO schedule (queue, data, timestamp) VALUES ('main', x'00', 100.5)")
    assert not plain_messages.is_due(db, "main", now_s=100.4)
    assert plain_messages.is_due(db, "main", now_s=100.5)
    assert not plain_messages.is_due(db, "subagent", now_s=999)


def test_a_value_is_put_once(db: Database) -> None:
    assert plain_messages.put_if_absent(db, "main", "k", b"1")
    assert not plain_messages.put_if_absent(db, "main", "k", b"2")
    assert plain_messages.put_if_absent(db, "other", "k", b"3")
    assert db.rows("SELECT value FROM kv ORDER BY queue") == [(b"1",), (b"3",)]


def test_a_minute_of_a_periodic_task_is_taken_once_and_never_backwards(db: Database) -> None:
    taken = [plain_messages.take_minute(db, "upkeep", "job", minute) for minute in (9, 9, 10, 8, 10, 100, 99)]
    assert taken == [True, False, True, False, False, True, False]
    assert plain_messages.take_minute(db, "upkeep", "other", 9)
    assert db.row("SELECT count(*) FROM kv") == (2,)


def test_of_many_that_take_a_minute_at_once_one_gets_it(db: Database) -> None:
    taken: list[bool] = []
    threads = [
        threading.Thread(target=lambda: taken.append(plain_messages.take_minute(db, "upkeep", "job", 5)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False] * 7 + [True]
