"""Too much of what is legal, and of what means nothing."""

import os
import socket
import struct
import time

import wire
from stage import PATIENCE, Ended, Wrong, attack
from wire import (DATA_BELL, LOANS, MORE, PACKETS, RECEIVER_STATE, RESPONSE, RETIRE, ROOM_BELL, SEGMENT, SENDER_STATE,
                  TENSORS, TRIGGER, WAKE)


def until_closed(stage, what, say, link=None, patience=PATIENCE):
    """Repeats `say(link)` until the link is over, which it must be."""
    link = link or stage.link()
    start, said = time.monotonic(), 0
    try:
        while wire.ended_within(link.end, 0) is None:
            say(link)
            said += 1
            if time.monotonic() - start > patience:
                raise Wrong(f"{what}: the link goes on")
    except (BrokenPipeError, ConnectionResetError):
        pass
    stage.note(f"{what}: closed")
    stage.said[what] = said
    link.leave()


def with_room(link, *record, **how):
    deadline = time.monotonic() + PATIENCE
    while link.room() < 256 and wire.ended_within(link.end, 0) is None:
        if time.monotonic() > deadline:
            raise Wrong("the server reads no more")
    link.write(*record, **how)


@attack
def flood_tokens(stage):
    """Tokens that nobody handed out: 65536 are forgiven."""
    number = iter(range(1 << 32))

    def say(link):
        with_room(link, struct.pack("<I", next(number) * 2654435761 & 0xFFFFFFFF), kind=TRIGGER, ring=False)

    def many(link):
        for _ in range(200):
            say(link)
        link.ring_bell()

    until_closed(stage, "tokens", many, patience=30)


@attack
def flood_bells(stage):
    """Rings both bells at full speed, with nothing to tell; the link stays."""
    link, deadline, rung = stage.link(), time.monotonic() + stage.seconds(0.5, 20), 0
    while time.monotonic() < deadline:
        link.ring_bell(DATA_BELL)
        link.ring_bell(ROOM_BELL)
        rung += 2
    stage.said["rung"] = rung
    stage.note("alive" if link.echo() else "stuck")


@attack
def flood_epochs(stage):
    """Says that it sleeps, with a new epoch each time: a wake-up each."""
    link, deadline, epoch = stage.link(), time.monotonic() + stage.seconds(0.5, 20), 0
    while time.monotonic() < deadline:
        epoch += 1
        link.store(RECEIVER_STATE, epoch << 3 | 1)
        link.store(SENDER_STATE, epoch << 3 | 1)
        if not link.echo():
            raise Wrong("no echo to a sleeper")
    stage.said["epochs"] = epoch
    stage.note("alive")


@attack
def flood_armed(stage):
    """Says that it sleeps on the socket, never reads it, and goes on."""
    link, deadline, epoch = stage.link(), time.monotonic() + stage.seconds(0.5, 20), 0
    while time.monotonic() < deadline:
        epoch += 1
        link.store(RECEIVER_STATE, epoch << 3 | 2)
        link.store(SENDER_STATE, epoch << 3 | 2)
        if not link.echo():
            raise Wrong("no echo to one whose queue is full")
    stage.said["epochs"] = epoch
    stage.note("alive")


@attack
def flood_messages(stage):
    """Honest messages at full speed, none of which is waited for."""
    link, deadline, sent = stage.link(), time.monotonic() + stage.seconds(0.5, 20), 0
    while time.monotonic() < deadline:
        if link.room() >= 64:
            link.write(b"flood")
            sent += 1
        link.take()
    stage.said["sent"] = sent
    stage.note("alive" if link.recv() else "stuck")


@attack
def flood_wakes(stage):
    """Wakes that nobody asked for: each is a look at most, and the link stays."""
    link, deadline, woken = stage.link(), time.monotonic() + stage.seconds(0.5, 20), 0
    while time.monotonic() < deadline:
        try:
            link.say(WAKE, (), socket.MSG_DONTWAIT)
            woken += 1
        except BlockingIOError:
            time.sleep(0.001)  # the queue is full, until the other side has time to look
        with_room(link, b"", kind=PACKETS)
    stage.said["woken"] = woken
    stage.note("alive" if link.echo() else "stuck")


@attack
def flood_packets(stage):
    """Segments and Retires at full speed, within the rules: the link stays."""
    link, pool = stage.link(), wire.Segment(65536)
    deadline, number = time.monotonic() + stage.seconds(0.5, 20), 0
    while time.monotonic() < deadline:
        for _ in range(8):
            link.say(SEGMENT, [pool.fd], segment=number, len=65536)
            link.say(RETIRE, segment=number)
            number += 1
        with_room(link, b"", kind=PACKETS)
    stage.said["segments"] = number
    stage.note("alive" if link.echo() else "stuck")


@attack
def flood_segments(stage):
    """More segments than a link may have, and more bytes."""
    pool = wire.Segment(4096)
    number = iter(range(1 << 32))

    def say(link):
        for _ in range(30):
            link.say(SEGMENT, [pool.fd], socket.MSG_DONTWAIT, segment=next(number), len=4096)
        with_room(link, b"", kind=PACKETS)
        time.sleep(0.001)

    def tolerant(link):
        try:
            say(link)
        except BlockingIOError:
            pass

    until_closed(stage, "segments", tolerant)


