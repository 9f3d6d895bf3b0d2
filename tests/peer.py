#!/usr/bin/env python3
"""An independent peer of the wire format (docs/wire.md), with Python's standard library alone.

    peer.py connect NAME [requests]   talks to a listener at @NAME that echoes messages, and checks what comes
                                      back; with "requests", the listener also answers requests with their body
    peer.py tensors NAME              talks to a listener at @NAME that echoes tensors and messages; in front of each
                                      record of tensors goes a message with its text, which the listener checks; the
                                      listener answers requests with tensors by the same tensors
    peer.py listen NAME               echoes messages, requests and tensors of one peer at @NAME until that one closes
    peer.py tell NAME                 answers one peer at @NAME each record of tensors with its text, and "hold" and
                                      "give back" with what it then does with loans

The text of a record has a line for each tensor: name, data type, shape, where its bytes lie, elements.

Whatever fails ends it with exit code 1 and a line on stderr.

Written from wire.md and from nothing else; "§" cites it.  x86-64 Linux only: there stores are seen in order
and loads are done in order, so release and acquire need no instruction (§15); only full_barrier() is left.
Words are stored and loaded whole, through memoryview.cast("Q").
"""
import array
import collections
import contextlib
import ctypes
import dataclasses
import fcntl
import itertools
import math
import mmap
import os
import platform
import select
import socket
import struct
import sys
import threading
import time
import weakref

DEADLINE = 30.0  # seconds, for whatever is waited for
PAGE, MASK = mmap.PAGESIZE, (1 << 64) - 1

