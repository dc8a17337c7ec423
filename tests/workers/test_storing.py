"""Records that must not be lost: short troubles of the storage are waited for, long ones end the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relight.models.errors import (
    ControlFlow,
    LeaseLost,
    StaleMove,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageUnreadableError,
)
from relight.workers import storing


def failing(times: int, error: Exception) -> tuple[Callable[[], str], list[int]]:
    calls: list[int] = []

    def change() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "stored"

    return change, calls


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "_PAUSE_S", 0.0)


@pytest.mark.parametrize("error", [StorageLockedError("locked"), StorageFullError("full")])
def test_a_locked_or_full_store_is_waited_for_and_said_once(
    hasty: None, error: StorageError, caplog: pytest.LogCaptureFixture
) -> None:
    change, calls = failing(5, error)
    assert storing.persistently(change) == "stored"
    assert len(calls) == 6
    assert [record.message for record in caplog.records] == ["the storage is in trouble, waiting"]


@pytest.mark.parametrize("error", [StorageLockedError("locked"), StorageFullError("full")])
def test_patience_has_an_end_which_agent_code_cannot_take_for_an_outcome(
    hasty: None, error: StorageError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "PATIENCE_S", 0.05)
    change, calls = failing(10**9, error)
    with pytest.raises(LeaseLost, match="did not take") as caught:
        storing.persistently(change)
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, ControlFlow)
    assert not isinstance(caught.value, Exception)
    assert len(calls) > 1


def test_a_store_that_cannot_be_read_is_not_waited_for(hasty: None) -> None:
    change, calls = failing(1, StorageUnreadableError("gone"))
    with pytest.raises(LeaseLost):
        storing.persistently(change)
    assert len(calls) == 1


def test_what_is_no_trouble_of_the_storage_passes_through_at_once() -> None:
    for error in (StaleMove("t1", "complete", "failed"), ValueError("any")):
        change, calls = failing(1, error)
        with pytest.raises(type(error)):
            storing.persistently(change)
        assert len(calls) == 1


def test_patience_is_no_longer_than_a_default_lease() -> None:
    assert storing.PATIENCE_S <= 30
