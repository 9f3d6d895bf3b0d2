"""What the queue takes beside vLLM's own: ``python -m slipring.vllm.bench --original PATH``.

``PATH`` is the file that ``python tests/original.py`` prints; the environment variable ``SLIPRING_VLLM_ORIGINAL`` names
it, too. Both implementations take turns in each row. The readers of the one that waits are stopped, because vLLM's poll
for a second after a message. Rows with one reader pin both processes, each to a CPU of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import slipring.vllm

from . import _original

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

SPAWN = multiprocessing.get_context("spawn")
SHORT = b"x" * 64
LONG_LEN = 200_000_000

# What a scheduler tells its workers in a step: lists with an entry for each of 200 requests.
STEP = {
    "requests": list(range(1000, 1200)),
    "new_tokens": [1] * 200,
    "computed_tokens": list(range(0, 20_000, 100)),
    "last_blocks": list(range(70_000, 70_200)),
}

# How long vLLM's writer is watched after the death of a reader, in seconds.
_PATIENCE = 2.0


def module(path: str | None) -> Any:
    """Returns the module of an implementation: that of vLLM has a path."""
    return slipring.vllm if path is None else _original.load(path)


def read(pipe: Connection, path: str | None, handle: bytes, rank: int, cpu: int | None) -> None:
    """Reads, and answers as the last text has said."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    queues = module(path)
    reader = queues.MessageQueue.create_from_handle(pickle.loads(handle), rank)
    answers = queues.MessageQueue(1, 1)
    pipe.send(pickle.dumps(answers.export_handle()))
    reader.wait_until_ready()
    answers.wait_until_ready()
    answering = 1
    delays: list[int] = []
    while True:
        item = reader.dequeue(indefinite=True)
        if isinstance(item, int):
            delays.append(time.monotonic_ns() - item)
            continue
        if isinstance(item, str):
            if item == "delays":
                pipe.send((time.process_time(), sorted(delays)))
                delays.clear()
            else:
                answering = int(item)
            continue
        if rank < answering:
            answers.enqueue(SHORT if len(item) < 100 else item[-1:])


class Side:
    """One implementation: a writer, and its readers in processes of their own."""

    def __init__(self, path: str | None, readers: int) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        pins = readers == 1 and len(cpus) > 1
        self.cpus = {cpus[0]} if pins else set(cpus)
        queues = module(path)
        self.queue = queues.MessageQueue(readers, readers)
        handle = pickle.dumps(self.queue.export_handle())
        self.readers: list[tuple[Any, Connection]] = []
        for rank in range(readers):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(
                target=read, args=(theirs, path, handle, rank, cpus[1] if pins else None), daemon=True
            )
            process.start()
            self.readers.append((process, ours))
        self.answers = [
            queues.MessageQueue.create_from_handle(pickle.loads(pipe.recv()), 0) for _, pipe in self.readers
        ]
        self.queue.wait_until_ready()
        for answer in self.answers:
            answer.wait_until_ready()
        self.stop()

    def _signal(self, number: int) -> None:
        for process, _ in self.readers:
            os.kill(process.pid, number)

    def stop(self) -> None:
        """Stops the readers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets the readers run, and pins this process as the row wants it."""
        os.sched_setaffinity(0, self.cpus)
        self._signal(signal.SIGCONT)

    def call(self, item: Any, answering: int) -> float:
        """Sends an object, waits for the answers of the first readers, and returns the time in microseconds."""
        start = time.perf_counter()
        self.queue.enqueue(item)
        for answer in self.answers[:answering]:
            answer.dequeue()
        return (time.perf_counter() - start) * 1e6

    def kill(self) -> None:
        """Kills the readers."""
        for process, pipe in self.readers:
            process.kill()
            process.join()
            pipe.close()


def show(row: str, values: list[tuple[str, str]]) -> None:
    """Prints a row."""
    print(f"{row:42}" + "".join(f"  {name} {value}" for name, value in values), flush=True)


def _times(times: list[float]) -> str:
    times.sort()
    return f"p50 {times[len(times) // 2]:12.1f} us  p99 {times[int(len(times) * 0.99)]:12.1f} us"


def calls(row: str, sides: list[Side], item: Any, answering: int, count: int, turns: int) -> None:
    """Measures calls, by turns."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(turns):
        for side, its in zip(sides, times, strict=True):
            side.go_on()
            side.queue.enqueue(str(answering))
            for _ in range(max(3, count // 20)):
                side.call(item, answering)
            its += [side.call(item, answering) for _ in range(count)]
            side.stop()
    for name, its in zip(NAMES, times, strict=False):
        show(row, [(name, _times(its))])
    floor = [_pickling(item) for _ in range(min(count, 20))]
    show(row, [("floor", f"{_times(floor)}, pickled and loaded in this process")])
    if len(times) == 2:
        ours, theirs = (its[len(its) // 2] for its in times)
        show(row, [("ratio", f"{ours / theirs:.3f} of p50")])


def _pickling(item: Any) -> float:
    """Returns how long the object takes to be pickled and loaded without a queue, in microseconds."""
    start = time.perf_counter()
    buffers: list[pickle.PickleBuffer] = []
    pickle.loads(pickle.dumps(item, 5, buffer_callback=buffers.append), buffers=buffers)
    return (time.perf_counter() - start) * 1e6


def _collect(pipe: Connection, cpus: set[int]) -> None:
    os.sched_setaffinity(0, cpus)
    pipe.send(True)
    delays: list[int] = []
    while sent := pipe.recv():
        delays.append(time.monotonic_ns() - sent)
    pipe.send(delays)


def _wake_ups(cpus: set[int], count: int) -> list[float]:
    """Returns how late a process on these CPUs that sleeps on a pipe has a message each 5 ms, in microseconds."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_collect, args=(theirs, cpus), daemon=True)
    process.start()
    ours.recv()
    for _ in range(count):
        time.sleep(0.005)
        ours.send(time.monotonic_ns())
    ours.send(0)
    delays: list[int] = ours.recv()
    process.join()
    return [delay / 1000 for delay in delays]