MAGIC, HELLO, REFUSAL, SEGMENT, RETIRE, WAKE, TOPIC = b"slipring", 1, 2, 3, 4, 5, 7  # §2
HEAD, HELLO_BODY = struct.Struct("<8sHHI"), struct.Struct("<HH4sIIQQIIQQIIQ40s")
LINK, PUBLISHER, SUBSCRIBER = 0, 1, 2  # roles
ARCHITECTURE = bytes([8, 1, PAGE.bit_length() - 1, 6])
RING_CAPACITY, SECOND_RING, LOAN_SLOTS = 8192, 16384, 16  # of ours; small, so that they are soon used again
MAX_MESSAGE, POOL_LIMIT, IN_RING = 1 << 24, 3 << 23, 8192  # longer ones than IN_RING go through the pool
CONTROL_LEN = -(-(4096 + 8 * LOAN_SLOTS) // PAGE) * PAGE
POSITION, RECEIVER_STATE, SENDER_STATE, DATA_BELL, ROOM_BELL = 0x200, 0x40, 0x48, 0x80, 0x88  # §5
FILLED, RETURNED_LOANS = 0x300, 0x1000
AWAKE, PARKED, ARMED, GONE, HOT, HOT_AFTER = 0, 1, 2, 3, 4, 1024  # §7; bytes without a sleep, after which we are hot
MESSAGE, REQUEST, RESPONSE, CLOSE, TRIGGER, PACKETS, TENSORS, TENSOR_REQUEST, TENSOR_RESPONSE, MOVED = range(1, 11)  # §6
MORE, POOLED, TIGHT, META = 1 << 8, 1 << 9, 1 << 10, 1 << 11
INTEGER, FLOAT, STRING, TIME, BOOLEAN = 1, 2, 3, 4, 5  # §6, of meta.type
WORDS = {INTEGER: "q", FLOAT: "d", TIME: "q", BOOLEAN: "Q"}
POOL_DESCRIPTOR = struct.Struct("<IIQQQ")  # §9: segment, slot, offset, len, generation
F_ADD_SEALS, F_GET_SEALS, SEALS, FROZEN_SEALS, TMPFS_MAGIC = 1033, 1034, 0x17, 0xF, 0x01021994  # §4, §9
SO_PASSCRED, SO_PEERCRED, SCM_CREDENTIALS, POLLRDHUP = 16, 17, 2, 0x2000  # §1, §15
SYS_FUTEX, FUTEX_WAIT, FUTEX_WAKE, EVERYBODY, SYS_MEMBARRIER = 202, 0, 1, 0x7FFFFFFF, 324
GLOBAL_EXPEDITED, REGISTER_GLOBAL_EXPEDITED = 2, 4

TENSORS_VERSION, MAX_TENSORS, MAX_RANK, NO_SLOT, FROZEN, RING = 1, 32768, 8, 0xFFFFFFFF, 1, 2  # §12, §2
ATTACHED, INLINE, REGION, WIDE = 0, 1, 2, 1  # of tensor.flags
LONG_DESCRIPTION = 1 << 14  # bytes; longer ones we put into the pool
TENSOR = struct.Struct("<BBBB")  # dtype, rank, flags, name_len
DTYPES = {  # code: name, bytes of an element, its format in struct
    1: ("BOOL", 1, "?"), 2: ("UINT8", 1, "B"), 3: ("UINT16", 2, "H"), 4: ("UINT32", 4, "I"), 5: ("UINT64", 8, "Q"),
    6: ("INT8", 1, "b"), 7: ("INT16", 2, "h"), 8: ("INT32", 4, "i"), 9: ("INT64", 8, "q"), 10: ("FP16", 2, "e"),
    11: ("FP32", 4, "f"), 12: ("FP64", 8, "d"), 13: ("BYTES", None, None), 14: ("BF16", 2, None),
    15: ("FP8_E4M3FN", 1, "B"), 16: ("FP8_E5M2", 1, None)}
BOOL, BYTES, BF16, FP8_E5M2 = 1, 13, 14, 16

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MEMBARRIER = (libc.syscall(SYS_MEMBARRIER, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0
              and libc.syscall(SYS_MEMBARRIER, GLOBAL_EXPEDITED, 0, 0) == 0)

# body: a copy; loan: (slot, generation) or None; tensors: of a record of them; meta: (name, type, value) of each
Received = collections.namedtuple("Received", "kind ident body loan tensors meta", defaults=[(), ()])


@dataclasses.dataclass
class Tensor:
    """§12.  Of one that came: `body` is a copy of its bytes, which lie at `offset` of `segment` unless they came
    inline.  Of one that is to go: `segment` is a Frozen that has its bytes at `offset`, or None; then they are put
    into our pool, or go inline."""
    dtype: int
    shape: tuple
    body: bytes
    name: str = ""
    place: int = ATTACHED
    wide: bool = False  # dimensions of 8 bytes
    segment: object = None
    offset: int = 0
    loan: tuple = None  # as of a Received

    def same(self, other):
        return (self.dtype, self.shape, self.body, self.name) == (other.dtype, other.shape, other.body, other.name)

    def values(self):
        """Its elements, and what there is to say against them (§12)."""
        name, size, form = DTYPES[self.dtype]
        count = math.prod(self.shape)
        if self.dtype == BYTES:
            values, at = [], 0
            while at < len(self.body):
                demand(at + 4 <= len(self.body), "BYTES: ends within a length")
                end = at + 4 + struct.unpack_from("<I", self.body, at)[0]
                demand(end <= len(self.body), "BYTES: ends within an element")
                values.append(self.body[at + 4:end].decode())
                at = end
            demand(len(values) == count, f"BYTES: {len(values)} elements, not {count}")
            return values
        demand(self.dtype != BOOL or max(self.body, default=0) <= 1, "BOOL: neither 0 nor 1")
        if self.dtype == BF16:
            return [struct.unpack("<f", b"\0\0" + self.body[at:at + 2])[0] for at in range(0, len(self.body), 2)]
        if self.dtype == FP8_E5M2:
            return [struct.unpack("<e", bytes([0, byte]))[0] for byte in self.body]
        return list(struct.unpack(f"<{count}{form}", self.body))

    def text(self):
        place = ("empty" if not self.body else "inline" if self.place == INLINE else
                 "frozen" if self.segment and self.segment.frozen else "lent")
        what = f"{self.name} {DTYPES[self.dtype][0]} {list(self.shape)} {place}"
        if len(self.body) > 4096:
            return f"{what} {len(self.body)} bytes, sum {sum(self.body)}"
        return " ".join([what, *(str(value).lower() for value in self.values())])


class Failure(Exception):
    """The link cannot go on: the other side broke a rule, died, closed, or took too long."""

    def __init__(self, what, code=2):
        super().__init__(what)
        self.code = code  # for a Refusal (§2), should this be in the handshake


def demand(condition, what, code=2):
    if not condition:
        raise Failure(what, code)


def wait_for(condition, what):
    """Polls; for what no bell announces."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        demand(time.monotonic() < deadline, f"deadline: {what}")
        time.sleep(0.01)


def round_up(value, unit):
    return (value + unit - 1) // unit * unit


def encode_meta(values):
    """§6: the metadata of these names, types and values."""
    if not values:
        return b""
    entries = b""
    for name, kind, value in values:
        name = name.encode()
        entries += bytes([kind, len(name)]) + name
        entries += bytes([len(value.encode())]) + value.encode() if kind == STRING else struct.pack("<" + WORDS[kind], value)
    demand(len(entries) <= 512, f"{len(entries)} bytes of metadata")
    section = struct.pack("<H", len(entries)) + entries
    return section.ljust(round_up(len(section), 8), b"\0")


def decode_meta(payload):
    """§6: the metadata at the start of a payload, judged, and its length."""
    demand(len(payload) >= 2, "metadata: the payload ends")
    length, = struct.unpack_from("<H", payload)
    end = 2 + length
    demand(1 <= length <= 512 and round_up(end, 8) <= len(payload), f"metadata: {length} bytes")
    demand(not any(payload[end:round_up(end, 8)]), "metadata: the padding is not 0")
    at, values = 2, []

    def take(size):
        nonlocal at
        demand(at + size <= end, f"metadata: value {len(values)} is cut short")
        at += size
        return payload[at - size:at]

    while at < end:
        kind, size = take(2)
        demand(INTEGER <= kind <= BOOLEAN and 1 <= size <= 63, f"metadata: type {kind}, name of {size} bytes")
        try:
            name = take(size).decode()
            value = take(*take(1)).decode() if kind == STRING else struct.unpack("<" + WORDS[kind], take(8))[0]
        except UnicodeDecodeError:
            raise Failure("metadata: no UTF-8") from None
        demand(kind != BOOLEAN or value <= 1, f"metadata: a boolean of {value}")
        demand(all(name != other for other, *_ in values), f"metadata: {name!r} twice")
        values.append((name, kind, value))
    return tuple(values), round_up(end, 8)


def full_barrier(lock=threading.Lock()):
    """§7: taking a lock is a locked instruction, which is a full barrier on x86-64."""
    with lock:
        pass


def futex(address, operation, value, timeout=None):
    libc.syscall(SYS_FUTEX, ctypes.c_void_p(address), operation, ctypes.c_uint32(value), timeout, None, 0)


class Mapping:
    """A shared mapping: its bytes, its words, and addresses in it for the futex.  Through ctypes, as mmap.mmap
    does not tell the address of a read-only mapping."""

    def __init__(self, fd, length, writable=False, frozen=False):
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags, self.frozen = mmap.MAP_PRIVATE if frozen else mmap.MAP_SHARED, frozen
        self.address, self.length = libc.mmap(None, length, protection, flags, fd, 0), length
        demand(self.address not in (None, ctypes.c_void_p(-1).value), "mmap: " + os.strerror(ctypes.get_errno()))
        self.finish = weakref.finalize(self, libc.munmap, self.address, length)  # with whoever uses it last
        self.finish.atexit = False
        view = memoryview((ctypes.c_ubyte * length).from_address(self.address)).cast("B")
        self.bytes = view if writable else view.toreadonly()
        self.words = self.bytes.cast("Q")

    def load(self, offset):
        return self.words[offset >> 3]

    def store(self, offset, value):
        self.words[offset >> 3] = value & MASK

    def unmap(self):
        self.words.release()
        self.bytes.release()
        self.finish()


def make_memory(length):
    """§4: a memfd, allocated and mapped.  Gives the mapping and the descriptor."""
    fd = os.memfd_create("peer.py", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, length)
    os.posix_fallocate(fd, 0, length)
    return Mapping(fd, length, writable=True), fd


def make_segment(length):
    """§4: memory, sealed.  Gives the mapping and the descriptor to send."""
    mapping, fd = make_memory(length)
    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return mapping, fd


class Frozen:
    """§9: a frozen segment that we send, of ours or of somebody else's."""
    frozen = True

    def __init__(self, fd, length):
        self.fd, self.length, self.number = fd, length, None
        self.named = None  # our head behind the last record that names it; None: that is not published yet
        weakref.finalize(self, os.close, fd).atexit = False

    @classmethod
    def holding(cls, *bodies):
        """A new one: written, unmapped, then sealed.  Gives tensors' offsets, too."""
        offsets = list(itertools.accumulate((round_up(len(body), 64) for body in bodies), initial=0))
        mapping, fd = make_memory(round_up(max(offsets[-1], 1), PAGE))
        for offset, body in zip(offsets, bodies):
            mapping.bytes[offset:offset + len(body)] = body
        mapping.unmap()
        fcntl.fcntl(fd, F_ADD_SEALS, FROZEN_SEALS)
        return cls(fd, mapping.length), offsets


def map_segment(fd, length, frozen=False):
    """§4, §9: checks the other side's segment, maps it for reading, and closes the descriptor.  That of a frozen one
    is kept as long as the mapping, to be sent on."""
    wanted = FROZEN_SEALS if frozen else SEALS
    flags, seals, status = fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, F_GET_SEALS), os.fstat(fd)
    filesystem = ctypes.create_string_buffer(256)
    demand(flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_PATH, "segment: not open for reading", 3)
    demand(libc.fstatfs(fd, filesystem) == 0, "segment: fstatfs", 3)
    demand(struct.unpack_from("q", filesystem)[0] == TMPFS_MAGIC, "segment: not on tmpfs", 3)
    demand(seals & wanted == wanted, f"segment: seals {seals:#x}, not {wanted:#x}", 3)
    demand(status.st_size == length <= status.st_blocks * 512, f"segment: {status.st_size} bytes, not {length}", 3)
    mapping = Mapping(fd, length, frozen=frozen)
    if frozen:
        mapping.fd = fd
        weakref.finalize(mapping, os.close, fd).atexit = False
    else:
        os.close(fd)
    return mapping


def send_packet(sock, kind, body, fd=None):
    """§1, §2: 128 bytes, with our credentials and at most one descriptor."""
    control = [(socket.SOL_SOCKET, SCM_CREDENTIALS, struct.pack("=iII", os.getpid(), os.geteuid(), os.getegid()))]
    if fd is not None:
        control.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])))
    sock.sendmsg([(HEAD.pack(MAGIC, kind, 0, fd is not None) + body).ljust(128, b"\0")], control)


def receive_packet(sock):
    """§1, §2: (kind, packet, credentials, descriptors), or None at the end of the socket."""
    arguments = 128, socket.CMSG_SPACE(12) + socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
    try:
        packet, control, flags, _ = sock.recvmsg(*arguments)
    except ConnectionResetError:  # once: the peer left packets of ours unread
        packet, control, flags, _ = sock.recvmsg(*arguments)
    if not packet:
        return None
    attached = {kind: data for level, kind, data in control if level == socket.SOL_SOCKET}
    fds = list(array.array("i", attached.get(socket.SCM_RIGHTS, b"")))
    credentials = struct.unpack("=iII", attached[SCM_CREDENTIALS]) if SCM_CREDENTIALS in attached else None
    demand(not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) and len(packet) == 128, f"packet: {len(packet)} bytes")
    magic, kind, zero, descriptors = HEAD.unpack_from(packet)
    demand(magic == MAGIC and zero == 0, "packet: head")
    demand(kind == REFUSAL or descriptors == len(fds) == (kind in (HELLO, SEGMENT, TOPIC)), "packet: descriptors")
    return kind, packet, credentials, fds


def send_hello(sock, fd, role=LINK, policy=0, depth=0):
    second_ring = SECOND_RING if role == LINK else 0
    send_packet(sock, HELLO, HELLO_BODY.pack(1, 1, ARCHITECTURE, MEMBARRIER, role, CONTROL_LEN, RING_CAPACITY,
                                             LOAN_SLOTS, 0xFFFFFFFF, MAX_MESSAGE, POOL_LIMIT, policy, depth,
                                             second_ring, bytes(40)), fd)


