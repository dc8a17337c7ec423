"""What the demo answers for a person who said yes: what `verify` found, and nothing that it did not find."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relight.models.confirmations import Confirmation, ConfirmationStep
from relight.workers.demo.asking import yes
from relight.workers.demo.view import ActFailed

ASKED = Confirmation(id="c", task_id="t")


def in_doubt(verify: dict[str, Any]) -> ConfirmationStep:
    return ConfirmationStep(
        confirmation_id="c", step_key="tidy_file#7", shown_json=json.dumps({"verify": verify})
    )


@pytest.mark.parametrize(
    ("steps", "commands"),
    [
        ([], [("approve", "c")]),
        ([in_doubt({"landed": True})], [("resolve", "c", "--step", "tidy_file#7", "--ran", "null")]),
        ([in_doubt({"landed": False})], [("resolve", "c", "--step", "tidy_file#7", "--again")]),
    ],
    ids=["nothing in doubt", "it landed", "it did not"],
)
def test_the_answer_follows_the_evidence(
    steps: list[ConfirmationStep], commands: list[tuple[str, ...]]
) -> None:
    assert yes(ASKED, steps) == commands


def test_without_evidence_there_is_no_answer() -> None:
    with pytest.raises(ActFailed, match="tidy_file#7"):
        yes(ASKED, [in_doubt({"status": "no answer"})])
