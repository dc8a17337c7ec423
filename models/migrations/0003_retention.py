"""What retention needs: which tasks have ended when, which rows name a blob, when a plain result was stored, marks."""

from __future__ import annotations

from typing import Any

CHANGES = (
    """
        CREATE INDEX "agent_tasks_ended" ON "agent_tasks" ("completed_at") WHERE completed_at IS NOT NULL
    """,
    """
        CREATE INDEX "agent_tasks_blob" ON "agent_tasks" ("id") WHERE instr(result_json, '{"$blob"') > 0
    """,
    """
        CREATE INDEX "task_traces_blob" ON "task_traces" ("id") WHERE instr(event_json, '{"$blob"') > 0
    """,
    """
        CREATE TABLE "upkeep_marks" (
            "name" TEXT NOT NULL PRIMARY KEY,
            "value" INTEGER NOT NULL
        )
    """,
    "ALTER TABLE kv ADD COLUMN stored_at INTEGER",
    "CREATE INDEX kv_stored_at ON kv (stored_at) WHERE stored_at IS NOT NULL",
)


def up(migrator: Any, db: Any) -> None:
    """Add indexes, the table of marks and the stamp of plain results."""
    for statement in CHANGES:
        db.change(statement)