def receive_hello(sock, expected=LINK):
    """§2, §3: the terms of the other side's Hello, judged, and its segment, mapped."""
    got = receive_packet(sock)
    demand(got, "handshake: the socket ended")
    kind, packet, credentials, fds = got
    demand(kind != REFUSAL, "refused: versions %d to %d, code %d" % struct.unpack_from("<HHI", packet, 16))
    demand(kind == HELLO, f"handshake: packet of kind {kind}")
    demand(credentials, "handshake: no credentials")
    demand(credentials[1] == os.geteuid(), f"handshake: the Hello is of user {credentials[1]}", 1)
    (low, high, architecture, flags, role, control_len, capacity, loan_slots, node, max_message, pool_limit, policy,
     depth, second_ring, zero) = HELLO_BODY.unpack_from(packet, HEAD.size)
    demand(low <= 1 <= high, f"Hello: versions {low} to {high}")
    demand(architecture == ARCHITECTURE, f"Hello: architecture {architecture.hex()}")
    demand(flags <= 1 and role == expected and policy == depth == 0 and not any(zero), "Hello: flags, role or zero")
    demand(PAGE <= capacity <= 1 << 30 and capacity & (capacity - 1) == 0, f"Hello: ring_capacity {capacity}")
    demand(second_ring == 0 or capacity < second_ring <= 1 << 30 and second_ring & (second_ring - 1) == 0,
           f"Hello: second_ring {second_ring}")
    demand(1 <= loan_slots <= 65536, f"Hello: loan_slots {loan_slots}")
    demand(control_len == round_up(4096 + 8 * loan_slots, PAGE), f"Hello: control_len {control_len}")
    demand(1 <= max_message <= 1 << 40 and (node < 1024 or node == 0xFFFFFFFF), "Hello: max_message or numa_node")
    segment = map_segment(fds[0], control_len + capacity)
    return (segment, control_len, capacity, second_ring, loan_slots, min(max_message, MAX_MESSAGE), pool_limit,
            MEMBARRIER and flags == 1)


