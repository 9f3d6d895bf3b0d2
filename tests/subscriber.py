#!/usr/bin/env python3
"""An independent subscriber of a broadcast (docs/wire.md, §17), with Python's standard library alone.

    subscriber.py NAME every|newest:N|latest [armed]

It joins the publisher at @NAME, says `joined` with the terms, and then does what stands in the lines of its standard
input.  It answers each line with one line, but those of `all` and `take`.

    next        waits for the next message, and tells it: its number, how many were missed, what it is
    look        tells the next message, or `nothing`
    hold        as next, but keeps the memory
    drop        looks whether the memory that it keeps is unchanged, and gives it back
    take COUNT  that many messages, a line each
    all         the messages up to the end, a line each, and the end
    stats       how often it slept, was hot, holds, and what came
    leave       leaves in order
    lie NAME    does what NAME says to the publisher, until `stop` (lies.py)
    stop        stops lying

With `armed` it sleeps on its socket as an event loop does, otherwise on the publisher's bell.  Whatever fails ends it
with exit code 1 and a line on stderr.

Written from wire.md and from nothing else, over the link of peer.py, which is so, too.  x86-64 Linux only.
"""
import collections
import os
import select
import socket
import struct
import sys
import threading
import time
import zlib

import peer
from peer import (
    DATA_BELL, DEADLINE, GONE, META, NO_SLOT, PAGE, POOL_DESCRIPTOR, POOLED, POSITION, RECEIVER_STATE, ROOM_BELL,
    SENDER_STATE, Failure, demand, full_barrier, round_up)

RELEASED, REVOKED, EVICTED = 0xC0, 0xC8, 0xD0  # §5
HOLDS, NEWEST = 0x1000, 0x40  # §17
MESSAGE, TENSORS, SPILLED, TIGHT = 1, 7, 1 << 12, 1 << 10
POLICIES = {"every": 1, "newest": 2, "latest": 3}
EVERY, NEWEST_ONES, LATEST = 1, 2, 3
LONGEST_PAYLOAD = 1 << 20

Message = collections.namedtuple("Message", "number missed kind body tensors meta word places")


class Missed(Exception):
    """The message is gone, or cannot be read."""


class HoldLimit(Exception):
    """We hold as many messages as we may, and may not miss the next one."""


class Evicted(Exception):
    """By the publisher, with its reason."""


