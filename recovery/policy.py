"""What recovery may do without asking, as its file says it.

Invariant: fail closed. Only a file that is there, is whole and says exactly what is known gives a RecoveryPolicy; every
other text, and none, gives a PolicyFault, under which everything is asked about. There are no defaults in code that the
file could drift from: each key must be in the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

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

    if text is None:
        return PolicyFault(path, cause)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return PolicyFault(path, f"not valid TOML: {error}")
    complaints = _complaints(document)
    if complaints:
        return PolicyFault(path, "; ".join(complaints))
    section = document["recovery"]
    return RecoveryPolicy(path, section["low"], section["high"], frozenset(section["exempt"]))


def _complaints(document: dict[str, Any]) -> list[str]:
    """What is wrong with a file, all of it. Checked by hand: a pass must not wait for pydantic to load."""
    found = _keys(document, {"version", "recovery"}, "")
    if "version" in document and not (type(document["version"]) is int and document["version"] == 1):
        found.append(f"version is {document['version']!r}: give 1")
    section = document.get("recovery")
    if isinstance(section, dict):
        found += _keys(section, {*_WORDS, "exempt"}, "recovery.")
        found += [
            _word(name, section[name])
            for name in _WORDS
            if name in section and section[name] not in _WORDS[name]
        ]
        found += _exempt(section.get("exempt", []))
    elif section is not None:
        found.append(f"recovery is {section!r}: give a table")
    return found


_WORDS = {"low": ("resume", "ask"), "high": ("ask",)}


def _keys(table: dict[str, Any], wanted: set[str], where: str) -> list[str]:
    missing = [f"{where}{name} is missing" for name in sorted(wanted - table.keys())]
    return missing + [f"{where}{name} is unknown" for name in sorted(table.keys() - wanted)]


def _word(name: str, value: Any) -> str:
    return f"recovery.{name} is {value!r}: give {' or '.join(_WORDS[name])}"


def _exempt(names: Any) -> list[str]:
    if not isinstance(names, list):
        return [f"recovery.exempt is {names!r}: give a list of agents"]
    return [
        f"recovery.exempt.{place} is {name!r}: give the exact name of an agent"  # a pattern would exempt nobody
        for place, name in enumerate(names)
        if not (isinstance(name, str) and re.fullmatch(r"[^*?\s]+", name))
    ]
