"""What steps and agents give back, as text in a row or, above 64 KiB, as a file that the row names.

Invariant: a value is encoded, and a file of it is durable, before the transaction that names it begins. The live run
goes on with the decoded value, so that live and replay take the same path.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..models import blobs, encoding
from . import tracebacks
from .home import Home

log = logging.getLogger("relight.steps")
_warned: set[str] = set()

INLINE_BYTES = 65_536  # design §7


@dataclass(frozen=True)
class Stored:
    """A value as JSON text for a row; `lossy` where the text does not hold all of it; `whole` is what the text means."""

    text: str
    lossy: bool
    whole: str
    value: Any

    def decoded(self, annotation: Any = None) -> Any:
        """What `load` would give. A plain text is that itself: to read 200 MB back would take seconds."""
        if type(self.value) is str and not self.lossy and (annotation is None or annotation is str):
            return self.value
        return encoding.decode(self.whole, annotation)


def store(home: Home, value: Any) -> Stored:
    """Encode a value; one over 64 KiB becomes a file, one over MAX_BLOB_BYTES a marked preview."""
    encoded = encoding.encode(value)
    data = encoded.text.encode()
    if len(data) <= INLINE_BYTES:
        return Stored(encoded.text, encoded.lossy, encoded.text, value)
    if len(data) > home.settings.max_blob_bytes:
        mark = {"$lossy": "too large", "bytes": len(data), "preview": blobs.preview(encoded.text)}
        text = json.dumps(mark, ensure_ascii=False)
        return Stored(text, True, text, value)
    ref = blobs.store(home.path / "blobs", data, limit=home.settings.max_blob_bytes)
    name = json.dumps({"$blob": {"sha256": ref.sha256, "size": ref.size}})
    return Stored(name, encoded.lossy, encoded.text, value)


def warn_of_loss(name: str, stored: Stored) -> None:
    """Warn, once for a step name in a process, that an outcome is not stored as a whole."""
    if not stored.lossy or name in _warned:
        return
    _warned.add(name)
    found = re.search(r'"\$lossy": ?"([^"]*)"', stored.whole)
    what = found[1] if found else "text that is not Unicode"
    kind = type(stored.value).__qualname__
    log.warning(
        "step %s: its outcome, a %s, cannot be stored as a whole (%s); the agent goes on with what is stored",
        name,
        kind,
        what,
    )


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
    """An exception as a row holds it: where it was raised, and the steps that raised it, which a person's retry runs again."""
    ended_by = {"steps": list(dict.fromkeys(steps))} if steps else {}
    told = {**encoding.describe_error(error), **ended_by, "traceback": tracebacks.text(error)}
    return json.dumps(told, ensure_ascii=False)


def part(event_json: str, name: str) -> Any:
    """A member of the `result` of a stored outcome."""
    return json.loads(event_json)["result"].get(name)
