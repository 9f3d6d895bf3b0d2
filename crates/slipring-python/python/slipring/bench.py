"""What calls, round trips and hand-overs take beside other ways: ``python -m slipring.bench``.

Each row is the median and the fastest tenth of many short batches, by turns with its rivals, in one run. Both processes
are pinned, each to a CPU of its own, if there are two.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import sys
import threading
import time
import timeit
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Any

import slipring

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BODY = b"12345678"
LONG_BODY = bytes(64)
END = b"."


def pin(place: int) -> None:
    """Pins the process to one of its CPUs."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, {cpus[place]})


def echo(name: str, cpus: set[int], pipe: Pipe, ipc: str) -> None:
    """Answers the main process, one row after the other."""
    os.sched_setaffinity(0, cpus)
    pin(1)
    with slipring.connect(name, retry=30.0) as link:
        while (message := link.recv()) != END:
            link.send(message)
        while (body := pipe.recv_bytes()) != END:
            pipe.send_bytes(body)
        if ipc:
            import zmq

            peer = zmq.Context.instance().socket(zmq.PAIR)
            peer.connect(ipc)
            while (body := peer.recv()) != END:
                peer.send(body)
            peer.close(0)
        while True:
            tensor = link.recv_tensor()
            if tensor.meta:
                break
            memoryview(tensor)
            link.send(BODY)
        asyncio.run(_aecho(link, name))


async def _aecho(link: slipring.Connection, name: str) -> None:
    while (message := await link.arecv()) != END:
        await link.asend(message)
    reader, writer = await asyncio.open_unix_connection(sock=_socket(name, listens=False))
    while (body := await reader.readexactly(len(LONG_BODY))) != END * len(LONG_BODY):
        writer.write(body)
        await writer.drain()
    writer.close()


def _socket(name: str, *, listens: bool) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    if listens:
        made.bind(f"\0{name}-stream")
        made.listen()
    else:
        made.connect(f"\0{name}-stream")
        made.setblocking(False)
    return made


def batches(call: Callable[[], Any], seconds: float, count: int) -> list[float]:
    """Returns the time of a call in each batch of `count`, sorted, in microseconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - start) / count * 1e6)
    return sorted(times)


async def abatches(call: Callable[[], Awaitable[Any]], seconds: float, count: int) -> list[float]:
    """As `batches`, in an event loop."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(count):
            await call()
        times.append((time.perf_counter() - start) / count * 1e6)
    return sorted(times)


def show(row: str, times: list[float]) -> None:
    """Prints a row."""
    print(f"{row:44} {times[len(times) // 2]:10.3f} {times[len(times) // 10]:10.3f}", flush=True)


def main() -> int:
    """Runs all rows."""
    parser = argparse.ArgumentParser(prog="python -m slipring.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row")
    parser.add_argument("--longest", type=int, default=1 << 30, help="bytes of the longest tensor")
    options = parser.parse_args()
    seconds: float = options.seconds
    name = f"slipring-bench-{os.getpid()}"
    try:
        import zmq
    except ImportError:
        zmq = None
    ipc = f"ipc://@{name}-zmq" if zmq else ""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    context = slipring.Context(pool_quota=8 * max(options.longest, 1 << 28))
    cpus = os.sched_getaffinity(0)
    with slipring.listen(name, context=context) as listener:
        child = spawn.Process(target=echo, args=(name, cpus, theirs, ipc), daemon=True)
        child.start()
        link = listener.accept(60.0)
    pin(0)
    print(f"{'microseconds':44} {'p50':>10} {'p10':>10}")
    number = 1000
    floor = timeit.Timer("value.bit_length()", globals={"value": 5})
    empty = timeit.Timer("link.try_recv()", globals={"link": link})
    for row, timer in (("a method of int", floor), ("try_recv, nothing there", empty)):
        show(row, sorted(t / number * 1e6 for t in timer.repeat(int(2000 * seconds) + 1, number)))

    def turn() -> None:
        link.send(BODY)
        link.recv()

    def pipe_turn() -> None:
        ours.send_bytes(BODY)
        ours.recv_bytes()

    def sleepy_turn() -> None:
        time.sleep(0.002)
        turn()

    show("8 B there and back", batches(turn, seconds, 20))
    sleepy = [t - 2000 for t in batches(sleepy_turn, seconds, 1)]
    show("8 B there and back, asleep in between", [max(t, 0.0) for t in sleepy])
    link.send(END)
    show("  multiprocessing.Pipe", batches(pipe_turn, seconds, 5))
    ours.send_bytes(END)
    if zmq:
        peer = zmq.Context.instance().socket(zmq.PAIR)
        peer.bind(ipc)
        show("  pyzmq, ipc", batches(lambda: (peer.send(BODY), peer.recv()), seconds, 5))
        peer.send(END)
        peer.close(1000)

    def hand_over(size: int) -> None:
        tensor = link.empty(size)
        memoryview(tensor).release()
        link.send_tensor(tensor)
        link.recv()

    size = 8
    while size <= options.longest:
        # The pool makes some blocks of this size first.
        batches(lambda size=size: hand_over(size), seconds / 2, 8)  # type: ignore[misc]
        show(f"tensor of {size} B, and 8 B back", batches(lambda size=size: hand_over(size), seconds / 2, 5))  # type: ignore[misc]
        size *= 512
    link.send_tensor(link.empty(1), meta={"end": True})
    asyncio.run(_abench(link, name, seconds))
    link.close()
    child.join(10.0)
    return 0


async def _abench(link: slipring.Connection, name: str, seconds: float) -> None:
    async def turn() -> None:
        await link.asend(LONG_BODY)
        await link.arecv()

    show("asyncio, 64 B there and back", await abatches(turn, seconds, 10))
    accepted: list[socket.socket] = []
    listening = _socket(name, listens=True)
    thread = threading.Thread(target=lambda: accepted.append(listening.accept()[0]))
    thread.start()
    await link.asend(END)
    await asyncio.to_thread(thread.join)
    accepted[0].setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=accepted[0])

    async def stream_turn() -> None:
        writer.write(LONG_BODY)
        await writer.drain()
        await reader.readexactly(len(LONG_BODY))

    show("  asyncio Unix streams", await abatches(stream_turn, seconds, 10))
    writer.write(END * len(LONG_BODY))
    await writer.drain()
    writer.close()


if __name__ == "__main__":
    sys.exit(main())
