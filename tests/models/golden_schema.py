"""Write models/schema.sql anew, so that a change of the schema shows in review as SQL."""

from __future__ import annotations

import tempfile
from pathlib import Path

from relight.models import schema
from tests.models.test_schema import GOLDEN, statements


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = schema.open_database(Path(folder) / "state.db", now=0)
        GOLDEN.write_text("\n\n".join(statements(db)) + "\n", encoding="utf-8")
        db.close_all()


if __name__ == "__main__":
    main()
