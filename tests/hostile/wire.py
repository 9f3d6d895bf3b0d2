"""The honest minimum of a peer, from docs/wire.md alone: packets, handshake, segments, rings, loans.

Every step can be taken with other bytes than it should be: packets are built by `packet`, a Hello by
`hello` with changed fields, a record's header word is the caller's if it wants.
"""

import array
import ctypes
import fcntl
import mmap
import os
import select
import socket
import struct
import time

import kernel

MAGIC = b"slipring"
HELLO, REFUSAL, SEGMENT, RETIRE, WAKE = range(1, 6)
MESSAGE, REQUEST, RESPONSE, CLOSE, TRIGGER, PACKETS, TENSORS, TENSOR_REQUEST, TENSOR_RESPONSE, MOVED = range(1, 11)
MORE, POOLED, TIGHT = 1 << 8, 1 << 9, 1 << 10
POSITION, RECEIVER_STATE, SENDER_STATE, DATA_BELL, ROOM_BELL, RELEASED, FILLED, LOANS = (
    0x200, 0x40, 0x48, 0x80, 0x88, 0xC0, 0x300, 0x1000)
PAGE = mmap.PAGESIZE
SEALS = kernel.SEAL_SEAL | kernel.SEAL_SHRINK | kernel.SEAL_GROW | kernel.SEAL_FUTURE_WRITE
FROZEN = kernel.SEAL_SEAL | kernel.SEAL_SHRINK | kernel.SEAL_GROW | kernel.SEAL_WRITE
ONE_MIB = 1 << 20

# The fields of each packet: offset, bytes, honest value.
HEAD = {"magic": (0, 8, int.from_bytes(MAGIC, "little")), "kind": (8, 2, HELLO), "head.zero": (10, 2, 0)}
HELLO_FIELDS = HEAD | {
    "descriptors": (12, 4, 1),
    "version_min": (16, 2, 1),
    "version_max": (18, 2, 1),
    "architecture": (20, 4, 0x060C0108),
    "flags": (24, 4, 0),
    "role": (28, 4, 0),
    "control_len": (32, 8, 8192),
    "ring_capacity": (40, 8, 65536),
    "loan_slots": (48, 4, 256),
    "numa_node": (52, 4, 0xFFFFFFFF),
    "max_message": (56, 8, 1 << 30),
    "pool_limit": (64, 8, 1 << 32),
    "policy": (72, 4, 0),
    "depth": (76, 4, 0),
    "hello.zero": (80, 8, 0),
    "hello.zero.last": (120, 8, 0),
}
PACKET_FIELDS = {
    SEGMENT: HEAD | {"descriptors": (12, 4, 1), "segment": (16, 4, 0), "flags": (20, 4, 0), "len": (24, 8, ONE_MIB)},
    RETIRE: HEAD | {"descriptors": (12, 4, 0), "segment": (16, 4, 0)},
    WAKE: HEAD | {"descriptors": (12, 4, 0), "reason": (16, 4, 1)},
    REFUSAL: HEAD
    | {"descriptors": (12, 4, 0), "version_min": (16, 2, 1), "version_max": (18, 2, 1), "code": (20, 4, 2)},
}


class Refused(Exception):
    """A Refusal, with its code, and how many descriptors came along."""

    def __init__(self, code, descriptors):
        super().__init__(f"refused with {code}")
        self.code, self.descriptors = code, descriptors


class Ended(Exception):
    """The other side ended the socket."""


