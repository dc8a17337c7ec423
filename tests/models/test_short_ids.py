"""Any unique beginning or end of an id stands for it; an ambiguous one is refused."""

from __future__ import annotations

import pytest

from relight.models import short_ids
from relight.models.database import Database
from relight.models.errors import ConflictError, NotFoundError
from tests.models.conftest import Submit


@pytest.mark.parametrize("short", ["0190aaaa", "0190", "1111", "bbbb1111", "0190aaaa-bbbb1111"])
def test_any_unique_beginning_or_end_names_a_task(db: Database, submit: Submit, short: str) -> None:
    submit("0190aaaa-bbbb1111")
    assert short_ids.task(db, short) == "0190aaaa-bbbb1111"


def test_a_short_id_that_fits_two_is_refused_and_none_is_not_found(db: Database, submit: Submit) -> None:
    submit("abc-1")
    submit("abc-2")
    with pytest.raises(ConflictError, match=r"abc-1.*abc-2"):
        short_ids.task(db, "abc")
    assert short_ids.task(db, "-2") == "abc-2"
    with pytest.raises(NotFoundError):
        short_ids.task(db, "xyz")


@pytest.mark.parametrize("short", ["%", "_", "", "\\"])
def test_a_wildcard_names_no_task(db: Database, submit: Submit, short: str) -> None:
    submit("abc-1")
    with pytest.raises(NotFoundError):
        short_ids.task(db, short)


def test_a_whole_id_that_begins_another_one_names_itself(db: Database, submit: Submit) -> None:
    submit("abc")
    submit("abcd")
    assert short_ids.task(db, "abc") == "abc"


@pytest.mark.parametrize("id", ["it's", 'a"b', "x'; DROP TABLE agent_tasks; --", "100%_\\"])
def test_an_id_with_quotes_or_wildcards_names_itself(db: Database, submit: Submit, id: str) -> None:
    submit(id)
    submit("other")
    assert short_ids.task(db, id) == id
    assert short_ids.task(db, id[-3:]) == id


def test_a_confirmation_is_named_the_same_way(db: Database, submit: Submit) -> None:
    submit("t1")
    with db.write():
        for id in ("abc-1", "abc-2"):
            db.change(
                "INSERT INTO confirmations (id, task_id, kind, attempt, request_json, asked_at)"
                " VALUES (?, 't1', 'action', 1, '{}', 0)",
                (id,),
            )
    assert short_ids.confirmation(db, "-2") == "abc-2"
    with pytest.raises(ConflictError, match="abc-1"):
        short_ids.confirmation(db, "abc")
    with pytest.raises(NotFoundError, match="confirmation"):
        short_ids.confirmation(db, "t1")
