"""The queue, with the interface of `multiprocessing.Queue`."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import slipring

LONG = 60.0


def produce(items: slipring.Queue, first: int, count: int) -> None:
    for number in range(first, first + count):
        items.put(number.to_bytes(4, "big") if number % 2 else np.full(1000, number))
    items.close()
    items.join_thread()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_items_of_many_processes_come_each_in_order(method: str) -> None:
    context = multiprocessing.get_context(method)
    items = slipring.Queue()
    children = [context.Process(target=produce, args=(items, 1000 * n, 100), daemon=True) for n in range(3)]
    for child in children:
        child.start()
    got: list[list[int]] = [[], [], []]
    for _ in range(300):
        item = items.get(timeout=LONG)
        number = int.from_bytes(item, "big") if isinstance(item, bytes) else int(np.asarray(item)[999])
        got[number // 1000].append(number)
    assert got == [list(range(1000 * n, 1000 * n + 100)) for n in range(3)]
    assert items.empty()
    for child in children:
        child.join(LONG)
        assert child.exitcode == 0
    items.close()


def test_a_queue_in_one_process() -> None:
    items = slipring.Queue()
    with pytest.raises(queue.Empty):
        items.get_nowait()
    start = time.monotonic()
    with pytest.raises(slipring.Empty):
        items.get(timeout=0.05)
    assert time.monotonic() - start >= 0.05
    items.put(b"one")
    items.put({"a": np.zeros(3)})
    items.put_nowait(memoryview(b"three"))
    assert items.get(timeout=LONG) == b"one"
    assert list(items.get(timeout=LONG)) == ["a"]
    assert not items.empty()
    assert (items.get(timeout=LONG), items.qsize(), items.full()) == (b"three", 0, False)
    with pytest.raises(TypeError):
        items.put("text")
    items.close()
    for call in (items.get, lambda: items.put(b"")):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_full_queue_says_so() -> None:
    items = slipring.Queue(context=slipring.Context(ring_capacity=4096))
    sent = 0
    with pytest.raises(slipring.Full):
        while True:
            items.put(bytes(100), timeout=0.02)
            sent += 1
    assert 0 < sent < 1000
    for _ in range(sent):
        assert items.get(timeout=LONG) == bytes(100)
    items.put(b"room")
    assert items.get(timeout=LONG) == b"room"
    items.close()


def test_a_producer_that_nobody_accepts_gets_full_in_time() -> None:
    items = slipring.Queue()
    producer = pickle.loads(pickle.dumps(items))
    start = time.monotonic()
    with pytest.raises(queue.Full):
        producer.put_nowait(b"one")
    with pytest.raises(queue.Full):
        producer.put(b"two", timeout=0.05)
    assert time.monotonic() - start < 10
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(items.get, timeout=LONG)
        producer.put(b"three", timeout=LONG)
        assert got.result(LONG) == b"three"
    items.close()


def test_a_producer_that_breaks_the_rules_ends_alone() -> None:
    items = slipring.Queue()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(items.get, timeout=LONG)
        wrong = slipring.connect(items._name, timeout=LONG)
        with pytest.raises(slipring.Error):
            wrong.call(b"a request", timeout=0)
        pickle.loads(pickle.dumps(items)).put(b"item", timeout=LONG)
        assert got.result(LONG) == b"item"
    items.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_does_not_inherit_a_held_lock() -> None:
    items = slipring.Queue()
    with items._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if items._lock.acquire(timeout=LONG) else 1)
    assert os.waitpid(child, 0)[1] == 0
    items.close()


def test_a_close_ends_a_get() -> None:
    items = slipring.Queue()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(items.get, timeout=LONG)
        time.sleep(0.05)
        items.close()
        with pytest.raises((ValueError, slipring.Closed)):
            got.result(LONG)


def put_all(items: slipring.Queue, count: int) -> None:
    for number in range(count):
        items.put(number.to_bytes(4, "big"), timeout=LONG)
    items.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_queue_with_a_maxsize_holds_no_more(method: str) -> None:
    items = slipring.Queue(3)
    process = multiprocessing.get_context(method).Process(target=put_all, args=(items, 20), daemon=True)
    process.start()
    first = items.get(timeout=LONG)
    end = time.monotonic() + LONG
    while not items.full():
        assert time.monotonic() < end
        time.sleep(0.001)
    # The producer waits: what it has put and nobody got is at most three.
    with pytest.raises(queue.Full):
        items.put_nowait(b"")
    with pytest.raises(queue.Full):
        items.put(b"", timeout=0.05)
    got = [first, *(items.get(timeout=LONG) for _ in range(19))]
    assert [int.from_bytes(item, "big") for item in got] == list(range(20))
    process.join(LONG)
    assert process.exitcode == 0
    assert not items.full()
    items.close()


def test_a_put_that_fails_takes_no_place() -> None:
    items = slipring.Queue(2)
    for _ in range(5):
        with pytest.raises(TypeError):
            items.put("text")
    items.put(b"one")
    assert not items.full()
    items.put(b"two")
    assert items.full()
    with pytest.raises(queue.Full):
        items.put_nowait(b"three")
    assert items.get(timeout=LONG) == b"one"
    items.put_nowait(b"three")
    assert [items.get(timeout=LONG) for _ in range(2)] == [b"two", b"three"]
    with pytest.raises(RuntimeError, match="as it starts"):
        pickle.dumps(items)
    items.close()


def test_a_put_waits_for_a_place() -> None:
    items = slipring.Queue(1)
    items.put(b"one")
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(items.put, b"two", timeout=LONG)
        time.sleep(0.05)
        assert not putting.done()
        assert items.get(timeout=LONG) == b"one"
        putting.result(LONG)
    assert items.get(timeout=LONG) == b"two"
    items.close()


def test_an_item_that_a_waiting_thread_takes_in_stays_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    items = slipring.Queue()
    items.put(memoryview(b"zero"))
    assert items.get(timeout=LONG) == b"zero"
    taken = threading.Event()

    class Slow(bytes):
        def __new__(cls, data: slipring.Message) -> bytes:  # type: ignore[misc]
            if not taken.is_set():
                taken.set()
                time.sleep(0.2)
            return bytes(data)

    monkeypatch.setattr(slipring._queue, "bytes", Slow, raising=False)
    with ThreadPoolExecutor(1) as pool:
        getting = pool.submit(lambda: [items.get(timeout=LONG) for _ in range(2)])
        # The thread waits, and takes the first one in slowly.
        time.sleep(0.05)
        items.put(memoryview(b"one"))
        items.put(memoryview(b"two"))
        assert taken.wait(LONG)
        items.qsize()
        with pytest.raises(queue.Empty):
            items.get_nowait()
        assert getting.result(LONG) == [b"one", b"two"]
    items.close()


def test_several_threads_share_the_items() -> None:
    items = slipring.Queue(5)
    with ThreadPoolExecutor(4) as pool:
        getters = [pool.submit(lambda: [items.get(timeout=LONG) for _ in range(100)]) for _ in range(4)]
        for number in range(400):
            items.put(number.to_bytes(4, "big"), timeout=LONG)
        lists = [[int.from_bytes(item, "big") for item in getter.result(LONG)] for getter in getters]
    assert sorted(number for each in lists for number in each) == list(range(400))
    assert all(each == sorted(each) for each in lists)
    items.close()


def get_in_child(items: slipring.Queue) -> None:
    with pytest.raises(ValueError, match="only the process that made"):
        items.get(timeout=0)


def test_another_process_does_not_get() -> None:
    items = slipring.Queue(2)
    process = multiprocessing.get_context("spawn").Process(target=get_in_child, args=(items,))
    process.start()
    process.join(LONG)
    assert process.exitcode == 0
    items.close()


def test_a_close_ends_a_get_of_another_thread() -> None:
    for _ in range(50):
        items = slipring.Queue()
        items.put(b"first")
        assert items.get(timeout=float("inf")) == b"first"
        with ThreadPoolExecutor(1) as pool:
            getting = pool.submit(items.get)
            items.close()
            with pytest.raises(ValueError, match="is closed"):
                getting.result(LONG)
