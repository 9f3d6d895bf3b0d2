"""What calls, round trips and hand-overs take beside other ways: ``python -m slipring.bench``.

Each row is the median and the fastest tenth of many short batches, in one run with its rivals. Both processes are
pinned, each to a CPU of its own, if there are two. ``pyzmq`` and ``iceoryx2`` have rows if they are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib.util
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
GAP = 50e-6  # seconds that a side idles before it sends, while the other one falls asleep
LAST = 2**64 - 1


def pin(place: int) -> None:
    """Pins the process to one of its CPUs."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, {cpus[place]})


def idle() -> None:
    """Idles for `GAP` without a system call."""
    end = time.perf_counter() + GAP
    while time.perf_counter() < end:
        pass


class Iceoryx:
    """A port of iceoryx2 for each direction. Both sides poll: its subscribers do not sleep."""

    def __init__(self, sends: str, receives: str) -> None:
        import iceoryx2

        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)

        def service(name: str) -> Any:
            builder = node.service_builder(iceoryx2.ServiceName.new(name))
            return builder.publish_subscribe(ctypes.c_uint64).open_or_create()

        self._node = node
        self._publisher = service(sends).publisher_builder().create()
        self._subscriber = service(receives).subscriber_builder().create()

    def send(self, value: int) -> None:
        self._publisher.send_copy(ctypes.c_uint64(value))

    def recv(self) -> int:
        while (sample := self._subscriber.receive()) is None:
            pass
        return int(sample.payload().contents.value)


def echo(name: str, cpus: set[int], pipe: Pipe, queues: tuple[Any, Any], rivals: set[str]) -> None:
    """Answers the main process, one row after the other."""
    os.sched_setaffinity(0, cpus)
    pin(1)
    with slipring.connect(name, retry=30.0) as link:
        while (message := link.recv()) != END:
            link.send(message)
        never = slipring.Context(spin="never")
        with slipring.connect(f"{name}-sleepy", retry=30.0, context=never) as sleepy:
            while (message := sleepy.recv()) != END:
                idle()
                sleepy.send(message)
        while (body := pipe.recv_bytes()) != END:
            pipe.send_bytes(body)
        while (body := queues[0].get()) != END:
            queues[1].put(body)
        if "zmq" in rivals:
            import zmq

            peer: Any = zmq.Context.instance().socket(zmq.PAIR)
            peer.connect(f"ipc://@{name}-zmq")
            while (body := peer.recv()) != END:
                peer.send(body)
            peer.close(0)
        if "iceoryx2" in rivals:
            port = Iceoryx(f"{name}-back", f"{name}-there")
            # The other side has its ports before it sends, and says so by the link.
            link.send(BODY)
            while (value := port.recv()) != LAST:
                port.send(value)
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


def show(row: str, times: list[float]) -> float:
    """Prints a row. Returns the median."""
    middle = times[len(times) // 2]
    print(f"{row:44} {middle:10.3f} {times[len(times) // 10]:10.3f}", flush=True)
    return middle


def main() -> int:
    """Runs all rows."""
    parser = argparse.ArgumentParser(prog="python -m slipring.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row")
    parser.add_argument("--longest", type=int, default=1 << 30, help="bytes of the longest tensor")
    options = parser.parse_args()
    seconds: float = options.seconds
    name = f"slipring-bench-{os.getpid()}"
    rivals = {rival for rival in ("zmq", "iceoryx2") if importlib.util.find_spec(rival) is not None}
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    queues = (spawn.Queue(), spawn.Queue())
    context = slipring.Context(pool_quota=8 * max(options.longest, 1 << 28))
    cpus = os.sched_getaffinity(0)
    with slipring.listen(name, context=context) as listener:
        child = spawn.Process(target=echo, args=(name, cpus, theirs, queues, rivals), daemon=True)
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

    def queue_turn() -> None:
        queues[0].put(BODY)
        queues[1].get()

    show("8 B there and back", batches(turn, seconds, 20))
    link.send(END)
    never = slipring.Context(spin="never")
    with slipring.listen(f"{name}-sleepy", context=never) as listener:
        sleepy = listener.accept(60.0)

    def sleepy_turn() -> None:
        idle()
        sleepy.send(BODY)
        sleepy.recv()

    times = [t - 2e6 * GAP for t in batches(sleepy_turn, seconds, 1)]
    show("8 B there and back, both sides sleep", times)
    sleepy.send(END)
    show("  multiprocessing.Pipe", batches(pipe_turn, seconds, 5))
    ours.send_bytes(END)
    show("  multiprocessing.Queue", batches(queue_turn, seconds, 5))
    queues[0].put(END)
    if "zmq" in rivals:
        import zmq

        peer: Any = zmq.Context.instance().socket(zmq.PAIR)
        peer.bind(f"ipc://@{name}-zmq")
        show("  pyzmq, ipc", batches(lambda: (peer.send(BODY), peer.recv()), seconds, 5))
        peer.send(END)
        peer.close(1000)
    else:
        print("  pyzmq, ipc: skipped, pyzmq is not installed")
    if "iceoryx2" in rivals:
        port = Iceoryx(f"{name}-there", f"{name}-back")
        link.recv()

        def iceoryx_turn() -> None:
            port.send(7)
            port.recv()

        show("  iceoryx2, both polling", batches(iceoryx_turn, seconds, 5))
        port.send(LAST)
    else:
        print("  iceoryx2: skipped, iceoryx2 is not installed")

    def hand_over(size: int) -> None:
        tensor = link.empty(size)
        memoryview(tensor).release()
        link.send_tensor(tensor)
        link.recv()

    size, middles = 8, []
    while size <= options.longest:
        # The pool makes some blocks of this size first.
        batches(lambda size=size: hand_over(size), seconds / 2, 8)  # type: ignore[misc]
        times = batches(lambda size=size: hand_over(size), seconds / 2, 5)  # type: ignore[misc]
        middles.append(show(f"tensor of {size} B, and 8 B back", times))
        size *= 512
    print(f"{'  the slowest length beside the fastest':44} {max(middles) / min(middles):9.2f} x")
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
