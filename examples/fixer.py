"""Fixer: normalises trailing white space and the final newline in a copy of a tree. High risk: it writes.

The original is never touched. The copy and each changed file are write steps with a `verify`, which only looks: did this
write land? After a crash Relight asks before it goes on, and shows what `verify` found for the write that was cut off.

    relight -A examples/fixer.py enqueue fixer "Tidy" --input '{"source": "docs", "target": "docs-tidy"}'
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from relight import NotDone, Run, agent, current_step, step

# Two blanks at the end of a line mean a line break in Markdown, and a NUL means the file is not text.
_SUFFIXES = frozenset(
    {".cfg", ".css", ".html", ".ini", ".js", ".py", ".pyi", ".rst", ".sh", ".sql", ".toml", ".txt"}
)
_LEFT_OUT = frozenset({".git", "__pycache__"})


@dataclass(frozen=True)
class Change:
    """A file that is not tidy: the SHA-256 of what it is and of what it shall be, and the bytes that will go away."""

    file: str
    before: str
    after: str
    removed: int


@dataclass(frozen=True)
class Report:
    """What was done: the files that changed, and the bytes that went away."""

    target: str
    changed: list[str]
    bytes_removed: int


@agent(risk="high")
def fixer(
    run: Run,
    prompt: str = "Tidy a copy",
    *,
    source: str,
    target: str,
    pace_ms: int = 0,
    witness: str | None = None,
) -> Report:
    """Copy `source` to `target` and tidy each text file there, one write step per file.

    `pace_ms` and `witness` are those of the explorer. The pause comes after the write: a kill in it leaves a file that
    has landed and a step that has no outcome, which is the case that `verify` is for.
    """
    copy_tree(source, target)
    changes = find_untidy(target)
    for change in changes:
        tidy_file(target, change, pace_ms, witness)
    return Report(target, [change.file for change in changes], sum(change.removed for change in changes))


def copied(source: str, target: str) -> bool:
    """Whether the target is there and holds, file by file, what the source holds."""
    return Path(target).is_dir() and _manifest(Path(target)) == _manifest(Path(source))


@step(effect="write", verify=copied)
def copy_tree(source: str, target: str) -> int:
    """Copy the tree beside its place, then rename it: there is never half a copy. Returns the number of files."""
    if Path(target).exists():
        raise NotDone(f"{target} exists already; name a target that does not")
    part = Path(f"{target}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    part.rename(target)
    return len(_files(Path(target)))


@step(effect="read")
def find_untidy(target: str) -> list[Change]:
    """The text files whose bytes are not what they should be, in a fixed order."""
    top = Path(target)
    return [change for path in _files(top) if (change := _change(top, path))]


def tidied(target: str, change: Change, pace_ms: int, witness: str | None) -> bool:
    """Whether this file has the bytes that the step was to give it."""
    path = Path(target) / change.file
    return path.is_file() and _digest(path.read_bytes()) == change.after


@step(effect="write", verify=tidied)
def tidy_file(target: str, change: Change, pace_ms: int, witness: str | None) -> None:
    """Replace one file by its tidy form, in one rename: it is tidy or as it was, never half."""
    path = Path(target) / change.file
    if witness:
        _note(witness)
    untidy = path.read_bytes()
    if _digest(untidy) != change.before:
        raise NotDone(f"{path} is not the file that was found; somebody changed it since")
    _replace(path, tidy(untidy))
    current_step().stream(f"{change.file}: tidied\n")
    time.sleep(pace_ms / 1000)


def tidy(text: bytes) -> bytes:
    """Without blanks and tabs at line ends, and with exactly one newline at the end (an empty file stays empty)."""
    lines = b"\n".join(_tidy_line(line) for line in text.split(b"\n"))
    body = lines.rstrip(b"\r\n")
    newline = b"\r\n" if b"\r\n" in lines else b"\n"
    return body + newline if body else b""


def _tidy_line(line: bytes) -> bytes:
    return line.rstrip(b" \t\r") + (b"\r" if line.endswith(b"\r") else b"")


def _files(top: Path) -> list[Path]:
    """The files of a tree. Links are left alone: one may lead out of the copy."""
    found = (path for path in top.rglob("*") if not _LEFT_OUT.intersection(path.relative_to(top).parts))
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def _manifest(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): _digest(path.read_bytes()) for path in _files(top)}


def _change(top: Path, path: Path) -> Change | None:
    if path.suffix not in _SUFFIXES:
        return None
    text = path.read_bytes()
    neat = tidy(text)
    if b"\0" in text or neat == text:
        return None
    return Change(str(path.relative_to(top)), _digest(text), _digest(neat), len(text) - len(neat))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _replace(path: Path, text: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tidy")
    with open(temporary, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    shutil.copymode(path, temporary)
    os.replace(temporary, path)


def _note(witness: str) -> None:
    with open(witness, "a", encoding="utf-8") as file:
        file.write(f"{current_step().key} {current_step().attempt}\n")
