"""The queue from the workers of a loader to its process. It needs no torch."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from .._errors import NobodyListens, PeerClosed, PeerDied
from .._objects_queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.process import BaseProcess

    from .._slipring import Connection, Tensor
    from ._pins import Pins


# How long a wait for a worker's status sleeps between two looks at all workers, in seconds.
_PAUSE = 0.001


class _Gone(Exception):
    """In the place of an item: its producer has ended."""


class Results(Queue):
    """A queue of numbered batches.

    1. A batch that cannot be pickled becomes the failure of its number, as an exception of its dataset does.
    2. A worker's death ends a ``get``, behind all batches that it has put.
    3. A worker that puts after the end of the loader goes on, and hears of the end as it is told.
    """

    def __init__(self, *, shared: bool, failure: Callable[[], Any], pins: Pins | None = None) -> None:
        """Takes a function that returns what stands for a batch whose exception is being handled. It is pickled.

        ``pins`` registers the memory of shared batches.
        """
        super().__init__(shared=shared)
        self._failure = failure
        self._pins = pins

    def __getstate__(self) -> tuple[Any, ...]:
        return self._failure, *super().__getstate__()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._failure, *rest = state
        super().__setstate__(tuple(rest))
        self._pins = None

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts a number and its batch."""
        try:
            try:
                super().put(item, block, timeout)
            except (NobodyListens, PeerClosed, PeerDied):
                raise
            except Exception:
                super().put((item[0], self._failure()), block, timeout)
        except (NobodyListens, PeerClosed, PeerDied):
            # The loader has ended, or its process has.
            return

    def _connect(self, timeout: float) -> Connection:
        is_first = self._out is None or self._out_pid != os.getpid()
        out = super()._connect(timeout)
        if is_first and self._gets() is None:
            # A worker leaves without a close, which would be a death.
            util.Finalize(None, out.close, exitpriority=0)
        return out

    def _ended(self, source: Connection, error: Exception) -> None:
        if not isinstance(error, PeerClosed):
            pid = source.peer.pid
            self._ready.append(_Gone(f"process {pid}: {error}"))

    def _kept(self, blocks: list[Tensor]) -> None:
        if self._pins is not None:
            self._pins.pin(blocks)

    def _load(self, item: Any) -> Any:
        if isinstance(item, _Gone):
            raise PeerDied(*item.args)
        return super()._load(item)


def ends(workers: Iterable[BaseProcess], patience: float) -> list[str]:
    """Returns how each worker has ended that did not end in order. Waits for one, at most for ``patience``."""
    end = time.monotonic() + patience
    while not (texts := _ends(workers)) and time.monotonic() < end:
        time.sleep(_PAUSE)
    return texts


def _ends(workers: Iterable[BaseProcess]) -> list[str]:
    texts = []
    for rank, worker in enumerate(workers):
        status = worker.exitcode
        if status is not None and status != 0:
            how = f"has exited with status {status}" if status > 0 else f"was killed by {_signal(-status)}"
            texts.append(f"worker {rank} (pid {worker.pid}) {how}")
    return texts


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
