"""Blobs that no row names: found, set aside, and removed at last.

Invariant: a blob is on disk before the row that names it is committed, so "no row names it" proves nothing about a young
one. A blob goes in two passes, at least SETTLED_MS apart: it is set aside under another name, where a reader
still finds it and from where it comes back as soon as a row names it; only then is it removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import blobs
from .database import Database

SETTLED_MS = 24 * 3_600_000  # a blob is named milliseconds after it was stored, unless its process is stopped
_NAMES = re.compile(r'"\$blob":\s*\{"sha256":\s*"([0-9a-f]{64})"')
_PAGE = 500


@dataclass
class Swept:
    """What a pass did with the files: how many of each, and the bytes of the removed ones."""

    set_aside: int = 0
    brought_back: int = 0
    removed: int = 0
    removed_bytes: int = 0


def named(db: Database) -> set[str]:
    """The digests of all blobs that rows name."""
    return {digest for text in _naming_texts(db) for digest in _NAMES.findall(text)}


def sweep(db: Database, folder: Path, *, now: int, dry_run: bool = False) -> Swept:
    """Set aside what is old and unnamed, remove what was set aside long ago, bring back what is named after all.

    The rows are read after the files were listed: a blob that is named meanwhile is seen as named.
    """
    swept = Swept()
    old = [file for file in blobs.files(folder) if _age(file, now) >= SETTLED_MS]
    if old:
        keep = named(db)
        for file in old:
            _treat(file, keep, swept, now=now, dry_run=dry_run)
    return swept


def _treat(file: Path, keep: set[str], swept: Swept, *, now: int, dry_run: bool) -> None:
    digest = file.name.removesuffix(blobs.ASIDE)
    is_aside, is_blob = file.name.endswith(blobs.ASIDE), bool(re.fullmatch("[0-9a-f]{64}", digest))
    with suppress(FileNotFoundError):
        if is_blob and digest in keep:
            if is_aside:
                swept.brought_back += 1
                if not dry_run:
                    file.rename(file.with_name(digest))
        elif is_blob and not is_aside:
            swept.set_aside += 1
            if not dry_run:
                _set_aside(file, now=now)
        else:  # set aside long ago, or the unfinished file of a writer that died
            swept.removed += 1
            swept.removed_bytes += file.stat().st_size
            if not dry_run:
                file.unlink()


def _set_aside(file: Path, *, now: int) -> None:
    """Give the file its other name, from which time its second wait counts."""
    aside = file.with_name(f"{file.name}{blobs.ASIDE}")
    file.rename(aside)
    os.utime(aside, ns=(now * 1_000_000, now * 1_000_000))


def _age(file: Path, now: int) -> int:
    try:
        return now - file.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 0


def _naming_texts(db: Database) -> Iterator[str]:
    for statement, start in ((_TRACES, 0), (_TASKS, "")):
        last: object = start
        while page := db.rows(statement, (last, _PAGE)):
            last = page[-1][0]
            yield from (str(row[1]) for row in page)


_TRACES = """
    SELECT id, event_json FROM task_traces WHERE instr(event_json, '{"$blob"') > 0 AND id > ? ORDER BY id LIMIT ?
"""
_TASKS = """
    SELECT id, result_json FROM agent_tasks WHERE instr(result_json, '{"$blob"') > 0 AND id > ? ORDER BY id LIMIT ?
"""
