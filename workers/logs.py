"""How this process logs: lines on stderr, as text or JSON, each with the task, attempt and worker it belongs to.

Stdout belongs to what a command prints; nothing here ever writes to it. Code logs a constant text and puts what varies
into `extra`; the words for people are made here.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CONTEXT: ContextVar[dict[str, object] | None] = ContextVar("relight_log_fields", default=None)


def configure(form: str = "text", level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Send every log line of this process to stderr in `form`; a second call replaces the first."""
    handler = _Stderr(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Huey says at INFO what our own lines say with their task; its warnings stay.
    logging.getLogger("huey").setLevel("DEBUG" if level == "debug" else "WARNING")
    # The looks of its consumer, several a second, are nobody's business.
    logging.getLogger("huey.consumer").setLevel("INFO" if level == "debug" else "WARNING")
    return handler


@contextmanager
def fields(**extra: object) -> Iterator[None]:
    """Give every line logged inside these fields, such as task=, attempt= and worker=."""
    token = _CONTEXT.set({**(_CONTEXT.get() or {}), **extra})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


class _Stderr(logging.StreamHandler[TextIO]):
    """Our handler, told apart from those of an application."""


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    own = {name: value for name, value in vars(record).items() if name not in _PLAIN}
    return {**(_CONTEXT.get() or {}), **own}


def _stamp(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in _fields_of(record).items())
        line = (
            f"{_stamp(record)} {record.levelname:<7} {record.name}: {_one_line(record.getMessage())}{pairs}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            **_fields_of(record),
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _one_line(text: str) -> str:
    """Escape line breaks: one event is one line, whatever a task puts into its words."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text)
