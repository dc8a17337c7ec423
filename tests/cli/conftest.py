"""The agents that the command line's tests run, and JSON answers of `relight`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.conftest import Cli

AGENTS = """
import time
from pathlib import Path
from relight import agent, current_step, step

def wait_for(file):
    while not Path(file).exists():
        time.sleep(0.01)

@step(effect="read")
def look(number: int) -> int:
    current_step().stream("looking")
    return number + 1

@step(effect="read")
def look_at(file: str, witness: str) -> str:
    note(witness)
    wait_for(file)
    return "seen"

@step(effect="write", verify=lambda file, witness: Path(witness).exists())
def put(file: str, witness: str) -> str:
    note(witness)
    wait_for(file)
    return "put"

def note(witness):
    with open(witness, "a") as lines:
        lines.write(current_step().key + "\\n")

@agent(risk="low")
def adder(run, prompt: str, *, number: int = 1) -> int:
    return look(number)

@agent(risk="low")
def reader(run, prompt: str, *, first: str, witness: str) -> str:
    look(1)
    return look_at(first, witness)

@agent(risk="high")
def writer(run, prompt: str, *, file: str, witness: str) -> str:
    return put(file, witness)

@agent(risk="low")
def failing(run, prompt: str) -> None:
    raise ValueError("it is broken")
"""


class Asked(Protocol):
    def __call__(self, *args: str, code: int = 0) -> Any: ...


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A file of agents."""
    file = tmp_path / "agents_of_test.py"
    file.write_text(AGENTS, encoding="utf-8")
    return file


@pytest.fixture
def asked(cli: Cli, home: Path) -> Asked:
    """What `relight --json ARGS` answers, as a value; its exit code must be `code`."""

    def ask(*args: str, code: int = 0) -> Any:
        done = cli("--json", *args)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    return ask
