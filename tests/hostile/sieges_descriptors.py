"""Sieges with descriptors that hang: sockets that linger, files of a filesystem that never answers."""

import os
import signal
import struct
import tempfile
import time

import kernel
import wire
from attacks_descriptors import let_go, lingering, nested
from stage import Child, Skip, siege
from wire import HELLO, PACKETS, SEGMENT, packet

DESCRIPTORS = 6


@siege
def lingers_as_segment(stage):
    """Sockets whose last close waits, as pool segments (B5)."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    while True:
        near, keep = lingering()
        stage.keep.append(keep)
        inner = nested(near) if len(stage.keep) % 2 else near
        link = stage.link()
        link.say(SEGMENT, [inner.fileno()], len=73728)
        link.write(b"", kind=PACKETS)
        let_go(inner)
        link.leave()
        if len(stage.keep) > 1500:
            del stage.keep[0]
        yield


@siege
def lingers_unread(stage):
    """Sockets whose last close waits, unread behind a Hello (B5)."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    segment = wire.Segment(73728)
    while True:
        near, keep = lingering()
        stage.keep.append(keep)
        end = wire.dial(stage.name)
        wire.send_packet(end, packet(HELLO, token=1), [segment.fd])
        try:
            wire.send_packet(end, packet(HELLO), [near.fileno()])
        except OSError:
            pass
        let_go(near)
        end.close()
        if len(stage.keep) > 1500:
            del stage.keep[0]
        yield


@siege
def lingers_in_descriptors(stage):
    """Sockets whose last close waits, as descriptors for a service of committed buffers (B5)."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    while True:
        link = stage.link()
        for first in range(8):
            near, keep = lingering()
            stage.keep.append(keep)
            body = bytearray(wire.packet(wire.WAKE, kind=DESCRIPTORS, descriptors=1))
            body[16:24] = struct.pack("<Q", first)
            wire.send_packet(link.end, bytes(body), [near.fileno()])
            link.write(b"", kind=PACKETS)
            let_go(near)
        # Discards them all: act 8, of no answer.
        link.write(struct.pack("<HHIQQ", 8, 0, 0, 1, 8))
        time.sleep(0.002)
        link.leave()
        del stage.keep[:-1500]
        yield


# Of the FUSE protocol, include/uapi/linux/fuse.h.
LOOKUP, GETATTR, OPEN, INIT = 1, 3, 14, 26


def attributes(inode, mode):
    return struct.pack("<QQQQQQIIIIIIIIII", inode, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def silent_filesystem(fuse, opens):
    """Answers what opening so many files takes, and nothing after that."""
    while True:
        request = os.read(fuse, 1 << 18)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opens == 0:
            continue  # and whoever asked waits
        file, folder = 0o100666, 0o40755
        replies = {
            INIT: struct.pack("<IIIIHHIIHHIIIIIII", 7, 31, 1 << 16, 0, 12, 10, 1 << 16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0),
            LOOKUP: struct.pack("<QQQQII", 2, 1, 0, 0, 0, 0) + attributes(2, file),
            GETATTR: struct.pack("<QII", 0, 0, 0) + attributes(node, folder if node == 1 else file),
            OPEN: struct.pack("<QII", 1, 1, 0),
        }
        body, error = (replies[opcode], 0) if opcode in replies else (b"", -38)
        opens -= opcode == OPEN
        os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def silent_file(count):
    """Files of a filesystem that is silent from now on, in a mount namespace of our own.

    Its process is another one than that which has the files open: where they are the same, its end waits for itself.
    """
    try:
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        kernel.unshare(kernel.CLONE_NEWNS)
        libc = kernel.libc
        kernel.fail(libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None))  # MS_PRIVATE | MS_REC
        folder = tempfile.mkdtemp()
        how = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        kernel.fail(libc.mount(b"silent", folder.encode(), b"fuse", 0, how))
    except OSError as error:
        raise Skip(f"no filesystem of our own: {error.strerror}") from None
    Child(lambda: silent_filesystem(fuse, count))
    os.close(fuse)
    return [os.open(f"{folder}/file{number}", os.O_RDWR) for number in range(count)]


@siege
def silent_files(stage):
    """Files of a filesystem that never answers, with Hellos and as pool segments (B5)."""
    if os.geteuid():
        raise Skip("mounting takes root")
    # Of more, a quarter of the server's 512 descriptors would wait for a thread, and it would receive no further ones of
    # this user's, the honest client's included (SECURITY.md).
    files = silent_file(100)
    for number, fd in enumerate(files):
        try:
            if number % 2:
                end = wire.dial(stage.name, 0.2)
                stage.keep.append(end)
                wire.send_packet(end, packet(HELLO), [fd])
            else:
                link = stage.link(end=wire.dial(stage.name, 0.2))
                link.say(SEGMENT, [fd], len=73728)
                link.write(b"", kind=PACKETS)
                stage.keep.append(link)
        except (OSError, wire.Ended, wire.Refused):
            pass
        if number >= len(files) // 2:
            yield
        time.sleep(0.002)
    while True:
        yield
        time.sleep(0.05)