def paced(row: str, sides: list[Side], count: int) -> None:
    """Measures a reader of a message each 5 ms: its share of a CPU, and how late it has each."""
    cpus = os.sched_getaffinity(sides[0].readers[0][0].pid)
    for name, side in zip(NAMES, sides, strict=False):
        side.go_on()
        side.queue.enqueue("delays")
        before, _ = side.readers[0][1].recv()
        start = time.monotonic()
        for _ in range(count):
            time.sleep(0.005)
            side.queue.enqueue(time.monotonic_ns())
        side.queue.enqueue("delays")
        after, delays = side.readers[0][1].recv()
        share = (after - before) / (time.monotonic() - start)
        side.stop()
        values = [delay / 1000 for delay in delays]
        show(row, [(name, f"{_times(values)}, {share * 100:.1f} % of a CPU")])
    show(row, [("floor", f"{_times(_wake_ups(cpus, count))}, a pipe's reader")])


def killed(row: str, sides: list[Side]) -> None:
    """Measures how long a writer that sends each millisecond does not know of a reader's death."""
    for name, side in zip(NAMES, sides, strict=False):
        side.go_on()
        side.queue.enqueue("0")
        process = side.readers[-1][0]
        time.sleep(0.1)
        start = time.perf_counter()
        os.kill(process.pid, signal.SIGKILL)
        heard = f"nothing within {_PATIENCE} s"
        while time.perf_counter() - start < _PATIENCE:
            try:
                side.queue.enqueue(SHORT, timeout=0.5)
            except TimeoutError:
                continue
            except OSError as error:
                heard = f"{(time.perf_counter() - start) * 1e3:.1f} ms: {error}"
                break
            time.sleep(0.001)
        show(row, [(name, heard)])


def _files() -> set[str]:
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).iterdir()}


def _hold(pipe: Connection, path: str | None) -> None:
    queue = module(path).MessageQueue(1, 1)
    reader = module(path).MessageQueue.create_from_handle(queue.export_handle(), 0)
    pipe.send(True)
    time.sleep(600)
    del reader


def left_behind(row: str, paths: list[str | None]) -> None:
    """Counts the files that a writer and a reader leave that are killed."""
    for name, path in zip(NAMES, paths, strict=False):
        before = _files()
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=_hold, args=(theirs, path), daemon=True)
        process.start()
        ours.recv()
        process.kill()
        process.join()
        left = {file for file in _files() - before if "psm_" in file or "slipring" in file}
        show(row, [(name, f"{len(left)} files")])
        for file in left:
            Path(file).unlink()


NAMES = ("slipring", "original")


def sides_of(paths: list[str | None], readers: int) -> Iterator[list[Side]]:
    """Returns all sides, and kills them at the end."""
    cpus = os.sched_getaffinity(0)
    sides = [Side(path, readers) for path in paths]
    yield sides
    os.sched_setaffinity(0, cpus)
    for side in sides:
        side.kill()


def main() -> int:
    """Runs all rows."""
    parser = argparse.ArgumentParser(prog="python -m slipring.vllm.bench", description=__doc__)
    parser.add_argument("--original", default=os.environ.get("SLIPRING_VLLM_ORIGINAL"), help="vLLM's own file")
    parser.add_argument("--turns", type=int, default=3, help="of each implementation in a row")
    parser.add_argument("--count", type=int, default=1000, help="of calls in a turn; of longer ones fewer")
    options = parser.parse_args()
    turns, count = options.turns, options.count
    paths: list[str | None] = [None]
    if options.original:
        paths.append(options.original)
    else:
        print("no --original: slipring alone")
    few = max(10, count // 5)
    for sides in sides_of(paths, 1):
        calls("64 B, 1 reader, there and back", sides, SHORT, 1, count, turns)
        calls("a scheduler's step, 1 reader", sides, STEP, 1, few, turns)
        calls("1 MiB of bytes, 1 reader", sides, bytes(1 << 20), 1, few, turns)
        paced("one message each 5 ms", sides, few)
    for sides in sides_of(paths, 4):
        calls("64 B, 4 readers, the first answers", sides, SHORT, 1, count, turns)
        calls("a scheduler's step, 4 readers", sides, STEP, 1, few, turns)
        calls("1 MiB of bytes, 4 readers", sides, bytes(1 << 20), 1, few, turns)
        calls("200 MB of bytes, 4 readers, all answer", sides, bytes(LONG_LEN), 4, 2, turns)
        try:
            import numpy as np
        except ImportError:
            print("no NumPy, no row of an array")
        else:
            calls("200 MB of an array, 4 readers, all answer", sides, np.ones(LONG_LEN, "uint8"), 4, 2, turns)
    for sides in sides_of(paths, 4):
        killed("a reader killed", sides)
    left_behind("left after SIGKILL of all", paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
