"""The ``DataLoader`` of torch, whose workers hand over batches through slipring.

Torch's own loader makes its queues by the ``multiprocessing`` context that it is given, first the one of results. So
its order, its seeds, its workers and their ends are torch's own, and only that queue is another one.
"""

from __future__ import annotations

import multiprocessing
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader as _DataLoader
from torch.utils.data import get_worker_info
from torch.utils.data._utils import collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .._errors import PeerDied
from ._pins import Pins, cuda_pins
from ._results import Results, ends

if TYPE_CHECKING:
    from collections.abc import Callable

# How long the kernel takes from the end of a process's connections to its status, in seconds, with much to spare.
_PATIENCE = 1.0


class DataLoader(_DataLoader):
    """``torch.utils.data.DataLoader``, with the same arguments, whose workers hand over a batch as one message.

    With ``shared=True`` tensors of 64 KiB and more lie in the memory of the worker that made them, until they are
    dropped. They are read-only, and **a write to one, such as ``tensor.add_(1)``, ends the process by SIGSEGV**: take
    ``tensor.clone()``, or leave ``shared`` out, if anything writes. Otherwise they are copies.

    With ``pin_memory=True``, too, and a GPU, that memory is registered with CUDA, so that a shared tensor is pinned
    where it lies. Where CUDA refuses it, one warning says so, and torch copies each batch to pinned memory.
    """

    def __init__(self, *arguments: Any, shared: bool = False, **options: Any) -> None:
        self._is_shared = shared
        super().__init__(*arguments, **options)

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return _Iterator(self)


class _Iterator(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: DataLoader) -> None:
        super().__init__(_View(loader))

    def _get_data(self) -> Any:
        try:
            try:
                return super()._get_data()
            except PeerDied:
                # A worker's connection ends before the worker has a status. Torch's handler of SIGCHLD may raise in
                # this wait, once for each loader.
                ends(self._workers, _PATIENCE)
                raise
        except (RuntimeError, PeerDied) as error:
            dead = ends(self._workers, 0)
            if not dead:
                raise
            raise RuntimeError(f"a DataLoader worker exited unexpectedly: {', '.join(dead)}") from error

    def _shutdown_workers(self) -> None:
        results = getattr(self, "_worker_result_queue", None)
        done = getattr(self, "_workers_done_event", None)
        if results is not None and done is not None and not self._shutdown and not self._pin_memory:
            # A worker that waits to put its first batch goes on.
            done.set()
            results.close()
        super()._shutdown_workers()


class _View:
    """A loader with a context whose first queue is the one of results."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        pins = cuda_pins() if loader.pin_memory and loader._is_shared else None
        self.multiprocessing_context = _context(loader.multiprocessing_context, loader._is_shared, pins)
        self.worker_init_fn = partial(_start, loader.worker_init_fn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _context(base: Any, shared: bool, pins: Pins | None) -> Any:
    base = base or multiprocessing.get_context()
    made: list[Results] = []

    class _Context(type(base)):  # type: ignore[misc]
        def Queue(self, maxsize: int = 0) -> Any:
            if made:
                return super().Queue(maxsize)
            made.append(Results(shared=shared, failure=_failure, pins=pins))
            return made[0]

    return _Context()


def _failure() -> Any:
    info = get_worker_info()
    return ExceptionWrapper(where="in DataLoader" if info is None else f"in DataLoader worker process {info.id}")


def _start(init: Callable[[int], None] | None, worker: int) -> None:
    """Prepares a worker."""
    # Torch's function makes each batch in shared memory of its own, by a descriptor.
    if collate.default_collate_fn_map.get(torch.Tensor) is collate.collate_tensor_fn:
        collate.default_collate_fn_map[torch.Tensor] = _stack
    if init is not None:
        init(worker)


def _stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if any(each.is_nested or each.layout != torch.strided for each in batch):
        return collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)
