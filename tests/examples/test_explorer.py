"""The explorer: what it finds in a file, and that it goes on where it was killed."""

from __future__ import annotations

from examples.explorer import describe, summarise

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
