"""What subscriber.py does to a publisher when it is told to lie.  From wire.md (§17) alone, like its siblings.

A lie is a generator.  Each of its steps is some tens of stores or some packets, so that `stop` is soon heard.
"""
import array
import contextlib
import os
import random
import socket
import struct
import threading
import time

import peer
import subscriber as honest
from peer import ARMED, GONE, HOT, MASK, PARKED, POSITION, RECEIVER_STATE, ROOM_BELL, SENDER_STATE

HOLDS, WORDS = honest.HOLDS, peer.LOAN_SLOTS
LIES = {}


def lie(run):
    LIES[run.__name__] = run
    return run


class Liar:
    """A thread that lies until it is stopped."""

    def __init__(self, subscriber, name):
        self.begun, self.over, self.steps = threading.Event(), threading.Event(), 0
        self.thread = threading.Thread(target=self.run, args=(LIES[name](subscriber),), daemon=True)
        self.thread.start()

    def run(self, steps):
        for _ in steps:
            self.steps += 1
            self.begun.set()
            if self.over.is_set():
                break
            time.sleep(0)

    def stop(self):
        # On a busy machine the thread may not have had its first turn.
        self.begun.wait(timeout=15)
        self.over.set()
        self.thread.join()
        return f"stopped after {'some' if self.steps else 'no'} steps"


def numbers(subscriber):
    """Numbers of messages that mean something just now, and some that do not."""
    newest, slots = subscriber.newest(), subscriber.slots
    near = [newest + step for step in (-slots, 1 - slots, 2 - slots, -slots // 2, -2, -1, 0, 1, 2, slots)]
    return [number & MASK for number in near] + [0, 1, 1 << 62, 1 << 63, MASK, random.getrandbits(64)]


@lie
def positions(subscriber):
    """Jumps forward and back."""
    while True:
        for number in random.choices(numbers(subscriber), k=50):
            subscriber.ours.store(POSITION, number)
        yield


@lie
def positions_ring(subscriber):
    """Jumps, and rings each time, whether or not the publisher sleeps."""
    while True:
        for number in random.choices(numbers(subscriber), k=20):
            subscriber.ours.store(POSITION, number)
            subscriber.ours.store(ROOM_BELL, subscriber.ours.load(ROOM_BELL) + 1)
            peer.futex(subscriber.ours.address + ROOM_BELL, peer.FUTEX_WAKE, peer.EVERYBODY)
        yield


@lie
def holds(subscriber):
    """Holds messages that come, are withdrawn or are gone, for a moment each, in every word."""
    while True:
        for number in random.choices(numbers(subscriber), k=50):
            subscriber.ours.store(HOLDS + 8 * random.randrange(WORDS), number)
        yield


@lie
def holds_one(subscriber):
    """Holds the newest message in all words at once, then the next one, and never looks whether it was there."""
    while True:
        newest = subscriber.newest()
        for word in range(WORDS):
            subscriber.ours.store(HOLDS + 8 * word, newest + word % 2)
        yield


@lie
def epochs(subscriber):
    """Goes to sleep in every way without end, and never sleeps.  Takes no packet."""
    epoch = 0
    while True:
        for _ in range(50):
            epoch += random.choice((1, 1, 1, 1 << 40))
            state = random.choice((PARKED, ARMED, ARMED, 5, 6, 7, HOT, GONE, 0))
            subscriber.ours.store(RECEIVER_STATE, (epoch << 3 | state) if state & 3 in (1, 2) else state)
            subscriber.ours.store(SENDER_STATE, epoch << 3 | random.choice((PARKED, ARMED)))
        yield


@lie
def words(subscriber):
    """Stores whatever in whichever word of its segment, the ring too."""
    size = peer.CONTROL_LEN + peer.RING_CAPACITY
    known = (POSITION, RECEIVER_STATE, SENDER_STATE, 0x80, 0x88, 0xC0, 0xC8, 0xD0, 0x300)
    while True:
        values = numbers(subscriber) + list(range(8))
        for _ in range(50):
            place = random.choice((random.choice(known), HOLDS + 8 * random.randrange(WORDS),
                                   8 * random.randrange(size // 8)))
            subscriber.ours.store(place, random.choice(values))
        yield


@lie
def packets(subscriber):
    """Sends the publisher packets that it does not ask for, with and without descriptors, and some that are none."""
    subscriber.sock.settimeout(0)
    with open(os.devnull, "rb") as null:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * count))
                  for count in (1, 2, 253)]
        head = lambda kind, count: peer.HEAD.pack(peer.MAGIC, kind, 0, count) + struct.pack("<IIQ", 0, 0, peer.PAGE)
        while True:
            for _ in range(20):
                kind, count = random.choice((1, 2, 3, 4, 5, 5, 6, 7, 8, 0xFFFF)), random.choice((0, 0, 1, 2, 253))
                body = random.choice((head(kind, count).ljust(128, b"\0"), head(kind, count), b"x" * 128, b"x" * 4096))
                control = [one for one in rights if len(one[2]) == count]
                with contextlib.suppress(OSError):
                    subscriber.sock.sendmsg([body], control)
            yield


@lie
def deaf(subscriber):
    """Shuts down its half for receiving, so that no segment comes through, and says that it has read all."""
    subscriber.sock.shutdown(socket.SHUT_RD)
    while True:
        subscriber.ours.store(POSITION, subscriber.newest() + 1)
        yield


@lie
def joins(subscriber):
    """Joins without end, from several threads, and lets go without a word: at once, or after lies of the others."""
    name = subscriber.sock.getpeername()
    name = (name.decode() if isinstance(name, bytes) else name)[1:]
    over = threading.Event()

    def run():
        while not over.is_set():
            with contextlib.suppress(OSError, peer.Failure):
                policy = random.choice((1, 1, 2, 3))
                one = honest.Subscriber(name, policy, 4 if policy == 2 else 0)
                try:
                    for _ in zip(range(random.choice((0, 0, 1, 5))), LIES[random.choice(("words", "holds"))](one)):
                        pass
                finally:
                    one.abandon()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        while True:
            yield
            time.sleep(0.01)
    finally:
        over.set()
        for thread in threads:
            thread.join()


@lie
def hellos(subscriber):
    """Joins with Hellos that are right but for some bytes."""
    name = subscriber.sock.getpeername()
    name = (name.decode() if isinstance(name, bytes) else name)[1:]
    segment, fd = peer.make_segment(peer.CONTROL_LEN + peer.RING_CAPACITY)
    right = peer.HELLO_BODY.pack(1, 1, peer.ARCHITECTURE, 0, peer.SUBSCRIBER, peer.CONTROL_LEN, peer.RING_CAPACITY,
                                 peer.LOAN_SLOTS, 0xFFFFFFFF, peer.MAX_MESSAGE, peer.POOL_LIMIT, 2, 4, 0, bytes(40))
    while True:
        with contextlib.suppress(OSError, peer.Failure), contextlib.closing(honest.dial(name)) as sock:
            body = bytearray(right)
            for _ in range(random.choice((1, 1, 2, 8))):
                body[random.randrange(len(body))] = random.choice((0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF))
            peer.send_packet(sock, peer.HELLO, bytes(body), random.choice((fd, fd, fd, None)))
            sock.settimeout(2)
            peer.receive_packet(sock)
        yield
