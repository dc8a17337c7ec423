"""Answer: tells where a name of the standard library is defined. A short task for the Main lane, where people wait.

relight -A examples/answer.py enqueue answer "Where is asyncio.gather defined?" --lane main
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path

from relight import Run, agent, step


@agent(risk="low")
def answer(run: Run, prompt: str) -> str:
    """Answer "Where is NAME defined?" with a file and a line."""
    names = re.findall(r"\w+(?:\.\w+)+", prompt)
    return locate(names[0]) if names else "Ask for a dotted name, such as asyncio.gather."


@step(effect="read")
def locate(name: str) -> str:
    """Look the name up, as Python itself would."""
    try:
        found = inspect.unwrap(pkgutil.resolve_name(name))
        _, line = inspect.getsourcelines(found)
        package, file = Path(inspect.getfile(found)).parts[-2:]
        return f"{name} is defined in {package}/{file}, line {line}."
    except (ImportError, AttributeError, TypeError, OSError):
        return f"There is no Python source for {name}."
