"""Descriptors that are not what they should be, with the Hello and as pool segments."""

import array
import fcntl
import itertools
import os
import signal
import socket
import struct
import tempfile
import time

import kernel
import wire
from stage import PATIENCE, Wrong, attack
from wire import HELLO, PACKETS, SEGMENT, Ended, packet

LENGTH = 73728


def sealed(length=LENGTH, seals=wire.SEALS, **how):
    fd = wire.memfd(length, **how)
    fcntl.fcntl(fd, kernel.F_ADD_SEALS, seals)
    return fd


def beyond():
    """As many blocks as it should have, but behind its end; a hole within."""
    fd = wire.memfd(LENGTH)
    kernel.fallocate(fd, kernel.KEEP_SIZE, LENGTH, LENGTH)
    kernel.fallocate(fd, kernel.PUNCH_HOLE | kernel.KEEP_SIZE, 8192, wire.PAGE)
    fcntl.fcntl(fd, kernel.F_ADD_SEALS, wire.SEALS)
    return fd


def holed():
    fd = wire.memfd(LENGTH)
    kernel.fallocate(fd, kernel.PUNCH_HOLE | kernel.KEEP_SIZE, 8192, wire.PAGE)
    fcntl.fcntl(fd, kernel.F_ADD_SEALS, wire.SEALS)
    return fd


def file(flags=os.O_RDWR):
    with tempfile.NamedTemporaryFile() as made:
        made.truncate(LENGTH)
        return os.open(made.name, flags)


def device(path, flags=os.O_RDWR):
    return lambda: os.open(path, flags)


def listening():
    end = socket.socket()
    end.listen()
    return end


# What is sent, and how it is made. The kernel may lack some.
KINDS = {
    "pipe": lambda: os.pipe()[0],
    "directory": device("/tmp", os.O_RDONLY),
    "O_PATH": device("/tmp", os.O_PATH),
    "eventfd": lambda: os.eventfd(7),
    "a socket": lambda: socket.socket(socket.AF_UNIX).detach(),
    "a listening socket": lambda: listening().detach(),
    "a file": file,
    "a file to write": lambda: file(os.O_WRONLY),
    "an empty memfd": lambda: sealed(0),
    "a huge memfd": lambda: wire.memfd(2 << 20, allocated=False, flags=kernel.MFD_HUGETLB),
    "a secret memfd": lambda: (fd := kernel.memfd_secret(), os.ftruncate(fd, LENGTH))[0],
    "a memfd to write": lambda: os.open(f"/proc/self/fd/{sealed()}", os.O_WRONLY),
    "a memfd by O_PATH": lambda: os.open(f"/proc/self/fd/{sealed()}", os.O_PATH),
    "one that cannot be sealed": lambda: os.memfd_create("hostile", 0),
    "epoll": lambda: kernel.call(291, 0),
    "pidfd": lambda: os.pidfd_open(os.getpid()),
    "timerfd": lambda: kernel.call(283, 1, 0),
    "inotify": lambda: kernel.call(294, 0),
    "userfaultfd": lambda: kernel.call(323, 1),
    "/dev/zero": device("/dev/zero"),
    "/dev/full": device("/dev/full"),
    "/dev/fuse": device("/dev/fuse"),
    "/dev/ptmx": device("/dev/ptmx"),
    "/proc/self/mem": device("/proc/self/mem"),
    "/proc/self/ns/user": device("/proc/self/ns/user", os.O_RDONLY),
    "/proc/sys": device("/proc/sys", os.O_RDONLY),
    "a page short": lambda: sealed(LENGTH - wire.PAGE),
    "a page long": lambda: sealed(LENGTH + wire.PAGE),
    "a byte long": lambda: sealed(LENGTH + 1),
    "sparse": lambda: sealed(allocated=False),
    "with a hole": holed,
    "with blocks behind its end": beyond,
    "64 TiB, sparse": lambda: sealed(64 << 40, allocated=False),
}
for size in range(5):
    for wrong in itertools.combinations((1, 2, 4, 8, 16), size):
        if sum(wrong) & wire.SEALS != wire.SEALS:
            KINDS[f"seals {sum(wrong):#x}"] = lambda wrong=sum(wrong): sealed(seals=wrong)


def made(stage):
    """Every kind that this machine can make."""
    for what, make in KINDS.items():
        try:
            fd = make()
        except OSError as error:
            stage.note(f"skipped: {what}: {error.strerror}")
            continue
        yield what, fd
        os.close(fd)


@attack
def descriptors_kinds(stage):
    """Everything but a segment, with a Hello."""
    for what, fd in made(stage):
        if stage.first_packet(packet(HELLO), [fd], what) not in (1, 3):
            raise Wrong(f"{what} was taken for a segment")


@attack
def descriptors_count(stage):
    """None, too many, and the same one twice, with a Hello."""
    fd = sealed()
    for many in ([], [fd, fd], [fd] * 3, [fd] * 253, [fd] + [0] * 252):
        if stage.first_packet(packet(HELLO), many, len(many)) not in (1, 2):
            raise Wrong(f"{len(many)} descriptors were taken")


