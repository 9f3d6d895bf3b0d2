"""Waiting in an event loop of asyncio, for the descriptor of a connection or a subscriber.

1. A task asks for the descriptor before its first attempt: from then on an attempt that finds nothing announces that
   this side sleeps, and the peer wakes the descriptor.
2. The loop watches a descriptor only while a task waits for it, and no more when its owner closes it.
3. A receive polls for some microseconds before it sleeps, as long as that finds messages: two busy sides then exchange
   them without a system call. After polls in vain it polls rarely.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

from ._errors import Closed, PeerClosed

if TYPE_CHECKING:
    from ._slipring import Connection, Sample, Subscriber

# While other peers hold all memory, or there is no publisher, no descriptor tells when that ends.
_PAUSE = 0.005

# The longest wait of a close for the loop of another thread, which may be busy or wait for the closing one.
_PATIENCE = 0.1

# The time that a poll takes from the other tasks of the loop at most, in seconds: that of two turns of the loop. Beside
# load the peer's answer takes longer than one.
_POLL = 50e-6

# Polls in vain after which a connection polls only once in so many receives.
_MISSES = 3
_RARELY = 64


class _Watch:
    """The tasks of one loop that wait for one descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        self.loop = loop
        self.descriptor = descriptor
        self.waiters: set[asyncio.Future[None]] = set()
        self.is_closed = False
        self.misses = 0

    def poll(self, connection: Connection) -> None:
        """Waits a few microseconds for a message, if the last such waits found one."""
        if self.misses < _MISSES or self.misses % _RARELY == 0:
            self.misses = 0 if connection._poll(_POLL) else self.misses + 1
        else:
            self.misses += 1

    def _wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        if self.waiters:
            self.loop.remove_reader(self.descriptor)
        self._wake()
        self.waiters.clear()

    def close(self) -> None:
        """Wakes the tasks, and has the loop forget the descriptor: before this returns, unless its thread is busy."""
        self.is_closed = True
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self.loop or not self.loop.is_running():
            if not self.loop.is_closed():
                self._end()
            return
        ended = threading.Event()

        def end() -> None:
            self._end()
            ended.set()

        try:
            self.loop.call_soon_threadsafe(end)
        except RuntimeError:
            # The loop was closed meanwhile.
            return
        ended.wait(_PATIENCE)

    async def wait(self, timeout: float | None) -> None:
        if self.is_closed:
            raise Closed("this side has closed the object")
        waiter = self.loop.create_future()
        if not self.waiters:
            self.loop.add_reader(self.descriptor, self._wake)
        self.waiters.add(waiter)
        timer = None if timeout is None else self.loop.call_later(timeout, _finish, waiter)
        try:
            await waiter
        finally:
            was_watched = bool(self.waiters)
            self.waiters.discard(waiter)
            if was_watched and not self.waiters:
                self.loop.remove_reader(self.descriptor)
            if timer is not None:
                timer.cancel()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_watches: weakref.WeakKeyDictionary[Any, _Watch] = weakref.WeakKeyDictionary()


def _watch(owner: Any, descriptor: int) -> _Watch:
    loop = asyncio.get_running_loop()
    watch = _watches.get(owner)
    if watch is None or watch.loop is not loop or watch.descriptor != descriptor:
        watch = _watches[owner] = _Watch(loop, descriptor)
    return watch


def unwatch(owner: Any) -> None:
    """Ends the waits for the descriptor of a connection, a subscriber or a listener that is about to be closed."""
    watch = _watches.get(owner)
    if watch is not None:
        watch.close()


async def receive(connection: Connection, attempt: str) -> Any:
    """Returns what the method ``attempt`` returns, when that is not ``None``."""
    watch = _watch(connection, connection.fileno())
    method = getattr(connection, attempt)
    watch.poll(connection)
    while (found := method()) is None:
        await watch.wait(None)
    return found


async def following(connection: Connection, attempt: str) -> Any:
    """Returns the next item of an asynchronous iteration, which ends when the peer has closed."""
    try:
        return await receive(connection, attempt)
    except PeerClosed:
        raise StopAsyncIteration from None


async def send(connection: Connection, attempt: str, data: Any, meta: Any) -> None:
    """Calls the method ``attempt`` until it returns ``True``."""
    watch = _watch(connection, connection.fileno())
    method = getattr(connection, attempt)
    if attempt == "try_send_tensors" and not isinstance(data, dict):
        # Each attempt takes all tensors, and an iterator has them once.
        data = list(data)
    while not method(data, meta=meta):
        await watch.wait(_PAUSE)


async def sample(subscriber: Subscriber) -> Sample:
    """Returns the next sample of a subscriber."""
    while True:
        descriptor = subscriber.descriptor()
        found = subscriber.try_recv()
        if found is not None:
            return found
        if descriptor is None or descriptor != subscriber.descriptor():
            await asyncio.sleep(_PAUSE)
        else:
            await _watch(subscriber, descriptor).wait(None)


async def following_sample(subscriber: Subscriber) -> Sample:
    """Returns the next sample of an asynchronous iteration, which ends with the publisher."""
    try:
        return await sample(subscriber)
    except PeerClosed:
        raise StopAsyncIteration from None


async def accept(listener: Any) -> Connection:
    """Returns the next connection of a listener."""
    watch = _watch(listener, listener.fileno())
    while (connection := listener.try_accept()) is None:
        await watch.wait(None)
    found: Connection = connection
    return found
