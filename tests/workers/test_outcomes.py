"""Values between agent code and the record: small ones inline, large ones in files, lost ones never as wrong values."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from relight.models.errors import SealedStepError
from relight.workers import outcomes
from tests.workers.conftest import Crew


def files(crew: Crew) -> list[Path]:
    return [path for path in (crew.home.path / "blobs").rglob("*") if path.is_file()]


def test_a_value_is_inline_up_to_64_kib_and_a_file_beyond(crew: Crew) -> None:
    fits, spills = "x" * (65_536 - 2), "x" * (65_536 - 1)
    inline, spilt = outcomes.store(crew.home, fits), outcomes.store(crew.home, spills)
    assert inline.text == f'"{fits}"'
    assert spilt.text.startswith('{"$blob"')
    assert len(spilt.text) < 200
    assert len(files(crew)) == 1
    assert outcomes.load(crew.home, inline.text) == fits
    assert outcomes.load(crew.home, spilt.text) == spills
    assert not inline.lossy
    assert not spilt.lossy


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("x" * 100_000, str),
        ("x" * 100_000, None),
        ("2026-11-29", date),
        ("half \ud83d", str),
        ((1, 2), tuple[int, int]),
        ((1, 2), None),
    ],
    ids=["text", "text of any type", "a text that is read as more", "a broken text", "typed", "untyped"],
)
def test_the_live_run_gets_what_a_replay_reads_back(crew: Crew, value: Any, annotation: Any) -> None:
    stored = outcomes.store(crew.home, value)
    assert stored.decoded(annotation) == outcomes.load(crew.home, stored.text, annotation)


def test_the_limit_counts_bytes_not_characters(crew: Crew) -> None:
    assert outcomes.store(crew.home, "ü" * 40_000).text.startswith('{"$blob"')


def test_a_large_value_comes_back_typed(crew: Crew) -> None:
    value = [(number, str(number)) for number in range(20_000)]
    stored = outcomes.store(crew.home, value)
    assert outcomes.load(crew.home, stored.text, list[tuple[int, str]]) == value


def test_equal_large_values_share_a_file(crew: Crew) -> None:
    assert outcomes.store(crew.home, "y" * 70_000) == outcomes.store(crew.home, "y" * 70_000)
    assert len(files(crew)) == 1


def test_a_value_beyond_the_limit_is_a_marked_preview(crew: Crew) -> None:
    crew.home.settings = replace(crew.home.settings, max_blob_bytes=100_000)
    stored = outcomes.store(crew.home, "z" * 100_001)
    assert stored.lossy
    found = outcomes.load(crew.home, stored.text)
    assert found["$lossy"] == "too large"
    assert found["bytes"] == 100_003
    assert found["preview"].startswith('"zzz')
    assert files(crew) == []


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_a_file_that_is_damaged_is_an_error_and_never_a_wrong_value(crew: Crew, damage: str) -> None:
    stored = outcomes.store(crew.home, "v" * 70_000)
    [file] = files(crew)
    if damage == "missing":
        file.unlink()
    else:
        data = file.read_bytes()
        file.write_bytes(data[:-1] if damage == "shorter" else data.replace(b"vv", b"vw", 1))
    with pytest.raises(SealedStepError, match=file.name):
        outcomes.load(crew.home, stored.text)


@pytest.mark.parametrize(
    "value", [{"$blob": {"sha256": "0" * 64, "size": 1}}, {"$blob": "x"}, {"$set": [1]}, {"$lossy": "y"}]
)
def test_a_value_of_agent_code_is_never_taken_for_a_mark_of_ours(crew: Crew, value: Any) -> None:
    stored = outcomes.store(crew.home, value)
    assert outcomes.load(crew.home, stored.text) == value


def test_what_cannot_be_said_in_json_is_marked_and_stored_all_the_same(crew: Crew) -> None:
    stored = outcomes.store(crew.home, {"fine": 1, "odd": object()})
    assert stored.lossy
    assert outcomes.load(crew.home, stored.text) == {"fine": 1, "odd": {"$lossy": "object"}}


def test_a_loss_is_warned_about_once_for_a_step_with_its_type(
    crew: Crew, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "_warned", set())
    for _ in range(2):
        outcomes.warn_of_loss("fetch", outcomes.store(crew.home, {"odd": object()}))
    outcomes.warn_of_loss("whole", outcomes.store(crew.home, {"fine": 1}))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "step fetch: its outcome, a dict," in record.message
    assert "(object)" in record.message
