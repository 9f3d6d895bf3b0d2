#!/usr/bin/env python3
"""An independent peer of the wire format (docs/wire.md), with Python's standard library alone.

    peer.py connect NAME [requests]   talks to a listener at @NAME that echoes messages, and checks what comes
                                      back; with "requests", the listener also answers requests with their body
    peer.py listen NAME               echoes messages and requests of one peer at @NAME until that one closes

Whatever fails ends it with exit code 1 and a line on stderr.

Written from wire.md and from nothing else; "§" cites it.  x86-64 Linux only: there stores are seen in order
and loads are done in order, so release and acquire need no instruction (§15); only full_barrier() is left.
Words are stored and loaded whole, through memoryview.cast("Q").
"""
import array
import collections
import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import select
import socket
import struct
import sys
import threading
import time

DEADLINE = 30.0  # seconds, for whatever is waited for
PAGE, MASK = mmap.PAGESIZE, (1 << 64) - 1

MAGIC, HELLO, REFUSAL, SEGMENT, RETIRE, WAKE = b"slipring", 1, 2, 3, 4, 5  # §2
HEAD, HELLO_BODY = struct.Struct("<8sHHI"), struct.Struct("<HH4sIIQQIIQQ56s")
ARCHITECTURE = bytes([8, 1, PAGE.bit_length() - 1, 6])
RING_CAPACITY, LOAN_SLOTS = 16384, 16  # of ours; small, so that they are soon used again
MAX_MESSAGE, POOL_LIMIT, IN_RING = 1 << 24, 3 << 23, 8192  # longer ones than IN_RING go through the pool
CONTROL_LEN = -(-(4096 + 8 * LOAN_SLOTS) // PAGE) * PAGE
POSITION, RECEIVER_STATE, SENDER_STATE, DATA_BELL, ROOM_BELL, RETURNED_LOANS = 0, 0x40, 0x48, 0x80, 0x88, 0x1000  # §5
AWAKE, PARKED, ARMED, GONE = 0, 1, 2, 3  # §7
MESSAGE, REQUEST, RESPONSE, CLOSE, TRIGGER, PACKETS = 1, 2, 3, 4, 5, 6  # §6
MORE, POOLED, TIGHT = 1 << 8, 1 << 9, 1 << 10
POOL_DESCRIPTOR = struct.Struct("<IIQQQ")  # §9: segment, slot, offset, len, generation
F_ADD_SEALS, F_GET_SEALS, SEALS, TMPFS_MAGIC = 1033, 1034, 0x17, 0x01021994  # §4
SO_PASSCRED, SO_PEERCRED, SCM_CREDENTIALS, POLLRDHUP = 16, 17, 2, 0x2000  # §1, §15
SYS_FUTEX, FUTEX_WAIT, FUTEX_WAKE, EVERYBODY, SYS_MEMBARRIER, GLOBAL_EXPEDITED = 202, 0, 1, 0x7FFFFFFF, 324, 2

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MEMBARRIER = libc.syscall(SYS_MEMBARRIER, GLOBAL_EXPEDITED, 0, 0) == 0

Received = collections.namedtuple("Received", "kind ident body loan")  # body: a copy; loan: (slot, generation) or None


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


def full_barrier(lock=threading.Lock()):
    """§7: taking a lock is a locked instruction, which is a full barrier on x86-64."""
    with lock:
        pass


def futex(address, operation, value, timeout=None):
    libc.syscall(SYS_FUTEX, ctypes.c_void_p(address), operation, ctypes.c_uint32(value), timeout, None, 0)


class Mapping:
    """A shared mapping: its bytes, its words, and addresses in it for the futex.  Through ctypes, as mmap.mmap
    does not tell the address of a read-only mapping."""

    def __init__(self, fd, length, writable=False):
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.address, self.length = libc.mmap(None, length, protection, mmap.MAP_SHARED, fd, 0), length
        demand(self.address not in (None, ctypes.c_void_p(-1).value), "mmap: " + os.strerror(ctypes.get_errno()))
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
        libc.munmap(self.address, self.length)


def make_segment(length):
    """§4: a memfd, allocated, mapped, then sealed.  Gives the mapping and the descriptor to send."""
    fd = os.memfd_create("peer.py", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, length)
    os.posix_fallocate(fd, 0, length)
    mapping = Mapping(fd, length, writable=True)
    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return mapping, fd


def map_segment(fd, length):
    """§4: checks the other side's segment, maps it for reading, and closes the descriptor."""
    flags, seals, status = fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, F_GET_SEALS), os.fstat(fd)
    filesystem = ctypes.create_string_buffer(256)
    demand(flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_PATH, "segment: not open for reading", 3)
    demand(libc.fstatfs(fd, filesystem) == 0, "segment: fstatfs", 3)
    demand(struct.unpack_from("q", filesystem)[0] == TMPFS_MAGIC, "segment: not on tmpfs", 3)
    demand(seals & SEALS == SEALS, f"segment: seals {seals:#x}", 3)
    demand(status.st_size == length <= status.st_blocks * 512, f"segment: {status.st_size} bytes, not {length}", 3)
    mapping = Mapping(fd, length)
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
    demand(kind == REFUSAL or descriptors == len(fds) == (kind in (HELLO, SEGMENT)), "packet: descriptors")
    return kind, packet, credentials, fds


