"""Lies in everything that is shared after the handshake: words, records, descriptors, packets."""

import itertools
import random
import struct
import time

import wire
from stage import MARK, Child, Ended, Wrong, attack, values
from wire import (DATA_BELL, FILLED, LOANS, PACKETS, POOLED, POSITION, RECEIVER_STATE, RELEASED, RETIRE, ROOM_BELL,
                  SEGMENT, SENDER_STATE, TENSORS, TRIGGER, WAKE)

RING = 1 << 18  # ours: one that never fills up in what follows
POOL = 1 << 16
TENSOR = struct.pack("<BBBBII", 11, 2, 0, 1, 2, 3) + b"t"  # FP32 [2, 3], attached

# Every field: where it is, and a value for which its limit stands.
WORDS = {
    "position": (POSITION, 65536),
    "receiver state": (RECEIVER_STATE, 4),
    "sender state": (SENDER_STATE, 4),
    "data bell": (DATA_BELL, 65536),
    "room bell": (ROOM_BELL, 65536),
    "released": (RELEASED, 1),
    "filled": (FILLED, 65536),
    "loan 0": (LOANS, 3),
    "loan 255": (LOANS + 8 * 255, 3),
    "reserved": (0x100, 65536),
}
# A part of a record's header: its first bit, its bits, its limit.
HEADER = {
    "header.kind": (0, 8, 9),
    "header.flags": (8, 8, 8),
    "header.attachments": (16, 8, 1),
    "header.version": (24, 8, 1),
    "header.length": (32, 32, RING - 192),
    "header": (0, 64, RING),
}
DESCRIPTOR = {
    "pooled.segment": (0, 4, 1),
    "pooled.slot": (4, 4, 256),
    "pooled.offset": (8, 8, POOL),
    "pooled.len": (16, 8, POOL),
    "pooled.generation": (24, 8, 2),
}
DESCRIPTION = {
    "tensor.dtype": (32, 1, 14),
    "tensor.rank": (33, 1, 8),
    "tensor.flags": (34, 1, 4),
    "tensor.name_len": (35, 1, 1),
    "dimension 0": (36, 4, 2),
    "dimension 1": (40, 4, 3),
    "name": (44, 1, 128),
}
META = 1 << 11
SECTION = struct.pack("<HBBsqBBsB2s", 17, 1, 1, b"a", 7, 3, 1, b"b", 2, b"ok").ljust(24, b"\0")  # an integer, a string
METADATA = {
    "meta.len": (0, 2, 512),
    "meta.type": (2, 1, 5),
    "meta.name_len": (3, 1, 63),
    "meta.name": (4, 1, 128),
    "meta.value": (5, 8, 1),
    "meta.type 1": (13, 1, 5),
    "meta.name 1": (15, 1, 98),
    "meta.string": (16, 1, 2),
    "meta.padding": (20, 1, 1),
}
# Each record of the scene: which header, which payload.
RECORDS = {"message": {}, "pooled": DESCRIPTOR, "tensors": DESCRIPTOR | DESCRIPTION, "trigger": {"token": (0, 4, 1)},
           "packets": {}, "request": {"id": (0, 8, 2)}, "metadata": METADATA,
           "tensor request": {"id": (0, 8, 2)}}
PACKET = {SEGMENT: "Segment", RETIRE: "Retire", WAKE: "Wake"}


