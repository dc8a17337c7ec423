"""The fixer: what it calls tidy, and that it works on a copy, also when it is killed half-way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from examples.fixer import fixer, tidy
from relight.models import confirmations, errors
from tests.conftest import ROOT, Cli, StartWorker
from tests.examples.conftest import Records

Waiter = Callable[..., Any]

FIXER = ROOT / "examples" / "fixer.py"
FILES = 6
UNTIDY = {f"{number:02}.py": b"a = 1  \n\n\n" for number in range(FILES)}
TIDY = dict.fromkeys(UNTIDY, b"a = 1\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    for name, text in UNTIDY.items():
        (folder / name).write_bytes(text)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("untidy", "expected"),
    [
        (b"", b""),
        (b"   \n\t\n", b""),
        (b"a", b"a\n"),
        (b"a  \nb\t\n\n\n", b"a\nb\n"),
        (b"  a\n\n  b\n", b"  a\n\n  b\n"),
        (b"a \r\nb", b"a\r\nb\r\n"),
        (b"a\x0c \n", b"a\x0c\n"),
    ],
)
def test_line_ends_are_bare_and_the_last_line_ends_once(untidy: bytes, expected: bytes) -> None:
    assert tidy(untidy) == expected


@given_any(st.lists(st.sampled_from([b"a", b" ", b"\t", b"\n", b"\r", b"\r\n"])).map(b"".join))
def test_a_tidy_file_stays_as_it_is(text: bytes) -> None:
    assert tidy(tidy(text)) == tidy(text)


@given_any(st.text(alphabet="ab \t\n").map(str.encode))
def test_only_white_space_goes_away(text: bytes) -> None:
    assert b"".join(tidy(text).split()) == b"".join(text.split())


def test_it_tidies_a_copy_and_leaves_the_original(
    home: Path, records: Records, tree: Path, start_worker: StartWorker
) -> None:
    start_worker(home, FIXER, "subagent")
    task = fixer.options(home=records.home).enqueue(source=str(tree), target=str(tree.with_name("copy")))
    report = task.result(timeout=30)
    assert report.changed == [f"{number:02}.py" for number in range(FILES)]
    assert report.bytes_removed == 4 * FILES
    assert files_of(tree.with_name("copy")) == TIDY
    assert files_of(tree) == UNTIDY


def test_a_target_that_exists_is_never_written_to(
    home: Path, records: Records, tree: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    start_worker(home, FIXER, "subagent")
    (tmp_path / "taken").mkdir()
    task = fixer.options(home=records.home).enqueue(source=str(tree), target=str(tmp_path / "taken"))
    with pytest.raises(errors.TaskFailedError, match="exists already"):
        task.result(timeout=30)
    assert files_of(tmp_path / "taken") == {}


def test_killed_in_a_write_it_asks_with_evidence_and_finishes_after_the_answer(
    home: Path, records: Records, tree: Path, start_worker: StartWorker, wait_until: Waiter, cli: Cli
) -> None:
    """The pause comes after the write, so the file has landed and its step has no outcome."""
    copy, witness = tree.with_name("copy"), tree.with_name("witness.txt")
    first = start_worker(home, FIXER, "subagent")
    given = {"source": str(tree), "target": str(copy), "pace_ms": 200, "witness": str(witness)}
    task = fixer.options(home=records.home).enqueue(**given)
    wait_until(lambda: (copy / "03.py").exists() and (copy / "03.py").read_bytes() == TIDY["03.py"], 20.0)
    first.kill()
    doubtful = records.open_write(task.id)
    start_worker(home, FIXER, "subagent")
    (asked,) = wait_until(lambda: confirmations.listing(records.db), 20.0)
    (step,) = confirmations.steps(records.db, asked.id)
    assert doubtful is not None
    assert step.step_key == doubtful
    assert json.loads(step.shown_json)["verify"]["landed"] is True
    assert cli("approve", asked.id).returncode == 4
    assert records.status(task.id) == "interrupted"

    assert cli("resolve", asked.id, "--ran", "null").returncode == 0
    assert task.result(timeout=30).changed == sorted(TIDY)
    assert files_of(copy) == TIDY
    executed = Counter(line.split(" ")[0] for line in witness.read_text().splitlines())
    assert set(executed.values()) == {1}
    assert len(executed) == FILES


def test_a_write_that_did_not_land_runs_again_only_when_a_person_says_so(
    home: Path, records: Records, tree: Path, start_worker: StartWorker, wait_until: Waiter, cli: Cli
) -> None:
    copy, witness = tree.with_name("copy"), tree.with_name("witness.txt")
    first = start_worker(home, FIXER, "subagent")
    given = {"source": str(tree), "target": str(copy), "pace_ms": 200, "witness": str(witness)}
    task = fixer.options(home=records.home).enqueue(**given)
    wait_until(lambda: (copy / "02.py").exists() and (copy / "02.py").read_bytes() == TIDY["02.py"], 20.0)
    first.kill()
    (copy / "02.py").write_bytes(UNTIDY["02.py"])  # as if the kill had come a moment earlier
    start_worker(home, FIXER, "subagent")
    (asked,) = wait_until(lambda: confirmations.listing(records.db), 20.0)
    (step,) = confirmations.steps(records.db, asked.id)
    assert json.loads(step.shown_json)["verify"]["landed"] is False

    assert cli("resolve", asked.id, "--step", step.step_key, "--again").returncode == 0
    task.result(timeout=30)
    assert files_of(copy) == TIDY
    executed = Counter(line.split(" ")[0] for line in witness.read_text().splitlines())
    assert {key: count for key, count in executed.items() if count > 1} == {f"{task.id}:{step.step_key}": 2}
