"""The thread by which every process that serves a lane takes part in recovery: at its start, then every SWEEP_MS.

Invariant: nothing depends on one process; which of them runs a pass is decided by a kernel lock, in `recovery_job`.
"""

from __future__ import annotations

import threading

from .home import Home


class Sweeper:
    """Runs recovery passes in the background until it is told to stop."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relight-sweep", daemon=True)

    def start(self) -> None:
        """Begin with a pass now."""
        self._thread.start()

    def begin_no_more(self) -> None:
        """Let the pass that runs be the last one: whoever stops does not resume what its siblings put down."""
        self._stopped.set()

    def stop(self) -> bool:
        """Begin no further pass; whether none runs any more, after a moment at the latest."""
        self.begin_no_more()
        self._thread.join(timeout=1)
        return not self._thread.is_alive()

    def _run(self) -> None:
        from . import recovery_job

        recovery_job.keep_sweeping(self._home, self._stopped)
