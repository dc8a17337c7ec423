"""The files of the demo: an untidy tree made from the standard library's asyncio, and what it should become."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stage:
    """Where things lie, and the bytes that each file had and shall have."""

    folder: Path
    untidy: dict[str, bytes]
    tidy: dict[str, bytes]

    @property
    def original(self) -> Path:
        return self.folder / "untidy"

    @property
    def copy(self) -> Path:
        return self.folder / "tidied"

    @property
    def witness(self) -> Path:
        return self.folder / "witness.txt"

    def executed(self) -> str:
        """What the witness saw so far."""
        return self.witness.read_text(encoding="utf-8") if self.witness.exists() else ""

    def wrong_files(self) -> list[str]:
        """The files of the copy that are not tidy, and those of the original that were touched."""
        return _differences(self.copy, self.tidy) + _differences(self.original, self.untidy)


def standard_packages() -> list[str]:
    """The folders of the standard library's json and asyncio, which the explorer reads."""
    return [str(Path(module.__file__).parent) for module in (json, asyncio) if module.__file__]


def build(folder: Path) -> Stage:
    """Write the untidy tree: real sources, with blanks at line ends and without a proper last line."""
    texts = {
        path.name: path.read_text(encoding="utf-8") for path in Path(asyncio.__file__).parent.glob("*.py")
    }
    neat = {name: _neat(text) for name, text in sorted(texts.items())}
    stage = Stage(
        folder,
        untidy={
            name: _roughened(number, lines).encode() for number, (name, lines) in enumerate(neat.items())
        },
        tidy={name: ("\n".join(lines) + "\n").encode() for name, lines in neat.items()},
    )
    stage.original.mkdir(parents=True)
    for name, text in stage.untidy.items():
        (stage.original / name).write_bytes(text)
    return stage


def _neat(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _roughened(number: int, lines: list[str]) -> str:
    blanks = ("  ", "\t", "", " \t ", "")
    rough = "\n".join(line + blanks[(place + number) % len(blanks)] for place, line in enumerate(lines))
    return rough + ("   ", "\n\n\n")[number % 2]


def _differences(folder: Path, expected: dict[str, bytes]) -> list[str]:
    found = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}
    return [
        f"{folder.name}/{name}"
        for name in sorted({*found, *expected})
        if found.get(name) != expected.get(name)
    ]
