"""asyncio: tasks wait for descriptors, and nothing else."""

from __future__ import annotations

import asyncio
import os
import threading

import numpy as np
import pytest

import slipring
from conftest import LONG, Child, connected

Link = tuple[slipring.Connection, slipring.Connection]


def test_an_echo_between_two_loops(name: str, child: Child) -> None:
    async def main() -> None:
        with slipring.listen(name) as listener:
            child("aecho", name)
            with await asyncio.wait_for(listener.aaccept(), LONG) as link:
                for number in range(500):
                    await link.asend(number.to_bytes(4, "big"), meta={"n": number})
                    message = await asyncio.wait_for(link.arecv(), LONG)
                    assert (bytes(message), message.meta) == (number.to_bytes(4, "big"), {"n": number})

    threads = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == threads


def test_uvloop_waits_for_a_link(link: Link) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: its loop is not checked")
    near, far = link

    async def main() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)

        async def echo() -> None:
            async for message in far:
                await far.asend(message)

        task = asyncio.create_task(echo())
        for number in range(200):
            await near.asend(number.to_bytes(4, "big"))
            assert await asyncio.wait_for(near.arecv(), LONG) == number.to_bytes(4, "big")
        near.close()
        await asyncio.wait_for(task, LONG)

    uvloop.run(main())


def test_a_task_sleeps_until_a_message_comes(link: Link) -> None:
    near, far = link

    async def main() -> list[bytes]:
        task = asyncio.create_task(far.arecv())
        await asyncio.sleep(0.05)
        assert not task.done()
        near.send(b"wake")
        first = await asyncio.wait_for(task, LONG)
        near.send_tensor(np.arange(3))
        tensor = await asyncio.wait_for(far.arecv_tensor(), LONG)
        near.send_tensors([np.arange(3)] * 2)
        tensors = await asyncio.wait_for(far.arecv_tensors(), LONG)
        return [bytes(first), bytes(tensor), bytes(tensors[1])]

    array = np.arange(3).tobytes()
    assert asyncio.run(main()) == [b"wake", array, array]


def test_a_cancelled_wait_leaves_nothing_behind(link: Link) -> None:
    near, far = link

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(far.arecv(), 0.02)
        near.send(b"still works")
        assert bytes(await asyncio.wait_for(far.arecv(), LONG)) == b"still works"

    asyncio.run(main())

    async def once() -> bytes:
        return bytes(await asyncio.wait_for(far.arecv(), LONG))

    # Another loop, and the blocking way.
    near.send(b"another loop")
    assert asyncio.run(once()) == b"another loop"
    near.send(b"no loop")
    assert far.recv(LONG) == b"no loop"


def test_many_tasks_wait_at_once(name: str) -> None:
    links = [connected(f"{name}-{number}") for number in range(20)]

    async def main() -> int:
        async def count(link: slipring.Connection) -> int:
            total = 0
            async for message in link:
                total += len(message)
            return total

        tasks = [asyncio.create_task(count(far)) for _, far in links]
        for near, _ in links:
            for _ in range(50):
                await near.asend(bytes(10))
            near.close()
        return sum(await asyncio.wait_for(asyncio.gather(*tasks), LONG))

    assert asyncio.run(main()) == 20 * 50 * 10


def test_a_send_waits_for_room(name: str) -> None:
    near, far = connected(name, near=slipring.Context(ring_capacity=4096))

    async def main() -> None:
        sent = 0

        async def produce() -> None:
            nonlocal sent
            for number in range(2000):
                await near.asend(number.to_bytes(100, "big"))
                sent += 1

        task = asyncio.create_task(produce())
        await asyncio.sleep(0.1)
        assert 0 < sent < 2000
        for number in range(2000):
            message = await asyncio.wait_for(far.arecv(), LONG)
            assert int.from_bytes(bytes(message), "big") == number
        await task

    asyncio.run(main())


def test_samples_come_in_a_loop(name: str) -> None:
    async def main() -> list[bytes]:
        with slipring.publish(name) as publisher:
            subscriber = slipring.subscribe(name, "every", reconnect=False)
            got: list[bytes] = []

            async def read() -> None:
                async for sample in subscriber:
                    got.append(bytes(sample.message or b""))

            task = asyncio.create_task(read())
            for number in range(10):
                publisher.send(bytes([number]))
                await asyncio.sleep(0.001)
            publisher.close()
            await asyncio.wait_for(task, LONG)
            return got

    assert asyncio.run(main()) == [bytes([number]) for number in range(10)]


def test_a_closed_link_leaves_no_descriptor(name: str) -> None:
    async def turn(number: int) -> None:
        near, far = await asyncio.to_thread(connected, f"{name}-{number}")
        task = asyncio.create_task(far.arecv())
        await asyncio.sleep(0)
        near.close()
        with pytest.raises(slipring.PeerClosed):
            await asyncio.wait_for(task, LONG)
        far.close()

    async def main() -> None:
        await turn(0)
        before = len(os.listdir("/proc/self/fd"))
        for number in range(1, 10):
            await turn(number)
        assert len(os.listdir("/proc/self/fd")) <= before

    asyncio.run(main())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_close_ends_the_waits(link: Link, name: str, elsewhere: bool) -> None:
    _, far = link

    async def main() -> None:
        with slipring.publish(name):
            listener = slipring.listen(f"{name}-listener")
            subscriber = slipring.subscribe(name)
            waits = [far.arecv, far.arecv_tensor, subscriber.arecv, listener.aaccept]
            tasks = [asyncio.ensure_future(wait()) for wait in waits]
            await asyncio.sleep(0.05)
            for owner in (far, subscriber, listener):
                if elsewhere:
                    await asyncio.to_thread(owner.close)
                else:
                    owner.close()
            for task in tasks:
                with pytest.raises(slipring.Closed):
                    await asyncio.wait_for(task, LONG)

    asyncio.run(main())


def test_an_iterator_is_sent_whole_when_there_is_room(name: str) -> None:
    near, far = connected(name, near=slipring.Context(ring_capacity=4096))
    sent = 0
    while near.try_send(bytes(100)):
        sent += 1

    async def main() -> None:
        task = asyncio.create_task(near.asend_tensors(np.full(10, number) for number in range(2)))
        await asyncio.sleep(0.05)
        assert not task.done()
        for _ in range(sent):
            assert await far.arecv() == bytes(100)
        await asyncio.wait_for(task, LONG)
        assert len(await far.arecv_tensors()) == 2

    asyncio.run(main())
