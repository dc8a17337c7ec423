"""What steps and agents give back, as text in a row or, above 64 KiB, as a file that the row names.

Invariant: a value is encoded, and a file of it is durable, before the transaction that names it begins. The live run
goes on with the decoded value, so that live and replay take the same path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..models import blobs, encoding
from .home import Home

INLINE_BYTES = 65_536  # design §7


@dataclass(frozen=True)
class Stored:
    """A value as JSON text for a row; `lossy` where the text does not hold all of it."""

    text: str
    lossy: bool


def store(home: Home, value: Any) -> Stored:
    """Encode a value; one over 64 KiB becomes a file, one over MAX_BLOB_BYTES a marked preview."""
    encoded = encoding.encode(value)
    data = encoded.text.encode()
    if len(data) <= INLINE_BYTES:
        return Stored(encoded.text, encoded.lossy)
    if len(data) > home.settings.max_blob_bytes:
        mark = {"$lossy": "too large", "bytes": len(data), "preview": blobs.preview(encoded.text)}
        return Stored(json.dumps(mark, ensure_ascii=False), True)
    ref = blobs.store(home.path / "blobs", data, limit=home.settings.max_blob_bytes)
    return Stored(json.dumps({"$blob": {"sha256": ref.sha256, "size": ref.size}}), encoded.lossy)


def load(home: Home, text: str, annotation: Any = None) -> Any:
    """The value that a stored text means, typed by the annotation; raises SealedStepError for a damaged file."""
    return encoding.decode(whole(home, text), annotation)


def whole(home: Home, text: str) -> str:
    """The JSON text of a value, read from its file where it lies in one; raises SealedStepError for a damaged file."""
    if not text.startswith('{"$blob"'):
        return text
    named = json.loads(text)["$blob"]
    return blobs.load(home.path / "blobs", blobs.BlobRef(**named)).decode()


def error_json(error: BaseException, steps: Sequence[str] = ()) -> str:
    """An exception as a row holds it, with the steps that raised it: what a person's retry has to run again."""
    ended_by = {"steps": list(dict.fromkeys(steps))} if steps else {}
    return json.dumps({**encoding.describe_error(error), **ended_by}, ensure_ascii=False)


def part(event_json: str, name: str) -> Any:
    """A member of the `result` of a stored outcome."""
    return json.loads(event_json)["result"].get(name)
