"""What a tensor on a GPU takes to another process: ``python -m slipring.torch.gpu_bench``.

A round trip begins before a kernel that fills the tensor with a number of its own, and ends when the other process has
read its first and last element and has answered. So each checks the order of the work by content, and its time includes
that kernel and the read. The ways take turns between the same two processes, in another order each round. Orders and
answers travel over a link of slipring:

- ``floor``: the process that fills the tensor reads it, and the other one answers.
- ``slipring``: ``send_tensor``, and ``torch.from_dlpack`` of what was received.
- ``torch``: a queue of ``torch.multiprocessing``.
- ``host``: copied to the host, over such a queue, and copied to the GPU.

A way that cannot carry the memory says why, of either process. With
``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` PyTorch allocates memory that travels as a descriptor.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import slipring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WAYS = ("floor", "slipring", "torch", "host")

# Rounds that open what stays, before those that count.
_WARM = 5

# How long one process waits for the other one, in seconds.
_LONGEST = 60.0

# What is read where nothing came.
_NOTHING = (-1, -1)


class Failure(Exception):
    """A way does not carry the tensor."""


def _ends(tensor: Any) -> tuple[int, int]:
    """Reads the first and the last element, once the work before is done."""
    return int(tensor[0]), int(tensor[-1])


def _receive(way: str, device: str, link: slipring.Connection, queue: Any) -> tuple[int, int]:
    import torch

    # The tensor is gone when this returns, so its memory is back before the answer.
    match way:
        case "slipring":
            return _ends(torch.from_dlpack(link.recv_tensor(timeout=_LONGEST)))
        case "torch":
            return _ends(queue.get())
        case "host":
            return _ends(queue.get().to(device))
        case _:
            return _NOTHING


def _follow(name: str, device: str, queue: Any) -> None:
    """Is the other process."""
    link = slipring.connect(name, retry=_LONGEST, timeout=_LONGEST)
    for order in link:
        try:
            answer = json.dumps(_receive(bytes(order).decode(), device, link, queue))
        except Exception as error:
            answer = json.dumps(f"the other process: {error}")
        link.send(answer.encode())


class Leader:
    """The process that measures."""

    def __init__(self, link: slipring.Connection, queue: Any) -> None:
        self._link = link
        self._queue = queue

    def trip(self, tensor: Any, way: str, number: int) -> float:
        """Returns the time of a round trip in microseconds. Raises ``Failure`` if the way does not carry the tensor."""
        start = time.perf_counter()
        tensor.fill_(number)
        self._link.send(way.encode())
        failure = None
        try:
            self._send(way, tensor)
        except (slipring.Error, RuntimeError, OSError) as error:
            failure = str(error)
            self._send_nothing(way)
        answer = json.loads(bytes(self._link.recv(timeout=_LONGEST)))
        took = (time.perf_counter() - start) * 1e6
        if failure is not None or isinstance(answer, str):
            raise Failure(failure or answer)
        if answer != list(_NOTHING if way == "floor" else (number, number)):
            raise SystemExit(f"gpu_bench: {way} brought {answer} instead of {number}")
        return took

    def _send(self, way: str, tensor: Any) -> None:
        match way:
            case "slipring":
                self._link.send_tensor(tensor, timeout=_LONGEST)
            case "torch":
                self._queue.put(tensor)
            case "host":
                self._queue.put(tensor.cpu())
            case _:
                _ends(tensor)

    def _send_nothing(self, way: str) -> None:
        import torch

        nothing = torch.tensor([_NOTHING[0]])
        if way == "slipring":
            self._link.send_tensor(nothing)
        elif way != "floor":
            self._queue.put(nothing)


def measure(trip: Callable[[str, int], float], rounds: int, show: Callable[[str, str], None]) -> None:
    """Measures all ways by turns, and shows a line for each."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    numbers = itertools.count(1)
    for turn in range(_WARM + rounds):
        first = turn % len(WAYS)
        for way in WAYS[first:] + WAYS[:first]:
            if way not in times:
                continue
            try:
                took = trip(way, next(numbers))
            except Failure as failure:
                show(way, f"does not carry it: {str(failure).splitlines()[0][:100]}")
                del times[way]
                continue
            if turn >= _WARM:
                times[way].append(took)
    best = min((statistics.median(times[way]) for way in ("torch", "host") if way in times), default=None)
    for way, all_times in times.items():
        all_times.sort()
        p50, p95 = statistics.median(all_times), all_times[(len(all_times) * 95 - 1) // 100]
        ratio = f"  {p50 / best:.3f} of the better rival" if way == "slipring" and best else ""
        show(way, f"p50 {p50:10.1f} us  p95 {p95:10.1f} us{ratio}")


def _show(size: int, way: str, text: str) -> None:
    print(f"{size:>12} B  {way:<8} {text}", flush=True)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is not 1 or more")
    return count


def _sizes(text: str) -> Sequence[int]:
    sizes = [int(each) for each in text.split(",")]
    if wrong := [size for size in sizes if size < 8 or size % 8]:
        raise argparse.ArgumentTypeError(f"{wrong[0]} is no multiple of 8 bytes")
    return sizes


def main() -> int:
    """Measures each size."""
    parser = argparse.ArgumentParser(
        prog="python -m slipring.torch.gpu_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = [1 << shift for shift in range(12, 33, 4)]
    parser.add_argument("--sizes", type=_sizes, default=sizes, help="of tensors, in bytes: multiples of 8")
    parser.add_argument("--rounds", type=_count, default=100, help="of each way and size")
    parser.add_argument("--device", default="cuda", help='of torch; with "cpu" the program runs, and measures no GPU')
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("gpu_bench: torch is not installed (pip install torch)", file=sys.stderr)
        return 1
    import torch.multiprocessing

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("gpu_bench: torch finds no GPU", file=sys.stderr)
        return 1
    spawn = torch.multiprocessing.get_context("spawn")
    queue, name = spawn.SimpleQueue(), f"slipring-gpu-bench-{os.getpid()}"
    with slipring.listen(name) as listener:
        other = spawn.Process(target=_follow, args=(name, options.device, queue), daemon=True)
        other.start()
        link = listener.accept(timeout=_LONGEST)
    leader = Leader(link, queue)
    try:
        for size in options.sizes:
            try:
                tensor = torch.zeros(size // 8, dtype=torch.int64, device=options.device)
            except RuntimeError as error:
                print(f"{size:>12} B  left out: {str(error).splitlines()[0][:100]}")
                continue
            measure(partial(leader.trip, tensor), options.rounds, partial(_show, size))
            del tensor
        link.close()
        other.join(_LONGEST)
    finally:
        other.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
