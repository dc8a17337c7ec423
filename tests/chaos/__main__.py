"""`python -m tests.chaos --seed N --kills N`: real processes under random blows, then the verdict; exit code 1 on a fault."""

from __future__ import annotations

import argparse
import secrets
import sys

from tests.chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=540.0, help="strike no longer than this")
    parser.add_argument("--pace", type=float, default=0.2, help="mean seconds between two blows")
    given = parser.parse_args()
    print(f"chaos: seed {given.seed}, {given.kills} kills", flush=True)
    result = run(seed=given.seed, kills=given.kills, seconds=given.seconds, pace_s=given.pace)
    print(result.text())
    kills, faults = result.tally.kills, len(result.faults)
    print(f"{kills} kills in {result.seconds:.0f} s, {faults} faults, seed {result.seed}")
    return int(bool(result.faults) or kills < given.kills)


if __name__ == "__main__":
    sys.exit(main())
