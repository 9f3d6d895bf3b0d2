"""A queue with the interface of ``multiprocessing.Queue``."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import queue
import select
import threading
import time
import weakref
from collections import deque
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

from ._errors import Closed, Error, InvalidTensor, OtherKind, PeerClosed, PeerDied, ProtocolFault, TimedOut
from ._slipring import Connection, Context, Listener, Tensor, Tensors

if TYPE_CHECKING:
    from collections.abc import Callable

Full = queue.Full
Empty = queue.Empty

_numbers = itertools.count()

# No process waits longer, in seconds, and a lock takes it.
_FOREVER = 1e6

# How long a getter sleeps between two looks at all producers while no descriptor wakes it.
_PAUSE = 0.0005

# The longest sleep of a getter.
_SLICE = 0.01

# How long the first `put` that does not wait gives the getter to accept the connection.
_HANDSHAKE = 0.1

# A producer that fails so has no next item.
_ENDED = (PeerClosed, PeerDied, ProtocolFault, OtherKind, InvalidTensor)

_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


def _after_fork() -> None:
    # A thread that the child does not have may have held the lock.
    for each in list(_queues):
        each._lock = threading.Lock()
        each._getting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class _Places:
    """A semaphore that processes share: the places of a queue that are free."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, count: int) -> _Places:
        return cls(os.eventfd(min(count, 0xFFFF_FFFE), os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def is_free(self, timeout: float = 0) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(min(timeout, _FOREVER) * 1000))

    def take(self, timeout: float) -> bool:
        """Takes a place, and waits for one. Returns whether there was one in time."""
        end = time.monotonic() + timeout
        while True:
            try:
                os.eventfd_read(self._descriptor)
                return True
            except BlockingIOError:
                left = end - time.monotonic()
                if left <= 0 or not self.is_free(left):
                    return False

    def give(self) -> None:
        os.eventfd_write(self._descriptor, 1)

    def __reduce__(self) -> tuple[Callable[..., _Places], tuple[object]]:
        if get_spawning_popen() is None:
            raise RuntimeError("a Queue with a maxsize goes to a child as it starts: in Process(args=...)")
        return _rebuild, (reduction.DupFd(self._descriptor),)

    def __del__(self) -> None:
        os.close(self._descriptor)


def _rebuild(duplicate: Any) -> _Places:
    return _Places(duplicate.detach())


class Queue:
    """A queue of bytes and tensors, from any number of processes to the one that made it.

    The process that makes the queue gets, in any number of threads. Processes that it is passed to, by
    ``multiprocessing`` with any start method, put. What ``get`` returns is ``bytes``, a ``Tensor``, or a ``dict`` of
    tensors: nothing is pickled. A ``put`` waits while ``maxsize`` items were put and not got, if that is above 0, or
    while the getter's connection has no room. The items of a producer that breaks the protocol end, and the others go
    on. A producer that dies within its ``put`` may keep a place.
    """

    def __init__(self, maxsize: int = 0, *, context: Context | None = None) -> None:
        self._places = _Places.of(maxsize) if maxsize > 0 else None
        self._context = context or Context.default()
        self._pid = os.getpid()
        self._name = f"slipring-queue-{os.getpid()}-{next(_numbers)}-{time.monotonic_ns():x}"
        self._listener: Listener | None = self._context.listen(self._name)
        self._sources: list[Connection] = []
        self._waking: select.poll | None = None
        self._ready: deque[Any] = deque()
        self._lock = threading.Lock()
        # The thread that has it gets, so no item passes another one.
        self._getting = threading.Lock()
        self._out: Connection | None = None
        self._out_pid = 0
        self._is_closed = False
        _queues.add(self)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._name, self._places

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._name, self._places = state
        self._pid = 0
        self._context = self._own_context()
        self._listener = None
        self._sources = []
        self._waking = None
        self._ready = deque()
        self._lock = threading.Lock()
        self._getting = threading.Lock()
        self._out = None
        self._out_pid = 0
        self._is_closed = False
        _queues.add(self)

    def _gets(self) -> Listener | None:
        """Returns the listener in the process that made the queue. A forked child has that of its parent."""
        return self._listener if self._pid == os.getpid() else None

    # --- the putting side ---

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts bytes, a tensor, or a dict of tensors. Waits for room, at most for ``timeout`` seconds.

        The first ``put`` of a process waits until the getter calls ``get``, and one with ``block=False`` a moment.

        Raises ``Full`` if there is no room in time, ``ValueError`` after ``close()``, and ``PeerDied``, ``PeerClosed``
        or ``NobodyListens`` if the getter is gone.
        """
        end = time.monotonic() + (_FOREVER if timeout is None else timeout)

        def wait(least: float = 0) -> float:
            return max(0.0, end - time.monotonic()) if block else least

        out = self._connect(wait(_HANDSHAKE))
        if self._places is not None and not self._places.take(wait()):
            raise Full
        is_put = False
        try:
            self._send(out, item, wait)
            is_put = True
        except TimedOut:
            raise Full from None
        finally:
            if self._places is not None and not is_put:
                self._places.give()

    def put_nowait(self, item: Any) -> None:
        """Puts as ``put`` does, and does not wait for room."""
        self.put(item, block=False)

    def _send(self, out: Connection, item: Any, wait: Callable[[], float]) -> None:
        """Sends an item. ``wait`` returns how long that may take from now on."""
        if isinstance(item, (bytes, bytearray, memoryview)):
            out.send(item, timeout=wait())
        else:
            out.send_tensors(item if isinstance(item, dict) else [item], timeout=wait())

    def _own_context(self) -> Context:
        """Returns the context by which a process that did not make the queue puts."""
        return Context.default()

    def _connect(self, timeout: float) -> Connection:
        if self._is_closed:
            raise ValueError(f"Queue {self!r} is closed")
        end = time.monotonic() + timeout
        if not self._lock.acquire(timeout=_lock_timeout(timeout)):
            raise Full
        try:
            out = self._out
            if out is None or self._out_pid != os.getpid():
                # The getter accepts while it gets, so a long handshake is no fault.
                if (listener := self._gets()) is not None:
                    out = self._connect_to_self(listener)
                else:
                    out = self._own_context().connect(self._name, timeout=max(0.0, end - time.monotonic()))
                self._out, self._out_pid = out, os.getpid()
            return out
        except TimedOut:
            raise Full from None
        finally:
            self._lock.release()

    def _connect_to_self(self, listener: Listener) -> Connection:
        found: list[Connection | BaseException] = []

        def connect() -> None:
            try:
                found.append(self._context.connect(self._name, timeout=60))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        while thread.is_alive():
            self._accept(listener)
            thread.join(_PAUSE)
        self._accept(listener)
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    # --- the getting side ---

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Gets the next item: ``bytes``, a ``Tensor``, or a ``dict`` of tensors. Waits for ``timeout`` seconds at most.

        Raises ``Empty`` if there is none, and ``ValueError`` after ``close()``, or in a process that did not make the
        queue.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if self._gets() is None:
            raise ValueError("only the process that made the queue gets")
        if not self._getting.acquire(block, -1 if timeout is None or not block else _lock_timeout(timeout)):
            raise Empty
        try:
            item = self._next(block, end)
        finally:
            self._getting.release()
        if self._places is not None:
            self._places.give()
        return self._load(item)

    def _load(self, item: Any) -> Any:
        """Returns what ``get`` returns of an item that was taken in."""
        return item

    def _next(self, block: bool, end: float | None) -> Any:
        while True:
            if self._is_closed or (listener := self._gets()) is None:
                raise ValueError(f"Queue {self!r} is closed")
            with self._lock:
                if self._poll(listener):
                    return self._ready.popleft()
                only = self._sources[0] if len(self._sources) == 1 else None
                waking, self._waking = self._waking, self._waking or self._descriptors(listener)
            if not block or (end is not None and time.monotonic() >= end):
                raise Empty
            # Others may join meanwhile, or another thread closes the queue, so the wait is short.
            wait = _SLICE if end is None else min(_SLICE, max(0.0, end - time.monotonic()))
            if only is not None:
                self._wait(only, wait)
            elif waking is not None:
                waking.poll(math.ceil(wait * 1000))
            else:
                # The descriptors tell of nothing before the next poll.
                time.sleep(min(_PAUSE, wait))

    def get_nowait(self) -> Any:
        """Gets as ``get`` does, and does not wait."""
        return self.get(block=False)

    def _wait(self, source: Connection, timeout: float) -> None:
        try:
            self._ready.append(bytes(source.recv(timeout)))
        except (TimedOut, Closed, *_ENDED):
            # The next poll handles it.
            return

    def _accept(self, listener: Listener) -> None:
        # After a `close()` in another thread the caller finds that the queue is closed.
        with contextlib.suppress(Closed):
            while (source := listener.try_accept()) is not None:
                self._sources.append(source)
                self._waking = None

    def _descriptors(self, listener: Listener) -> select.poll | None:
        """Returns what tells of new producers and of items, from the next look at each on."""
        waking = select.poll()
        try:
            for descriptor in (listener.fileno(), *(source.fileno() for source in self._sources)):
                waking.register(descriptor, select.POLLIN)
        except Error:
            # One of them has ended, as the next look finds.
            return None
        return waking

    def _poll(self, listener: Listener) -> bool:
        """Takes at most one item of each producer. Returns whether there is one."""
        self._accept(listener)
        for source in list(self._sources):
            try:
                if (item := self._take(source)) is not None:
                    self._ready.append(item)
            except (Closed, *_ENDED) as error:
                with contextlib.suppress(ValueError):
                    self._sources.remove(source)
                self._waking = None
                self._ended(source, error)
        return bool(self._ready)

    def _take(self, source: Connection) -> Any:
        """Returns the next item of a producer, or ``None``."""
        try:
            message = source.try_recv()
            return None if message is None else bytes(message)
        except OtherKind:
            return _item(source.try_recv_tensors())

    def _ended(self, source: Connection, error: Exception) -> None:
        """Takes notice of a producer whose items have come to their end."""

    def qsize(self) -> int:
        """Returns how many items the getter has taken in and not returned: a lower bound."""
        # A thread that waits for an item may just have taken it.
        if self._getting.acquire(blocking=False):
            try:
                with self._lock:
                    if (listener := self._gets()) is not None:
                        self._poll(listener)
            finally:
                self._getting.release()
        return len(self._ready)

    def empty(self) -> bool:
        """Returns whether ``get_nowait`` would raise ``Empty``."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Returns whether ``maxsize`` items were put and not got. ``False`` without a ``maxsize``."""
        return self._places is not None and not self._places.is_free()

    def close(self) -> None:
        """Ends the use of the queue in this process. What was put is delivered."""
        self._is_closed = True
        ends: list[Callable[[], None]] = []
        if self._out is not None and self._out_pid == os.getpid():
            ends.append(self._out.close)
        if (listener := self._gets()) is not None:
            ends += [source.close for source in self._sources]
            ends.append(listener.close)
        for end in ends:
            try:
                end()
            except Error:
                continue
        self._sources.clear()

    def join_thread(self) -> None:
        """Does nothing: there is no thread."""

    def cancel_join_thread(self) -> None:
        """Does nothing: there is no thread."""


def _lock_timeout(timeout: float) -> float:
    """Returns a timeout that a lock takes."""
    return min(max(0.0, timeout), threading.TIMEOUT_MAX)


def _item(tensors: Tensors | None) -> Tensor | dict[str, Tensor] | None:
    if tensors is None:
        return None
    return tensors[0] if len(tensors) == 1 and not tensors.names[0] else dict(tensors.items())
