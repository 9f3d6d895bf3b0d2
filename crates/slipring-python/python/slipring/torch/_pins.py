"""Memory of workers that is registered with CUDA: a GPU reads pinned tensors in it without a copy.

This process maps a worker's memory read-only, so it asks for memory that the GPU only reads. CUDA registers a range
once, so a mapping of the pool is registered as a whole, and not each tensor.

1. Memory is unregistered before it is unmapped: this keeps it mapped until nothing else does.
2. A block goes back to its worker only after the GPU has read it: a copy with ``non_blocking=True`` may still run when
   its tensor is dropped. Torch keeps pinned memory of its own for that time, and does not know this one.
3. CUDA keeps an error for the next call of its thread, which would raise it. So each call has a thread of its own.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._slipring import PeerMemory, Tensor

# Flags of cudaHostRegister: pinned for all GPUs of the process, and only read by them. CUDA demands the latter where
# the process may not write itself.
_PORTABLE = 1
_READ_ONLY = 8

# The pause between two looks for dropped tensors, in seconds.
_PAUSE = 0.005

# What a parent had registered is its own.
_of_parents: list[object] = []


class Pins:
    """Registers the memory that tensors lie in."""

    def __init__(
        self, cudart: Callable[[], Any], here: Callable[[], Callable[[], None]], wait: Callable[[], None]
    ) -> None:
        """Takes what returns ``torch.cuda.cudart()``, what returns a function that gives a thread the caller's GPU, and
        what waits until all GPUs have done what this process has told them.
        """
        self._cudart = cudart
        self._here = here
        self._wait = wait
        self._clear()
        os.register_at_fork(after_in_child=self._after_fork)

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._registered: dict[int, PeerMemory] = {}
        self._lent: list[Tensor] = []
        self._sweeper: threading.Thread | None = None
        self._is_refused = False

    def _after_fork(self) -> None:
        _of_parents.append((self._registered, self._lent))
        self._clear()

    def pin(self, tensors: list[Tensor]) -> None:
        """Registers the memory of tensors that have views. After a refusal it asks no more: torch copies the rest."""
        with self._lock:
            for tensor in tensors:
                if (memory := tensor._peer_memory) is not None and self._is_registered(memory):
                    self._lent.append(tensor)
            if self._registered and self._sweeper is None:
                self._sweeper = threading.Thread(
                    target=self._sweep, args=(self._here(),), daemon=True, name="slipring-pins"
                )
                self._sweeper.start()

    def _is_registered(self, memory: PeerMemory) -> bool:
        if memory.start in self._registered:
            return True
        if self._is_refused:
            return False
        if (why := self._register(memory)) is not None:
            self._is_refused = True
            warnings.warn(
                f"CUDA does not register {memory.nbytes} bytes of a worker, and says {why!r}: torch copies batches to "
                "pinned memory instead, as it does without shared=True",
                stacklevel=2,
            )
            return False
        self._registered[memory.start] = memory
        return True

    def _register(self, memory: PeerMemory) -> str | None:
        """Returns why CUDA refuses the memory, if it does."""
        enter, refusals = self._here(), []

        def register() -> None:
            enter()
            cudart = self._cudart()
            error = cudart.cudaHostRegister(memory.start, memory.nbytes, _PORTABLE | _READ_ONLY)
            if int(error) != 0:
                refusals.append(str(cudart.cudaGetErrorString(error)))

        thread = threading.Thread(target=register)
        thread.start()
        thread.join()
        return refusals[0] if refusals else None

    def _sweep(self, enter: Callable[[], None]) -> None:
        """Gives blocks back whose views are gone, and unregisters memory that nothing uses, until there is none."""
        enter()
        while True:
            time.sleep(_PAUSE)
            with self._lock:
                dropped = [tensor for tensor in self._lent if not tensor._viewed]
                self._lent = [tensor for tensor in self._lent if tensor not in dropped]
            if dropped:
                self._wait()
            for tensor in dropped:
                tensor.release()
            with self._lock:
                for start in [start for start, memory in self._registered.items() if memory.unused]:
                    self._cudart().cudaHostUnregister(start)
                    del self._registered[start]
                if not self._registered:
                    self._sweeper = None
                    return


_pins: Pins | None = None


def cuda_pins() -> Pins | None:
    """Returns the pins of this process, or ``None`` if it has no GPU."""
    global _pins
    import torch

    if _pins is None and torch.cuda.is_available():

        def here() -> Callable[[], None]:
            gpu = torch.cuda.current_device()
            return lambda: torch.cuda.set_device(gpu)

        def wait() -> None:
            for gpu in range(torch.cuda.device_count()):
                if torch._C._cuda_hasPrimaryContext(gpu):
                    torch.cuda.synchronize(gpu)

        _pins = Pins(torch.cuda.cudart, here, wait)
    return _pins
