"""The file `policy.toml` of a state directory: written once, with its directory, and read at each recovery pass.

Invariant: it is never written again. An operator who removes or breaks it is asked about everything, not overruled.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..recovery import policy
from ..recovery.policy import PolicyFault, RecoveryPolicy


def create(home: Path) -> Path:
    """Write the policy that Relight ships, for its owner alone; an existing one stays as it is."""
    file = home / policy.FILE_NAME
    with suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(policy.DEFAULT_TEXT)
    return file


def load(home: Path) -> RecoveryPolicy | PolicyFault:
    """Return what the policy file says now, or why it cannot be followed."""
    file = home / policy.FILE_NAME
    try:
        return policy.parse(file.read_text(encoding="utf-8"), path=str(file))
    except FileNotFoundError:
        return policy.parse(None, path=str(file), cause="missing")
    except (OSError, ValueError) as error:
        return policy.parse(None, path=str(file), cause=f"unreadable: {error}")
