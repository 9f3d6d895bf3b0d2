"""Sieges with much of what is cheap to send: connections, wake-ups, records."""

import os
import signal
import socket
import struct
import time

import kernel
import wire
from attacks_descriptors import let_go, lingering, nested
from stage import PATIENCE, Skip, siege
from wire import HELLO, PACKETS, SEGMENT, WAKE, packet

OTHER = 65534


def another_user():
    if os.geteuid():
        raise Skip("another user takes root")
    os.setgroups([])
    os.setresgid(OTHER, OTHER, OTHER)
    os.setresuid(OTHER, OTHER, OTHER)
    kernel.dumpable()


def connect(name):
    """A connected socket, or None where the listener's queue is full."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.setblocking(False)
    try:
        end.connect("\0" + name)
        return end
    except OSError:
        end.close()
        return None


@siege
def silent_peers(stage):
    """Connects and says nothing: as many half-open peers as there is room for (B10)."""
    held = []
    while True:
        end = connect(stage.name)
        if end:
            held.append(end)
        else:
            time.sleep(0.001)
        if len(held) > 128:
            held.pop(0).close()
            time.sleep(0.001)
            yield


@siege
def one_silent_peer(stage):
    """Keeps one half-open peer at a time, which the server must drop by itself, though nobody else comes (B10)."""
    while True:
        end = wire.dial(stage.name)
        if wire.ended_within(end, PATIENCE) is None:
            print("wrong: a silent peer is not dropped", flush=True)
        end.close()
        yield


def connects(stage):
    while True:
        for _ in range(64):
            end = connect(stage.name)
            if end:
                end.close()
        yield


@siege
def connects_same_user(stage):
    """Connects and leaves, at full speed (D19)."""
    yield from connects(stage)


@siege
def connects_other_user(stage):
    """Connects and leaves at full speed, as a user that is not admitted (D19)."""
    another_user()
    yield from connects(stage)


@siege
def hellos_other_user(stage):
    """Hellos of a user that is not admitted, at full speed (D19)."""
    another_user()
    segment = wire.Segment(73728)
    while True:
        end = connect(stage.name)
        if not end:
            time.sleep(0.0005)
            yield
            continue
        try:
            wire.send_packet(end, packet(HELLO), [segment.fd])
        except OSError:
            pass
        end.close()
        yield


@siege
def large_hellos(stage):
    """Hellos with a ring of 1 GiB, whose pages cost the listener time (D19)."""
    ring = 1 << 30 if stage.whole else 1 << 28
    segment = wire.Segment(8192 + ring)
    while True:
        end = connect(stage.name)
        if end:
            try:
                wire.send_packet(end, packet(HELLO, ring_capacity=ring), [segment.fd])
                end.settimeout(0.2)
                for fd in wire.receive_packet(end)[1]:
                    os.close(fd)
            except OSError:
                pass
            end.close()
        yield


@siege
def stranger_lingers(stage):
    """Hellos of another user, with sockets in whose queues lingering TCP sockets lie (D13)."""
    another_user()
    signal.signal(signal.SIGALRM, lambda *_: None)
    kept = []
    while True:
        near, keep = lingering()
        kept.append(keep)
        outer = nested(near)
        end = connect(stage.name)
        if end:
            try:
                wire.send_packet(end, packet(HELLO), [outer.fileno()])
            except OSError:
                pass
        let_go(outer)
        if end:
            end.close()
        if len(kept) > 1500:
            del kept[0]
        if len(kept) >= 300 or not stage.whole:
            yield


@siege
def wakes(stage):
    """Wakes that nobody asked for, and records that make the server read them (D17)."""
    link = stage.link()
    while True:
        try:
            for _ in range(32):
                link.say(WAKE, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        if link.room() > 256:
            link.write(b"", kind=PACKETS)
        yield


def full(header, payload=b""):
    """Makes every line of a ring look like a record."""
    line = (struct.pack("<Q", header) + payload).ljust(64, b"\0")

    def fill(link):
        link.own.bytes[link.base : link.base + link.ring] = line * (link.ring // 64)

    return fill


@siege
def dead_full_ring(stage):
    """Fills its ring with messages that never end, and leaves (D14)."""
    fill = full(1 | 8 << 32, b"message!")
    while True:
        link = stage.link(fill=fill)
        time.sleep(0.002)
        link.leave()
        yield


def forever(stage, fill, ring=65536):
    while True:
        link = stage.link(fill=fill, ring=ring)
        yield
        while not wire.has_ended(link.end):
            link.ring_bell()
            time.sleep(0.001)
            yield
        link.leave()


@siege
def endless_messages(stage):
    """A live peer whose ring is messages of one byte everywhere, and which never reads (D15)."""
    yield from forever(stage, full(1 | 1 << 32, b"m"))


@siege
def endless_packets_records(stage):
    """A live peer whose ring is records without a message everywhere (D15)."""
    yield from forever(stage, full(PACKETS), 1 << 20)


@siege
def endless_after_end(stage):
    """A ring that is records everywhere, whose socket has ended and whose process lives (D15)."""
    links = []
    fill = full(PACKETS)
    while True:
        link = stage.link(fill=fill, ring=1 << 20)
        link.end.shutdown(socket.SHUT_RDWR)
        links.append(link)
        if len(links) > 16:
            links.pop(0).leave()
        yield


@siege
def tiny_segments(stage):
    """One memfd of 4 KiB as 1,024 segments of each of 17 links: all that a process may map (D20)."""
    pool, links = wire.Segment(4096), []
    for _ in range(17):
        links.append(stage.link())
        for number in range(1024):
            links[-1].say(SEGMENT, [pool.fd], segment=number, len=4096)
            if number % 32 == 31:
                links[-1].write(b"", kind=PACKETS)
    while True:
        yield
        time.sleep(0.05)
