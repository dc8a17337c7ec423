"""Log lines: one event is one line, with the task, attempt and worker it belongs to."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from relight.workers import logs

LOG = logging.getLogger("relight.tests")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, huey = logging.getLogger(), logging.getLogger("huey")
    before, level, huey_level = list(root.handlers), root.level, huey.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)
    huey.setLevel(huey_level)


def test_a_text_line_carries_the_fields_of_its_context_and_its_own(stream: io.StringIO) -> None:
    logs.configure("text", "info", stream)
    with logs.fields(worker="w1", task="t1"), logs.fields(attempt=2):
        LOG.info("claimed", extra={"lane": "main"})
    LOG.info("alone")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("INFO    relight.tests: claimed worker=w1 task=t1 attempt=2 lane=main")
    assert second.endswith("relight.tests: alone")


def test_a_json_line_is_one_document_with_the_same_fields(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    with logs.fields(worker="w1", task="t1", attempt=2):
        LOG.warning("lost\nlines", extra={"odd": object})
    line = json.loads(stream.getvalue())
    assert {
        "task": "t1",
        "attempt": 2,
        "worker": "w1",
        "level": "warning",
        "message": "lost\nlines",
    }.items() <= line.items()
    assert line["time"].endswith("Z")


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_logged_with_its_traceback(stream: io.StringIO, form: str) -> None:
    logs.configure(form, "info", stream)
    try:
        raise ValueError("broken")
    except ValueError:
        LOG.exception("failed")
    assert "ValueError: broken" in stream.getvalue()


def test_words_with_line_breaks_stay_on_their_line(stream: io.StringIO) -> None:
    logs.configure("text", "info", stream)
    LOG.info("a\nb", extra={"error": "c\nd e"})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r'a\nb error="c\nd e"')


def test_the_level_is_obeyed_and_a_second_call_replaces_the_first(stream: io.StringIO) -> None:
    logs.configure("text", "info", io.StringIO())
    logs.configure("text", "error", stream)
    LOG.warning("quiet")
    LOG.error("loud")
    (line,) = stream.getvalue().splitlines()
    assert "loud" in line
