"""Starts worker processes without loading Python anew: each is a fork of this process, which has opened nothing.

A worker so made is a process of its own in a session of its own, runs the same command line, and dies the same deaths;
a hundred of them cost seconds instead of minutes. Orders come as JSON lines on stdin, answers go to stdout.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from typing import Any

PRELOADED = (
    "relight.workers.cli.running",
    "relight.workers.recovery_job",
    "relight.workers.shift",
    "relight.workers.execution",
    "pydantic.main",
    "pydantic.type_adapter",
    "psutil",
)


def _answer(order: dict[str, Any]) -> int | None:
    """The exit code of a worker that has ended (negative: the signal that killed it), or None while it lives."""
    pid, status = os.waitpid(order["poll"], os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _become(order: dict[str, Any]) -> None:
    """In the fork: be the process that `relight ARGS` would start."""
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
        os.dup2(fd, number)
    os.closerange(3, log + 2)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import_module(order.get("module", "relight.workers.cli")).main(order["args"])


def main() -> None:
    """Serve orders until stdin ends; whoever gave them has ended then, and its workers end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    living = set[int]()
    for name in (*PRELOADED, *sys.argv[1:]):
        import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            answer = _answer(order)
            living -= {order["poll"]} if answer is not None else set()
        elif (answer := os.fork()) == 0:
            return _become(order)
        else:
            living.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
