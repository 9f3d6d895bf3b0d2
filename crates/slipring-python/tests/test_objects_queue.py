"""Queues of Python objects, with the interface of those of `multiprocessing`."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import slipring
import slipring.pickle
from conftest import LONG
from slipring import _objects, _objects_queue
from slipring.pickle import Queue, SimpleQueue

SPAWN = multiprocessing.get_context("spawn")


def held(queue: Queue) -> int:
    """Returns how many blocks of its producers a queue's process holds."""
    gc.collect()
    return sum(source.stats()["loans_held"] for source in queue._sources)


def item(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "nested": [None, (1.5, "text"), {b"bytes"}],
        "short": np.full(10, number),
        "long": np.full((3, 50_000), number, "float32"),
        "bytes": bytes([number % 256]) * 200_000,
        "fortran": np.asfortranarray(np.arange(40_000.0).reshape(200, 200) + number),
    }


def is_item(found: Any, number: int) -> bool:
    expected = item(number)
    return all(
        np.array_equal(found[name], part) if isinstance(part, np.ndarray) else found[name] == part
        for name, part in expected.items()
    )


def produce(queue: Queue, first: int, count: int) -> None:
    for number in range(first, first + count):
        queue.put(item(number))
    queue.close()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue with the options of the test's parameter."""
    made = Queue(**getattr(request, "param", {}))
    yield made
    made.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("queue", [{}, {"shared": True}, {"maxsize": 2}], indirect=True)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_objects_of_many_processes_come_each_in_order(queue: Queue, method: str) -> None:
    context = multiprocessing.get_context(method)
    children = [context.Process(target=produce, args=(queue, 100 * n, 20), daemon=True) for n in range(3)]
    for child in children:
        child.start()
    numbers: list[int] = []
    for _ in range(60):
        found = queue.get(timeout=LONG)
        assert is_item(found, found["number"])
        numbers.append(found["number"])
    assert [[n for n in numbers if n // 100 == each] for each in range(3)] == [
        list(range(100 * each, 100 * each + 20)) for each in range(3)
    ]
    for child in children:
        child.join(LONG)
        assert child.exitcode == 0


def test_an_array_is_a_copy_and_holds_no_memory(queue: Queue) -> None:
    queue.put(item(1))
    found = queue.get(timeout=LONG)
    found["long"][:] = found["short"][:1] = 7
    assert held(queue) == 0


@pytest.mark.parametrize("queue", [{"shared": True}], indirect=True)
def test_a_shared_array_lies_in_the_memory_of_its_producer_until_it_is_dropped(queue: Queue) -> None:
    queue.put({"long": np.ones(100_000), "other": np.zeros(100_000), "short": np.ones(10)})
    found = queue.get(timeout=LONG)
    with pytest.raises(ValueError, match="read-only"):
        found["long"][0] = 2
    found["short"][0] = 2
    assert held(queue) == 2
    view = found["long"][5:7]
    del found
    assert held(queue) == 1
    assert view.sum() == 2
    del view
    assert held(queue) == 0


@pytest.mark.parametrize("queue", [{"shared": True}], indirect=True)
def test_arrays_that_are_kept_stop_no_producer(queue: Queue) -> None:
    kept = []
    for number in range(3 * _objects_queue._KEEP_BLOCKS):
        queue.put([np.full(10_000, number), np.full(20_000, number)], timeout=LONG)
        kept.append(queue.get(timeout=LONG))
    for number, pair in enumerate(kept):
        assert [set(array) for array in pair] == [{number}, {number}]
    assert {array.flags.writeable for pair in kept for array in pair} == {True, False}
    assert held(queue) <= _objects_queue._KEEP_BLOCKS


def test_an_item_has_more_long_arrays_than_go_beside_its_pickle(queue: Queue) -> None:
    count = _objects_queue._MOST_BUFFERS + 10
    queue.put([np.full(_objects.LONG_BUFFER, number, "uint8") for number in range(count)])
    assert [int(array[-1]) for array in queue.get(timeout=LONG)] == list(range(count))


def test_what_cannot_be_pickled_raises_where_it_is_put(queue: Queue) -> None:
    queue.put(1)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        queue.put([np.ones(100_000), lambda: 1])
    queue.put(np.ones(100_000))
    assert queue.get(timeout=LONG) == 1
    assert queue.get(timeout=LONG).sum() == 100_000


@pytest.mark.parametrize("queue", [{"maxsize": 1}], indirect=True)
def test_a_full_queue_of_objects_says_so(queue: Queue) -> None:
    queue.put("one")
    assert queue.full()
    with pytest.raises(slipring.Full):
        queue.put(np.ones(100_000), timeout=0.01)
    assert queue.get(timeout=LONG) == "one"
    queue.put(np.ones(100_000), timeout=LONG)
    assert queue.get(timeout=LONG).sum() == 100_000
    with pytest.raises(slipring.Empty):
        queue.get(timeout=0.01)


def test_threads_put_at_a_time(queue: Queue) -> None:
    with ThreadPoolExecutor(4) as pool:
        putting = [pool.submit(queue.put, item(number), timeout=LONG) for number in range(40)]
        found = [queue.get(timeout=LONG) for _ in range(40)]
        assert [each.result(LONG) for each in putting] == [None] * 40
    assert sorted(each["number"] for each in found) == list(range(40))
    assert all(is_item(each, each["number"]) for each in found)


def put_an_end_and_wait(queue: Queue, pipe: Any) -> None:
    queue.put(pipe)
    time.sleep(LONG)


def test_what_multiprocessing_passes_goes_through_the_queue(queue: Queue) -> None:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=put_an_end_and_wait, args=(queue, theirs), daemon=True)
    process.start()
    theirs.close()
    # The end is fetched from the process that has put it.
    with queue.get(timeout=LONG) as end:
        end.send("through the pipe")
        assert ours.poll(LONG)
        assert ours.recv() == "through the pipe"
    process.kill()
    process.join(LONG)