def dial(name):
    """§1: a socket that is connected to the listener at this name."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setsockopt(socket.SOL_SOCKET, peer.SO_PASSCRED, 1)
    sock.settimeout(DEADLINE)
    sock.connect("\0" + name)
    return sock


class Subscriber(peer.Link):
    """Opening one is the join.  `at` is the number of the next message, which is also what a position says."""
    hears = peer.PUBLISHER
    hot_after = 16  # messages

    def __init__(self, name, policy, depth=0, arms=False):
        self.policy, self.depth, self.arms = policy, depth, arms
        self.says = peer.SUBSCRIBER, policy, depth
        self.topic, self.abandoned = None, False
        super().__init__(dial(name), connecting=True)
        self.take_topic()
        end = self.newest() + 1
        self.at = self.first = min(self.first, end) if self.first else max(1, end - self.history)
        self.expected, self.begun = self.at, False  # the one behind the last that was told; whether one was
        self.lengths, self.word = {}, None  # of what is held: word of the array: bytes
        self.held, self.was_hot, self.spilled, self.pooled = {}, 0, 0, 0  # held: word of the array: number
        self.publish_position()
        threading.Thread(target=self.watch_topic, daemon=True).start()

    def watch(self):
        """Nobody sleeps on a bell before there is a topic."""

    def watch_topic(self):
        """As a link's watch."""
        poll = select.poll()
        poll.register(self.sock, peer.POLLRDHUP)
        poll.poll()
        while not self.abandoned:
            peer.futex(self.topic.address + DATA_BELL, peer.FUTEX_WAKE, peer.EVERYBODY)
            time.sleep(0.05)

    def take_topic(self):
        while True:
            got = peer.receive_packet(self.sock)
            demand(got, "no Topic: the socket ended")
            kind, packet, _, fds = got
            if kind != peer.SEGMENT:
                break
            self.take_pool_packet(kind, packet, fds)
        demand(kind != peer.REFUSAL, "refused: versions %d to %d, code %d" % struct.unpack_from("<HHI", packet, 16))
        demand(kind == peer.TOPIC, f"packet of kind {kind}, not a Topic")
        self.slots, self.slot_len, self.hold_limit, self.history, self.hold_bytes, self.first = struct.unpack_from("<IIIIQQ", packet, 16)
        power = lambda value: value & (value - 1) == 0
        demand(power(self.slots) and 2 <= self.slots <= 65536, f"topic.slots {self.slots}")
        demand(power(self.slot_len) and 64 <= self.slot_len <= 1 << 21, f"topic.slot_len {self.slot_len}")
        demand(1 <= self.hold_limit <= 64 and self.history < self.slots, "topic.hold_limit or topic.history")
        self.topic = peer.map_segment(fds[0], round_up(PAGE + self.slots * self.slot_len, PAGE))
        self.room = min(self.slot_len - 16, LONGEST_PAYLOAD)

    @property
    def bells(self):
        """A reader sleeps on the bell of the topic."""
        return self.topic

    def newest(self):
        return min(self.topic.load(NEWEST), 1 << 62)

    def slot(self, number):
        return PAGE + self.slot_len * (number % self.slots)

    def state(self):
        return self.topic.load(self.slot(self.at))

    # Reading

    def skip(self):
        """To the oldest message that the policy asks for."""
        if self.policy != EVERY:
            depth = self.depth if self.policy == NEWEST_ONES else 1
            self.at = max(self.at, self.newest() + 1 - depth)

    def look(self, keep=False):
        """The next message that can be read, or None."""
        while True:
            self.skip()
            state = self.state()
            if state < 2 * self.at:
                if self.published != self.at:
                    self.publish_position()
                return None
            try:
                message = self.read(keep) if state == 2 * self.at else self.lost(state)
            except Missed:
                demand(not self.begun or self.policy != EVERY, f"message {self.at} is gone, and nobody said why")
                self.at += 1
                continue
            if message:
                self.begun = True
                self.at += 1
                self.expected = self.at
                self.progress(RECEIVER_STATE, self.at)
                if message.word is not None or self.at - self.published >= max(1, self.slots // 8):
                    self.publish_position()
                return message

    def lost(self, state):
        """The next message is withdrawn or overwritten."""
        if self.policy == EVERY and self.begun:
            self.fail_if_evicted()
        if state == 2 * self.at + 1:
            raise Missed
        demand(self.policy != EVERY or not self.begun, f"message {self.at} is overwritten")
        self.at = max(self.at + 1, self.newest() + 1 - self.slots * 3 // 4)

    def fail_if_evicted(self):
        if self.theirs.load(EVICTED) or self.theirs.load(REVOKED):
            raise Evicted(self.theirs.load(EVICTED))

    def read(self, keep):
        """The message in the slot of `at`, whose state said that it is there."""
        slot, number = self.slot(self.at), self.at
        header = self.topic.load(slot + 8)
        length = 32 if header & SPILLED else header >> 32
        payload = bytes(self.topic.bytes[slot + 16:slot + 16 + min(length, self.room)])
        if self.state() != 2 * number:
            return None  # looks again
        kind, attachments, length = header & 0xFF, header >> 16 & 0xFF, header >> 32
        demand(kind in (MESSAGE, TENSORS), f"slot: header {header:#x}")
        demand(not header & (1 << 8 | 0xE000), f"slot: header {header:#x}")
        demand((header >> 24 & 0xFF) == (peer.TENSORS_VERSION if kind == TENSORS else 0), f"slot: header {header:#x}")
        demand(kind == TENSORS and not header & POOLED or not attachments, f"slot: header {header:#x}")
        if header & SPILLED:
            demand(self.room < length <= LONGEST_PAYLOAD, f"slot: header {header:#x}, spilled")
        else:
            demand(length <= self.room, f"slot: header {header:#x}")
        word = None
        if header & (POOLED | SPILLED) or attachments:
            word = self.hold(number)
        try:
            message = self.decode(number, header, payload, attachments, word)
        except (Missed, HoldLimit):
            self.give_up(word)
            raise
        if message.word is not None and not keep:
            self.give_up(word)
        return message

    def decode(self, number, header, payload, attachments, word):
        places = []  # (segment, offset, copy) of all that was read of it elsewhere
        self.places, self.word = places, word
        if header & SPILLED:
            segment, offset, length, _ = self.borrow(payload)
            demand(length == header >> 32, f"slot: spilled {length} bytes, not {header >> 32}")
            payload = self.copy(segment, offset, length)
            self.spilled += 1
        meta, length = peer.decode_meta(payload) if header & META else ((), 0)
        payload, tensors = payload[length:], ()
        if header & 0xFF == TENSORS:
            tensors = self.take_tensors(payload, attachments)
            for tensor in tensors:
                if tensor.segment:
                    places.append((tensor.segment, tensor.offset, tensor.body))
            payload = b""
        elif header & POOLED:
            demand(len(payload) == 32, f"slot: {len(payload)} bytes of a pooled message")
            segment, offset, length, _ = self.borrow(payload)
            payload = self.copy(segment, offset, length)
        self.pooled += word is not None
        if word is not None and self.theirs.load(REVOKED):  # behind each copy of what is held
            raise Evicted(self.theirs.load(EVICTED))
        return Message(number, number - self.expected, header & 0xFF, payload, tensors, meta, word, places)

    def copy(self, segment, offset, length):
        self.places.append((segment, offset, bytes(segment.bytes[offset:offset + length])))
        return self.places[-1][2]

    def borrow(self, descriptor, attachment=False):
        """§9, of a slot: nothing is lent."""
        number, slot, offset, length, generation = POOL_DESCRIPTOR.unpack(descriptor)
        frozen = attachment and slot == NO_SLOT
        demand(frozen or slot == generation == 0, f"slot: a block of slot {slot}, generation {generation}")
        demand(offset % 64 == 0, f"pooled.offset {offset}")
        for _ in range(128):
            if number in self.their_segments or not self.read_pool_packet():
                break
        if number not in self.their_segments:
            demand(self.policy != EVERY, f"pooled.segment {number} was not sent")
            raise Missed
        segment = self.their_segments[number]
        demand(segment.frozen == frozen, f"pooled.segment {number} is {'' if segment.frozen else 'not '}frozen")
        demand(offset + length <= segment.length, f"pool: {offset} + {length} is not inside of the segment")
        if not frozen:
            self.count(length)
        return segment, offset, length, None

    def count(self, length):
        """Counts bytes of the message that is being read."""
        self.lengths[self.word] = self.lengths.get(self.word, 0) + length
        together = sum(self.lengths.values())
        if self.hold_bytes and len(self.lengths) > 1 and together > self.hold_bytes:
            raise HoldLimit if self.policy == EVERY else Missed

    # Memory

    def hold(self, number):
        """The word of the array that now holds this message."""
        word = next((word for word in range(min(self.hold_limit, peer.LOAN_SLOTS)) if word not in self.held), None)
        if word is None:
            raise HoldLimit if self.policy == EVERY else Missed
        self.ours.store(HOLDS + 8 * word, number)
        full_barrier()
        if self.state() != 2 * number:
            self.ours.store(HOLDS + 8 * word, 0)
            self.ring(SENDER_STATE, ROOM_BELL)
            raise Missed
        self.held[word] = number
        return word

    def give_up(self, word):
        if word is not None:
            self.lengths.pop(word, None)
            del self.held[word]
            self.ours.store(HOLDS + 8 * word, 0)
            self.ring(SENDER_STATE, ROOM_BELL)

    def drop(self, message):
        """Gives the memory of a message back, which must be as it was."""
        same = all(segment.bytes[offset:offset + len(copy)] == copy for segment, offset, copy in message.places)
        if self.theirs.load(REVOKED):
            raise Evicted(self.theirs.load(EVICTED))
        demand(same, f"message {message.number} was written while it was held")
        self.give_up(message.word)

    # Waiting

    def sleep(self):
        ready = lambda: self.skip() or self.state() >= 2 * self.at or self.ended()
        if not self.arms:
            self.was_hot += RECEIVER_STATE in self.hot
            return self.sleep_until(ready, RECEIVER_STATE, DATA_BELL, f"message {self.at}")
        self.publish_position()
        poll, deadline = select.poll(), time.monotonic() + DEADLINE
        poll.register(self.sock, select.POLLIN)
        while True:
            while self.read_pool_packet():
                pass
            self.epoch += 1
            self.ours.store(RECEIVER_STATE, self.epoch << 3 | peer.ARMED)
            full_barrier()
            if ready():
                break
            poll.poll(DEADLINE * 1000)
            self.slept[RECEIVER_STATE] += 1
            demand(time.monotonic() < deadline, f"deadline: message {self.at}")
        self.ours.store(RECEIVER_STATE, peer.AWAKE)

    def next(self, keep=False):
        """The next message, waited for; None at the end of the publisher."""
        while True:
            ended = self.ended()  # before we look: what was published before the end counts
            message = self.look(keep)
            if message or ended:
                return message
            self.sleep()

    def end(self):
        """How the publisher ended."""
        evicted = self.theirs.load(EVICTED)
        if evicted:
            return f"end: evicted {evicted}"
        return "end: in order" if self.theirs.load(RECEIVER_STATE) == GONE else "end: died"

    def leave(self):
        self.ours.store(RECEIVER_STATE, GONE)
        for word in list(self.held):
            self.give_up(word)
        self.ours.store(RELEASED, 1)
        self.sock.shutdown(socket.SHUT_RDWR)

    def abandon(self):
        """Lets go without a word."""
        self.abandoned = True
        self.sock.shutdown(socket.SHUT_RDWR)  # a thread polls it still
        self.sock.close()
        for mapping in (self.ours, self.theirs, self.topic):
            mapping.unmap()


def told(message):
    """What a message is, in a line."""
    def what(body):
        return f"{len(body)} {zlib.adler32(body):08x}"
    meta = "".join(f" {name}={value}" for name, _, value in message.meta)
    if message.kind == MESSAGE:
        return f"{message.number} {message.missed} message {what(message.body)}{meta}"
    tensors = ", ".join(f"{tensor.name or '-'} {peer.DTYPES[tensor.dtype][0]} {list(tensor.shape)} {what(tensor.body)}"
                        for tensor in message.tensors)
    return f"{message.number} {message.missed} tensors{meta} {tensors}"


def serve(subscriber):
    kept, liar = [], None
    say = lambda line: print(line, flush=True)
    say(f"joined {subscriber.first}: {subscriber.slots} slots of {subscriber.slot_len}, {subscriber.hold_limit} holds, "
        f"history {subscriber.history}")

    def tell(message):
        say(told(message) if message else subscriber.end())
        return message

    for line in sys.stdin:
        command, *arguments = line.split()
        try:
            match command:
                case "next":
                    tell(subscriber.next())
                case "look":
                    message = subscriber.look()
                    say(told(message) if message else "nothing")
                case "hold":
                    if message := tell(subscriber.next(keep=True)):
                        kept.append(message)
                case "drop":
                    for message in kept:
                        subscriber.drop(message)
                    say(f"unchanged {len(kept)}")
                    kept = []
                case "take":
                    for _ in range(int(arguments[0])):
                        if not tell(subscriber.next()):
                            break
                case "all":
                    while tell(subscriber.next()):
                        pass
                case "stats":
                    say(f"slept {subscriber.slept[RECEIVER_STATE]}, hot {subscriber.was_hot}, "
                        f"holds {len(subscriber.held)}, pooled {subscriber.pooled}, spilled {subscriber.spilled}, "
                        f"segments {len(subscriber.their_segments)} of {len(subscriber.inodes)}")
                case "lie":
                    import lies  # which joins by this file
                    liar = lies.Liar(subscriber, arguments[0])
                    say("lying")
                case "stop":
                    say(liar.stop())
                case "leave":
                    subscriber.leave()
                    say("left")
                case _:
                    raise Failure(f"what is {line!r}?")
        except Evicted as evicted:
            say(f"end: evicted {evicted}")
        except HoldLimit:
            say("hold limit")


def main():
    try:
        name, policy, *rest = sys.argv[1:]
        policy, _, depth = policy.partition(":")
        serve(Subscriber(name, POLICIES[policy], int(depth or 0), arms="armed" in rest))
    except (Failure, OSError) as failure:
        sys.exit(f"subscriber.py: {failure}")


if __name__ == "__main__":
    main()
