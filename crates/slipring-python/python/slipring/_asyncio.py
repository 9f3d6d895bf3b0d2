"""Waiting in an event loop of asyncio, for the descriptor of a connection or a subscriber.

1. A task asks for the descriptor before its first attempt: from then on an attempt that finds nothing announces that
   this side sleeps, and the peer wakes the descriptor.
2. The loop watches a descriptor only while a task waits for it, and no more when its owner closes it.
3. One look takes the responses of all calls. What a task sets aside while it looks for its own, another one may wait
   for: so a task that has received something lets the others look, and a task sleeps only after a look for responses
   that has received nothing.
4. What a task receives it returns, or hands to a handler, without a wait in between: a cancel loses nothing.
5. A receive polls for some microseconds before it sleeps, as long as that finds messages: two busy sides then exchange
   them without a system call. After polls in vain it polls rarely.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import threading
import weakref
from typing import TYPE_CHECKING, Any

from ._errors import Closed, Error, PeerClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ._slipring import Connection, Pending, Request, Sample, Subscriber

_CLOSED = "this side has closed the object"

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

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, owner: Any) -> None:
        self.loop = loop
        self.descriptor = descriptor
        self.owner = weakref.ref(owner)
        self.waiters: set[asyncio.Future[None]] = set()
        self.calls: dict[Pending, asyncio.Future[Any]] = {}
        self.is_watched = False
        self.is_closed = False
        self.misses = 0

    def poll(self, connection: Connection) -> None:
        """Waits a few microseconds for a message, if the last such waits found one."""
        if self.misses < _MISSES or self.misses % _RARELY == 0:
            self.misses = 0 if connection._poll(_POLL) else self.misses + 1
        else:
            self.misses += 1

    def look(self) -> bool:
        """Hands the responses that have come to their calls. If it has received anything, wakes the other tasks.

        Returns whether it has: a task that is about to wait makes another attempt then.
        """
        connection = self.owner()
        waiting = [pending for pending, call in self.calls.items() if not call.done()]
        if not waiting or connection is None:
            return False
        failure: BaseException | None
        has_received: bool
        try:
            found, failure, has_received = connection._responses(waiting)
        except Error as error:
            found, failure, has_received = [], error, False
        for pending, answer in found:
            if isinstance(answer, BaseException):
                self.calls[pending].set_exception(answer)
            else:
                self.calls[pending].set_result(answer)
        if failure is not None:
            for call in self.calls.values():
                if not call.done():
                    # One object would collect the frames of all calls.
                    call.set_exception(copy.copy(failure))
        if has_received:
            self.wake()
        return has_received

    def wake(self) -> None:
        """Lets the tasks look that wait for anything but a response."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _readable(self) -> None:
        self.look()
        self.wake()

    def watch(self) -> None:
        """Has the loop watch the descriptor while a task waits for it."""
        is_watched = bool(self.waiters or self.calls) and not self.is_closed
        if is_watched and not self.is_watched:
            self.loop.add_reader(self.descriptor, self._readable)
        elif self.is_watched and not is_watched:
            self.loop.remove_reader(self.descriptor)
        self.is_watched = is_watched

    def _end(self) -> None:
        self.watch()
        self.wake()
        for call in self.calls.values():
            if not call.done():
                call.set_exception(Closed(_CLOSED))

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

    @contextlib.contextmanager
    def waiter(self) -> Iterator[asyncio.Future[None]]:
        """Returns a future that is done when there may be something to receive."""
        if self.is_closed:
            raise Closed(_CLOSED)
        waiter = self.loop.create_future()
        self.waiters.add(waiter)
        self.watch()
        try:
            yield waiter
        finally:
            self.waiters.discard(waiter)
            self.watch()

    async def wait(self, timeout: float | None) -> None:
        with self.waiter() as waiter:
            timer = None if timeout is None else self.loop.call_later(timeout, _finish, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()

    async def response(self, connection: Connection, pending: Pending) -> Any:
        """Returns the response to a request, which it abandons if the task is cancelled or the response another one."""
        call = self.calls[pending] = self.loop.create_future()
        try:
            if self.is_closed:
                raise Closed(_CLOSED)
            self.watch()
            self.look()
            return await call
        finally:
            del self.calls[pending]
            self.watch()
            has_failed = not call.done() or call.cancelled() or call.exception() is not None
            if has_failed and not self.is_closed:
                connection._abandon(pending)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_watches: weakref.WeakKeyDictionary[Any, _Watch] = weakref.WeakKeyDictionary()


def _watch(owner: Any, descriptor: int) -> _Watch:
    loop = asyncio.get_running_loop()
    watch = _watches.get(owner)
    if watch is None or watch.loop is not loop or watch.descriptor != descriptor:
        watch = _watches[owner] = _Watch(loop, descriptor, owner)
    return watch


def unwatch(owner: Any) -> None:
    """Ends the waits for the descriptor of a connection, a subscriber or a listener that is about to be closed."""
    watch = _watches.get(owner)
    if watch is not None:
        watch.close()


def _attempt(watch: _Watch, method: Callable[[], Any]) -> Any:
    """Returns what an attempt to receive returns. After ``None`` nothing is here, neither a message nor a response."""
    while True:
        try:
            found = method()
        finally:
            # The attempt may have set responses aside, also one that raises.
            has_received = watch.look()
        if found is not None or not has_received:
            return found


async def receive(connection: Connection, attempt: str) -> Any:
    """Returns what the method ``attempt`` returns, when that is not ``None``."""
    watch = _watch(connection, connection.fileno())
    method = getattr(connection, attempt)
    watch.poll(connection)
    is_first = True
    while (found := _attempt(watch, method)) is None:
        await watch.wait(None)
        is_first = False
    if is_first and watch.waiters:
        watch.wake()
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


async def respond(connection: Connection, request: Request, response: Any, meta: Any) -> None:
    """Sends the response to a request."""
    watch = _watch(connection, connection.fileno())
    while not request.try_respond(response, meta=meta):
        await watch.wait(_PAUSE)


async def call(connection: Connection, submit: str, data: Any, meta: Any) -> Any:
    """Sends a request by the method ``submit``, and returns its response."""
    watch = _watch(connection, connection.fileno())
    method = getattr(connection, submit)
    if submit == "_submit_tensors" and not isinstance(data, dict):
        data = list(data)
    while (pending := method(data, meta=meta)) is None:
        await watch.wait(_PAUSE)
    return await watch.response(connection, pending)


async def serve(connection: Connection, handler: Callable[[Request], Any], limit: int) -> None:
    """Answers requests until the peer has closed and all of them are answered."""
    if limit < 1:
        raise ValueError(f"limit is {limit}, must be 1 or more")
    watch = _watch(connection, connection.fileno())
    tasks: set[asyncio.Task[None]] = set()
    is_open = True
    polls = True
    try:
        while is_open or tasks:
            request = None
            if is_open and len(tasks) < limit:
                if polls:
                    watch.poll(connection)
                try:
                    request = _attempt(watch, connection.try_recv_request)
                except PeerClosed:
                    is_open = False
                    continue
            # After a request, the next attempt comes after a turn of the other tasks.
            polls = request is not None
            if request is not None:
                answer = handler(request)
                if inspect.isawaitable(answer):
                    tasks.add(asyncio.create_task(_answer(request, answer)))
                elif answer is not None:
                    await _respond(request, answer)
                await asyncio.sleep(0)
                done = {task for task in tasks if task.done()}
            else:
                done = await _first(watch, tasks, is_open and len(tasks) < limit)
            for task in done:
                tasks.discard(task)
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _first(watch: _Watch, tasks: set[asyncio.Task[None]], receives: bool) -> set[asyncio.Task[None]]:
    """Waits until a task is done, or until a request may be here if it ``receives``. Returns the done tasks."""
    if not receives:
        return (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]
    if not tasks:
        await watch.wait(None)
        return set()
    with watch.waiter() as waiter:
        await asyncio.wait({waiter, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    return {task for task in tasks if task.done()}


async def _answer(request: Request, answer: Awaitable[Any]) -> None:
    response = await answer
    if response is not None:
        await _respond(request, response)


async def _respond(request: Request, response: Any) -> None:
    # A peer that has closed waits for no response.
    with contextlib.suppress(PeerClosed):
        await request.arespond(response)


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
