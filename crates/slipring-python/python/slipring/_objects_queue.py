"""Queues of Python objects, with the interface of those of ``multiprocessing``.

A short item is a message, its pickle. A long one is one message of tensors of bytes, each in a block of the pool: first
the pickle, and then its long buffers.
"""

from __future__ import annotations

import copyreg
import math
import os
import pickle
import sys
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from . import _queue
from ._errors import Closed, OtherKind
from ._objects import Packer
from ._slipring import Connection, Context, Tensor, Tensors

if TYPE_CHECKING:
    from collections.abc import Callable

# The layout of messages. It changes with `_objects`.
FORMAT = 1

# The most buffers of an item that lie beside its pickle.
_MOST_BUFFERS = 64

# The memory of one producer that arrays may hold: so many blocks, and this part of its pool. Further items of that
# producer are copied. A producer lends a quarter of its pool to one process.
_KEEP_BLOCKS = 64
_KEEP_PART = 8

# Blocks that a producer lends at a time: those that are held, and those of some items that were not got.
_LOAN_SLOTS = 1024

# How long a producer may take for its part of a handshake, in seconds: many of them start at a time.
_HANDSHAKE = 30.0

_context: Context | None = None


def _after_fork() -> None:
    global _context
    _context = None


os.register_at_fork(after_in_child=_after_fork)


def _own_context() -> Context:
    """Returns the context of all queues of this process. Items are as long as memory allows.

    Processes of other users are refused, by both sides.
    """
    global _context
    if _context is None:
        quota = _quota()
        _context = Context(
            pool_quota=quota,
            peer_pool_limit=min(2 * quota, sys.maxsize),
            loan_slots=_LOAN_SLOTS,
            handshake_timeout=_HANDSHAKE,
            # Arrays that a getter holds stay what they are after a `close()` of their producer.
            release_grace=math.inf,
            peers="same-user",
        )
    return _context


def _quota() -> int:
    return max(2 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


class _Packer(Packer):
    """Pickles what the queues of ``multiprocessing`` pickle."""

    __slots__ = ()

    def _reducers(self) -> dict[type, Callable[[Any], Any]]:
        registered: dict[type, Callable[[Any], Any]] = reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        return copyreg.dispatch_table | registered


class Queue(_queue.Queue):
    """A queue of Python objects, from any number of processes to the one that made it.

    It is used as ``multiprocessing.Queue`` is, and passed to processes of any start method. The process that makes the
    queue gets, in any number of threads. An item is one message, and passes no descriptor: arrays of NumPy and tensors
    of torch are copied into shared memory once. What ``get`` returns is a copy of its own, or with ``shared=True`` lies
    in that memory if it has 64 KiB or more. The memory goes back to its producer when the last array or tensor of it is
    dropped. Such arrays are read-only, and **a write to such a tensor, as ``tensor.add_(1)``, ends the process by
    SIGSEGV**: torch has no read-only tensors. ``tensor.clone()`` may be written.

    ``get`` loads what it receives by ``pickle``, and so runs what the putting process chose: processes of other users
    are refused.
    """

    def __init__(self, maxsize: int = 0, *, shared: bool = False) -> None:
        super().__init__(maxsize, context=_own_context())
        self._is_shared = shared
        # A thread that puts takes one out meanwhile.
        self._packers: list[_Packer] = []

    def __getstate__(self) -> tuple[Any, ...]:
        return FORMAT, *super().__getstate__()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        found, *rest = state
        if found != FORMAT:
            raise ValueError(
                f"the queue's messages have format {found}, and this version of slipring writes format {FORMAT}: "
                "install the same version for all processes"
            )
        super().__setstate__(tuple(rest))
        self._is_shared = False
        self._packers = []

    def _own_context(self) -> Context:
        return _own_context()

    def _send(self, out: Connection, item: Any, wait: Callable[[], float]) -> None:
        try:
            packer = self._packers.pop()
        except IndexError:
            packer = _Packer(_MOST_BUFFERS)
        # After an exception a packer is of no more use.
        short = packer.pack(item)
        try:
            if short is not None:
                out.send(short, timeout=wait())
            else:
                out.send_tensors(packer.parts(), timeout=wait())
        finally:
            packer.clear()
            self._packers.append(packer)

    def _load(self, item: Any) -> Any:
        if isinstance(item, bytes):
            return pickle.loads(item)
        stream, *blocks = item.tensors
        if not self._is_shared or not item.keeps():
            return pickle.loads(stream, buffers=[bytearray(block) for block in blocks])
        loaded = pickle.loads(stream, buffers=blocks)
        self._kept(blocks)
        return loaded

    def _kept(self, blocks: list[Tensor]) -> None:
        """Takes notice of blocks in which arrays of an item lie."""

    def _take(self, source: Connection) -> Any:
        try:
            message = source.try_recv()
        except OtherKind:
            tensors = source.try_recv_tensors()
            return None if tensors is None else _Long(tensors, source)
        return None if message is None else bytes(message)


class _Long:
    """A long item that was taken in."""

    def __init__(self, tensors: Tensors, source: Connection) -> None:
        self.tensors = tensors
        self._source = source

    def keeps(self) -> bool:
        """Returns whether the item's arrays may hold its blocks."""
        try:
            held = self._source.stats()["loans_held"]
        except Closed:
            return True
        # Items of one producer are alike.
        length = sum(block.nbytes for block in self.tensors) // len(self.tensors)
        return held <= _KEEP_BLOCKS and held * length <= _quota() // _KEEP_PART


class SimpleQueue:
    """A queue of Python objects with the interface of ``multiprocessing.SimpleQueue``. It is a ``Queue`` otherwise."""

    def __init__(self, *, shared: bool = False) -> None:
        self._queue = Queue(shared=shared)

    def put(self, item: Any) -> None:
        """Puts an object. Waits and raises as ``Queue.put``."""
        self._queue.put(item)

    def get(self) -> Any:
        """Gets the next object. Waits and raises as ``Queue.get``."""
        return self._queue.get()

    def empty(self) -> bool:
        """Returns whether ``get`` would wait."""
        return self._queue.empty()

    def close(self) -> None:
        """Ends the use of the queue in this process. What was put is delivered."""
        self._queue.close()
