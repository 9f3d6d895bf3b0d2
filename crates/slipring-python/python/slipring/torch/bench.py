"""What a batch takes from a worker to its loader: ``python -m slipring.torch.bench``.

A batch has 114 small arrays and 2 large ones, of 16 images. Loaders of slipring and of torch, with both its strategies
of sharing, take turns in each row, in one run. A producer copies each batch before it hands it over, because torch
moves a tensor to shared memory once. All processes use one thread of torch. Without torch only the rows of NumPy run,
beside ``multiprocessing.Queue``.

Each row has the time from one batch to the next, and the CPU time of that in the receiving process. Its floor is the
copy that the producer makes. The receiver reads a byte of each page of the large arrays.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = 114
IMAGES = (16, 3, 224, 224)
MASKS = (16, 224, 224)

# Descriptors and workers of the row with a limit.
DESCRIPTORS = 1024
WORKERS = 64

# How long a loader is watched after the death of a worker, and how long one with many workers may take, in seconds.
_PATIENCE = 20.0
_LONGEST = 60.0


def arrays() -> dict[str, Any]:
    """Returns a batch of NumPy: 114 small arrays, images and masks."""
    import numpy as np

    batch: dict[str, Any] = {
        f"small{number}": np.full((16, 1 + number % 8), number, "float32") for number in range(SMALL)
    }
    return batch | {"images": np.ones(IMAGES, "float32"), "masks": np.ones(MASKS, "uint8")}


def tensors() -> dict[str, Any]:
    """Returns a batch of torch."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays().items()}


def copied(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of a batch."""
    return {name: part.clone() if hasattr(part, "clone") else part.copy() for name, part in batch.items()}


def read(batch: dict[str, Any]) -> None:
    """Reads a byte of each page of the large arrays."""
    batch["images"].reshape(-1)[::1024].sum()
    batch["masks"].reshape(-1)[::4096].sum()


class Batches:
    """A dataset, whose items are batches. One of them may take for ever."""

    def __init__(self, count: int, endless: int = -1) -> None:
        self._count = count
        self._endless = endless
        self._batch: dict[str, Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        while index == self._endless:
            time.sleep(1)
        if self._batch is None:
            self._batch = tensors()
        return copied(self._batch)


class Samples(Batches):
    """A dataset of single images with the small arrays of each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._batch is None:
            self._batch = {name: part[0] for name, part in tensors().items()}
        return self._batch


def set_strategy(strategy: str, _worker: int = 0) -> None:
    """Chooses how torch shares memory in this process."""
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy(strategy)


def single_threaded() -> None:
    """Has torch use one thread in this process, as the workers of its loader do."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def loader(side: str, dataset: Batches, workers: int, **options: Any) -> Any:
    """Returns a loader of this side."""
    from functools import partial

    import torch.utils.data

    import slipring.torch

    options = {"batch_size": None, "num_workers": workers, "persistent_workers": True} | options
    if side.startswith("slipring"):
        return slipring.torch.DataLoader(dataset, shared=side.endswith("shared"), **options)
    strategy = side.removeprefix("torch ")
    set_strategy(strategy)
    return torch.utils.data.DataLoader(dataset, worker_init_fn=partial(set_strategy, strategy), **options)


def show(row: str, side: str, text: str) -> None:
    """Prints a row."""
    print(f"{row:40}  {side:24} {text}", flush=True)


def _timed(batches: Callable[[], Iterator[Any]]) -> tuple[list[float], list[float]]:
    """Returns the times between batches, and the CPU times, in microseconds."""
    times, cpu = [], []
    last, last_cpu = time.perf_counter(), time.process_time()
    for batch in batches():
        read(batch)
        now, now_cpu = time.perf_counter(), time.process_time()
        times.append((now - last) * 1e6)
        cpu.append((now_cpu - last_cpu) * 1e6)
        last, last_cpu = now, now_cpu
        del batch
    return times, cpu


def by_turns(row: str, sides: dict[str, Callable[[], Iterator[Any]]], turns: int, floor: Callable[[], Any]) -> None:
    """Measures the sides of a row, by turns."""
    times: dict[str, tuple[list[float], list[float]]] = {side: ([], []) for side in sides}
    floors = []
    for turn in range(turns + 1):
        for side, batches in sides.items():
            some = _timed(batches)
            # The first turn warms up, and the first batch of a turn waits for its worker.
            for all_times, new in zip(times[side], some, strict=True):
                all_times += new[2:] if turn else []
        start = time.perf_counter()
        floor()
        floors.append((time.perf_counter() - start) * 1e6)
    middles = {}
    for side, (wall, cpu) in times.items():
        wall.sort()
        p50, p99 = wall[len(wall) // 2], wall[len(wall) * 99 // 100]
        middles[side] = sum(wall) / len(wall)
        show(
            row,
            side,
            f"mean {middles[side]:9.1f} us  p50 {p50:9.1f} us  p99 {p99:9.1f} us  CPU {sum(cpu) / len(cpu):9.1f} us",
        )
    show(row, "floor", f"p50  {sorted(floors)[len(floors) // 2]:9.1f} us, the copy of the producer")
    rivals = [middle for side, middle in middles.items() if not side.startswith("slipring")]
    for side, middle in middles.items():
        if side.startswith("slipring") and rivals:
            show(row, side, f"ratio {middle / min(rivals):.3f} of the mean of the better rival")


def _produce(queue: Any, strategy: str | None, with_torch: bool, orders: Any) -> None:
    if strategy is not None:
        set_strategy(strategy)
    single_threaded()
    batch = tensors() if with_torch else arrays()
    while count := orders.recv():
        for _ in range(count):
            queue.put(copied(batch))


@contextlib.contextmanager
def producer(queue: Any, strategy: str | None, with_torch: bool, count: int) -> Iterator[Callable[[], Iterator[Any]]]:
    """Starts a process that puts batches."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_produce, args=(queue, strategy, with_torch, theirs), daemon=True
    )
    process.start()

    def batches() -> Iterator[Any]:
        ours.send(count)
        for _ in range(count):
            yield queue.get()

    try:
        yield batches
    finally:
        process.kill()
        process.join()


