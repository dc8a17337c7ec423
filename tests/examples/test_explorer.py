"""The explorer: what it finds in a file, and that it goes on where it was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from examples.explorer import describe, explorer, summarise
from tests.conftest import ROOT, StartWorker
from tests.examples.conftest import Records

EXPLORER = ROOT / "examples" / "explorer.py"
Waiter = Callable[..., object]

MARK = "TO" + "DO"  # in two parts, so that nobody finds this file when looking for work left over
SOURCE = f'''
def short():
    return 1  # {MARK}: say more

class Thing:
    async def long(self):
        def inner():
            pass

        return "{MARK} in a text is not a comment"
'''.encode()


def test_functions_are_counted_wherever_they_are() -> None:
    facts = describe("a.py", SOURCE)
    assert (facts.lines, facts.functions, facts.problem) == (10, 3, None)


def test_the_longest_function_is_named_with_its_place() -> None:
    longest = describe("a.py", SOURCE).longest
    assert longest is not None
    assert (longest.name, longest.file, longest.line, longest.lines) == ("long", "a.py", 6, 5)


def test_only_comments_are_marks() -> None:
    assert [(mark.line, mark.text) for mark in describe("a.py", SOURCE).marks] == [(3, f"{MARK}: say more")]


def test_a_file_that_is_no_python_is_reported_and_the_rest_counts() -> None:
    report = summarise([describe("bad.py", b"def ("), describe("nul.py", b"\0"), describe("a.py", SOURCE)])
    assert (report.files, report.functions) == (3, 3)
    assert [text.split(":")[0] for text in report.unreadable] == ["bad.py", "nul.py"]


def test_killed_at_half_of_the_files_it_reads_the_others_only(
    home: Path, records: Records, tmp_path: Path, start_worker: StartWorker, wait_until: Waiter
) -> None:
    """On the standard library's json and asyncio, as by default; the steps say what ran by way of the witness file."""
    witness = tmp_path / "witness.txt"
    first = start_worker(home, EXPLORER, "subagent")
    task = explorer.options(home=records.home).enqueue(pace_ms=30, witness=str(witness))
    wait_until(lambda: len(records.finished(task.id)) > 10, 20.0)
    first.kill()
    before = [key for key in records.finished(task.id) if key.startswith("read_source")]
    start_worker(home, EXPLORER, "subagent")

    report = task.result(timeout=30)
    assert report.files > len(before) > 8
    assert report.unreadable == []
    executed = Counter(line.split(" ")[0] for line in witness.read_text().splitlines())
    assert {executed[f"{task.id}:{key}"] for key in before} == {1}
    assert len(executed) == report.files
    assert sum(executed.values()) <= report.files + 1
