"""The queue: one writer, and readers that all get every object."""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .._errors import PeerClosed, PeerDied, ResourceLimit, TimedOut
from .._slipring import Context, Publisher, Subscriber
from . import _groups, _remote
from ._handle import Handle, check
from ._objects import Packer, load_block
from ._ranks import Ranks, tell

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator


logger = logging.getLogger("vllm.slipring")

_T = TypeVar("_T")

# The longest wait without a look at `shutting_down`, `cancel` and the readers, in seconds.
_SLICE = 0.05

# The pause between two looks for readers that join, in seconds.
_PAUSE = 0.0002

# The pause between two attempts to get memory that readers hold, in seconds.
_HELD = 0.001

# A writer waits for its readers as long as they live.
_FOREVER = 1e9

# Short messages of so many bytes lie in their slots, and longer ones in blocks of the pool.
_SLOT_LEN = 16 << 10

# How many messages a reader may hold, and from how many on it copies their arrays.
_HOLD_LIMIT = 16
_KEEP_LIMIT = 12

# How long a wait takes until the queue logs who is waited for, in seconds: vLLM's own variable.
_INTERVAL = float(os.environ.get("VLLM_RINGBUFFER_WARNING_INTERVAL", "60"))


class _Patience:
    """How long a call may wait, over all of its steps."""

    __slots__ = ("since", "timeout")

    def __init__(self, timeout: float | None) -> None:
        self.since = time.monotonic()
        self.timeout = timeout

    def slice(self, now: float) -> float:
        """Returns how long the next step may wait before the next look around, in seconds."""
        return _SLICE if self.timeout is None else min(max(0.0, self.timeout - (now - self.since)), _SLICE)

    def check(self, now: float, text: Callable[[], str]) -> None:
        """Raises ``TimedOut`` with the text if no time is left."""
        if self.timeout is not None and now - self.since >= self.timeout:
            raise TimedOut(f"timed out after {now - self.since:.3f} s: {text()}") from None


