"""Agents with large outcomes, and small ones beside them."""

from __future__ import annotations

from relight import Run, agent, current_step, step


@step(effect="read")
def print_much(size: int, mark: str) -> str:
    return mark * (size // len(mark))


@step(effect="read")
def look(mark: str) -> str:
    return mark


@step(effect="read")
def stream_much(count: int, size: int) -> int:
    for _ in range(count):
        current_step().stream("x" * size)
    return count


@agent(risk="low")
def prints_much(run: Run, prompt: str, *, size: int) -> int:
    return len(print_much(size, prompt))


@agent(risk="low")
def streams_much(run: Run, prompt: str, *, count: int, size: int) -> int:
    return stream_much(count, size)


@agent(risk="low")
def prints_little(run: Run, prompt: str) -> str:
    return look(prompt)
