"""An adversary, written from docs/wire.md alone.

    python3 tests/hostile/attack.py --list
    python3 tests/hostile/attack.py [--all] [--as other|userns|other-userns] NAME ATTACK

Runs one attack against a listener on the abstract name NAME and prints what it saw, as one line of
JSON. Exits with 0 if the attack could be made and met what docs/wire.md says, 1 if it met something
else, 2 if this machine cannot make it. `--all` takes longer and tries more.
"""

import argparse
import json
import os
import sys
import time
import traceback

import attacks_descriptors
import attacks_fields
import attacks_flood
import attacks_handshake
import attacks_memory
import attacks_process
import kernel
from stage import ATTACKS, Skip, Stage, Wrong
from wire import Ended, Refused

assert [attacks_descriptors, attacks_fields, attacks_flood, attacks_handshake, attacks_memory, attacks_process]

OTHER = 65534


def become(who):
    """Another user; ourselves, in a user namespace of our own; another user who is root in its own."""
    try:
        if "other" in who:
            os.setgroups([])
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
            kernel.dumpable()
        if "userns" in who:
            user, group = os.geteuid(), os.getegid()
            kernel.unshare(kernel.CLONE_NEWUSER)
            for file, line in (("uid_map", f"0 {user} 1"), ("setgroups", "deny"), ("gid_map", f"0 {group} 1")):
                with open(f"/proc/self/{file}", "w") as ids:
                    ids.write(line)
    except OSError as error:
        raise Skip(f"cannot be {who}: {error}") from None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--as", dest="who", default="same", choices=["same", "other", "userns", "other-userns"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("attack", nargs="?", choices=ATTACKS)
    options = parser.parse_args()
    if options.list or not options.attack:
        for name, run in ATTACKS.items():
            print(f"{name:22} {' '.join(run.__doc__.split())}")
        return 0
    stage, code, start = Stage(options.name, options.all), 0, time.monotonic()
    try:
        become(options.who)
        ATTACKS[options.attack](stage)
    except Skip as why:
        stage.said["skipped"], code = str(why), 2
    except Refused as refusal:
        stage.note(f"refused with {refusal.code}")
        stage.said["descriptors"] = refusal.descriptors
        if options.who not in ("other", "other-userns") or refusal.code != 1 or refusal.descriptors:
            stage.said["wrong"], code = "refused where it should not be", 1
    except (Wrong, Ended) as why:
        stage.said["wrong"], code = f"{type(why).__name__}: {why}", 1
    except Exception:
        stage.said["wrong"], code = traceback.format_exc(), 1
    took = round((time.monotonic() - start) * 1e3)
    print(json.dumps({"attack": options.attack, "as": options.who} | stage.result() | {"took_ms": took}), flush=True)
    return code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # forked and lent things need no order at the end
