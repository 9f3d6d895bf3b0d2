"""The other process of a test: `python peer.py ROLE ARGUMENTS`."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import slipring

LONG = 60.0


def echo(name: str) -> None:
    """Returns each message with its metadata."""
    with slipring.connect(name, retry=LONG) as link:
        for message in link:
            link.send(message, meta=message.meta)


def echo_tensors(name: str) -> None:
    """Returns each set of tensors with its names and metadata."""
    with slipring.connect(name, retry=LONG) as link:
        while True:
            try:
                tensors = link.recv_tensors()
            except slipring.PeerClosed:
                return
            named = dict(tensors.items())
            link.send_tensors(named if all(tensors.names) else list(tensors), meta=tensors.meta)


def sum_tensors(name: str) -> None:
    """Returns the sum of each tensor as text."""
    with slipring.connect(name, retry=LONG) as link:
        for tensor in link.tensors():
            link.send(str(np.asarray(tensor).sum()).encode())


def die(name: str) -> None:
    """Sends one message and a tensor, and dies when it is told to."""
    link = slipring.connect(name, retry=LONG)
    link.send(b"last")
    link.send_tensor(np.arange(1000, dtype="int64"))
    link.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def descriptor(number: str, role: str) -> None:
    """Echoes over an inherited end of `pair()`."""
    with slipring.Endpoint(int(number), "accept" if role == "accept" else "connect").open() as link:
        for message in link:
            link.send(message)


def interrupted(name: str, what: str) -> None:
    """Waits until SIGINT, and prints what came of it."""
    # A shell starts what runs in its background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if what.startswith("publish"):
        return interrupted_publisher(name, what)
    with slipring.listen(name) as listener:
        if what == "accept":
            wait = listener.accept
        else:
            link = listener.accept()
            wait = {
                "recv": link.recv,
                "recv_tensor": link.recv_tensor,
                "send": lambda: [link.send(bytes(1000), timeout=1e9) for _ in iter(int, 1)],
            }[what]
        try:
            print("waits", flush=True)
            wait()
        except KeyboardInterrupt:
            print("interrupted", flush=True)


def interrupted_publisher(name: str, what: str) -> None:
    """Publishes to one subscriber that reads nothing, until SIGINT, and prints what came of it."""
    context = slipring.Context(pool_quota=4 << 20)
    options = {"slots": 4, "newest_limit": 1, "stall_after": 1e9}
    with slipring.publish(name, context=context, **options) as publisher:
        while not publisher.subscribers():
            time.sleep(0.001)
        send = {
            "publish": lambda: publisher.send(b"", timeout=1e9),
            "publish meta": lambda: publisher.send(b"", meta={"a": 1}, timeout=1e9),
            "publish tensor": lambda: publisher.send_tensor(np.ones(3), timeout=1e9),
            "publish empty": lambda: publisher.send_tensor(publisher.empty(3 << 20), timeout=1e9),
        }[what]
        try:
            print("waits", flush=True)
            while True:
                send()
        except KeyboardInterrupt:
            print("interrupted", flush=True)


def serve(name: str) -> None:
    """Answers bytes with their reverse, and tensors with twice their values."""

    def handler(request: slipring.Request) -> object:
        if request.message is not None:
            request.respond(bytes(request.message)[::-1], meta=request.meta)
            return None
        return {key: np.asarray(tensor) * 2 for key, tensor in request.tensors.items()}

    with slipring.connect(name, retry=LONG) as link:
        link.serve(handler)


def subscribe(name: str, policy: str, count: str) -> None:
    """Prints the sums of the samples of a topic."""
    wanted = int(policy) if policy.isdigit() else policy
    with slipring.subscribe(name, wanted, wait=LONG) as subscriber:
        print("joined", flush=True)
        for _ in range(int(count)):
            sample = subscriber.recv(LONG)
            print(int(np.asarray(sample.tensor).sum()), flush=True)
            del sample


def aecho(name: str) -> None:
    """Returns each message, in an event loop of asyncio."""
    import asyncio

    async def main() -> None:
        with slipring.connect(name, retry=LONG) as link:
            async for message in link:
                await link.asend(bytes(message), meta=message.meta)

    asyncio.run(main())


def aserve(name: str, count: str) -> None:
    """Answers in a loop: bytes with themselves, and tensors with what a call of its own answers. Sends numbers."""
    import asyncio

    async def main() -> None:
        with slipring.connect(name, retry=LONG) as link:

            async def handler(request: slipring.Request) -> object:
                if request.message is not None:
                    await request.arespond(bytes(request.message), meta=request.meta)
                    return None
                return {"x": (await link.acall_tensors([request.tensors["x"]]))[0]}

            async def send() -> None:
                for number in range(int(count)):
                    await link.asend(str(number).encode())
                    await asyncio.sleep(0)

            sending = asyncio.create_task(send())
            await link.aserve(handler)
            await sending

    asyncio.run(main())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