@attack
def flood_queue(stage):
    """A socket queue kept full with nothing to tell of it; then the end."""
    link, sent = stage.link(), 0
    pool = wire.Segment(4096)
    try:
        while True:
            link.say(SEGMENT, [pool.fd], socket.MSG_DONTWAIT, segment=sent, len=4096)
            sent += 1
    except (BlockingIOError, OSError) as error:
        stage.said["full_with"] = f"{sent}: {error.strerror}"
    stage.note("alive" if link.echo() else "stuck")


@attack
def lengths(stage):
    """Records that say they are longer than everything."""
    for kind in (1, 2, 3, 5, 6, 7):
        for length in ((1 << 32) - 16, (1 << 32) - 8, 65536, 65536 - 191, 1 << 31):
            link = stage.link()
            link.write(b"long", header=kind | length << 32)
            ms = wire.ended_within(link.end, PATIENCE)
            if ms is None:
                raise Wrong(f"kind {kind} with {length} bytes is read")
            stage.note("closed", ms)
            link.leave()


@attack
def endless_batch(stage):
    """A batch that never ends, one that ends in nothing, and one that ends in a close."""
    link = stage.link(ring=1 << 20)
    deadline = time.monotonic() + stage.seconds(0.3, 5)
    try:
        while time.monotonic() < deadline and wire.ended_within(link.end, 0) is None:
            for _ in range(50):
                link.write(b"more", flags=MORE, ring=False)
            link.ring_bell()
            while link.take():
                pass
            while link.room() < 8192 and wire.ended_within(link.end, 0) is None and time.monotonic() < deadline:
                link.take()
    except Ended:
        pass
    stage.note("closed" if wire.ended_within(link.end, 0.1) is not None else "alive")
    link.leave()
    for last in (None, 4):
        link = stage.link()
        if last:
            link.own.words[(link.base + 16) // 8] = last
        link.write(b"more", flags=MORE, header=0, ring=False)
        if last:
            link.own.words[(link.base + 16) // 8] = last
        link.own.words[link.base // 8] = 1 | MORE | 4 << 32
        link.ring_bell()
        try:
            while link.recv(PATIENCE) is not None:
                pass
            raise Wrong("a batch without an end is waited for")
        except Ended:
            stage.note("closed")
        link.leave()


@attack
def responses(stage):
    """Responses to what nobody asked."""

    def say(link):
        with_room(link, struct.pack("<Q", 1) + b"answer", kind=RESPONSE)

    until_closed(stage, "responses", say)


@attack
def deaf(stage):
    """Never reads its echoes: the server waits for room, with no more memory than the ring."""
    link, sent, deadline = stage.link(ring=1 << 20), 0, time.monotonic() + stage.seconds(0.4, 3)
    while time.monotonic() < deadline:
        if link.room() > 1200:
            link.write(bytes(1000))
            sent += 1
        else:
            time.sleep(0.001)
    stage.said["sent"] = sent
    stage.note("ignored")


@attack
def miser(stage):
    """Never returns a loan: the server lends as many as it has slots for us, then waits."""
    link, lent = stage.link(ring=1 << 20, slots=64), 0
    deadline = time.monotonic() + stage.seconds(0.6, 5)
    while time.monotonic() < deadline:
        if link.room() > 256:
            link.write_long(b"m" * 500_000)
        lent += link.take(give_back=False) is not None
    stage.said["lent"] = lent
    if lent > 64:
        raise Wrong(f"{lent} loans in 64 slots")
    stage.note("ignored")


@attack
def stale_loans(stage):
    """Returns what it was not lent: old, future and invented generations, in every slot."""
    link = stage.link()
    message = os.urandom(30000)
    link.write_long(message)
    if link.recv(give_back=False) != message:
        raise Wrong("an echo differs")
    number, slot, offset, length, generation = link.loan
    for lie in (0, 1, generation - 1, generation + 1, generation ^ 1 << 63, (1 << 64) - 1, 1 << 32):
        if lie == generation:
            continue
        for one in range(link.slots):
            if one != slot:
                link.store(LOANS + 8 * one, generation)
        link.store(LOANS + 8 * slot, lie)
        link.ring_bell(ROOM_BELL)
        for _ in range(20):
            link.write_long(bytes(30000))
            if link.recv() is None:
                raise Wrong("no echo")
        if link.pools[number][1][offset : offset + length] != message:
            raise Wrong(f"a block was used again after generation {lie:#x} instead of {generation:#x}")
        stage.note("ignored")


@attack
def tensors_endless(stage):
    """As many tensors as a record can have, with no elements: 32,768, again and again, and one more."""
    link, deadline = stage.link(ring=1 << 20), time.monotonic() + stage.seconds(0.3, 10)
    entry = lambda number: struct.pack("<BBBBI", 2, 0, 2, 5, 1) + b"x" + b"%05d" % number
    whole = b"".join(entry(number) for number in range(1 << 15))
    sent = 0
    while time.monotonic() < deadline:
        with_room_for(link, len(whole))
        link.write(whole, kind=TENSORS | 1 << 24)
        sent += 1
        if link.recv() is None:
            raise Wrong("no echo of tensors")
    stage.said["sent"] = sent
    stage.note("alive")
    link.write(whole + entry(1 << 15), kind=TENSORS | 1 << 24)
    ms = wire.ended_within(link.end, PATIENCE)
    if ms is None:
        raise Wrong("32,769 tensors are taken")
    stage.note("closed", ms)


def with_room_for(link, length):
    deadline = time.monotonic() + PATIENCE
    while link.room() < length + 256:
        if time.monotonic() > deadline:
            raise Wrong("the server reads no more")
