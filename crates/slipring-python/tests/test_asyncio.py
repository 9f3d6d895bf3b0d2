"""asyncio: tasks wait for descriptors, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import slipring
import slipring._asyncio as _asyncio
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
        # A thread of the library closes what both sides have let go of. The context may have made its side of the next
        # link.
        deadline = time.monotonic() + LONG
        while len(os.listdir("/proc/self/fd")) > before + 1:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

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


def test_calls_of_many_tasks_are_answered_in_any_order(link: Link) -> None:
    near, far = link

    async def handler(request: slipring.Request) -> bytes:
        number = int(bytes(request.message or b""))
        # The first of ten comes last.
        await asyncio.sleep((10 - number % 10) * 0.001)
        return str(number * 2).encode()

    async def main() -> None:
        serving = asyncio.create_task(far.aserve(handler, limit=50))
        calls = [near.acall(str(number).encode()) for number in range(200)]
        answers = await asyncio.wait_for(asyncio.gather(*calls), LONG)
        assert [int(bytes(answer)) for answer in answers] == [number * 2 for number in range(200)]
        near.close()
        await asyncio.wait_for(serving, LONG)

    asyncio.run(main())


def test_calls_go_both_ways_at_once(name: str, child: Child) -> None:
    async def main() -> None:
        with slipring.listen(name) as listener:
            child("aserve", name, 0)
            link = await asyncio.wait_for(listener.aaccept(), LONG)

            async def handler(request: slipring.Request) -> object:
                return [np.asarray(request.tensors[0]) + 1]

            serving = asyncio.create_task(link.aserve(handler))
            calls = [link.acall(str(number).encode(), meta={"n": number}) for number in range(100)]
            tensors = [link.acall_tensors({"x": np.full(3000, number)}) for number in range(100)]
            answers = await asyncio.wait_for(asyncio.gather(*calls, *tensors), LONG)
            for number in range(100):
                assert (bytes(answers[number]), answers[number].meta) == (str(number).encode(), {"n": number})
                assert np.asarray(answers[100 + number]["x"])[2999] == number + 1
            link.close()
            with pytest.raises(slipring.Closed):
                await asyncio.wait_for(serving, LONG)

    asyncio.run(main())


def test_messages_come_between_the_answers_of_calls(name: str, child: Child) -> None:
    async def main() -> None:
        with slipring.listen(name) as listener:
            child("aserve", name, 300)
            with await asyncio.wait_for(listener.aaccept(), LONG) as link:

                async def receive() -> list[int]:
                    return [int(bytes(await link.arecv())) for _ in range(300)]

                async def call(first: int) -> None:
                    for number in range(first, first + 50):
                        assert await link.acall(str(number).encode()) == str(number).encode()

                tasks = [asyncio.create_task(call(1000 * number)) for number in range(5)]
                assert await asyncio.wait_for(receive(), LONG) == list(range(300))
                await asyncio.wait_for(asyncio.gather(*tasks), LONG)

    asyncio.run(main())


def test_a_call_that_is_cancelled_leaves_nothing_behind(link: Link) -> None:
    near, far = link

    async def main() -> None:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.002):
                    await near.acall(b"late")
        for _ in range(20):
            (await far.arecv_request()).respond(b"too late")
        task = asyncio.create_task(near.acall(b"question"))
        request = await asyncio.wait_for(far.arecv_request(), LONG)
        assert far.try_recv_request() is None
        await request.arespond(b"answer")
        assert await asyncio.wait_for(task, LONG) == b"answer"
        # Nobody waits, so the loop watches nothing.
        assert not asyncio.get_running_loop().remove_reader(near.fileno())

    asyncio.run(main())


def test_a_call_tells_of_an_answer_of_another_kind_and_of_the_end(link: Link) -> None:
    near, far = link

    async def main() -> None:
        task = asyncio.create_task(near.acall(b"question"))
        request = await asyncio.wait_for(far.arecv_request(), LONG)
        await request.arespond([np.zeros(1)])
        with pytest.raises(slipring.OtherKind, match="tensors"):
            await asyncio.wait_for(task, LONG)
        tasks = [asyncio.create_task(near.acall(b"question")) for _ in range(3)]
        await asyncio.sleep(0.01)
        far.close()
        for task in tasks:
            with pytest.raises(slipring.PeerClosed):
                await asyncio.wait_for(task, LONG)

    asyncio.run(main())


def test_a_close_ends_the_calls_of_its_loop(link: Link) -> None:
    near, _far = link

    async def main() -> None:
        tasks = [asyncio.create_task(near.acall(b"question")) for _ in range(3)]
        await asyncio.sleep(0.01)
        near.close()
        for task in tasks:
            with pytest.raises(slipring.Closed):
                await asyncio.wait_for(task, LONG)

    asyncio.run(main())


def test_aserve_raises_what_its_handler_raises_and_takes_plain_functions(link: Link) -> None:
    near, far = link

    async def failing(request: slipring.Request) -> bytes:
        raise RuntimeError("handler")

    async def main() -> None:
        with pytest.raises(ValueError, match="limit is 0"):
            await far.aserve(failing, limit=0)
        serving = asyncio.create_task(far.aserve(failing))
        task = asyncio.create_task(near.acall(b"question"))
        with pytest.raises(RuntimeError, match="handler"):
            await asyncio.wait_for(serving, LONG)
        task.cancel()
        serving = asyncio.create_task(far.aserve(lambda request: bytes(request.message or b"")[::-1]))
        assert await asyncio.wait_for(near.acall(b"abc"), LONG) == b"cba"
        near.close()
        await asyncio.wait_for(serving, LONG)

    asyncio.run(main())


def test_aserve_runs_no_more_handlers_than_its_limit(link: Link) -> None:
    near, far = link
    running, most = 0, 0

    async def handler(request: slipring.Request) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return b""

    async def main() -> None:
        serving = asyncio.create_task(far.aserve(handler, limit=3))
        await asyncio.wait_for(asyncio.gather(*(near.acall(b"") for _ in range(30))), LONG)
        near.close()
        await asyncio.wait_for(serving, LONG)

    asyncio.run(main())
    assert most == 3


def test_two_tasks_that_receive_get_all_messages(link: Link) -> None:
    near, far = link
    got: list[int] = []

    async def main() -> None:
        async def receive() -> None:
            async for message in far:
                got.append(int(bytes(message)))

        tasks = [asyncio.create_task(receive()) for _ in range(2)]
        for number in range(300):
            near.send(str(number).encode())
            if number % 3 == 0:
                await asyncio.sleep(0)
            if number % 100 == 0:
                await asyncio.sleep(0.01)
        near.close()
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)

    asyncio.run(main())
    assert got == list(range(300))


def test_aserve_drops_an_answer_that_nobody_waits_for(link: Link) -> None:
    near, far = link

    async def main() -> None:
        begun, closed = asyncio.Event(), asyncio.Event()

        async def handler(request: slipring.Request) -> bytes:
            begun.set()
            await closed.wait()
            return b"late"

        serving = asyncio.create_task(far.aserve(handler))
        call = asyncio.create_task(near.acall(b"question"))
        await asyncio.wait_for(begun.wait(), LONG)
        call.cancel()
        near.close()
        closed.set()
        await asyncio.wait_for(serving, LONG)

    asyncio.run(main())


def test_a_call_whose_coroutine_is_closed_is_abandoned(link: Link) -> None:
    near, far = link

    async def main() -> None:
        call = near.acall(b"question")
        call.send(None)
        call.close()
        assert (await asyncio.wait_for(far.arecv_request(), LONG)).message is not None
        serving = asyncio.create_task(far.aserve(lambda request: request.message))
        assert await asyncio.wait_for(near.acall(b"next"), LONG) == b"next"
        near.close()
        await asyncio.wait_for(serving, LONG)

    asyncio.run(main())


@pytest.mark.parametrize("closes", [False, True])
def test_a_receive_that_raises_leaves_no_answer_behind(link: Link, closes: bool) -> None:
    near, far = link

    async def main() -> None:
        calls = [asyncio.create_task(near.acall(b"question")) for _ in range(2)]
        await asyncio.sleep(0)
        # A receive that blocks ends the watch of the descriptor: what comes next does not wake it.
        timer = threading.Timer(0.1, far.send, [b"message"])
        timer.start()
        assert near.recv(LONG) == b"message"
        timer.join()
        for request in [far.recv_request(LONG) for _ in calls][::-1]:
            request.respond(b"answer")
        if closes:
            far.close()
        else:
            far.send(b"no request")
        # The receive sets the answers aside, and raises at what lies behind them.
        with pytest.raises((slipring.OtherKind, slipring.PeerClosed)):
            await near.arecv_request()
        assert [bytes(await asyncio.wait_for(call, LONG)) for call in calls] == [b"answer"] * 2

    asyncio.run(main())


class Late:
    """A connection with something that comes right after the first look for a request has found nothing."""

    def __init__(self, connection: slipring.Connection, arrive: Callable[[], object]) -> None:
        self._connection = connection
        self._arrivals = [arrive]

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def try_recv_request(self) -> slipring.Request | None:
        found = self._connection.try_recv_request()
        if found is None and self._arrivals:
            self._arrivals.pop()()
        return found


def test_a_request_that_comes_while_answers_are_looked_for_is_received(link: Link) -> None:
    near, far = link
    late = Late(near, lambda: far._submit(b"late"))

    async def main() -> None:
        calling = asyncio.create_task(_asyncio.call(late, "_submit", b"question", None))
        await asyncio.sleep(0.01)
        request = await asyncio.wait_for(_asyncio.receive(late, "try_recv_request"), LONG)
        assert request.message == b"late"
        far.recv_request(LONG).respond(b"answer")
        assert await asyncio.wait_for(calling, LONG) == b"answer"

    asyncio.run(main())


def test_a_serve_that_is_cancelled_loses_no_request(link: Link) -> None:
    near, far = link
    served = []

    async def main() -> None:
        sent = 0
        for turns in range(200):
            serving = asyncio.create_task(near.aserve(lambda request: served.append(bytes(request.message))))
            await asyncio.sleep(0)
            for _ in range(1 + turns % 3):
                far._submit(str(sent).encode())
                sent += 1
            # The cancel comes at each step between the arrival and the handler.
            for _ in range(turns % 11):
                await asyncio.sleep(0)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            receiving = asyncio.create_task(near.arecv_request())
            for _ in range(turns % 7):
                await asyncio.sleep(0)
            receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                served.append(bytes((await receiving).message))
        while (request := near.try_recv_request()) is not None:
            served.append(bytes(request.message))
        assert [int(each) for each in served] == list(range(sent))

    asyncio.run(main())