def queues(with_torch: bool, turns: int, count: int) -> None:
    """Measures queues of two places."""
    fork = multiprocessing.get_context("fork")
    made: dict[str, tuple[Any, str | None]] = {
        "slipring": (Queue(2), None),
        "slipring shared": (Queue(2, shared=True), None),
    }
    if with_torch:
        import torch.multiprocessing

        fork = torch.multiprocessing.get_context("fork")
        for strategy in sorted(torch.multiprocessing.get_all_sharing_strategies()):
            made[f"torch {strategy}"] = (fork.Queue(2), strategy)
    else:
        made["multiprocessing"] = (fork.Queue(2), None)
    with contextlib.ExitStack() as stack:
        sides = {}
        for side, (queue, strategy) in made.items():
            sides[side] = stack.enter_context(producer(queue, strategy, with_torch, count))
        batch = tensors() if with_torch else arrays()
        row = "queue, tensors of torch" if with_torch else "queue, arrays of NumPy"
        by_turns(row, sides, turns, lambda: copied(batch))


def names() -> list[str]:
    """Returns all sides with torch."""
    import torch.multiprocessing

    strategies = sorted(torch.multiprocessing.get_all_sharing_strategies())
    return ["slipring", "slipring shared", *(f"torch {strategy}" for strategy in strategies)]


def loaders(row: str, dataset: Batches, workers: int, turns: int, **options: Any) -> None:
    """Measures loaders."""
    made = {side: loader(side, dataset, workers, **options) for side in names()}
    batch = tensors()
    by_turns(row, {side: each.__iter__ for side, each in made.items()}, turns, lambda: copied(batch))


def under_limit(side: str) -> int:
    """Loads by many workers under a limit of descriptors. Prints how that went."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    most = count = 0
    try:
        for batch in loader(side, Batches(4 * WORKERS), WORKERS, persistent_workers=False):
            read(batch)
            count += 1
            most = max(most, len(os.listdir("/proc/self/fd")))
            del batch
    except (RuntimeError, OSError) as error:
        print(f"{count} batches, then {type(error).__name__}: {str(error).splitlines()[0][:90]}")
    else:
        print(f"all {count} batches, at most {most} descriptors")
    return 0


def _left() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def killed(side: str) -> None:
    """Measures how long a loader that waits for a worker does not know of its death, and what it leaves."""
    row, before = "a worker killed", _left()
    waiting = iter(loader(side, Batches(8, endless=5), 4, persistent_workers=False))
    for _ in range(5):
        next(waiting)
    workers = list(waiting._workers)
    start = 0.0

    def kill() -> None:
        nonlocal start
        time.sleep(0.3)
        start = time.perf_counter()
        os.kill(workers[1].pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        next(waiting)
    except RuntimeError as error:
        show(row, side, f"{(time.perf_counter() - start) * 1e3:.1f} ms: {error}")
    thread.join()
    # The other workers have nothing to do, and one has died.
    del waiting
    end = time.monotonic() + _PATIENCE
    while any(worker.is_alive() for worker in workers) and time.monotonic() < end:
        time.sleep(0.01)
    alive = sum(worker.is_alive() for worker in workers)
    show(row, side, f"left: {alive} processes, {len(_left() - before)} files in /dev/shm")


def main() -> int:
    """Runs all rows."""
    parser = argparse.ArgumentParser(prog="python -m slipring.torch.bench", description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="of each side in a row")
    parser.add_argument("--count", type=int, default=100, help="of batches in a turn")
    parser.add_argument("--side", help="what runs under the limit of descriptors, for the bench itself")
    options = parser.parse_args()
    turns, count = options.turns, options.count
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    if options.side:
        return under_limit(options.side)
    if importlib.util.find_spec("numpy") is None:
        print("NumPy is not installed: no rows")
        return 1
    queues(False, turns, count)
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: no rows of tensors and loaders (pip install torch)")
        return 0
    importlib.import_module("torch")
    single_threaded()
    queues(True, turns, count)
    loaders("loader, 1 worker", Batches(count), 1, turns)
    loaders("loader, 2 workers", Batches(count), 2, turns)
    loaders("loader, 2 workers, collates 16 images", Samples(16 * count), 2, turns, batch_size=16)
    for side in names():
        command = [sys.executable, "-m", "slipring.torch.bench", "--side", side]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            out, _ = process.communicate(timeout=_LONGEST)
            text = out.strip() or f"ended with status {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            text = f"not done in {_LONGEST:.0f} s"
        show(f"{WORKERS} workers, {DESCRIPTORS} descriptors", side, text)
    for side in names():
        killed(side)
    return 0


if __name__ == "__main__":
    sys.exit(main())
