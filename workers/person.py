"""Who speaks through this process: the name that an answer or a cancellation is recorded under."""

from __future__ import annotations

import getpass
import os


def name() -> str:
    """Return the user of this process; a container may run under a number that has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"
