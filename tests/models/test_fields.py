"""The column types: a number never wraps, an id sorts by its creation."""

from __future__ import annotations

import pytest

from relight.models import fields
from relight.models.database import Database
from relight.models.fields import INT64_MAX, Int64Field


@pytest.mark.parametrize("number", [0, 1, -1, INT64_MAX, -INT64_MAX - 1])
def test_a_number_that_fits_is_stored_as_it_is(db: Database, number: int) -> None:
    assert Int64Field().db_value(number) == number
    assert db.row("SELECT ?", (number,)) == (number,)


@pytest.mark.spec(65)
@pytest.mark.parametrize("number", [INT64_MAX + 1, 2**80, -(2**63) - 1, -(2**80)])
def test_a_number_beyond_the_column_becomes_the_nearest_that_fits(db: Database, number: int) -> None:
    nearest = INT64_MAX if number > 0 else -INT64_MAX - 1
    assert Int64Field().db_value(number) == nearest
    assert db.row("SELECT ?", (number,)) == (nearest,)


def test_no_number_stays_none() -> None:
    assert Int64Field().db_value(None) is None


def test_ids_are_unique_and_sort_by_creation() -> None:
    made = [fields.new_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert [id[:8] for id in made] == sorted(id[:8] for id in made)
    assert {id[14] for id in made} == {"7"}