@attack
def descriptors_shared(stage):
    """The same segment for several links at a time, and the server's own segment sent back to it."""
    fd = sealed()
    for _ in range(4):
        stage.first_packet(packet(HELLO), [fd])
    link = stage.link()
    theirs = {"ring_capacity": link.their_ring, "loan_slots": link.their_slots, "control_len": link.their_base}
    stage.first_packet(packet(HELLO, **theirs), [link.their_fd])
    if not link.echo():
        raise Wrong("a link does not survive that its segment is sent back")


@attack
def descriptors_pool(stage):
    """Everything but a segment, as a pool segment, too few and too many."""
    rounds = ((what, [fd]) for what, fd in made(stage))
    more = [("none", []), ("two", [sealed()] * 2), ("253", [sealed()] * 253)]
    more.append(("frozen, not said", [wire.frozen(bytes(LENGTH))]))
    for what, many in itertools.chain(rounds, more):
        link = stage.link()
        link.say(SEGMENT, many, len=LENGTH)
        link.write(b"", kind=PACKETS)
        ms = wire.ended_within(link.end, PATIENCE)
        if ms is None:
            raise Wrong(f"{what} was taken for a pool segment")
        stage.note("closed", ms)
        link.leave()


def lingering():
    """A TCP socket whose last close waits for a reader that never reads, and what must be kept for that."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    near = socket.socket()
    near.connect(listening.getsockname())
    far, _ = listening.accept()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
    near.setblocking(False)
    try:
        while True:
            near.send(bytes(1 << 16))
    except BlockingIOError:
        return near, (far, listening)


def nested(near):
    """A socket in whose queue the only other handle of `near` lies."""
    inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inner.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [near.fileno()]))])
    inner.close()
    near.close()  # not the last handle
    return outer


def let_go(near):
    """Closes our handle before the server closes its own. Whether that came to be: the last close waits."""
    start = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    near.close()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return time.monotonic() - start < 0.01


def promptly(stage, what):
    """That somebody else gets an answer at once."""
    start = time.monotonic()
    end = wire.dial(stage.name)
    try:
        segment = wire.Segment(LENGTH)
        wire.greet(end, packet(HELLO), [segment.fd])
    except (wire.Refused, Ended):
        pass
    except TimeoutError:
        raise Wrong(f"{what}: nobody else gets an answer") from None
    stage.note("others are answered", (time.monotonic() - start) * 1e3)


@attack
def descriptors_linger(stage):
    """Sockets whose last close blocks: with a Hello, many of them, unread behind it, nested in another."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    for what in ("one", "253", "unread", "nested"):
        tried(stage, what, in_handshake)
        tried(stage, what, as_pool)


def tried(stage, what, way):
    """Until our handle was closed first, some times."""
    for _ in range(20):
        near, keep = lingering()
        if what == "nested":
            near = nested(near)
        if way(stage, what, near):
            stage.note("lent the last handle")
            promptly(stage, what)
            stage.keep.append(keep)
            return
        stage.note("too late")


def in_handshake(stage, what, near):
    end = wire.dial(stage.name)
    stage.keep.append(end)
    try:
        if what == "unread":
            wire.send_packet(end, packet(HELLO, token=1))
        wire.send_packet(end, packet(HELLO), [near.fileno()] * (253 if what == "253" else 1))
    except OSError:
        let_go(near)  # refused already: nobody else has a handle
        return False
    first = let_go(near)
    try:
        wire.answer(end)
    except (wire.Refused, Ended, ConnectionResetError):
        pass
    except TimeoutError:
        raise Wrong(f"{what}: no answer") from None
    return first


def as_pool(stage, what, near):
    try:
        link = stage.link()
    except wire.Refused:
        let_go(near)
        raise
    stage.keep.append(link)
    link.say(SEGMENT, [near.fileno()] * (253 if what == "253" else 1), len=LENGTH)
    if what == "unread":
        link.end.shutdown(socket.SHUT_WR)
    else:
        link.write(b"", kind=PACKETS)
    first = let_go(near)
    ms = wire.ended_within(link.end, PATIENCE)
    if ms is None:
        raise Wrong(f"a link goes on with {what} as a pool segment")
    stage.note("closed", ms)
    return first


@attack
def descriptors_large(stage):
    """The largest legal ring, 1 GiB, again and again: what a judgement of it costs the others.

    Many at a time with --all, as others stand in the same queue.
    """
    ring = 1 << 30
    try:
        fd = sealed(8192 + ring)
    except OSError as error:
        return stage.note(f"skipped: {error.strerror}")
    slowest, deadline = 0, time.monotonic() + stage.seconds(0.7, 10)
    while time.monotonic() < deadline:
        ends, start = [wire.dial(stage.name) for _ in range(32 if stage.whole else 1)], time.monotonic()
        for end in ends:
            try:
                wire.send_packet(end, packet(HELLO, ring_capacity=ring), [fd])
            except BrokenPipeError:
                pass  # a Refusal is there already
        for end in ends:
            try:
                for got in wire.answer(end)[1]:
                    os.close(got)
                stage.note("admitted")
            except wire.Refused as refusal:
                stage.note(f"refused with {refusal.code}")
            except (Ended, TimeoutError):  # its turn did not come within the deadline for a Hello
                stage.note("too late")
            slowest = max(slowest, time.monotonic() - start)
            end.close()
    stage.said["slowest_ms"] = round(slowest * 1e3, 1)
