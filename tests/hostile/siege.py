"""Attacks without an end, from docs/wire.md alone, for tests/attacks.

    python3 tests/hostile/siege.py --list
    python3 tests/hostile/siege.py [--small] NAME ATTACK

Runs one attack against a listener on the abstract name NAME until it is killed. Prints `begun` when the attack has done
what it prepares; before that a line `wrong: WHAT`, if the server has done what it must not. Exits with 2 and a line
`skipped: WHY` where this machine cannot make the attack. `--small` takes less memory. An attack whose link ends begins
anew.
"""

import argparse
import os
import resource
import sys
import time

import kernel
import sieges_descriptors
import sieges_flood
import sieges_http
import sieges_loans
import sieges_memory
from stage import SIEGES, Skip, Stage, Wrong
from wire import Ended, Refused

assert [sieges_descriptors, sieges_flood, sieges_http, sieges_loans, sieges_memory]

# What a server may do to a link of an attacker, and what a full machine does.
EXPECTED = (Ended, Refused, Wrong, OSError, ValueError, KeyError, IndexError, MemoryError)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("name", nargs="?")
    parser.add_argument("attack", nargs="?", choices=SIEGES)
    options = parser.parse_args()
    if options.list or not options.attack:
        for name, run in SIEGES.items():
            print(f"{name:22} {' '.join(run.__doc__.split())}")
        return
    kernel.die_with_parent()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    stage, begun = Stage(options.name, not options.small), False
    while True:
        try:
            for _ in SIEGES[options.attack](stage):
                if not begun:
                    print("begun", flush=True)
                begun = True
        except Skip as why:
            print(f"skipped: {why}", flush=True)
            os._exit(2)
        except EXPECTED as error:
            if os.environ.get("SLIPRING_SIEGE") == "loud":
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if not begun:
            print("begun", flush=True)
            begun = True
        time.sleep(0.002)


if __name__ == "__main__":
    main()
