"""`python -m relight.workers.cli` is the same as `relight`."""

from . import main

main()
