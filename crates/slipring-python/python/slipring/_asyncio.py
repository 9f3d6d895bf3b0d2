"""Waiting in an event loop of asyncio, for the descriptor of a connection or a subscriber.

1. A task asks for the descriptor before its first attempt: from then on an attempt that finds nothing announces that
   this side sleeps, and the peer wakes the descriptor.
2. The loop watches a descriptor only while a task waits for it.
3. A receive polls for some microseconds before it sleeps, as long as that finds messages: two busy sides then exchange
   them without a system call. After polls in vain it polls rarely.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from ._errors import PeerClosed

if TYPE_CHECKING:
    from ._slipring import Connection, Sample, Subscriber

# While other peers hold all memory, or there is no publisher, no descriptor tells when that ends.
_PAUSE = 0.005

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

    async def wait(self, timeout: float | None) -> None:
        waiter = self.loop.create_future()
        if not self.waiters:
            self.loop.add_reader(self.descriptor, self._wake)
        self.waiters.add(waiter)
        timer = None if timeout is None else self.loop.call_later(timeout, _finish, waiter)
        try:
            await waiter
        finally:
            self.waiters.discard(waiter)
            if not self.waiters:
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