def packet(kind, /, **changes):
    """The 128 bytes of a packet, with some fields as the caller wants them."""
    fields = HELLO_FIELDS if kind == HELLO else PACKET_FIELDS[kind]
    out = bytearray(128)
    for name, (offset, size, honest) in fields.items():
        value = changes.get(name, kind if name == "kind" else honest)
        out[offset : offset + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(out)


def control_len(slots):
    return (4096 + 8 * slots + PAGE - 1) // PAGE * PAGE


def memfd(length, allocated=True, flags=0):
    fd = os.memfd_create("hostile", kernel.MFD_CLOEXEC | kernel.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, length)
    if allocated and length:
        os.posix_fallocate(fd, 0, length)
    return fd


class Segment:
    """A segment of ours: sealed, and mapped by us alone for writing."""

    def __init__(self, length):
        self.fd, self.length = memfd(length), length
        self.bytes = mmap.mmap(self.fd, length)
        fcntl.fcntl(self.fd, kernel.F_ADD_SEALS, SEALS)
        self.words = memoryview(self.bytes).cast("Q")
        self.anchor = ctypes.c_char.from_buffer(self.bytes)
        self.address = ctypes.addressof(self.anchor)

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def frozen(content):
    """A descriptor of a segment that nobody can write any more."""
    fd = memfd((len(content) + PAGE - 1) // PAGE * PAGE)
    os.pwrite(fd, content, 0)
    fcntl.fcntl(fd, kernel.F_ADD_SEALS, FROZEN)
    return fd


def dial(name, patience=5):
    """A connected socket, with the address taken by somebody whom we have not looked at."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(patience)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    end.connect("\0" + name)
    return end


def credentials():
    return socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("=iII", os.getpid(), os.geteuid(), os.getegid())


def send_packet(end, body, descriptors=(), flags=0, false_credentials=None):
    ancillary = [false_credentials or credentials()]
    if descriptors:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors)))
    return end.sendmsg([body], ancillary, flags | socket.MSG_NOSIGNAL)


def receive_packet(end, flags=0):
    """A packet and its descriptors. `Ended` at the end of the socket."""
    for attempt in (1, 2):
        try:
            room = socket.CMSG_SPACE(12) + socket.CMSG_SPACE(4 * 8)
            body, ancillary, _, _ = end.recvmsg(256, room, flags | socket.MSG_CMSG_CLOEXEC)
            break
        except ConnectionResetError:
            if attempt == 2:
                raise Ended from None
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) // 4 * 4])
    if not body:
        raise Ended
    return body, list(found)


def greet(end, body, descriptors):
    """Sends a first packet of whatever kind and takes the answer: the server's Hello and its segment."""
    try:
        send_packet(end, body, descriptors)
    except (BrokenPipeError, ConnectionResetError):
        pass  # a Refusal can be there already
    return answer(end)


def answer(end):
    body, found = receive_packet(end)
    if struct.unpack_from("<H", body, 8)[0] == REFUSAL:
        raise Refused(struct.unpack_from("<I", body, 20)[0], len(found))
    return body, found


def has_ended(end):
    """Whether the other side has ended the socket, without reading it."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    return bool(poll.poll(0))


def ended_within(end, seconds):
    """How many milliseconds it takes until the other side ends the socket; None if it does not."""
    start, poll = time.monotonic(), select.poll()
    poll.register(end, select.POLLRDHUP)
    return (time.monotonic() - start) * 1e3 if poll.poll(seconds * 1e3) else None


class Link:
    """A link to a server, of which we are the connecting side."""

    def __init__(self, name, ring=65536, slots=256, end=None, fill=None, **changes):
        self.base, self.ring, self.slots = control_len(slots), ring, slots
        self.own = Segment(self.base + ring)
        if fill:
            fill(self)
        self.head = self.read = 0
        self.after_more = False
        self.pools, self.attended = {}, {}
        self.end = end or dial(name)
        told = {"ring_capacity": ring, "loan_slots": slots, "control_len": self.base} | changes
        body, found = greet(self.end, packet(HELLO, **told), [self.own.fd])
        self.end.settimeout(None)  # Python waits in spite of MSG_DONTWAIT where there is a timeout
        self.their_slots, = struct.unpack_from("<I", body, 48)
        self.their_base, self.their_ring = struct.unpack_from("<QQ", body, 32)
        self.their_fd, = found
        length = self.their_base + self.their_ring
        self.theirs = mmap.mmap(self.their_fd, length, mmap.MAP_SHARED, mmap.PROT_READ)
        self.their_words = memoryview(self.theirs).cast("Q")
        self.their_records, self.record_words = self.theirs, self.their_words  # of their second ring, once they have moved

    def leave(self):
        """Lets go of everything, without a word."""
        self.end.close()
        self.own.close()
        if self.pool is not None:
            self.pool.close()
        os.close(self.their_fd)
        for fd, mapping in self.pools.values():
            os.close(fd)
            mapping.close()
        self.pools = {}

    # Writing.

    def store(self, offset, value):
        self.own.words[offset // 8] = value & (1 << 64) - 1

    def ring_bell(self, bell=DATA_BELL):
        """Wakes a parked sleeper by its bell, and an armed one by a packet, once an epoch."""
        self.store(bell, self.own.words[bell // 8] + 1)
        kernel.futex_wake(self.own.address + bell)  # has a full fence
        state = self.their_words[(RECEIVER_STATE if bell == DATA_BELL else SENDER_STATE) // 8]
        if state & 7 == 2 and self.attended.get(bell) != state:
            self.attended[bell] = state
            try:
                self.say(WAKE, (), socket.MSG_DONTWAIT, reason=1 if bell == DATA_BELL else 2)
            except OSError:
                pass  # a full queue wakes it as well, and the end of the socket is seen elsewhere

    def at(self, position):
        return self.base + position % self.ring

    def write(self, payload, kind=MESSAGE, flags=0, header=None, ring=True):
        """Publishes a record, without looking for room. The header word can be another one than is right;
        what follows stands where it would for the right one. Where the header went."""
        tight = len(payload) <= 56 or flags & TIGHT or self.after_more
        start = self.head + (8 if tight else 64)
        rounding = 8 if flags & (MORE | TIGHT) else 64
        following = (start + len(payload) + rounding - 1) // rounding * rounding
        first = min(len(payload), self.ring - start % self.ring)
        at = self.at(start)
        self.own.bytes[at : at + first] = payload[:first]
        self.own.bytes[self.base : self.base + len(payload) - first] = payload[first:]
        self.store(self.at(following), 0)
        right = kind | flags | len(payload) << 32
        place = self.at(self.head)
        self.store(place, right if header is None else header)
        self.head, self.after_more = following, bool(flags & MORE)
        if ring:
            self.ring_bell()
        return place

    def room(self):
        return self.ring - 128 - (self.head - self.their_words[POSITION // 8])

    # Packets.

    def say(self, kind, descriptors=(), how=0, /, **changes):
        """Sends a packet, with some fields as the caller wants them."""
        send_packet(self.end, packet(kind, **changes), descriptors, how)

    def take_packets(self):
        while True:
            try:
                body, found = receive_packet(self.end, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            kind, = struct.unpack_from("<H", body, 8)
            number, flags, length = struct.unpack_from("<IIQ", body, 16)
            if kind == SEGMENT and flags == 2:
                self.second_ring = mmap.mmap(found[0], length, mmap.MAP_SHARED, mmap.PROT_READ)
            elif kind == SEGMENT:
                mapping = mmap.mmap(found[0], length, mmap.MAP_PRIVATE if flags else mmap.MAP_SHARED, mmap.PROT_READ)
                self.pools[number] = (found[0], mapping)
            elif kind == RETIRE:
                pass  # what we have mapped stays

    # Reading.

    def take(self, publish=True, give_back=True):
        """The next record as (kind, message), or None. Loans are returned unless told otherwise."""
        base, ring = self.their_base, self.their_records
        header = self.record_words[(base + self.read % self.their_ring) // 8]
        if header == 0:
            return None
        if header == MOVED:
            self.move()
            return self.take(publish, give_back)
        kind, length = header & 0xFF, header >> 32
        start = self.read + (8 if length <= 56 or header & TIGHT or self.after_their_more else 64)
        rounding = 8 if header & (MORE | TIGHT) else 64
        at = start % self.their_ring
        first = min(length, self.their_ring - at)
        payload = ring[base + at : base + at + first] + ring[base : base + length - first]
        if kind == CLOSE:
            raise Ended
        if header & POOLED:
            payload = self.borrowed(payload[-32:], give_back)
        self.after_their_more = bool(header & MORE)
        self.read = (start + length + rounding - 1) // rounding * rounding
        if kind == TENSORS and give_back:
            for index in range(header >> 16 & 0xFF):
                self.borrowed(payload[32 * index : 32 * index + 32], True)
        if publish and self.publishes:
            self.store(POSITION, self.read)
            self.ring_bell(ROOM_BELL)
        return kind, payload

    after_their_more, publishes, second_ring = False, True, None

    def move(self):
        """Goes on in their second ring."""
        end = (self.read + 8 + 63) // 64 * 64
        while self.second_ring is None:
            self.take_packets()
        self.their_base, self.their_ring, self.their_records = 0, len(self.second_ring), self.second_ring
        self.record_words = memoryview(self.second_ring).cast("Q")
        self.read, self.after_their_more = (end + self.their_ring - 1) // self.their_ring * self.their_ring, False

    def borrowed(self, descriptor, give_back):
        number, slot, offset, length, generation = struct.unpack("<IIQQQ", descriptor)
        if number not in self.pools:
            self.take_packets()
        message = self.pools[number][1][offset : offset + length]
        self.loan = (number, slot, offset, length, generation)
        if give_back and slot != 0xFFFFFFFF:
            self.store(LOANS + 8 * slot, generation)
            self.ring_bell(ROOM_BELL)
        return message

    def recv(self, seconds=5, **how):
        """The next message. None in want of time; `Ended` when the other side is gone."""
        deadline = time.monotonic() + seconds
        while True:
            over = has_ended(self.end)
            found = self.take(**how)
            if found:
                if found[0] != PACKETS:
                    return found[1]
                self.take_packets()
            elif over:
                raise Ended
            elif time.monotonic() > deadline:
                return None

    def echo(self, message=b"honest", seconds=5):
        """Whether a message comes back."""
        self.write(message)
        return self.recv(seconds) == message

    # Long messages: one pool segment of ours, in which every message lies at the start.

    pool = None

    def give_pool(self, number=0, length=ONE_MIB, **changes):
        self.pool = Segment(length)
        self.say(SEGMENT, [self.pool.fd], **({"segment": number, "len": length} | changes))
        return self.pool

    def write_long(self, message, slot=0, generation=None, number=0, **how):
        if self.pool is None:
            self.give_pool(number)
        self.pool.bytes[: len(message)] = message
        return self.write(self.descriptor(length=len(message), slot=slot, generation=generation), flags=POOLED, **how)

    generations = 0

    def descriptor(self, number=0, slot=0, offset=0, length=20000, generation=None):
        self.generations += 1
        generation = self.generations if generation is None else generation
        return struct.pack("<IIQQQ", number, slot, offset, length, generation)