def send_hello(sock, fd):
    send_packet(sock, HELLO, HELLO_BODY.pack(1, 1, ARCHITECTURE, MEMBARRIER, 0, CONTROL_LEN, RING_CAPACITY, LOAN_SLOTS,
                                             0xFFFFFFFF, MAX_MESSAGE, POOL_LIMIT, bytes(56)), fd)


def receive_hello(sock):
    """§2, §3: the terms of the other side's Hello, judged, and its segment, mapped."""
    got = receive_packet(sock)
    demand(got, "handshake: the socket ended")
    kind, packet, credentials, fds = got
    demand(kind != REFUSAL, "refused: versions %d to %d, code %d" % struct.unpack_from("<HHI", packet, 16))
    demand(kind == HELLO, f"handshake: packet of kind {kind}")
    demand(credentials, "handshake: no credentials")
    demand(credentials[1] == os.geteuid(), f"handshake: the Hello is of user {credentials[1]}", 1)
    (low, high, architecture, flags, token, control_len, capacity, loan_slots, node, max_message, pool_limit,
     zero) = HELLO_BODY.unpack_from(packet, HEAD.size)
    demand(low <= 1 <= high, f"Hello: versions {low} to {high}")
    demand(architecture == ARCHITECTURE, f"Hello: architecture {architecture.hex()}")
    demand(flags <= 1 and token == 0 and not any(zero), "Hello: flags, token or zero")
    demand(PAGE <= capacity <= 1 << 30 and capacity & (capacity - 1) == 0, f"Hello: ring_capacity {capacity}")
    demand(1 <= loan_slots <= 65536, f"Hello: loan_slots {loan_slots}")
    demand(control_len == round_up(4096 + 8 * loan_slots, PAGE), f"Hello: control_len {control_len}")
    demand(1 <= max_message <= 1 << 40 and (node < 1024 or node == 0xFFFFFFFF), "Hello: max_message or numa_node")
    segment = map_segment(fds[0], control_len + capacity)
    return segment, control_len, capacity, loan_slots, min(max_message, MAX_MESSAGE), pool_limit


