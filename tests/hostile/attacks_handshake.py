"""Lies and silence before a link is there."""

import itertools
import os
import random
import socket
import struct
import time

import wire
from stage import PATIENCE, Wrong, attack, values
from wire import HELLO, HELLO_FIELDS, SEGMENT, Ended, Refused, packet

# What makes a Hello legal in spite of the value, by docs/wire.md.
LEGAL = {
    "flags": lambda value: value in (0, 1),
    "numa_node": lambda value: value < 1024 or value == 0xFFFFFFFF,
    "max_message": lambda value: 1 <= value <= 1 << 40,
    "loan_slots": lambda value: 1 <= value <= 512,  # as many as the control section holds
    "pool_limit": lambda value: True,
    "version_min": lambda value: value <= 1,
    "version_max": lambda value: value >= 1,
}


def lies(fields):
    for name, (_, size, honest) in fields.items():
        for value in values(65536 if size > 4 else 256, size):
            if value != honest and not LEGAL.get(name, lambda value: value == 0 and "zero" in name)(value):
                yield name, value


def refusals(fields):
    """The codes with which a Hello with these fields may be refused: 6 is a listener's answer to another role than a link's."""
    return (1, 2, 3, 6) if "role" in fields else (1, 2, 3)


@attack
def hello_fields(stage):
    """Each field of the Hello, one value at a time."""
    segment = wire.Segment(73728)
    for name, value in lies(HELLO_FIELDS):
        if stage.first_packet(packet(HELLO, **{name: value}), [segment.fd], (name, value)) not in refusals([name]):
            raise Wrong(f"a Hello with {name} {value:#x} was not refused")


@attack
def hello_pairs(stage):
    """Pairs of lies in one Hello."""
    segment = wire.Segment(73728)
    pairs = [pair for pair in itertools.combinations(lies(HELLO_FIELDS), 2) if pair[0][0] != pair[1][0]]
    random.Random(1).shuffle(pairs)
    deadline = time.monotonic() + stage.seconds(1, 120)
    for pair in pairs:
        if stage.first_packet(packet(HELLO, **dict(pair)), [segment.fd], pair) not in refusals(dict(pair)):
            # Two lies can make a truth: a ring of another size, or versions that go together.
            if {"version_min", "version_max"} != {pair[0][0], pair[1][0]}:
                raise Wrong(f"a Hello with {pair} was not refused")
        if time.monotonic() > deadline:
            break
    stage.said["of_pairs"] = len(pairs)


@attack
def hello_length(stage):
    """First packets of every length from 1 to 127, and longer than 128."""
    segment, whole = wire.Segment(73728), packet(HELLO) + bytes(4000)
    for length in [*range(1, 128), 129, 255, 256, 4096]:
        if stage.first_packet(whole[:length], [segment.fd], length) not in (1, 2):
            raise Wrong(f"a first packet of {length} bytes was not refused")


@attack
def hello_eof(stage):
    """The end after each byte of the handshake, before any, and right behind it."""
    segment, whole = wire.Segment(73728), packet(HELLO)
    for length in range(129):
        end = wire.dial(stage.name)
        try:
            if length:
                wire.send_packet(end, whole[:length], [segment.fd])
            if length % 2:
                end.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        end.close()
        stage.note("left")
    end = wire.dial(stage.name)
    end.shutdown(socket.SHUT_RD)
    try:
        wire.send_packet(end, whole, [segment.fd])
    except OSError:
        pass
    stage.note("deaf")


@attack
def hello_slow(stage):
    """A byte each 100 ms: a packet of its own each, of which the first is one too many."""
    end, sent = wire.dial(stage.name), 0
    start = time.monotonic()
    try:
        for byte in packet(HELLO):
            wire.send_packet(end, bytes([byte]))
            sent += 1
            if wire.ended_within(end, 0.1) is not None:
                break
    except OSError:
        pass
    stage.note(f"ended after {sent} bytes", None if sent > 1 else (time.monotonic() - start) * 1e3)
    if sent > 12:
        raise Wrong("a byte each 100 ms was waited for")


@attack
def silence(stage):
    """Says nothing, and is cut at the deadline of 1 s."""
    end = wire.dial(stage.name)
    ms = wire.ended_within(end, PATIENCE)
    if ms is None:
        raise Wrong("silence is waited for without end")
    stage.said["cut_after_ms"] = round(ms)
    stage.note("cut")


@attack
def half_open(stage):
    """Ten times as many silent peers as a listener holds, twice."""
    for _ in range(2):
        ends = []
        for _ in range(640):
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            end.setblocking(False)
            try:
                end.connect("\0" + stage.name)
                ends.append(end)
            except BlockingIOError:
                stage.note("the listener's queue was full")
                time.sleep(0.002)
        start = time.monotonic()
        while any(not wire.has_ended(end) for end in ends):
            if time.monotonic() - start > PATIENCE:
                raise Wrong("silent peers are held without end")
            time.sleep(0.01)
        stage.said["all_cut_after_ms"] = round((time.monotonic() - start) * 1e3)
        stage.outcomes["cut"] += len(ends)
        for end in ends:
            end.close()


@attack
def half_hello(stage):
    """Half-open peers whose queue is full of packets that nobody asked for."""
    ends = []
    for _ in range(80):
        end = wire.dial(stage.name)
        end.setblocking(False)
        try:
            wire.send_packet(end, packet(HELLO, token=1))
            for _ in range(400):
                wire.send_packet(end, packet(SEGMENT))
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        ends.append(end)
    for end in ends:
        if wire.ended_within(end, PATIENCE) is None:
            raise Wrong("a peer with a full queue is held")
        stage.note("ended")


@attack
def storm(stage):
    """1,000 connections a second: whole handshakes, halves of them, and none."""
    segment = wire.Segment(73728)
    start, made = time.monotonic(), 0
    while time.monotonic() - start < stage.seconds(1.5, 20):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.settimeout(PATIENCE)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            end.connect("\0" + stage.name)
            if made % 3 == 0:
                wire.greet(end, packet(HELLO), [segment.fd])
            elif made % 3 == 1:
                wire.send_packet(end, packet(HELLO), [segment.fd])
        except (Refused, Ended, OSError):
            pass
        end.close()
        made += 1
        ahead = made / 1000 - (time.monotonic() - start)
        if ahead > 0:
            time.sleep(ahead)
    stage.said["a_second"] = round(made / (time.monotonic() - start))
    stage.outcomes["came and went"] += made


@attack
def false_credentials(stage):
    """Credentials of another user, of another process, and none that we name."""
    if os.geteuid():
        return stage.note("the kernel lets only root lie")
    segment = wire.Segment(73728)
    for pid, uid in ((1, 0), (os.getpid(), 65534), (1, 65534)):
        end = wire.dial(stage.name)
        lie = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("=iII", pid, uid, uid))
        try:
            wire.send_packet(end, packet(HELLO), [segment.fd], false_credentials=lie)
            wire.answer(end)
            stage.note("admitted")
            if uid:
                raise Wrong("credentials of another user were admitted")
        except Refused as refusal:
            stage.note(f"refused with {refusal.code}")
        except OSError as error:
            stage.note(f"the kernel refuses: {error.strerror}")
        end.close()
