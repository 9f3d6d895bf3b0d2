"""What attacks share: who they are, whom they attack, and what they saw."""

import os
import time
from collections import Counter

import kernel
import wire
from wire import Ended, Refused

# How long an evil link may go on before it counts as left alone, and before a test calls it a hang.
PROMPT, PATIENCE = 0.1, 5.0

ATTACKS, SIEGES = {}, {}


def attack(run):
    """Enters an attack under its name: `descriptors_kinds` is `descriptors-kinds`."""
    ATTACKS[run.__name__.replace("_", "-")] = run
    return run


def siege(run):
    """Enters an attack without an end, a generator that yields after each step (siege.py)."""
    SIEGES[run.__name__.replace("_", "-")] = run
    return run


class Skip(Exception):
    """This machine cannot do it; says why."""


class Wrong(Exception):
    """The server did what docs/wire.md or SECURITY.md say it does not."""


class Stage:
    """The listening name, and a tally of outcomes."""

    def __init__(self, name, whole):
        self.name, self.whole = name, whole
        self.outcomes, self.closed_ms, self.said, self.keep = Counter(), [], {}, []

    def seconds(self, short, whole):
        return whole if self.whole else short

    def note(self, outcome, ms=None):
        self.outcomes[outcome] += 1
        if ms is not None:
            self.closed_ms.append(ms)

    def link(self, **how):
        return wire.Link(self.name, **how)

    def first_packet(self, body, descriptors, what=None):
        """One handshake with another first packet: how it ends, and that it ends."""
        end = wire.dial(self.name)
        start = time.monotonic()
        try:
            wire.greet(end, body, descriptors)
            self.note("admitted")
            outcome = None
        except Refused as refusal:
            outcome = refusal.code
            if refusal.descriptors:
                raise Wrong("a descriptor came with a Refusal") from None
            self.note(f"refused with {outcome}", (time.monotonic() - start) * 1e3)
        except Ended:
            outcome = "ended"
            self.note("ended", (time.monotonic() - start) * 1e3)
        except TimeoutError:
            raise Wrong(f"no answer to {what or body!r}") from None
        end.close()
        return outcome

    def verdicts(self, links, within=PROMPT):
        """Looks at links that were lied to, all at once, until each has ended or answers. A link is over
        (how soon is noted), or alive: it still echoes, or stuck: it does neither, which harms its liar."""
        start, waiting = time.monotonic(), dict.fromkeys(links, "")
        while waiting and time.monotonic() - start < within:
            for link in list(waiting):
                try:
                    waiting[link] += "" if (echo := link.recv(0)) is None else "e"
                    if echo is not None and echo.endswith(MARK):
                        self.note("alive")
                        del waiting[link]
                except Ended:
                    self.note("closed", (time.monotonic() - start) * 1e3)
                    del waiting[link]
                except (ValueError, KeyError, IndexError):  # what our own lie made of our own reading
                    del waiting[link]
                    self.note("alive")
        for _ in waiting:
            self.note("stuck")
        for link in links:
            link.leave()

    def result(self):
        out = {"outcomes": dict(self.outcomes.most_common())}
        if self.closed_ms:
            out["closed_ms"] = round(max(self.closed_ms), 2)
        return out | self.said


MARK = b"-the mark-"


def values(capacity, size=8):
    """The values that every field is given, as far as it holds them."""
    found = [0, 1, capacity - 1, capacity, capacity + 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1]
    return list(dict.fromkeys(value & (1 << 8 * size) - 1 for value in found))


class Child:
    """A forked process that runs a function until it is stopped."""

    def __init__(self, run):
        self.pid = os.fork()
        if self.pid == 0:
            try:
                kernel.die_with_parent()
                run()
            finally:
                os._exit(0)

    def stop(self):
        os.kill(self.pid, 9)
        return os.waitpid(self.pid, 0)