class Link:
    """A link: our segment, the other side's, the socket.  Opening one is the handshake (§3)."""
    says, hears = (LINK, 0, 0), LINK  # of the Hellos: role, policy and depth of ours; their role
    hot_after = HOT_AFTER
    bells = None  # where the other side's bells are, unless in its segment
    arms = False  # so Wakes come

    def __init__(self, sock, connecting):
        sock.settimeout(DEADLINE)
        self.sock, self.poll = sock, select.poll()
        self.poll.register(sock, POLLRDHUP)
        self.ours, fd = make_segment(CONTROL_LEN + RING_CAPACITY)
        try:
            if connecting:
                send_hello(sock, fd, *self.says)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a Refusal waits
        try:
            (self.theirs, self.their_control, self.their_capacity, self.their_second, self.their_slots, self.longest,
             self.their_pool_limit, self.may_be_hot) = receive_hello(sock, self.hears)
        except Failure as failure:
            if not connecting:
                with contextlib.suppress(OSError):  # it may be gone
                    send_packet(sock, REFUSAL, struct.pack("<HHI", 1, 1, failure.code))
            raise
        if not connecting:
            send_hello(sock, fd, *self.says)
        os.close(fd)
        self.their_ring, self.their_start, self.moved_ring = self.theirs, self.their_control, None  # moved_ring: come, and not yet used
        self.our_ring, self.our_start, self.our_capacity = self.ours, CONTROL_LEN, RING_CAPACITY
        self.left = None  # of our first ring, once we have moved: how far they read, as last loaded; its end
        self.head = self.tail = 0  # of our ring: where we write; how far they read, as last loaded
        self.at = self.published = 0  # of their ring: where we read; the position that we told them
        self.after_more = False  # the record that we read before had MORE
        self.attended = {RECEIVER_STATE: 0, SENDER_STATE: 0}  # parked values that we rang for
        self.epoch, self.slept = 0, {RECEIVER_STATE: 0, SENDER_STATE: 0}
        self.awake_since, self.hot = {RECEIVER_STATE: 0, SENDER_STATE: 0}, set()  # bytes; states that say hot
        self.met_hot = False  # a state of the other side
        self.their_segments, self.inodes, self.again = {}, {}, 0  # inodes: of every number that ever came
        self.borrowed, self.generations = {}, set()  # slots that we hold, with generations; all that ever came
        self.eager = False  # takes packets as early as it can; what can be read must not depend on that
        self.pool = Pool(self)
        threading.Thread(target=self.watch, daemon=True).start()

    # §7 Sleeping and waking

    def ring(self, state_at, bell_at, again=False):
        """Wakes the other side's sleeper, if it sleeps.  We fence also where it is hot, which is always right."""
        full_barrier()
        state = self.theirs.load(state_at)
        demand(state in (AWAKE, GONE, HOT) or state & 3 in (PARKED, ARMED), f"state {state:#x} at {state_at:#x}")
        demand(state != HOT or self.may_be_hot, "hot, and a Hello does not allow it")
        self.met_hot |= state == HOT
        if state in (AWAKE, GONE, HOT) or state == self.attended[state_at] and not again:
            return
        self.attended[state_at] = state
        if state & 3 == ARMED:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it can be read already; it is gone
                send_packet(self.sock, WAKE, struct.pack("<I", 1 if state_at == RECEIVER_STATE else 2))
        else:
            self.ours.store(bell_at, self.ours.load(bell_at) + 1)
            futex(self.ours.address + bell_at, FUTEX_WAKE, EVERYBODY)

    def progress(self, state_at, position):
        """We are hot after enough bytes without a sleep."""
        if self.may_be_hot and position - self.awake_since[state_at] & MASK >= self.hot_after and state_at not in self.hot:
            self.hot.add(state_at)
            self.ours.store(state_at, HOT)

    def sleep_until(self, ready, state_at, bell_at, what):
        """Parks on the other side's bell until `ready()`.  It fails at the end of the peer, and if nobody rings."""
        self.publish_position()  # §6; also before we wait for room, as the other side may wait for room, too
        deadline, timeout = time.monotonic() + DEADLINE, (ctypes.c_long * 2)(int(DEADLINE), 0)
        bells = self.bells or self.theirs
        while True:
            bell = bells.load(bell_at) & 0xFFFFFFFF
            self.epoch += 1
            self.ours.store(state_at, self.epoch << 3 | PARKED)
            full_barrier()
            if state_at in self.hot:
                libc.syscall(SYS_MEMBARRIER, GLOBAL_EXPEDITED, 0, 0)
                self.hot.remove(state_at)
            ended = self.ended()  # before we look: what was published before the end counts
            if ready():
                break
            demand(not ended, f"the peer died; waited for {what}")
            futex(bells.address + bell_at, FUTEX_WAIT, bell, timeout)
            self.slept[state_at] += 1
            demand(time.monotonic() < deadline, f"deadline: {what}")  # not looked again: a lost wake-up must show
        self.ours.store(state_at, AWAKE)
        self.awake_since[state_at] = self.at if state_at == RECEIVER_STATE else self.head

    def ended(self):
        """§15: the end of the socket, without reading from it."""
        return any(events & (POLLRDHUP | select.POLLHUP) for _, events in self.poll.poll(0))

    def watch(self):
        """No bell announces that a process died.  So this thread wakes our own sleepers at the end of the socket;
        again and again, as one may just be going to sleep."""
        poll = select.poll()
        poll.register(self.sock, POLLRDHUP)
        poll.poll()
        while True:
            for bell_at in (DATA_BELL, ROOM_BELL):
                futex((self.bells or self.theirs).address + bell_at, FUTEX_WAKE, EVERYBODY)
            time.sleep(0.05)

    def peer_parks(self, state_at):
        return self.theirs.load(state_at) & 3 in (PARKED, ARMED)

    def peer_reads_no_more(self):
        return self.theirs.load(RECEIVER_STATE) == GONE

    # §6 Writing

    def wait_as_writer(self, ready, what):
        def ready_or_gone():
            demand(not self.peer_reads_no_more(), "the peer has closed")  # §10
            return ready()
        if not ready():
            self.sleep_until(ready_or_gone, SENDER_STATE, ROOM_BELL, what)

    def room(self, size):
        """Step 1: whether `size` bytes fit; if not by what we know, loads the peer's position."""
        limit = self.our_capacity - 128 - size
        if self.head - self.tail & MASK > limit:
            self.load_tail()
        return self.head - self.tail & MASK <= limit

    def load_tail(self):
        tail = self.theirs.load(POSITION)
        if self.left and (tail - self.left[0] & MASK) <= (self.left[1] - self.left[0] & MASK) and tail != self.tail:
            self.left = tail, self.left[1]
            return
        self.left = None
        demand(tail % 8 == 0 and (tail - self.tail & MASK) <= (self.head - self.tail & MASK), f"position {tail}")
        self.tail = tail

    def has_read(self, position):
        """Whether they have read all that stands in front of this position of our ring."""
        self.load_tail()
        tail = self.left[0] if self.left else self.tail
        return self.head - tail & MASK <= self.head - position & MASK

    def header_at(self, position):
        return self.our_start + position % self.our_capacity

    def move(self):
        """Goes on in our second ring, once."""
        if self.says[0] != LINK or self.our_capacity == SECOND_RING:
            return
        ring, fd = make_segment(SECOND_RING)
        send_packet(self.sock, SEGMENT, struct.pack("<IIQ", 0, RING, SECOND_RING), fd)
        os.close(fd)
        end = round_up(self.head + 8, 64) & MASK
        self.our_ring.store(self.header_at(end), 0)
        self.our_ring.store(self.header_at(self.head), MOVED)  # there is always room
        self.left = self.tail, end
        self.our_ring, self.our_start, self.our_capacity = ring, 0, SECOND_RING
        self.head = self.tail = round_up(end, SECOND_RING) & MASK
        self.ring(RECEIVER_STATE, DATA_BELL)

    def publish(self, *records, wait=True):
        """One record or a batch, of (kind and flags, payload); MORE is set here.  False: no room, and not waited."""
        if not self.room(sum(80 + len(payload) for _, payload in records)):  # or hardly
            self.move()
        placed, position, after_more = [], self.head, False
        for index, (header, payload) in enumerate(records):
            header |= MORE if index + 1 < len(records) else 0
            start = position + (8 if len(payload) <= 56 or header & TIGHT or after_more else 64)
            placed.append((position, header | len(payload) << 32, start, payload))
            position = round_up(start + len(payload), 8 if header & (MORE | TIGHT) else 64)
            after_more = header & MORE
        size = position - self.head
        demand(size <= self.our_capacity - 128, "a batch longer than the ring")
        demand(not self.peer_reads_no_more(), "the peer has closed")  # §10
        if not wait and not self.room(size):
            return False
        self.wait_as_writer(lambda: self.room(size), "room in our ring")
        ring = self.our_ring.bytes[self.our_start:]
        for place, header, start, payload in placed:
            at = start % self.our_capacity
            first = min(len(payload), self.our_capacity - at)
            ring[at:at + first] = payload[:first]
            ring[:len(payload) - first] = payload[first:]  # Wrap
            if place != self.head:
                self.our_ring.store(self.header_at(place), header)
        self.our_ring.store(self.header_at(position), 0)
        self.our_ring.store(self.header_at(self.head), placed[0][1])  # last: now all of it is visible
        self.head = position & MASK
        self.progress(SENDER_STATE, self.head)
        self.ring(RECEIVER_STATE, DATA_BELL)
        return True

    def tell(self, payload, length, with_id):
        """§9, while it is being written: all of it is there, in two steps, and then nothing is said of what comes."""
        self.wait_as_writer(lambda: self.room(128), "room in our ring")
        ring, at = self.our_ring.bytes[self.our_start:], (self.head + 8) % self.our_capacity
        first = min(len(payload), self.our_capacity - at)
        ring[at:at + first] = payload[:first]
        ring[:len(payload) - first] = payload[first:]
        for there in (length // 128 * 64, length // 64 * 64):
            self.ours.store(FILLED, there | with_id)
        self.ours.store(FILLED, 0)

    def send(self, body, kind=MESSAGE, ident=None, tight=False, wait=True, meta=()):
        """A message, request or response; a long one through the pool."""
        demand(len(body) <= self.longest, "longer than the link's longest message")
        prefix = b"" if ident is None else struct.pack("<Q", ident)  # §8
        if meta:
            prefix, kind = prefix + encode_meta(meta), kind | META
        if len(body) > IN_RING:
            payload = prefix + self.pool.lend(body)[0]
            if not meta:
                self.tell(payload, len(body), ident is not None)
            return self.publish((kind | POOLED, payload))
        return self.publish((kind | (TIGHT if tight else 0), prefix + body), wait=wait)

    # §12 Tensors

    def record_of(self, tensors):
        """Header and payload of a record that hands these over."""
        pooled = [tensor.body for tensor in tensors if tensor.place == ATTACHED and not tensor.segment]
        lent = iter(self.pool.lend(*pooled) if pooled else ())
        attachments, description = [], bytearray()
        for tensor in tensors:
            name = tensor.name.encode()
            flags = tensor.place << 1 | (WIDE if tensor.wide else 0)
            description += TENSOR.pack(tensor.dtype, len(tensor.shape), flags, len(name))
            description += struct.pack(f"<{len(tensor.shape)}{'Q' if tensor.wide else 'I'}", *tensor.shape)
            if tensor.place == INLINE:
                description += struct.pack("<I", len(tensor.body)) + tensor.body
            elif tensor.segment:
                number = self.pool.announce(tensor.segment)
                attachments.append(POOL_DESCRIPTOR.pack(number, NO_SLOT, tensor.offset, len(tensor.body), 0))
            else:
                attachments.append(next(lent))
            description += name
        header, description = TENSORS | TENSORS_VERSION << 24, bytes(description)
        if len(description) > LONG_DESCRIPTION:
            header, description, attachments = header | POOLED, b"", attachments + self.pool.lend(description)
        return header | len(attachments) << 16, b"".join(attachments) + description

    def send_tensors(self, *tensors, tight=False, meta=(), kind=TENSORS, ident=None):
        header, payload = self.record_of(tensors)
        header ^= TENSORS ^ kind
        if meta:
            header, payload = header | META, encode_meta(meta) + payload
        if ident is not None:
            payload = struct.pack("<Q", ident) + payload
        self.publish((header | (TIGHT if tight else 0), payload))
        for tensor in tensors:
            if tensor.segment:
                tensor.segment.named = self.head

    def take_tensors(self, payload, count, long=False):
        """The tensors of a record, judged; not their elements.  Long: the last attachment is their description."""
        ranges = [self.borrow(payload[at:at + 32], attachment=True) for at in range(0, 32 * count, 32)]
        left, at, tensors, names = collections.deque(ranges), 32 * count, [], set()
        if long:
            segment, offset, length, loan = left.pop()
            demand(length <= 1 << 22, f"a description of {length} bytes")
            payload, at = bytes(segment.bytes[offset:offset + length]), 0
            if loan:
                self.give_back_loan(loan)

        def take(form):
            nonlocal at
            values = struct.Struct("<" + form)
            demand(at + values.size <= len(payload), f"tensor {len(tensors)}: its description ends early")
            at += values.size
            return values.unpack_from(payload, at - values.size)

        while at < len(payload):
            index = len(tensors)
            demand(index < MAX_TENSORS, f"more than {MAX_TENSORS} tensors")
            dtype, rank, flags, name_len = take("4B")
            place, wide = flags >> 1, bool(flags & WIDE)
            demand(dtype in DTYPES, f"tensor {index}: dtype {dtype}")
            demand(rank <= MAX_RANK, f"tensor {index}: rank {rank}")
            demand(place <= REGION, f"tensor {index}: flags {flags:#x}")
            demand(place != REGION, f"tensor {index}: it lies in a region, and we know none")
            shape = take(f"{rank}{'Q' if wide else 'I'}")
            demand(math.prod(filter(None, shape)) < 1 << 64, f"tensor {index}: shape {shape}")
            if place == INLINE:
                length, = take("I")
                body, = take(f"{length}s")
                segment = offset = loan = None
            else:
                demand(left, f"tensor {index}: no attachment is left")
                segment, offset, length, loan = left.popleft()
                body = bytes(segment.bytes[offset:offset + length])
            name, = take(f"{name_len}s")
            try:
                name = name.decode()
            except UnicodeDecodeError:
                raise Failure(f"tensor {index}: its name is no UTF-8") from None
            demand(not name or name not in names, f"tensor {index}: another one is {name!r}")
            names.add(name)
            count, size = math.prod(shape), DTYPES[dtype][1]
            expected = length if dtype == BYTES and count else count * (size or 0)
            demand(expected == length < 1 << 63, f"tensor {index}: {length} bytes, not {expected}")
            tensors.append(Tensor(dtype, shape, body, name, place, wide, segment, offset, loan))
        demand(not left, f"{len(left)} attachments are left")
        return tensors

    # §6 Reading

    def header(self):
        return self.their_ring.load(self.their_start + self.at % self.their_capacity)

    def publish_position(self):
        if self.published != self.at:
            self.published = self.at
            self.ours.store(POSITION, self.at)
            self.ring(SENDER_STATE, ROOM_BELL)

    def receive(self, lag=False):
        """The next message, waited for; None is the orderly end (§10).  With `lag`, an eighth of the ring is not yet
        given back."""
        while True:
            received = self.receive_record(lag)
            if received is None or received.kind < CLOSE or TENSORS <= received.kind < MOVED:
                return received
            if received.kind == PACKETS:
                while self.read_pool_packet():
                    pass
            if received.kind == MOVED:
                self.follow()

    def follow(self):
        """Goes on in their second ring, which is on the socket."""
        while not self.moved_ring:
            demand(self.read_pool_packet(), "moved, and no ring was sent")
        self.their_ring, self.moved_ring, self.their_start, self.their_capacity = self.moved_ring, None, 0, self.their_second
        self.their_second, self.at = 0, round_up(self.at, self.their_capacity) & MASK
        self.publish_position()

    def receive_record(self, lag):
        if not self.header():
            demand(not self.after_more, "no header after MORE")
            self.sleep_until(self.header, RECEIVER_STATE, DATA_BELL, "a record")
        while self.eager and self.read_pool_packet():
            pass
        header = self.header()
        kind, length = header & 0xFF, header >> 32
        prefix = 8 if kind in (REQUEST, RESPONSE, TENSOR_REQUEST, TENSOR_RESPONSE) else 0
        if header == CLOSE:
            self.publish_position()
            return None
        attachments, version = header >> 16 & 0xFF, header >> 24 & 0xFF
        demand(MESSAGE <= kind <= MOVED and kind != CLOSE and header & 0xF000 == 0, f"header {header:#x}")
        demand(kind != MOVED or header == MOVED, f"header {header:#x}")
        demand(not header & META or kind not in (TRIGGER, PACKETS), f"header {header:#x}")
        if TENSORS <= kind < MOVED:
            demand(version == TENSORS_VERSION and length >= 32 * attachments, f"header {header:#x}")
        else:
            demand(attachments == version == 0, f"header {header:#x}")
            demand(kind < CLOSE or length == (4 if kind == TRIGGER else 0), f"header {header:#x}")
        demand(kind < CLOSE or TENSORS <= kind < MOVED or not header & POOLED, f"header {header:#x}")
        demand(prefix <= length <= self.their_capacity - 192, f"header {header:#x}")
        start = self.at + (8 if length <= 56 or header & TIGHT or self.after_more else 64)
        at, ring = start % self.their_capacity, self.their_ring.bytes[self.their_start:]
        payload = bytes(ring[at:at + length])  # the slice ends with the ring, then it goes on at 0
        payload += ring[:length - len(payload)]
        self.after_more = bool(header & MORE)
        self.at = round_up(start + length, 8 if header & (MORE | TIGHT) else 64) & MASK
        self.progress(RECEIVER_STATE, self.at)
        if self.at - self.published & MASK >= self.their_capacity // 8 and not lag:
            self.publish_position()
        ident = struct.unpack_from("<Q", payload)[0] if prefix else None
        meta, length = decode_meta(payload[prefix:]) if header & META else ((), 0)
        body, loan = payload[prefix + length:], None
        if TENSORS <= kind < MOVED:
            demand(len(body) >= 32 * attachments, f"header {header:#x}")
            demand(not header & POOLED or len(body) == 32 * attachments > 0, f"header {header:#x}")
            return Received(kind, ident, b"", None, self.take_tensors(body, attachments, bool(header & POOLED)), meta)
        if header & POOLED:
            demand(len(body) == 32, f"header {header:#x}")
            segment, offset, length, loan = self.borrow(body)
            body = bytes(segment.bytes[offset:offset + length])
        demand(len(body) <= self.longest, "a message longer than the link's longest")
        return Received(kind, ident, body, loan, meta=meta)

    # §9 Long messages: the other side's pool

    def borrow(self, descriptor, attachment=False):
        """The segment, offset and length that a pool descriptor or an attachment names, and the loan, if it is one."""
        number, slot, offset, length, generation = POOL_DESCRIPTOR.unpack(descriptor)
        frozen = attachment and slot == NO_SLOT
        demand(attachment or length <= self.longest, f"pooled.len {length}")
        demand(frozen or slot < LOAN_SLOTS, f"pooled.slot {slot:#x}")
        demand(offset % 64 == 0, f"pooled.offset {offset}")
        for _ in range(128):
            if number in self.their_segments:
                break
            why = "is retired" if number in self.inodes else "was not sent"
            demand(self.read_pool_packet(), f"pooled.segment {number} {why}")
        demand(number in self.their_segments, f"pooled.segment {number} unknown")
        segment = self.their_segments[number]
        demand(segment.frozen == frozen, f"pooled.segment {number} is {'' if segment.frozen else 'not '}frozen")
        demand(offset + length <= segment.length, f"pool: {offset} + {length} is not inside of the segment")
        if frozen:
            return segment, offset, length, None
        demand(slot not in self.borrowed, f"pooled.slot {slot} is lent")
        demand(generation and generation not in self.generations, f"pooled.generation {generation} is 0 or was there")
        self.borrowed[slot] = generation
        self.generations.add(generation)
        return segment, offset, length, (slot, generation)

    def read_pool_packet(self):
        """Takes a packet from the socket, if one is there already."""
        self.sock.settimeout(0)
        try:
            got = receive_packet(self.sock)
        except BlockingIOError:
            got = None
        self.sock.settimeout(DEADLINE)
        if not got:
            return False
        kind, packet, _, fds = got
        return self.take_pool_packet(kind, packet, fds)

    def take_pool_packet(self, kind, packet, fds):
        number, flags, length = struct.unpack_from("<IIQ", packet, 16)
        if kind == RETIRE:
            self.their_segments.pop(number, None)  # tensors that lie in it keep it mapped
            return True
        if kind == WAKE and self.arms:
            return True
        demand(kind == SEGMENT, f"packet of kind {kind} after the handshake")
        if flags == RING:
            demand(length == self.their_second and not number and not self.moved_ring, "segment.len of a ring")
            self.moved_ring = map_segment(fds[0], length)
            return True
        known = [segment.length for segment in self.their_segments.values()]
        demand(len(known) < 1024 and sum(known) + length <= POOL_LIMIT, "the peer's pool is too large")
        demand(length and length % PAGE == 0 and flags <= FROZEN, "segment.len or segment.flags")
        demand(number not in self.their_segments, f"segment.segment {number} again")
        self.again += number in self.inodes
        inode = os.fstat(fds[0]).st_ino
        demand(self.inodes.setdefault(number, inode) == inode, f"segment.segment {number} was another segment before")
        self.their_segments[number] = map_segment(fds[0], length, flags == FROZEN)
        return True

    def give_back(self, received):
        """Returns the loan of a record or of a tensor, if it has one; those of a record's tensors from the last on."""
        for tensor in reversed(getattr(received, "tensors", ())):
            lies = tensor.segment and tensor.segment.bytes[tensor.offset:tensor.offset + len(tensor.body)]
            demand(not lies or lies == tensor.body, "a tensor that we hold was written")
            self.give_back(tensor)
        if received.loan:
            self.give_back_loan(received.loan)

    def give_back_loan(self, loan):
        slot, generation = loan
        demand(self.borrowed.pop(slot) == generation, f"slot {slot} was returned before")
        self.ours.store(RETURNED_LOANS + 8 * slot, generation)
        self.ring(SENDER_STATE, ROOM_BELL)

    # §10 The end of a link

    def close_sending(self):
        if not self.peer_reads_no_more():
            self.our_ring.store(self.header_at(self.head), CLOSE)  # there is always room
            self.ring(RECEIVER_STATE, DATA_BELL)
        self.ours.store(SENDER_STATE, GONE)

    def finish(self):
        """After both closes: reads no more, ends the socket, and waits for the end of the other side."""
        self.ours.store(RECEIVER_STATE, GONE)
        self.ring(SENDER_STATE, ROOM_BELL, again=True)
        self.sock.shutdown(socket.SHUT_WR)
        wait_for(self.ended, "the peer's end of the socket")


class Pool:
    """§9: our pool: segments of three blocks, the blocks of a segment of one size.  A block holds a message, or the
    tensors of a record.  Only one segment is with the other side at a time.  For another one it is retired, and later
    sent again.  Frozen segments are their own matter."""

    def __init__(self, link):
        self.link, self.generation, self.segments = link, 0, {}  # block size: (number, mapping, descriptor)
        self.numbers, self.frozen = itertools.count(), []  # numbers for both; frozen: those that are sent
        self.block_size, self.blocks, self.lent = 0, 0, {}  # blocks of the segment sent; slot: (generation, block)

    def loans(self):
        """What the other side has not returned."""
        word = lambda slot: self.link.theirs.load(RETURNED_LOANS + 8 * slot)
        self.lent = {slot: loan for slot, loan in self.lent.items() if word(slot) != loan[0]}
        return self.lent

    def free_blocks(self):
        return sorted(set(range(self.blocks)) - {block for _, block in self.loans().values()})

    def free_slots(self):
        loans = self.loans()
        return [slot for slot in range(min(self.link.their_slots, 64)) if slot not in loans]

    def send_segment(self, number, flags, length, fd):
        send_packet(self.link.sock, SEGMENT, struct.pack("<IIQ", number, flags, length), fd)
        self.link.publish((PACKETS, b""))  # after 32 packets it must be; the more often, the better it is tried

    def switch(self, block_size):
        """Waits for all loans, retires their segment, and sends the one of this block size."""
        self.link.wait_as_writer(lambda: not self.loans(), "all loans")
        if self.block_size:
            send_packet(self.link.sock, RETIRE, struct.pack("<I", self.segments[self.block_size][0]))
        self.block_size, self.blocks = block_size, min(3, self.link.their_pool_limit // block_size)
        demand(self.blocks, "the peer's pool_limit is too low")
        if block_size not in self.segments:
            self.segments[block_size] = next(self.numbers), *make_segment(self.blocks * block_size)
        number, mapping, fd = self.segments[block_size]
        self.send_segment(number, 0, mapping.length, fd)

    def lend(self, *bodies):
        """Puts bodies into one free block, each lent for itself; gives their descriptors for the ring."""
        demand(len(bodies) <= min(self.link.their_slots, 64), f"{len(bodies)} loans at once")
        room = sum(round_up(len(body), 64) for body in bodies)
        block_size = max(PAGE, 1 << (room - 1).bit_length())
        if block_size != self.block_size:
            self.switch(block_size)
        self.link.wait_as_writer(lambda: self.free_blocks() and len(self.free_slots()) >= len(bodies), "a loan")
        number, mapping, _ = self.segments[block_size]
        block, descriptors = self.free_blocks()[0], []
        offset = block * block_size
        for slot, body in zip(self.free_slots(), bodies):
            self.generation += 1
            self.lent[slot] = self.generation, block
            mapping.bytes[offset:offset + len(body)] = body
            descriptors.append(POOL_DESCRIPTOR.pack(number, slot, offset, len(body), self.generation))
            offset += round_up(len(body), 64)
        return descriptors

    def announce(self, frozen):
        """Sends a frozen segment, unless it was sent; gives its number.  Those that are named no more are retired."""
        frozen.named = None
        if frozen not in self.frozen:
            self.retire_frozen()
            frozen.number = next(self.numbers)
            self.frozen.append(frozen)
            self.send_segment(frozen.number, FROZEN, frozen.length, frozen.fd)
        return frozen.number

    def retire_frozen(self):
        """§9: no loan says when.  A record that names one was read when the position is behind it."""
        for frozen in [one for one in self.frozen if one.named is not None and self.link.has_read(one.named)]:
            self.frozen.remove(frozen)
            send_packet(self.link.sock, RETIRE, struct.pack("<I", frozen.number))
            self.link.publish((PACKETS, b""))


def pattern(length, seed):
    """A body that tells its place, so that a shifted or an old one shows."""
    block = bytes((seed * 31 + i * 7 + (i >> 8)) & 0xFF for i in range(min(length, 4096)))
    return (block * (length // 4096 + 1))[:length]


def sample(dtype, shape, seed=0, **rest):
    """A tensor whose elements tell their place."""
    count, (_, size, form) = math.prod(shape), DTYPES[dtype]
    if dtype == BYTES:
        elements = [f"element-{seed + i}".encode() * (i % 3) for i in range(count)]
        body = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    elif dtype == BOOL:
        body = bytes((i + seed) % 3 == 0 for i in range(count))
    elif dtype == BF16:
        body = b"".join(struct.pack("<f", (i + seed) % 100 / 2 - 20)[2:] for i in range(count))
    elif dtype == FP8_E5M2:
        body = b"".join(struct.pack("<e", (i + seed) % 4 - 2)[1:] for i in range(count))
    elif form in "efd":
        body = struct.pack(f"<{count}{form}", *((i + seed) % 100 / 2 - 20 for i in range(count)))
    else:
        values = 1 << 8 * size
        number, period = values // 7, max(1, min(count, values))  # a seventh: high bytes and signs come
        cycle = b"".join(((i + seed) * number % values).to_bytes(size, "little") for i in range(period))
        body = (cycle * -(-count // period))[:count * size]
    return Tensor(dtype, tuple(shape), body, **rest)


def freeze(*tensors):
    """The same tensors, in one frozen segment."""
    segment, offsets = Frozen.holding(*(tensor.body for tensor in tensors))
    return [dataclasses.replace(tensor, segment=segment, offset=offset) for tensor, offset in zip(tensors, offsets)]


def text(tensors):
    return "\n".join(tensor.text() for tensor in tensors).encode()


def send_with_text(link, *tensors, tight=False, meta=()):
    link.send(text(tensors))
    link.send_tensors(*tensors, tight=tight, meta=meta)


def expect_tensors(link, tensors, what, hold=False):
    """The text of these tensors, then the tensors; their loans are returned, unless `hold`."""
    expect(link, text(tensors), f"{what}: text")
    received = link.receive()
    demand(received, f"{what}: the peer closed")
    demand(received.kind == TENSORS, f"{what}: a record of kind {received.kind}")
    demand(len(received.tensors) == len(tensors), f"{what}: {len(received.tensors)} tensors, not {len(tensors)}")
    for index, (came, went) in enumerate(zip(received.tensors, tensors)):
        demand(came.same(went), f"{what}: tensor {index} came back as {came.text()[:200]}, not {went.text()[:200]}")
        came.values()
        frozen = went.segment is not None
        demand(frozen == (came.segment is not None and came.segment.frozen) or not went.body,
               f"{what}: tensor {index} is no more frozen")
    if not hold:
        link.give_back(received)
    return received


def expect(link, body, what, hold=False, lag=False):
    """The next message, which must be this one; its loan is returned, unless `hold`."""
    received = link.receive(lag)
    demand(received, f"{what}: the peer closed")
    demand(received.kind == MESSAGE, f"{what}: a record of kind {received.kind}")
    demand(received.body == body, f"{what}: {len(received.body)} bytes came back, not the {len(body)} that were sent")
    if not hold:
        link.give_back(received)
    return received


def step_sizes(link):
    sizes = (0, 1, 8, 56, 57, 64, 512, 513, 1000, 4096, 4097, 16384, 1 << 20)
    for tight in (False, True):
        for size in sizes:
            link.send(pattern(size, size), tight=tight)
            expect(link, pattern(size, size), f"{size} bytes")
    return f"{len(sizes)} sizes, without TIGHT and with it"


VALUES = (("frame", INTEGER, -1 << 63), ("exposure", FLOAT, -0.5), ("camera", STRING, "große"), ("empty", STRING, ""),
          ("stamp", TIME, 1_700_000_000_123_456_789), ("yes", BOOLEAN, 1), ("no", BOOLEAN, 0))
MANY = tuple((chr(0x21 + i), STRING, "") for i in range(90)) + (("n" * 63, STRING, "x" * 86),)  # 512 bytes


def step_metadata(link):
    sizes, count = (0, 1, 40, 56, 57, 513, 4096, 9000, 100_000), 0
    for meta in (VALUES, MANY, VALUES[:1]):
        for size in sizes:
            for tight in (False, True):
                link.send(pattern(size, size), tight=tight, meta=meta)
                expect(link, pattern(size, size), f"{size} bytes with metadata")
                count += 1
    return f"{count} messages"


def step_tensor_metadata(link):
    """What echoes tensors echoes their metadata, too."""
    for tensors in ([sample(11, (4, 3))], [sample(2, (9000,), 3, name="a"), *freeze(sample(8, (5,)))], []):
        for meta in (VALUES, MANY, ()):
            send_with_text(link, *tensors, meta=meta)
            received = expect_tensors(link, tensors, "tensors with metadata")
            demand(received.meta == meta, f"metadata came back as {received.meta}, not {meta}")
    return "9 sets"


def step_wrap(link):
    count, body = 3000, lambda i: pattern(i * 37 % 1500, i)
    for i in range(count + 4):  # four are on their way
        if i < count:
            link.send(body(i), tight=i % 3 == 0)
        if i >= 4:
            expect(link, body(i - 4), f"message {i - 4}")
    return f"{count} messages, our ring {link.head // link.our_capacity} times, theirs {link.at // link.their_capacity}"


def step_batch(link):
    sizes = (0, 3, 56, 57, 64, 200, 512, 513, 1000, 8, 0)
    for turn in range(40):
        bodies = [pattern(size + turn, turn) for size in sizes]
        link.publish(*((MESSAGE | (TIGHT if (turn + i) % 4 == 0 else 0), body) for i, body in enumerate(bodies)))
        for i, body in enumerate(bodies):
            expect(link, body, f"batch {turn}, record {i}")
    return f"40 batches of {len(sizes)} messages"


def step_full_rings(link):
    """Fills both rings without reading; then their writer must be woken, and ours must once have slept for room."""
    body, sent, seen, turns = lambda i: pattern(100 + i % 5, i), 0, 0, 0

    def both_full():
        nonlocal sent
        stuck = link.peer_parks(SENDER_STATE)
        while link.send(body(sent), wait=False):
            sent += 1
        return stuck

    def turn():
        nonlocal sent, seen, turns
        wait_for(both_full, "the peer parks for room")
        while link.at - link.published & MASK < link.their_capacity * 3 // 4:
            expect(link, body(seen), f"message {seen} of a full ring", lag=True)
            seen += 1
        link.send(body(sent))  # gives their ring back only now, so that there is hardly room yet
        sent, turns = sent + 1, turns + 1
        return link.slept[SENDER_STATE]

    # Rings that are full for the first time make way for longer ones, if there are some.
    wait_for(both_full, "the peer parks for room")
    for i in range(sent):
        expect(link, body(i), f"message {i} of a full ring")
    seen = sent
    wait_for(turn, "we sleep for room")
    for i in range(seen, sent):
        expect(link, body(i), f"message {i} of a full ring")
    return f"{turns} times; {sent} messages"


def step_long(link):
    generations = []
    for turn in range(12):
        bodies = [pattern(length + turn, turn) for length in (1 << 20, (1 << 20) - 4097, 9000)]
        for body in bodies:
            link.send(body)
        held = [expect(link, body, f"long message, round {turn}", hold=True) for body in bodies]
        generations += [received.loan[1] for received in held if received.loan]
        for received in reversed(held):  # §9: in any order
            link.give_back(received)
    demand(0 not in generations and len(set(generations)) == len(generations), "a generation came twice, or 0")
    return f"36 messages, {len(generations)} of them came pooled; ours lay in {len(link.pool.segments)} segments"


def step_loans(link):
    """Borrows until their writer waits for a loan, then returns them from the last to the first."""
    bodies = [pattern(link.their_capacity + i, i) for i in range(LOAN_SLOTS + 1)]  # too long for their ring
    for body in bodies:
        link.send(body)
    wait_for(lambda: link.peer_parks(SENDER_STATE), "the peer parks for a loan")
    held = [expect(link, body, f"loan {i}", hold=True) for i, body in enumerate(bodies[:-1])]
    demand(len({received.loan[0] for received in held}) == LOAN_SLOTS, "not every slot is lent")
    for received in reversed(held):
        link.give_back(received)
    expect(link, bodies[-1], "the last loan")
    return f"{LOAN_SLOTS} at once"


def step_requests(link):
    asked = {7: b"", 1 << 63: pattern(10, 1), 9: pattern(300, 2), 8: pattern(5000, 3), 0: pattern(100_000, 4)}
    for _ in range(3):  # what was answered may be asked under the same id again
        for ident, body in asked.items():
            link.send(body, REQUEST, ident)
        waiting = dict(asked)
        while waiting:
            received = link.receive()
            demand(received and received.kind == RESPONSE, "no response to a request")
            demand(received.body == waiting.pop(received.ident, None), f"another response to {received.ident}")
            link.give_back(received)
    return f"3 times {len(asked)}, answered"


def step_park(link):
    for _ in range(20):
        wait_for(lambda: link.peer_parks(RECEIVER_STATE), "the peer parks for a record")
        link.send(b"wake up")
        expect(link, b"wake up", "a message to a parked peer")
    demand(link.slept[RECEIVER_STATE], "we never slept for a record")
    return "20 times"


def step_types(link):
    count, whole = 0, (2, 1, 3, 1, 2, 1, 1, 2)
    for dtype in DTYPES:
        for rank in range(MAX_RANK + 1):
            lent, inline = (sample(dtype, whole[:rank], rank, place=place, wide=bool(count & 1))
                            for place in (ATTACHED, INLINE))
            for tensor in (lent, inline, *freeze(lent)):
                send_with_text(link, tensor, tight=count % 3 == 0)
                expect_tensors(link, [tensor], f"{DTYPES[dtype][0]} of rank {rank}")
                count += 1
    return f"{count} tensors"


def step_sets(link):
    fp32, uint8, uint16 = 11, 2, 3
    small = [sample(dtype, (3, 2), dtype, name=f"t{dtype}", place=INLINE) for dtype in DTYPES]
    large = [sample(uint8, (5000 * i,), i, name=f"große Nr. {i}") for i in range(1, 9)]
    frozen = freeze(*(sample(fp32, (i, 7), i, wide=True) for i in range(1, 40)))
    empty = [Tensor(fp32, (3, 0, 1 << 40), b"", "none", wide=True), Tensor(BYTES, (0,), b"", place=INLINE),
             Tensor(uint16, (0, 1 << 31, 1 << 31), b""), *freeze(Tensor(uint16, (0,), b""))]
    sets = {
        "none": [], "small ones": small, "large ones": large, "frozen ones": frozen, "empty ones": empty,
        "all at once": [one for four in itertools.zip_longest(small, large, frozen, empty) for one in four if one],
        "long names": [sample(uint8, (i,), name="ü" * 127 + chr(97 + i), place=INLINE) for i in range(10)],
        "255 attachments": freeze(*(sample(uint8, (i,)) for i in range(255))),
        "1024 tensors": [sample(uint8, (), i, place=INLINE) for i in range(1024)],
        "a long description": [*small, *(sample(uint8, (), i, name=f"weight {i:050}", place=INLINE) for i in range(20000))]}
    for what, tensors in sets.items():
        for tight in (False, True):
            send_with_text(link, *tensors, tight=tight)
            expect_tensors(link, tensors, what)
    return ", ".join(sets)


def step_tensor_requests(link):
    asked = {7: [], 1 << 63: [sample(8, (3,), 1)], 9: [sample(2, (9000,), 2, name="a"), *freeze(sample(11, (4,)))],
             0: [sample(1, (70_000,), 3)]}
    for meta in ((), VALUES):
        for ident, tensors in asked.items():
            link.send_tensors(*tensors, kind=TENSOR_REQUEST, ident=ident, meta=meta)
        waiting = dict(asked)
        while waiting:
            received = link.receive()
            demand(received and received.kind == TENSOR_RESPONSE, "no response to a request with tensors")
            tensors = waiting.pop(received.ident, None)
            demand(tensors is not None and len(tensors) == len(received.tensors), f"a response to {received.ident}")
            demand(all(came.same(went) for came, went in zip(received.tensors, tensors)), "other tensors")
            demand(received.meta == meta, f"metadata came back as {received.meta}, not {meta}")
            link.give_back(received)
    return f"2 times {len(asked)}, answered"


def step_tensor_batches(link):
    """Records of tensors among messages, published at once."""
    frozen = freeze(sample(12, (100,)))
    for turn in range(40):
        tensors = [sample(8, (2, 50), turn, name="lent"), sample(5, (turn,), place=INLINE), *frozen]
        record = link.record_of(tensors)
        tight = TIGHT if turn % 3 == 0 else 0
        body = pattern(turn * 3, turn)
        link.publish((MESSAGE, text(tensors)), (record[0] | tight, record[1]), (MESSAGE | tight, body))
        frozen[0].segment.named = link.head
        expect_tensors(link, tensors, f"batch {turn}")
        expect(link, body, f"batch {turn}, message")
    return "40 batches"


def step_tensor_loans(link):
    """Borrows until their writer waits for a loan, then returns them from the last to the first."""
    tensors = [sample(2, (link.their_capacity + i,), i) for i in range(LOAN_SLOTS + 1)]  # none fits into their ring
    held = []
    for tensor in tensors:
        if len(held) == LOAN_SLOTS:
            link.send_tensors(tensor)
        else:
            send_with_text(link, tensor)
            held.append(expect_tensors(link, [tensor], f"loan {len(held)}", hold=True))
    demand({received.tensors[0].loan[0] for received in held} == set(range(LOAN_SLOTS)), "not every slot is lent")
    wait_for(lambda: link.peer_parks(SENDER_STATE), "the peer parks for a loan")
    for received in reversed(held):
        link.give_back(received)
    received = link.receive()
    demand(received.tensors[0].same(tensors[-1]), "the last loan")
    link.give_back(received)
    return f"{LOAN_SLOTS} at once"


def step_churn(link):
    """Many exchanges, several on their way; what either side has sent of its memory must not grow."""
    def tensors(i):
        found = [sample(2, (1000 + i % 7 * 3000,), i, name="lent"), sample(11, (i % 50, 2), i, place=INLINE)]
        return found + freeze(sample(3, (i,))) if i % 10 == 0 else found

    numbers, most, waits = set(), 0, collections.deque()
    for i in range(1000):
        waits.append(tensors(i))
        send_with_text(link, *waits[-1])
        link.send(pattern(i, i))
        if i >= 2:
            expect_tensors(link, waits.popleft(), f"exchange {i - 2}")
            expect(link, pattern(i - 2, i - 2), f"message {i - 2}")
        most = max(most, len(link.their_segments))
        numbers |= {number for number, segment in link.their_segments.items() if not segment.frozen}
    for i in (998, 999):
        expect_tensors(link, waits.popleft(), f"exchange {i}")
        expect(link, pattern(i, i), f"message {i}")
    demand(not link.borrowed, "loans are left")
    return (f"1000 exchanges; {len(numbers)} of their pool segments came, {most} segments at once, "
            f"{len(link.inodes)} in all; ours lay in {len(link.pool.segments)} and {len(link.pool.frozen)} are frozen")


def step_close(link):
    link.close_sending()
    demand(link.receive() is None, "a record after our close, not the peer's close")
    wait_for(lambda: link.theirs.load(SENDER_STATE) == GONE, "the peer's sender state is 3")
    link.finish()
    demand(link.peer_reads_no_more(), "the peer's receiver state is not 3 at its end")
    return "both sides in order"


def dial(name):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
    sock.settimeout(DEADLINE)
    sock.connect("\0" + name)
    pid, uid, _ = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12))
    demand(uid == os.geteuid(), f"the listener is of user {uid}")
    link = Link(sock, connecting=True)
    print(f"handshake: process {pid}, ring of {link.their_capacity}, {link.their_slots} loan slots", flush=True)
    return link


def take_steps(link, *steps):
    for step in (*steps, step_close):
        print(f"{step.__name__.removeprefix('step_')}: {step(link)}", flush=True)


def connect(name, requests):
    steps = [step_sizes, step_metadata, step_wrap, step_batch, step_full_rings, step_long, step_loans, step_park]
    take_steps(dial(name), *steps, *[step_requests] * requests)


def tensors(name):
    take_steps(dial(name), step_types, step_sets, step_tensor_metadata, step_tensor_requests, step_tensor_batches, step_tensor_loans, step_churn)


def accept(name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)  # accepted sockets inherit it
        listener.bind("\0" + name)
        listener.listen()
        listener.settimeout(DEADLINE)
        print("listening", flush=True)
        sock, _ = listener.accept()
    return Link(sock, connecting=False)


def part(link, done):
    link.close_sending()
    link.finish()
    print(f"closed: both sides in order; {done}, {link.slept[RECEIVER_STATE]} sleeps for a record, "
          f"{link.slept[SENDER_STATE]} for room, {link.again} pool segments came again, "
          f"the peer was {'hot' if link.met_hot else 'never hot'}", flush=True)


def sent_on(tensor):
    """A tensor that came, to be sent: as it came, so a frozen one lies where it lay."""
    frozen = tensor.segment and tensor.segment.frozen
    segment = Frozen(os.dup(tensor.segment.fd), tensor.segment.length) if frozen else None
    return dataclasses.replace(tensor, segment=segment, loan=None)


def listen(name):
    link, count = accept(name), 0
    while received := link.receive():
        demand(received.kind not in (RESPONSE, TENSOR_RESPONSE), "a response to no request")
        link.give_back(received)
        if received.kind >= TENSORS:
            kind = TENSOR_RESPONSE if received.kind == TENSOR_REQUEST else TENSORS
            link.send_tensors(*map(sent_on, received.tensors), meta=received.meta, kind=kind, ident=received.ident)
        else:
            kind = RESPONSE if received.kind == REQUEST else MESSAGE
            link.send(received.body, kind, received.ident, meta=received.meta)
        count += 1
    part(link, f"echoed {count}")


def tell(name):
    link, holding, held, count = accept(name), False, [], 0
    link.eager = True
    while received := link.receive():
        if received.kind == TENSORS:
            held.append(received)
            answer, count = text(received.tensors), count + 1
        else:
            link.give_back(received)
            demand(received.body in (b"hold", b"give back"), "an unknown command")
            holding = received.body == b"hold"
            answer = b"%d loans" % len(link.borrowed)
        while held and not holding:
            link.give_back(held.pop())
        link.send(answer)
    part(link, f"told {count}")


def main():
    try:
        demand(platform.machine() == "x86_64", "only for x86-64")
        match sys.argv[1:]:
            case ["connect", name]:
                connect(name, requests=False)
            case ["connect", name, "requests"]:
                connect(name, requests=True)
            case ["tensors", name]:
                tensors(name)
            case ["listen", name]:
                listen(name)
            case ["tell", name]:
                tell(name)
            case _:
                sys.exit("usage: peer.py connect NAME [requests] | peer.py tensors|listen|tell NAME")
    except (Failure, OSError) as failure:  # our end without a close is how a fault ends a link (§10)
        sys.exit(f"peer.py: {failure}")


if __name__ == "__main__":
    main()