def fields():
    """Every field as (place, name), and the values it is given."""
    for name, (_, limit) in WORDS.items():
        yield ("word", name), values(limit)
    for record, payload in RECORDS.items():
        for name, (_, bits, limit) in HEADER.items():
            yield (record, name), values(limit, bits // 8)
        for name, (_, size, limit) in payload.items():
            yield (record, name), values(limit, size)
    for kind, name in PACKET.items():
        for field, (_, size, _) in wire.PACKET_FIELDS[kind].items():
            yield (name, field), values(POOL if size == 8 else 1024, size)
    yield ("Retire", "sent"), [1]
    yield ("Wake", "sent"), [1]


def scene(link, lies):
    """Everything that a peer can say, once, with some lies in it."""

    def said(kind, descriptors=()):
        told = {field: value for (place, field), value in lies.items() if place == PACKET[kind]}
        link.say(kind, descriptors, **{"len": POOL} | told)

    def record(name, payload, kind=wire.MESSAGE, flags=0):
        header = kind | flags | len(payload) << 32
        body = bytearray(payload)
        for (place, field), value in lies.items():
            if place != name:
                continue
            if field in HEADER:
                bit, bits, _ = HEADER[field]
                header = header & ~((1 << bits) - 1 << bit) | value << bit
            else:
                offset, size, _ = RECORDS[name][field]
                body[offset : offset + size] = value.to_bytes(size, "little")
        link.write(bytes(body), kind=kind, flags=flags, header=header)

    try:
        link.pool = wire.Segment(POOL)
        link.pool.bytes[:4] = b"pool"
        said(SEGMENT, [link.pool.fd])
        if any(place == "Wake" for place, _ in lies):
            said(WAKE)
        for (place, name), value in lies.items():
            if place == "word":
                link.store(WORDS[name][0], value)
        record("message", b"message")
        record("metadata", SECTION + b"message", flags=META)
        record("pooled", link.descriptor(), flags=POOLED)
        record("tensors", link.descriptor(slot=1, offset=64, length=24) + TENSOR, kind=TENSORS | 1 << 16 | 1 << 24)
        record("trigger", bytes(4), kind=TRIGGER)
        if any(place == "Retire" for place, _ in lies):
            said(RETIRE)
        record("packets", b"", kind=PACKETS)
        record("request", bytes(8) + b"request", kind=wire.REQUEST)
        record("tensor request", bytes(8), kind=wire.TENSOR_REQUEST | 1 << 24)
        # What makes the server look at our position: more than its ring holds.
        if ("word", "position") in lies:
            for _ in range(80):
                link.write(bytes(1000))
        link.write(MARK)
    except OSError:
        return  # it has ended the link already


def run(stage, cases, seconds=None):
    """Links with lies, some at a time."""
    deadline = time.monotonic() + (seconds or 1e9)
    cases, done = iter(cases), 0
    while batch := list(itertools.islice(cases, 8)):
        links = []
        for lies in batch:
            link = stage.link(ring=RING)
            if ("word", "position") in lies:
                link.publishes = False  # reading on would overwrite the lie
            links.append(link)
            scene(link, lies)
        stage.verdicts(links)
        done += len(batch)
        if time.monotonic() > deadline:
            break
    return done


@attack
def fields_honest(stage):
    """No lie at all: the scene itself must be answered."""
    run(stage, [{}] * 8)
    if set(stage.outcomes) != {"alive"}:
        raise Wrong("the honest scene is not answered")


@attack
def fields_single(stage):
    """Each field with each value."""
    stage.said["fields"] = len(list(fields()))
    stage.said["cases"] = run(stage, ({field: value} for field, found in fields() for value in found))
    if not stage.link().echo():
        raise Wrong("no honest link afterwards")


@attack
def fields_pairs(stage):
    """Two fields with two values."""
    singles = [(field, value) for field, found in fields() for value in found]
    pairs = [dict(pair) for pair in itertools.combinations(singles, 2) if pair[0][0] != pair[1][0]]
    random.Random(2).shuffle(pairs)
    stage.said["of_pairs"] = len(pairs)
    stage.said["cases"] = run(stage, pairs, stage.seconds(3, 600))


def flipped(stage, seconds, words, honest):
    """Links on which another process writes some values to a word in turn, as fast as it can, while we
    do `honest(link)` again and again. `words(link)` gives the offsets in our memory, and the values."""
    deadline, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        link = stage.link()
        honest(link)
        places = words(link)

        def flip():
            while True:
                for memory, at, found in places:
                    for value in found:
                        memory[at] = value

        child = Child(flip)
        try:
            # A flip can leave the link without a word from either side; then the next one.
            while time.monotonic() < deadline and rounds_go_on(link, honest):
                rounds += 1
            stage.note("alive" if time.monotonic() >= deadline else "stuck")
        except Ended:
            stage.note("closed")
        except (OSError, ValueError, KeyError, IndexError):
            stage.note("closed" if wire.ended_within(link.end, 0.1) is not None else "alive")
        child.stop()
        link.leave()
    return rounds


def rounds_go_on(link, honest):
    try:
        return honest(link) is not False
    except BlockingIOError:
        return True


def echo(link):
    link.write(b"flip")
    return link.recv(0.05) is not None


def long_echo(link):
    link.write_long(b"m" * 20000)
    return link.recv(0.05) is not None


def tensor_echo(link):
    if link.pool is None:
        link.give_pool()
    link.write(link.descriptor(slot=1, offset=64, length=24) + TENSOR, kind=TENSORS | 1 << 16 | 1 << 24)
    return link.recv(0.05) is not None


def control(name):
    offset, limit = WORDS[name]
    return lambda link: [(link.own.words, offset // 8, [link.own.words[offset // 8], *values(limit)])]


def parked(offset):
    """Asleep with an epoch that was never there, awake, armed, gone."""
    return lambda link: [(link.own.words, offset // 8, [1, 0, *[epoch << 2 | 1 for epoch in range(1, 40)], 2, 6, 0])]


def headers(*lies):
    """The header of every record that will come, in turn the right one for four bytes and another."""

    def words(link):
        first = link.base // 8
        return [(link.own.words, first + at, [1 | 4 << 32, *lies]) for at in range(0, link.ring // 8, 8)][::64]

    return words


def payload(*bytes_at):
    """Bytes of the records that will come: the same byte of each line of the ring, each with its values."""

    def words(link):
        places = []
        for offset, found in bytes_at:
            for line in range(0, link.ring, 64):
                places.append((link.own.bytes, link.base + line + offset, found))
        return places

    return words


FLIPS = {
    **{f"flip {name}": (control(name), echo) for name in WORDS},
    "flip epochs of the reader": (parked(RECEIVER_STATE), echo),
    "flip epochs of the writer": (parked(SENDER_STATE), echo),
    "flip loans": (control("loan 0"), long_echo),
    "flip kind": (headers(2 | 4 << 32, 5 | 4 << 32, 6), echo),
    "flip length": (headers(1 | 5 << 32, 1 | 56 << 32, 1 | 65000 << 32), echo),
    "flip presence": (headers(0), echo),
    "flip close": (headers(4), echo),
    "flip everything": (headers(0, 1 << 63, (1 << 64) - 1, 7, 4, 0x201 | 32 << 32), echo),
    "flip a pool descriptor": (payload((8, [0, 1]), (16, [0, 64, 255]), (24, [32, 255]), (30, [0, 255])), long_echo),
    "flip a tensor": (payload((48, [11, 13, 255]), (49, [2, 8, 255]), (51, [1, 255]), (55, [0, 255])), tensor_echo),
    "flip an attachment": (payload((64, [0, 1]), (72, [64, 0]), (80, [24, 23, 255]), (87, [0, 255])), tensor_echo),
}


@attack
def fields_flip(stage):
    """Fields that another process flips at full speed while they are read."""
    for what, (words, honest) in FLIPS.items():
        rounds = flipped(stage, stage.seconds(0.15, 10), words, honest)
        stage.said.setdefault("rounds", {})[what] = rounds
