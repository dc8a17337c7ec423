"""Any unique beginning or end of an id stands for it.

Invariant: an ambiguous one is refused with the ids that it could mean, never guessed.
"""

from __future__ import annotations

from .database import Database
from .errors import ConflictError, NotFoundError


def task(db: Database, short: str) -> str:
    """The whole id of a task; raises NotFoundError or ConflictError."""
    return _whole(db, "task", _TASKS, short)


def confirmation(db: Database, short: str) -> str:
    """The whole id of a confirmation; raises NotFoundError or ConflictError."""
    return _whole(db, "confirmation", _CONFIRMATIONS, short)


def _whole(db: Database, kind: str, statement: str, short: str) -> str:
    escaped = short.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    found = [row[0] for row in db.rows(statement, (short, short, short + "\U0010ffff", f"%{escaped}"))]
    if not short or not found:
        raise NotFoundError(kind, short)
    if short in found:
        return short
    if len(found) > 1:
        raise ConflictError(f"{kind} id {short!r} is not unique: {', '.join(found)}; give more of it")
    return str(found[0])


_TASKS = "SELECT id FROM agent_tasks WHERE id = ? OR (id >= ? AND id < ?) OR id LIKE ? ESCAPE '\\' LIMIT 4"
_CONFIRMATIONS = (
    "SELECT id FROM confirmations WHERE id = ? OR (id >= ? AND id < ?) OR id LIKE ? ESCAPE '\\' LIMIT 4"
)
