"""A worker's tie to the supervisor that started it: when that one dies, the worker stops as if it were told to.

The supervisor names itself in the environment, and its child as well, so that a child knows itself even when it comes to
life after the supervisor's death. A process that is not its child ignores both.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping

VARIABLE, CHILD = "RELIGHT_SUPERVISOR_PID", "RELIGHT_SUPERVISED_PID"
_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0


def hold(env: Mapping[str, str] = os.environ) -> None:
    """Receive TERM when the supervisor dies, however it dies; without one, do nothing."""
    pid = env.get(VARIABLE, "")
    is_child = env.get(CHILD) == str(os.getpid()) or str(os.getppid()) == pid
    if not pid.isdecimal() or not is_child:
        return
    if sys.platform == "linux":
        # The kernel sends it; no thread, because process workers fork from here.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(int(pid),), daemon=True).start()
    if os.getppid() != int(pid):
        os.kill(os.getpid(), signal.SIGTERM)


def _watch(pid: int) -> None:
    while os.getppid() == pid:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