class Link:
    """A link: our segment, the other side's, the socket.  Opening one is the handshake (§3)."""

    def __init__(self, sock, connecting):
        sock.settimeout(DEADLINE)
        self.sock, self.poll = sock, select.poll()
        self.poll.register(sock, POLLRDHUP)
        self.ours, fd = make_segment(CONTROL_LEN + RING_CAPACITY)
        try:
            if connecting:
                send_hello(sock, fd)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a Refusal waits
        try:
            (self.theirs, self.their_control, self.their_capacity, self.their_slots, self.longest,
             self.their_pool_limit) = receive_hello(sock)
        except Failure as failure:
            if not connecting:
                with contextlib.suppress(OSError):  # it may be gone
                    send_packet(sock, REFUSAL, struct.pack("<HHI", 1, 1, failure.code))
            raise
        if not connecting:
            send_hello(sock, fd)
        os.close(fd)
        self.head = self.tail = 0  # of our ring: where we write; how far they read, as last loaded
        self.at = self.published = 0  # of their ring: where we read; the position that we told them
        self.after_more = False  # the record that we read before had MORE
        self.attended = {RECEIVER_STATE: 0, SENDER_STATE: 0}  # parked values that we rang for
        self.epoch, self.slept = 0, {RECEIVER_STATE: 0, SENDER_STATE: 0}
        self.their_segments, self.inodes, self.again = {}, {}, 0  # inodes: of every number that ever came
        self.pool = Pool(self)
        threading.Thread(target=self.watch, daemon=True).start()

    # §7 Sleeping and waking

    def ring(self, state_at, bell_at, again=False):
        """Wakes the other side's sleeper, if it sleeps."""
        full_barrier()
        state = self.theirs.load(state_at)
        demand(state in (AWAKE, GONE) or state & 3 in (PARKED, ARMED), f"state {state:#x} at {state_at:#x}")
        if state in (AWAKE, GONE) or state == self.attended[state_at] and not again:
            return
        self.attended[state_at] = state
        if state & 3 == ARMED:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it can be read already; it is gone
                send_packet(self.sock, WAKE, struct.pack("<I", 1 if state_at == RECEIVER_STATE else 2))
        else:
            self.ours.store(bell_at, self.ours.load(bell_at) + 1)
            futex(self.ours.address + bell_at, FUTEX_WAKE, EVERYBODY)

    def sleep_until(self, ready, state_at, bell_at, what):
        """Parks on the other side's bell until `ready()`.  It fails at the end of the peer, and if nobody rings."""
        self.publish_position()  # §6; also before we wait for room, as the other side may wait for room, too
        deadline, timeout = time.monotonic() + DEADLINE, (ctypes.c_long * 2)(int(DEADLINE), 0)
        while True:
            bell = self.theirs.load(bell_at) & 0xFFFFFFFF
            self.epoch += 1
            self.ours.store(state_at, self.epoch << 2 | PARKED)
            full_barrier()
            if MEMBARRIER:
                libc.syscall(SYS_MEMBARRIER, GLOBAL_EXPEDITED, 0, 0)
            ended = self.ended()  # before we look: what was published before the end counts
            if ready():
                break
            demand(not ended, f"the peer died; waited for {what}")
            futex(self.theirs.address + bell_at, FUTEX_WAIT, bell, timeout)
            self.slept[state_at] += 1
            demand(time.monotonic() < deadline, f"deadline: {what}")  # not looked again: a lost wake-up must show
        self.ours.store(state_at, AWAKE)

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
                futex(self.theirs.address + bell_at, FUTEX_WAKE, EVERYBODY)
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
        limit = RING_CAPACITY - 128 - size
        if self.head - self.tail & MASK > limit:
            tail = self.theirs.load(POSITION)
            demand(tail % 8 == 0 and (tail - self.tail & MASK) <= (self.head - self.tail & MASK), f"position {tail}")
            self.tail = tail
        return self.head - self.tail & MASK <= limit

    def header_at(self, position):
        return CONTROL_LEN + position % RING_CAPACITY

    def publish(self, *records, wait=True):
        """One record or a batch, of (kind and flags, payload); MORE is set here.  False: no room, and not waited."""
        placed, position, after_more = [], self.head, False
        for index, (header, payload) in enumerate(records):
            header |= MORE if index + 1 < len(records) else 0
            start = position + (8 if len(payload) <= 56 or header & TIGHT or after_more else 64)
            placed.append((position, header | len(payload) << 32, start, payload))
            position = round_up(start + len(payload), 8 if header & (MORE | TIGHT) else 64)
            after_more = header & MORE
        size = position - self.head
        demand(size <= RING_CAPACITY - 128, "a batch longer than the ring")
        demand(not self.peer_reads_no_more(), "the peer has closed")  # §10
        if not wait and not self.room(size):
            return False
        self.wait_as_writer(lambda: self.room(size), "room in our ring")
        ring = self.ours.bytes[CONTROL_LEN:]
        for place, header, start, payload in placed:
            at = start % RING_CAPACITY
            first = min(len(payload), RING_CAPACITY - at)
            ring[at:at + first] = payload[:first]
            ring[:len(payload) - first] = payload[first:]  # Wrap
            if place != self.head:
                self.ours.store(self.header_at(place), header)
        self.ours.store(self.header_at(position), 0)
        self.ours.store(self.header_at(self.head), placed[0][1])  # last: now all of it is visible
        self.head = position & MASK
        self.ring(RECEIVER_STATE, DATA_BELL)
        return True

    def send(self, body, kind=MESSAGE, ident=None, tight=False, wait=True):
        """A message, request or response; a long one through the pool."""
        demand(len(body) <= self.longest, "longer than the link's longest message")
        prefix = b"" if ident is None else struct.pack("<Q", ident)  # §8
        if len(body) > IN_RING:
            return self.publish((kind | POOLED, prefix + self.pool.lend(body)))
        return self.publish((kind | (TIGHT if tight else 0), prefix + body), wait=wait)

    # §6 Reading

    def header(self):
        return self.theirs.load(self.their_control + self.at % self.their_capacity)

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
            if received is None or received.kind < CLOSE:
                return received
            if received.kind == PACKETS:
                while self.read_pool_packet(must=False):
                    pass

    def receive_record(self, lag):
        if not self.header():
            demand(not self.after_more, "no header after MORE")
            self.sleep_until(self.header, RECEIVER_STATE, DATA_BELL, "a record")
        header = self.header()
        kind, length = header & 0xFF, header >> 32
        prefix = 8 if kind in (REQUEST, RESPONSE) else 0
        if header == CLOSE:
            self.publish_position()
            return None
        demand(MESSAGE <= kind <= PACKETS and kind != CLOSE and header & 0xFFFFF800 == 0, f"header {header:#x}")
        demand(kind < CLOSE or length == (4 if kind == TRIGGER else 0) and not header & POOLED, f"header {header:#x}")
        demand(prefix <= length <= self.their_capacity - 192, f"header {header:#x}")
        demand(not header & POOLED or length == prefix + 32, f"header {header:#x}")
        start = self.at + (8 if length <= 56 or header & TIGHT or self.after_more else 64)
        at, ring = start % self.their_capacity, self.theirs.bytes[self.their_control:]
        payload = bytes(ring[at:at + length])  # the slice ends with the ring, then it goes on at 0
        payload += ring[:length - len(payload)]
        self.after_more = bool(header & MORE)
        self.at = round_up(start + length, 8 if header & (MORE | TIGHT) else 64) & MASK
        if self.at - self.published & MASK >= self.their_capacity // 8 and not lag:
            self.publish_position()
        ident = struct.unpack_from("<Q", payload)[0] if prefix else None
        body, loan = self.borrow(payload[prefix:]) if header & POOLED else (payload[prefix:], None)
        demand(len(body) <= self.longest, "a message longer than the link's longest")
        return Received(kind, ident, body, loan)

    # §9 Long messages: the other side's pool

    def borrow(self, descriptor):
        """A copy of the message that a pool descriptor names, and the loan."""
        number, slot, offset, length, generation = POOL_DESCRIPTOR.unpack(descriptor)
        demand(length <= self.longest and slot < LOAN_SLOTS and offset % 64 == 0, f"pool: {length} {slot} {offset}")
        for _ in range(128):
            if number in self.their_segments:
                break
            self.read_pool_packet()
        demand(number in self.their_segments, f"pooled.segment {number} unknown")
        segment = self.their_segments[number]
        demand(offset + length <= segment.length, f"pool: {offset} + {length} is not inside of the segment")
        return bytes(segment.bytes[offset:offset + length]), (slot, generation)

    def read_pool_packet(self, must=True):
        """Takes a Segment or a Retire from the socket, which `must` be there already.  False: there is none."""
        self.sock.settimeout(0)
        try:
            got = receive_packet(self.sock)
        except BlockingIOError:
            got = None
        self.sock.settimeout(DEADLINE)
        demand(got or not must, "a record names a pool segment that no packet brought")
        if not got:
            return False
        kind, packet, _, fds = got
        number, zero, length = struct.unpack_from("<IIQ", packet, 16)
        if kind == RETIRE:
            if number in self.their_segments:
                self.their_segments.pop(number).unmap()
            return True
        demand(kind == SEGMENT, f"packet of kind {kind} after the handshake")
        known = [segment.length for segment in self.their_segments.values()]
        demand(len(known) < 1024 and sum(known) + length <= POOL_LIMIT, "the peer's pool is too large")
        demand(length and length % PAGE == 0 and zero == 0, "segment.len or segment.zero")
        demand(number not in self.their_segments, f"segment.segment {number} again")
        self.again += number in self.inodes
        inode = os.fstat(fds[0]).st_ino
        demand(self.inodes.setdefault(number, inode) == inode, f"segment.segment {number} was another segment before")
        self.their_segments[number] = map_segment(fds[0], length)
        return True

    def give_back(self, received):
        """Returns the loan of a record, if it has one."""
        if received.loan:
            slot, generation = received.loan
            self.ours.store(RETURNED_LOANS + 8 * slot, generation)
            self.ring(SENDER_STATE, ROOM_BELL)

    # §10 The end of a link

    def close_sending(self):
        if not self.peer_reads_no_more():
            self.ours.store(self.header_at(self.head), CLOSE)  # there is always room
            self.ring(RECEIVER_STATE, DATA_BELL)
        self.ours.store(SENDER_STATE, GONE)

    def finish(self):
        """After both closes: reads no more, ends the socket, and waits for the end of the other side."""
        self.ours.store(RECEIVER_STATE, GONE)
        self.ring(SENDER_STATE, ROOM_BELL, again=True)
        self.sock.shutdown(socket.SHUT_WR)
        wait_for(self.ended, "the peer's end of the socket")


