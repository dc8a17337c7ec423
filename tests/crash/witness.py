"""What agents of these tests leave outside of Relight: a line for each time that something was really executed.

A line is appended by one write, so that lines of many processes never mix and a line is there or not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

VARIABLE = "WITNESS"


def folder() -> Path:
    """Where this test's witnesses lie."""
    return Path(os.environ[VARIABLE])


def note(*words: object, file: str = "lines") -> None:
    """Append a line; words may not hold blanks."""
    line = " ".join(str(word) for word in words) + "\n"
    fd = os.open(folder() / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def once(name: str) -> bool:
    """Whether this is the first time that this name is asked for, over all processes and restarts."""
    try:
        os.close(os.open(folder() / name.replace("/", "_"), os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def is_open(name: str) -> bool:
    """Whether the test has opened a barrier: it makes a file of this name."""
    return (folder() / name).exists()


def hold_until(condition: Callable[[], bool]) -> None:
    """Hold this thread until a condition holds."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)


def wait_at(name: str) -> None:
    """Hold this thread until the test opens the barrier."""
    hold_until(lambda: is_open(name))
