"""Where agent code raised: the traceback that a failed task keeps and that its log line shows.

Invariant: it begins at the agent's own code, below Relight's frames, and is never larger than LIMIT_BYTES; a longer one keeps
its beginning and its end.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

LIMIT_BYTES = 8_192
OURS = str(Path(__file__).parent.parent)
_CUT = "\n…\n"


def text(error: BaseException) -> str:
    """The traceback of an exception and of its causes, as Python prints it."""
    told = traceback.TracebackException(type(error), error, below_ours(error.__traceback__))
    return _clipped("".join(told.format()))


def below_ours(found: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not Relight's; the whole one where there is no other."""
    first = found
    while first is not None and is_ours(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or found


def is_ours(file: str) -> bool:
    """Whether a source file belongs to Relight."""
    return file.startswith(OURS + "/")


def _clipped(whole: str) -> str:
    data = whole.encode(errors="backslashreplace")
    if len(data) <= LIMIT_BYTES:
        return data.decode()
    half = (LIMIT_BYTES - len(_CUT.encode())) // 2
    return data[:half].decode(errors="ignore") + _CUT + data[-half:].decode(errors="ignore")
