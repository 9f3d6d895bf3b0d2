"""Sieges by peers that keep what they were lent."""

import os
import signal
import time

import wire
from stage import Child, siege
from wire import CLOSE, Ended, Refused

MIB = 1 << 20


def hoard(link, length, most):
    """Has long messages echoed until `most` loans are kept, or the server lends no more. How many."""
    if link.pool is None:
        link.give_pool(length=MIB)
    lent = sent = idle = 0
    while lent < most and idle < 200 and not wire.has_ended(link.end):
        if sent - lent < 4 and link.room() > 256:
            link.write(link.descriptor(length=length, slot=sent % link.their_slots), flags=wire.POOLED)
            sent += 1
        if link.take(give_back=False) is None:
            idle += 1
            time.sleep(0.001)
        else:
            lent, idle = lent + 1, 0
    return lent


@siege
def stopped_borrower(stage):
    """A child that holds as many loans as it gets, of 1 MiB and of 20 kB, and is stopped (B6)."""

    def run():
        link = stage.link(slots=1024, ring=1 << 20)
        os.write(write, b"%d" % (hoard(link, MIB, 512) + hoard(link, 20_000, 1024)))
        os.kill(os.getpid(), signal.SIGSTOP)

    read, write = os.pipe()
    child = Child(run)
    stage.keep.append(child)
    stage.said["lent"] = os.read(read, 20)
    while True:
        yield
        time.sleep(0.05)


@siege
def miser(stage):
    """Keeps 1,024 blocks, reads on and asks for more (D23)."""
    link = stage.link(slots=1024, ring=1 << 20)
    hoard(link, 300_000, 1024)
    sent = 0
    while not wire.has_ended(link.end):
        yield
        if link.room() > 256:
            link.write(link.descriptor(length=300_000, slot=sent % link.their_slots), flags=wire.POOLED)
            sent += 1
        time.sleep(0.005)


@siege
def zombies(stage):
    """Links that the server has dropped, whose clients keep a loan of 5 kB each (B7)."""
    links = []
    while True:
        try:
            link = stage.link(ring=8192, slots=8)
            link.write_long(b"z" * 5000)
            link.recv(2, give_back=False)
            link.write(b"", kind=CLOSE)
            link.pool.close()
            links.append(link)
        except (Ended, Refused, OSError):  # the server has had enough; what it holds it goes on to hold
            yield
            time.sleep(0.02)
        if len(links) >= 500:
            yield
            links.pop(0).leave()
            time.sleep(0.02)


@siege
def eight_links(stage):
    """Eight links of one process, each of which keeps as much as it gets, and goes on asking (D23)."""
    links = [stage.link(slots=1024, ring=1 << 20) for _ in range(8)]
    for length in (MIB, 20_000):
        stage.said[f"lent of {length}"] = [hoard(link, length, 1024) for link in links]
    asked = 0
    while not all(wire.has_ended(link.end) for link in links):
        yield
        link, asked = links[asked % len(links)], asked + 1
        if link.room() > 256:
            link.write(link.descriptor(length=20_000, slot=asked % link.their_slots), flags=wire.POOLED)
        link.take(give_back=False)
        time.sleep(0.005)