class MessageQueue:
    """Hands Python objects from one process to many, as the class of the same name in vLLM does.

    Readers of this machine get them through shared memory: an object is written once for all. Arrays of 64 KiB and more
    are read-only, and lie in that memory as long as they live. Other readers get objects over zmq.
    """

    _publisher: Publisher | None = None
    _subscriber: Subscriber | None = None
    _remote_writer: _remote.RemoteWriter | None = None
    _remote_reader: _remote.RemoteReader | None = None

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: list[int] | None = None,
        max_chunk_bytes: int = 24 << 20,
        max_chunks: int = 10,
        connect_ip: str | None = None,
        enable_shm_tensor_arena: bool = False,
    ) -> None:
        """Makes the writer's side. ``max_chunk_bytes`` is the length of what ``acquire_write`` returns alone.

        ``max_chunks`` is how many objects may wait for the slowest reader, rounded up to a power of two less one.
        ``enable_shm_tensor_arena`` changes nothing: long arrays lie in shared memory in any case.

        Raises ``ImportError`` if a reader is on another machine, and pyzmq is not installed.
        """
        if local_reader_ranks is None:
            local_reader_ranks = list(range(n_local_reader))
        assert len(local_reader_ranks) == n_local_reader, (
            f"{len(local_reader_ranks)} ranks of local readers, n_local_reader is {n_local_reader}"
        )
        self._set_up(is_writer=True)
        self.n_local_reader = n_local_reader
        self.n_remote_reader = n_reader - n_local_reader
        self.handle = Handle(
            local_reader_ranks=local_reader_ranks,
            max_chunk_bytes=max_chunk_bytes,
            writer_pid=os.getpid(),
            writer_rank=_groups.own_rank(),
        )
        self._is_met = n_local_reader == 0
        self._lost: Exception | None = None
        # A thread that sends takes one out meanwhile.
        self._packers: list[Packer] = []
        if n_local_reader > 0:
            address = f"slipring-vllm-{os.getpid()}-{secrets.token_hex(8)}"
            self.handle.address = address
            self._ranks = Ranks(address)
            self._context = _context()
            slots = 1 << max_chunks.bit_length()
            self._publisher = self._context.publish(
                address,
                slots=slots,
                slot_len=_SLOT_LEN,
                hold_limit=_HOLD_LIMIT,
                subscriber_limit=n_local_reader,
                stall_after=_FOREVER,
            )
        if self.n_remote_reader > 0:
            self._remote_writer = _remote.RemoteWriter(connect_ip)
            self.handle.remote_subscribe_addr = self._remote_writer.address
            self.handle.remote_addr_ipv6 = self._remote_writer.is_ipv6

    def _set_up(self, *, is_writer: bool) -> None:
        self.shutting_down = False
        self.local_reader_rank = -1
        self._is_writer = is_writer
        self._is_local_reader = False
        self._is_remote_reader = False

    def export_handle(self) -> Handle:
        """Returns what readers need."""
        return self.handle

    @staticmethod
    def create_from_handle(handle: Handle, rank: int) -> MessageQueue:
        """Returns the side of the reader of this rank. One that is not among the local ranks reads from the network.

        Raises ``TypeError`` for a handle of vLLM's own queue, ``ValueError`` for one of another version, ``Refused`` if
        the writer's process belongs to another user, and ``NobodyListens``, ``PeerClosed`` or ``PeerDied`` if it has
        ended.
        """
        handle = check(handle)
        self = MessageQueue.__new__(MessageQueue)
        self._set_up(is_writer=False)
        self.handle = handle
        if rank in handle.local_reader_ranks:
            assert handle.address is not None
            self.local_reader_rank = handle.local_reader_ranks.index(rank)
            self._is_local_reader = True
            self._context = _context()
            self._subscriber = self._context.subscribe(handle.address, "every", reconnect=False)
            tell(handle.address, rank)
        else:
            assert handle.remote_subscribe_addr is not None, f"the queue has no reader of rank {rank}"
            self._is_remote_reader = True
            self._remote_reader = _remote.RemoteReader(handle.remote_subscribe_addr, handle.remote_addr_ipv6)
        return self

    def wait_until_ready(self) -> None:
        """Waits until all readers have joined. All processes call it."""
        if self._is_writer:
            if self._publisher is not None:
                self._meet(self._publisher, _Patience(None))
                # A pickle is never empty.
                self._publisher.send(b"")
            if self._remote_writer is not None:
                for _ in range(self.n_remote_reader):
                    self._remote_writer.meet()
                self._remote_writer.ready()
        elif self._subscriber is not None:
            first = self._wait(self._subscriber.recv, None, True, None).message
            assert first is not None, "the writer's first message has an object, must be empty"
            assert len(first) == 0, f"the writer's first message has {len(first)} bytes, must be empty"
        elif self._remote_reader is not None:
            self._remote_reader.meet()

    def shutdown(self) -> None:
        """Ends the waits of this side: they raise ``RuntimeError``. What has come before can be read."""
        self.shutting_down = True

    # --- the writer ---

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Sends an object to all readers. Waits for the slowest of this machine, at most for ``timeout`` seconds.

        Raises ``TimeoutError``; ``PeerDied``, with its rank, if a reader has died, and ``PeerClosed`` if one left
        before, then and from then on; and what the pickling raises.
        """
        assert self._is_writer, "Only writers can enqueue"
        try:
            packer = self._packers.pop()
        except IndexError:
            packer = Packer()
        short = None
        try:
            short = packer.pack(obj)
            self._send(packer, short, timeout)
        finally:
            if short is None:
                packer.clear()
            self._packers.append(packer)

    def _send(self, packer: Packer, short: bytes | None, timeout: float | None) -> None:
        publisher = self._publisher
        if publisher is not None:
            patience = _Patience(timeout)
            if not self._is_met:
                self._meet(publisher, patience)
            if events := publisher.events():
                self._note(events)
            self._check_lost()
            if short is None:
                self._send_block(publisher, packer.block_len(), packer.write_to, patience)
            elif timeout is None:
                try:
                    publisher.send(short)
                except TimedOut:
                    self._retry(publisher, lambda wait: publisher.send(short, timeout=wait), patience)
            else:
                self._retry(publisher, lambda wait: publisher.send(short, timeout=wait), patience)
            if events := publisher.events():
                self._note(events)
                # A reader that died has made room. One that has left may have read the object before.
                if isinstance(self._lost, PeerDied):
                    self._check_lost()
        if self._remote_writer is not None:
            self._remote_writer.send(packer.parts() if short is None else [short])

    @contextmanager
    def acquire_write(self, timeout: float | None = None) -> Iterator[memoryview]:
        """Returns ``max_chunk_bytes`` of memory to write, which go to the local readers at the end of the block.

        Raises as ``enqueue``.
        """
        assert self._is_writer, "Only writers can acquire write"
        publisher = self._publisher
        assert publisher is not None, "the queue has no local reader"
        patience = _Patience(timeout)
        if not self._is_met:
            self._meet(publisher, patience)
        length = self.handle.max_chunk_bytes
        block = self._retry(publisher, lambda wait: publisher.empty(length, timeout=wait), patience, length)
        with memoryview(block) as chunk:
            yield chunk
        # The caller's own time does not count.
        patience = _Patience(timeout)
        self._retry(publisher, lambda wait: publisher.send_tensor(block, timeout=wait), patience)

    def _send_block(
        self, publisher: Publisher, length: int, write: Callable[[memoryview], None], patience: _Patience
    ) -> None:
        block = self._retry(publisher, lambda wait: publisher.empty(length, timeout=wait), patience, length)
        with memoryview(block) as view:
            write(view)
        self._retry(publisher, lambda wait: publisher.send_tensor(block, timeout=wait), patience)

    def _retry(self, publisher: Publisher, attempt: Callable[[float], _T], patience: _Patience, needed: int = 0) -> _T:
        """Makes attempts, which wait for so many seconds, until one works. Looks after the readers in between.

        Each of them takes ``needed`` bytes of memory.
        """
        start = warned = now = time.monotonic()
        while True:
            left = patience.slice(now)
            try:
                return attempt(left)
            except (TimedOut, ResourceLimit) as error:
                if isinstance(error, ResourceLimit):
                    # Readers hold the memory: no wait of the publisher ends when they give it back.
                    if needed > _quota():
                        raise
                    time.sleep(min(left, _HELD))
                self._note(publisher.events())
                self._check_lost()
                self._check_shutdown()
                now = time.monotonic()
                patience.check(now, lambda: self._slowest(publisher))
                if now - warned >= _INTERVAL:
                    warned = now
                    logger.warning("the queue waits for %.0f s: %s", now - start, self._slowest(publisher))

    def _slowest(self, publisher: Publisher) -> str:
        readers = publisher.subscribers()
        most = max((facts["lag"] for facts in readers), default=0)
        late = [
            f"{self._ranks.name(facts['id'], facts['pid'])} has not read {most} messages and is {facts['state']}"
            for facts in readers
            if facts["lag"] == most
        ]
        return "; ".join(late) or "there is no reader"

    def _note(self, events: list[tuple[Literal["joined", "left", "died", "evicted"], int, int | None]]) -> None:
        """Takes notice of the readers that have come and gone."""
        for kind, reader, pid in events:
            if kind == "joined":
                self._ranks.joined(reader, pid)
            elif self._lost is None:
                name = self._ranks.name(reader, pid)
                self._lost = PeerClosed(f"{name} has left") if kind == "left" else PeerDied(f"{name} has died")

    def _check_lost(self) -> None:
        """Raises if a reader is gone."""
        if self._lost is not None:
            # One object would keep the frames of all calls that it ended.
            raise type(self._lost)(*self._lost.args)

    def _meet(self, publisher: Publisher, patience: _Patience) -> None:
        """Waits until all readers have joined: from then on they get every message."""
        start = time.monotonic()
        warned = start
        while True:
            self._note(publisher.events())
            self._check_lost()
            met = self._ranks.told()
            if met >= self.n_local_reader:
                self._is_met = True
                return
            self._check_shutdown()
            now = time.monotonic()
            text = f"{met} of {self.n_local_reader} local readers have joined"
            patience.check(now, text.__str__)
            if now - warned >= _INTERVAL:
                warned = now
                logger.warning("the queue waits for %.0f s: %s", now - start, text)
            # Readers may take minutes to start.
            time.sleep(min(_PAUSE + (now - start) / 100, _SLICE))

    def _check_shutdown(self) -> None:
        if self.shutting_down:
            raise RuntimeError("cancelled")

    # --- the readers ---

    def dequeue(
        self, timeout: float | None = None, indefinite: bool = False, cancel: threading.Event | None = None
    ) -> Any:
        """Returns the next object. Waits for it, at most for ``timeout`` seconds.

        An ``indefinite`` wait logs nothing, and one with ``cancel`` ends when that is set.

        Raises ``TimeoutError``; ``RuntimeError`` after ``shutdown()`` or ``cancel``; ``PeerDied`` or ``PeerClosed`` if
        the writer of this machine has gone; and what the unpickling raises.
        """
        subscriber = self._subscriber
        if subscriber is not None:
            while True:
                if timeout is None:
                    try:
                        sample = subscriber.recv(_SLICE)
                    except (TimedOut, PeerClosed, PeerDied):
                        sample = self._wait(subscriber.recv, None, indefinite, cancel)
                else:
                    sample = self._wait(subscriber.recv, timeout, indefinite, cancel)
                message = sample.message
                if message is None:
                    # One of long arrays is held until they are gone.
                    keeps = subscriber.held <= _KEEP_LIMIT
                    return load_block(memoryview(sample.tensor), keeps=keeps)
                if len(message):
                    return pickle.loads(message)
        remote = self._remote_reader
        if remote is None:
            raise RuntimeError("Only readers can dequeue")
        self._wait(lambda wait: remote.poll(wait) or None, timeout, indefinite, cancel)
        return remote.load()

    @contextmanager
    def acquire_read(self, timeout: float | None = None, indefinite: bool = False) -> Iterator[memoryview]:
        """Returns the memory that the writer's ``acquire_write`` has filled. It is read-only.

        Raises as ``dequeue``.
        """
        subscriber = self._subscriber
        assert subscriber is not None, "Only readers can acquire read"
        sample = self._wait(subscriber.recv, timeout, indefinite, None)
        with memoryview(sample.tensor) as chunk:
            yield chunk

    def _wait(
        self,
        attempt: Callable[[float], Any],
        timeout: float | None,
        indefinite: bool,
        cancel: threading.Event | None,
    ) -> Any:
        """Calls ``attempt`` with short times until it returns something."""
        start = time.monotonic()
        warned = start
        left = timeout
        while True:
            try:
                # What has come is returned in any case.
                found = attempt(_SLICE if left is None else min(max(0.0, left), _SLICE))
                if found is not None:
                    return found
            except TimedOut:
                pass
            except (PeerClosed, PeerDied) as error:
                raise self._writer_gone(error) from None
            self._check_shutdown()
            if cancel is not None and cancel.is_set():
                raise RuntimeError("cancelled")
            now = time.monotonic()
            if timeout is not None and (left := timeout - (now - start)) <= 0:
                raise TimedOut(f"timed out after {timeout} s: {self.handle.writer()} has sent nothing")
            if not indefinite and now - warned >= _INTERVAL:
                warned = now
                logger.info("a reader waits for %.0f s: %s has sent nothing", now - start, self.handle.writer())

    def _writer_gone(self, error: Exception) -> Exception:
        if isinstance(error, PeerDied):
            return PeerDied(f"{self.handle.writer()} has died")
        return PeerClosed(f"{self.handle.writer()} has closed the queue")

    @staticmethod
    def recv(socket: Any, timeout: float | None) -> Any:
        """Returns the next object of a socket of zmq. Raises ``TimeoutError``."""
        if not socket.poll(timeout=None if timeout is None else max(0, int(timeout * 1000))):
            raise TimeoutError
        return _remote.load(socket)

    # --- groups ---

    def broadcast_object(self, obj: Any = None) -> Any:
        """Sends an object if this is the writer, and receives it otherwise. Returns the object."""
        if self._is_writer:
            self.enqueue(obj)
            return obj
        return self.dequeue()

    @staticmethod
    def create_from_process_group_single_reader(
        pg: Any, max_chunk_bytes: int, max_chunks: int, reader_rank: int = 0, blocking: bool = False
    ) -> tuple[MessageQueue, list[Handle]]:
        """Makes a queue in each process of a group of torch, all with the reader of one rank.

        Returns the queue of this process, and in the reader's process the handles of all.
        """
        is_local = _groups.is_local(reader_rank)
        made = MessageQueue(1, 1 if is_local else 0, max_chunk_bytes=max_chunk_bytes, max_chunks=max_chunks)
        handles = _groups.gather(pg, made.export_handle(), reader_rank)
        if blocking:
            made.wait_until_ready()
        return made, handles

    @staticmethod
    def create_from_process_group(
        pg: Any,
        max_chunk_bytes: int,
        max_chunks: int,
        writer_rank: int = 0,
        external_writer_handle: Handle | None = None,
        blocking: bool = True,
    ) -> MessageQueue:
        """Makes a queue from one process of a group to all others. The group is one of torch, or vLLM's stateless one.

        With ``external_writer_handle`` all of them are readers of that queue.
        """
        rank, size = _groups.place(pg)
        near = _groups.near(pg, writer_rank)
        if rank != writer_rank:
            made = MessageQueue.create_from_handle(_groups.broadcast(pg, None, writer_rank), rank)
        else:
            if external_writer_handle is not None:
                made = MessageQueue.create_from_handle(external_writer_handle, rank)
            else:
                ranks = [other for other, is_near in enumerate(near) if is_near and other != writer_rank]
                made = MessageQueue(size - 1, len(ranks), ranks, max_chunk_bytes, max_chunks)
            _groups.broadcast(pg, made.export_handle(), writer_rank)
        if blocking:
            made.wait_until_ready()
        return made


def _quota() -> int:
    return max(2 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _context() -> Context:
    # Objects are as long as memory allows. Peers of another user are refused, by both sides.
    quota = _quota()
    return Context(
        pool_quota=quota,
        peer_pool_limit=min(2 * quota, sys.maxsize),
        send_timeout=_SLICE,
        handshake_timeout=10.0,
        peers="same-user",
    )