class Pool:
    """§9: our pool: segments of three blocks, the blocks of a segment of one size; block i is lent in slot i.  Only
    one segment is with the other side at a time.  For another one it is retired, and later sent again."""

    def __init__(self, link):
        self.link, self.generation, self.segments = link, 0, {}  # block size: (number, mapping, descriptor)
        self.block_size, self.lent = 0, []  # of the segment that was sent; lent: the last generation in each slot

    def free_slots(self):
        word = lambda slot: self.link.theirs.load(RETURNED_LOANS + 8 * slot)
        return [slot for slot, generation in enumerate(self.lent) if generation in (0, word(slot))]

    def switch(self, block_size):
        """Waits for all loans, retires their segment, and sends the one of this block size."""
        self.link.wait_as_writer(lambda: len(self.free_slots()) == len(self.lent), "all loans")
        if self.block_size:
            send_packet(self.link.sock, RETIRE, struct.pack("<I", self.segments[self.block_size][0]))
        self.block_size = block_size
        self.lent = [0] * min(3, self.link.their_slots, self.link.their_pool_limit // block_size)
        demand(self.lent, "the peer's pool_limit is too low")
        if block_size not in self.segments:
            self.segments[block_size] = len(self.segments), *make_segment(len(self.lent) * block_size)
        number, mapping, fd = self.segments[block_size]
        send_packet(self.link.sock, SEGMENT, struct.pack("<IIQ", number, 0, mapping.length), fd)
        self.link.publish((PACKETS, b""))  # after 32 packets it must be; the more often, the better it is tried

    def lend(self, body):
        """Puts a message into a free block; gives the descriptor for the ring."""
        block_size = max(PAGE, 1 << (len(body) - 1).bit_length())
        if block_size != self.block_size:
            self.switch(block_size)
        self.link.wait_as_writer(self.free_slots, "a loan")
        number, mapping, _ = self.segments[block_size]
        slot = self.free_slots()[0]
        self.generation += 1
        self.lent[slot], offset = self.generation, slot * block_size
        mapping.bytes[offset:offset + len(body)] = body
        return POOL_DESCRIPTOR.pack(number, slot, offset, len(body), self.generation)


def pattern(length, seed):
    """A body that tells its place, so that a shifted or an old one shows."""
    block = bytes((seed * 31 + i * 7 + (i >> 8)) & 0xFF for i in range(min(length, 4096)))
    return (block * (length // 4096 + 1))[:length]


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
    sizes = (0, 1, 8, 56, 57, 64, 512, 513, 1000, 8192, 8193, 16384, 1 << 20)
    for tight in (False, True):
        for size in sizes:
            link.send(pattern(size, size), tight=tight)
            expect(link, pattern(size, size), f"{size} bytes")
    return f"{len(sizes)} sizes, without TIGHT and with it"


def step_wrap(link):
    count, body = 3000, lambda i: pattern(i * 37 % 1500, i)
    for i in range(count + 4):  # four are on their way
        if i < count:
            link.send(body(i), tight=i % 3 == 0)
        if i >= 4:
            expect(link, body(i - 4), f"message {i - 4}")
    return f"{count} messages, our ring {link.head // RING_CAPACITY} times, theirs {link.at // link.their_capacity}"


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


def step_close(link):
    link.close_sending()
    demand(link.receive() is None, "a record after our close, not the peer's close")
    wait_for(lambda: link.theirs.load(SENDER_STATE) == GONE, "the peer's sender state is 3")
    link.finish()
    demand(link.peer_reads_no_more(), "the peer's receiver state is not 3 at its end")
    return "both sides in order"


def connect(name, requests):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
    sock.settimeout(DEADLINE)
    sock.connect("\0" + name)
    pid, uid, _ = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12))
    demand(uid == os.geteuid(), f"the listener is of user {uid}")
    link = Link(sock, connecting=True)
    print(f"handshake: process {pid}, ring of {link.their_capacity}, {link.their_slots} loan slots", flush=True)
    steps = [step_sizes, step_wrap, step_batch, step_full_rings, step_long, step_loans, step_park]
    for step in steps + [step_requests] * requests + [step_close]:
        print(f"{step.__name__.removeprefix('step_')}: {step(link)}", flush=True)


def listen(name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)  # accepted sockets inherit it
        listener.bind("\0" + name)
        listener.listen()
        listener.settimeout(DEADLINE)
        print("listening", flush=True)
        sock, _ = listener.accept()
    link, count = Link(sock, connecting=False), 0
    while received := link.receive():
        demand(received.kind in (MESSAGE, REQUEST), "a response to no request")
        link.give_back(received)
        link.send(received.body, RESPONSE if received.kind == REQUEST else MESSAGE, received.ident)
        count += 1
    link.close_sending()
    link.finish()
    print(f"closed: both sides in order; echoed {count}, {link.slept[RECEIVER_STATE]} sleeps for a record, "
          f"{link.slept[SENDER_STATE]} for room, {link.again} pool segments came again", flush=True)


def main():
    try:
        demand(platform.machine() == "x86_64", "only for x86-64")
        match sys.argv[1:]:
            case ["connect", name]:
                connect(name, requests=False)
            case ["connect", name, "requests"]:
                connect(name, requests=True)
            case ["listen", name]:
                listen(name)
            case _:
                sys.exit("usage: peer.py connect NAME [requests] | peer.py listen NAME")
    except (Failure, OSError) as failure:  # our end without a close is how a fault ends a link (§10)
        sys.exit(f"peer.py: {failure}")


if __name__ == "__main__":
    main()
