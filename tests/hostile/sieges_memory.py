"""Sieges with memory that is dear to map, to copy or to give back."""

import struct
import time

import wire
from attacks_flood import with_room
from stage import Child, siege
from wire import FILLED, PACKETS, POOLED, POSITION, RETIRE, SEGMENT

MIB = 1 << 20


def pairs(stage, length, most):
    """Announces and retires one memfd, `most` times before each record that makes the server look."""
    link, pool, number = stage.link(), wire.Segment(length), 0
    while True:
        for _ in range(most):
            link.say(SEGMENT, [pool.fd], segment=number, len=length)
            link.say(RETIRE, segment=number)
            number += 1
        with_room(link, b"", kind=PACKETS)
        yield


@siege
def segment_pairs(stage):
    """Segment and Retire of one memfd of 64 MiB, 16 pairs a record, endlessly (B8a)."""
    yield from pairs(stage, 64 * MIB, 16)


@siege
def large_segment_pairs(stage):
    """One memfd of 1 GiB announced again and again (D18)."""
    yield from pairs(stage, (1024 if stage.whole else 256) * MIB, 1)


@siege
def large_segment_bursts(stage):
    """Segment and Retire of one memfd of 1 GiB, 15 pairs a record on four links: as much as one look may map (B8a)."""
    length = (1024 if stage.whole else 256) * MIB
    pool, links, number = wire.Segment(length), [stage.link() for _ in range(4)], 0
    while not any(wire.has_ended(link.end) for link in links):
        for link in links:
            # More packets than these in one look would end the link.
            if link.head > link.their_words[POSITION // 8]:
                continue
            for _ in range(15):
                link.say(SEGMENT, [pool.fd], segment=number, len=length)
                link.say(RETIRE, segment=number)
                number += 1
            link.write(b"", kind=PACKETS)
        yield
        time.sleep(0.0005)


@siege
def last_references(stage):
    """Segments of 3 GiB whose last reference is the server's mapping (B8b)."""
    length, number = (3072 if stage.whole else 256) * MIB, 0
    link = stage.link()
    while True:
        pool = wire.Segment(length)
        link.say(SEGMENT, [pool.fd], segment=number, len=length)
        pool.close()
        pool.words.release()
        del pool.anchor
        pool.bytes.close()
        with_room(link, b"", kind=PACKETS)
        link.say(RETIRE, segment=number)
        with_room(link, b"", kind=PACKETS)
        number += 1
        yield


def long_messages(stage, length, count):
    """The same block as a message again and again, `count` of them unread. Echoes are never read."""
    link = stage.link()
    link.give_pool(length=length)
    sent = 0
    while True:
        for _ in range(count):
            link.write(link.descriptor(length=length, slot=sent % link.their_slots), flags=POOLED)
            sent += 1
        while link.head > link.their_words[POSITION // 8]:
            if wire.has_ended(link.end):
                return
            yield
            time.sleep(0.01)


@siege
def messages_of_512_mib(stage):
    """Sixteen messages of 512 MiB at a time (B8c)."""
    yield from long_messages(stage, (512 if stage.whole else 64) * MIB, 16)


@siege
def messages_of_1_gib(stage):
    """Messages of 1 GiB (D23)."""
    yield from long_messages(stage, (1024 if stage.whole else 256) * MIB, 1)


# The head of a request of a service of committed buffers to load the model that follows.
LOAD = struct.pack("<HHIQ", 1, 0, 0, 1)


@siege
def long_loads(stage):
    """Loads of 512 MiB from two processes at a time, which die and leave a ring full of them (B8c, D15)."""
    pool = wire.Segment((512 if stage.whole else 64) * MIB)
    pool.bytes[: len(LOAD)] = LOAD

    def load():
        link = stage.link()
        link.say(SEGMENT, [pool.fd], len=pool.length)
        for slot in range(min(200, link.their_slots)):
            link.write(link.descriptor(length=pool.length, slot=slot), flags=POOLED)
        time.sleep(60)

    children = []
    while True:
        children.append(Child(load))
        time.sleep(0.02)
        if len(children) >= 2:
            children.pop(0).stop()
            yield


@siege
def messages_of_190_mb(stage):
    """Messages that are longer than the memory that is left to the server (B9, D21)."""
    length = 190_000_000 // wire.PAGE * wire.PAGE
    link = stage.link()
    link.give_pool(length=length)
    while True:
        link.write(link.descriptor(length=length), flags=POOLED)
        while link.head > link.their_words[POSITION // 8]:
            if wire.has_ended(link.end):
                return
            yield
            time.sleep(0.01)


@siege
def filled_lies(stage):
    """Announces a copy of 512 MiB in progress, and publishes 5 bytes in its place (D16)."""
    length = (512 if stage.whole else 128) * MIB
    links = [stage.link() for _ in range(4)]
    pool = wire.Segment(length)
    for link in links:
        link.say(SEGMENT, [pool.fd], len=length)
        link.write(b"", kind=PACKETS)
    slot = 0
    while True:
        for link in links:
            slot += 1
            descriptor = link.descriptor(length=length, slot=slot % link.their_slots)
            at = link.at(link.head + 8)
            if at + 32 <= link.base + link.ring and link.room() > 256:
                link.own.bytes[at : at + 32] = descriptor
                link.store(FILLED, length)
                link.ring_bell()
        time.sleep(0.02)
        for link in links:
            link.store(FILLED, 0)
            with_room(link, b"short")
            link.take()
        yield


@siege
def long_echoes(stage):
    """Asks for echoes that are longer than the files of 1 MiB that the server may make (D22)."""
    length, looked = MIB + wire.PAGE, False
    while True:
        link = stage.link()
        if not looked and not link.echo():
            print("wrong: the server echoes nothing", flush=True)
        link.give_pool(length=length)
        link.write(link.descriptor(length=length), flags=POOLED)
        try:
            if not looked and link.recv(5) is not None:
                print("wrong: the server can make longer files", flush=True)
        except wire.Ended:
            pass
        looked = True
        yield
        time.sleep(0.02)
        link.leave()
