"""What recovery may do without asking, as its file says it.

Invariant: fail closed. Only a file that is there, is whole and says exactly what is known gives a RecoveryPolicy; every
other text, and none, gives a PolicyFault, under which everything is asked about. There are no defaults in code that the
file could drift from: each key must be in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    import pydantic_core

FILE_NAME = "policy.toml"

DEFAULT_TEXT = """\
# What Relight may do by itself. If this file is missing, damaged or says something unknown,
# every interrupted task waits for a person.
version = 1

[recovery]
# A low-risk task that lost its worker: "resume" by replay, or "ask" first.
low = "resume"

# A high-risk task is always asked about; nothing else is accepted here.
high = "ask"

# Agents whose high-risk tasks resume without a question, by exact name.
# A write step that may have happened is asked about even then.
exempt = []
"""


@dataclass(frozen=True)
class RecoveryPolicy:
    """A policy file that was understood."""

    path: str
    low: Literal["resume", "ask"]
    high: Literal["ask"]
    exempt: frozenset[str]


@dataclass(frozen=True)
class PolicyFault:
    """A policy file that cannot be followed, and why; `str()` names both."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"policy {self.path}: {self.reason}"


def parse(
    text: str | None, *, path: str, cause: str = "missing or unreadable"
) -> RecoveryPolicy | PolicyFault:
    """Read the text of a policy file; None stands for a file that could not be read, for that cause."""
    import tomllib

    import pydantic

    if text is None:
        return PolicyFault(path, cause)
    try:
        document = _document().model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        return PolicyFault(path, f"not valid TOML: {error}")
    except pydantic.ValidationError as error:
        return PolicyFault(path, "; ".join(map(_complaint, error.errors(include_url=False))))
    section = document.recovery
    return RecoveryPolicy(path, section.low, section.high, frozenset(section.exempt))


def _complaint(fault: pydantic_core.ErrorDetails) -> str:
    where = ".".join(map(str, fault["loc"])) or "file"
    if fault["type"] == "missing":
        return f"{where} is missing"
    if fault["type"] == "extra_forbidden":
        return f"{where} is unknown"
    return f"{where} is {fault['input']!r}: {fault['msg']}"


@cache
def _document() -> Any:
    """The shape of the file; made on first use, since pydantic takes its time to load."""
    from pydantic import BaseModel, ConfigDict, Field

    class Section(BaseModel):
        model_config = ConfigDict(strict=True, extra="forbid")
        low: Literal["resume", "ask"]
        high: Literal["ask"]
        exempt: list[Annotated[str, Field(pattern=r"^[^*?\s]+$")]]  # a pattern would exempt nobody

    class Document(BaseModel):
        model_config = ConfigDict(strict=True, extra="forbid")
        version: Annotated[int, Field(ge=1, le=1)]  # Literal[1] would take `true` and `1.0` for it
        recovery: Section

    return Document
