"""Steps that fork: pools, bare forks and programs, and children that outlive the worker.

The module itself has used the state directory before any worker process is forked.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import relight
from relight import Run, agent, current_step, step
from relight.models import tasks
from relight.workers.home import Home
from tests.crash import witness

WIDTH = 3


def _store(number: int) -> str:
    """In a child: read, and commit a task of its own."""
    home = Home.current()
    assert tasks.counts(home.db)["running"] >= 1
    return relight.ref("nobody").options(key=f"{number}", delay=3_600).enqueue("from a child").id


@step(effect="read")
def in_a_pool(number: int) -> list[str]:
    with ProcessPoolExecutor(WIDTH, mp_context=get_context("fork")) as pool:
        return list(pool.map(_store, [number * WIDTH + n for n in range(WIDTH)]))


@step(effect="read")
def in_a_fork(number: int) -> list[str]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writing, _store(number * WIDTH).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as told:
        stored = told.read()
    assert os.waitpid(pid, 0)[1] == 0
    return [stored]


@agent(risk="low")
def pooling(run: Run, number: int) -> list[str]:
    return run.step(in_a_pool, number)


@agent(risk="low")
def forking(run: Run, number: int) -> list[str]:
    return run.step(in_a_fork, number)


@step(effect="read")
def one(number: int) -> int:
    witness.note(current_step().task_id, number, current_step().attempt, current_step().key, os.getpid())
    return number


@agent(risk="low")
def counted(run: Run, number: int) -> int:
    return run.step(one, number)


# -- children that stay -------------------------------------------------------------------------------------------


def _stay(_: int = 0) -> None:
    witness.note(os.getpid(), file="children")
    witness.wait_at("leave")


def _leave_a_fork() -> None:
    if os.fork() == 0:
        try:
            _stay()
        finally:
            os._exit(0)


def _leave_a_pool() -> None:
    pool = ProcessPoolExecutor(WIDTH, mp_context=get_context("fork"))
    for number in range(WIDTH):
        pool.submit(_stay, number)
    _kept.append(pool)


def _leave_a_program() -> None:
    program = f"echo $$ >> {witness.folder() / 'children'}; while [ ! -e {witness.folder() / 'leave'} ]; do sleep 0.05; done"
    _kept.append(subprocess.Popen(["/bin/sh", "-c", program], close_fds=False))


_kept: list[object] = []  # whatever is collected here would wait for its children
LEAVING = {"fork": _leave_a_fork, "pool": _leave_a_pool, "program": _leave_a_program}


@step(effect="read")
def leave_behind(how: str) -> str:
    here = current_step()
    witness.note(here.task_id, how, here.attempt, here.key, os.getpid())
    if here.attempt == 1:
        LEAVING[how]()
        witness.wait_at("never")
    return how


@agent(risk="low")
def leaving(run: Run, how: str) -> str:
    return run.step(leave_behind, how)


if witness.VARIABLE in os.environ and not Path(os.environ[witness.VARIABLE], "not-used").exists():
    tasks.counts(Home.current().db)