def test_a_simple_queue() -> None:
    queue = SimpleQueue()
    assert queue.empty()
    process = SPAWN.Process(target=put_and_close, args=(queue,), daemon=True)
    process.start()
    assert queue.get() == "text"
    assert np.array_equal(queue.get(), np.arange(100_000))
    process.join(LONG)
    assert queue.empty()
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        queue.get()


def put_and_close(queue: SimpleQueue) -> None:
    queue.put("text")
    queue.put(np.arange(100_000))
    queue.close()


def put_close_and_put_elsewhere(first: Queue, second: Queue) -> None:
    first.put(np.full(300_000, 7, "uint8"))
    first.close()
    # The memory that was lent to the first queue would be free after a grace of 1 s.
    time.sleep(1.5)
    for _ in range(20):
        second.put(np.full(300_000, 9, "uint8"))
    second.close()


@pytest.mark.parametrize("queue", [{"shared": True}], indirect=True)
def test_a_shared_array_stays_what_it_is_after_the_close_of_its_producer(queue: Queue) -> None:
    second = Queue(shared=True)
    process = SPAWN.Process(target=put_close_and_put_elsewhere, args=(queue, second), daemon=True)
    process.start()
    array = queue.get(timeout=LONG)
    kept = [second.get(timeout=LONG) for _ in range(20)]
    assert set(array) == {7}
    assert all(set(each) == {9} for each in kept)
    process.join(LONG)
    second.close()


def put_and_wait(queue: Queue) -> None:
    queue.put(np.full(100_000, os.getpid()))
    time.sleep(LONG)


@pytest.mark.parametrize("queue", [{"shared": True}], indirect=True)
def test_the_items_of_a_killed_producer_stay_and_nothing_else(queue: Queue) -> None:
    before = set(os.listdir("/dev/shm"))
    processes = [SPAWN.Process(target=put_and_wait, args=(queue,), daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=LONG) for _ in processes]
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[0].join(LONG)
    end = time.monotonic() + LONG
    while len(queue._sources) > 1 and time.monotonic() < end:
        assert queue.empty()
    assert [source.peer.pid for source in queue._sources] == [processes[1].pid]
    assert {int(array[-1]) for array in found} == {process.pid for process in processes}
    processes[1].kill()
    processes[1].join(LONG)
    assert {name for name in set(os.listdir("/dev/shm")) - before if "slipring" in name} == set()


# --- who is trusted, and versions ---


def as_other_user(pipe: Any, state: bytes | None) -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    if state is None:
        made = Queue()
        pipe.send(pickle.dumps(made))
        with pytest.raises(slipring.Empty):
            made.get(timeout=0.5)
        return
    queue = pickle.loads(state)
    found = []
    for connect in (
        lambda: queue.put("loaded", timeout=5.0),
        lambda: slipring.Context(peers="anyone").connect(queue._name, timeout=5.0).send(pickle.dumps("loaded")),
    ):
        try:
            connect()
            found.append("put")
        except slipring.Error as error:
            found.append(type(error).__name__)
        except slipring.Full:
            found.append("Full")
    pipe.send(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's processes take root")
def test_processes_of_another_user_neither_put_nor_get(queue: Queue) -> None:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=as_other_user, args=(theirs, pickle.dumps(queue)), daemon=True)
    process.start()
    end = time.monotonic() + LONG
    while not ours.poll(0) and time.monotonic() < end:
        with pytest.raises(slipring.Empty):
            queue.get(timeout=0.05)
    assert set(ours.recv()) <= {"Refused", "PeerClosed", "PeerDied"}
    process.join(LONG)
    process = SPAWN.Process(target=as_other_user, args=(theirs, None), daemon=True)
    process.start()
    assert ours.poll(LONG)
    with pytest.raises(slipring.Refused):
        pickle.loads(ours.recv()).put("secret", timeout=LONG)
    process.join(LONG)
    assert process.exitcode == 0


def test_a_queue_of_another_version_is_refused(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(queue)
    monkeypatch.setattr(_objects_queue, "FORMAT", _objects_queue.FORMAT + 1)
    with pytest.raises(ValueError, match="have format 1, and this version of slipring writes format 2: install"):
        pickle.loads(pickled)
