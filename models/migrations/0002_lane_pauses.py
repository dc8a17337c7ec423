"""Lanes that a person has paused."""

from __future__ import annotations

from typing import Any

TABLES = (
    """
        CREATE TABLE "lane_pauses" (
            "lane" TEXT NOT NULL PRIMARY KEY,
            "paused_at" INTEGER NOT NULL,
            "paused_by" TEXT NOT NULL
        )
    """,
)


def up(migrator: Any, db: Any) -> None:
    """Create the table."""
    for statement in TABLES:
        db.change(statement)
