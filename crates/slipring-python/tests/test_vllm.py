"""vLLM's message queue and `slipring.vllm`, from one body, and what only the latter promises."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import original
import slipring
import slipring.vllm
from conftest import LONG
from slipring import _objects
from slipring.vllm import _handle, _original, _plugin, _queue, _ranks, _remote

SPAWN = multiprocessing.get_context("spawn")

# A whole run has 10000.
ARRAYS = int(os.environ.get("SLIPRING_VLLM_ARRAYS", "300"))

Start = Callable[..., Any]


def load(path: str | None) -> Any:
    """Returns the module of an implementation: vLLM's own one has a path."""
    return slipring.vllm if path is None else _original.load(path)


@pytest.fixture(scope="session")
def original_path() -> str:
    """The path of vLLM's own file."""
    pytest.importorskip("zmq")
    try:
        return str(original.fetch())
    except Exception as error:
        pytest.skip(f"the wheel vllm {original.VERSION} cannot be had: {error}")


@pytest.fixture(params=["slipring", "original"])
def path(request: pytest.FixtureRequest) -> str | None:
    """The path of an implementation, for `load`."""
    return None if request.param == "slipring" else request.getfixturevalue("original_path")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a function of this file in a process of its own, and kills what is left at the end of the test."""
    started: list[Any] = []

    def run(function: Callable[..., None], *arguments: object) -> Any:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=function, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        started.append(process)
        process.pipe = ours
        return process

    yield run
    for process in started:
        process.kill()
        process.join()
        process.pipe.close()


def answer(process: Any) -> Any:
    """Returns what a process sends."""
    assert process.pipe.poll(LONG)
    return process.pipe.recv()


def writer_of(path: str | None, readers: int, **options: Any) -> tuple[Any, bytes]:
    """Returns a writer, and its handle as other processes get it."""
    queue = load(path).MessageQueue(readers, readers, **options)
    return queue, pickle.dumps(queue.export_handle())


def reader_of(path: str | None, handle: bytes, rank: int) -> Any:
    return load(path).MessageQueue.create_from_handle(pickle.loads(handle), rank)


def pair(path: str | None, **options: Any) -> tuple[Any, Any]:
    """Returns a writer and its reader, of one process."""
    writer, handle = writer_of(path, 1, **options)
    reader = reader_of(path, handle, 0)
    with ThreadPoolExecutor(1) as pool:
        ready = pool.submit(writer.wait_until_ready)
        reader.wait_until_ready()
        ready.result(LONG)
    return writer, reader


def arrays(count: int) -> Iterator[np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(7)
    for _ in range(count):
        yield numbers.integers(0, 255, int(numbers.integers(1, 200_000)), dtype="uint8")


def check_arrays(pipe: Any, path: str | None, handle: bytes, rank: int, count: int) -> None:
    load(path)
    reader = reader_of(path, handle, rank)
    reader.wait_until_ready()
    for expected in arrays(count):
        assert np.array_equal(reader.dequeue(), expected)
    assert reader.broadcast_object() == {"last": [1, 2.5, "x", None]}
    pipe.send("done")


def test_four_ranks_get_every_array(path: str | None, start: Start) -> None:
    queue, handle = writer_of(path, 3, local_reader_ranks=[1, 2, 3])
    readers = [start(check_arrays, path, handle, rank, ARRAYS) for rank in (1, 2, 3)]
    queue.wait_until_ready()
    for array in arrays(ARRAYS):
        queue.enqueue(array)
    assert queue.broadcast_object({"last": [1, 2.5, "x", None]}) == {"last": [1, 2.5, "x", None]}
    assert [answer(reader) for reader in readers] == ["done"] * 3


@pytest.mark.parametrize("indefinite", [False, True])
def test_a_shutdown_ends_a_wait(path: str | None, indefinite: bool) -> None:
    _writer, reader = pair(path)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(reader.dequeue, indefinite=indefinite)
        time.sleep(1.5)
        assert not got.done()
        reader.shutdown()
        with pytest.raises(RuntimeError, match="cancelled"):
            got.result(LONG)


def test_what_came_before_a_shutdown_is_read(path: str | None) -> None:
    writer, reader = pair(path)
    writer.enqueue("before")
    reader.shutdown()
    assert reader.dequeue() == "before"


def test_a_timeout_is_kept(path: str | None) -> None:
    _writer, reader = pair(path)
    for timeout in (0.0, 0.2):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            reader.dequeue(timeout=timeout)
        # One of vLLM's counts whole milliseconds.
        assert time.monotonic() - began >= timeout - 0.002


def test_an_indefinite_wait_gets_what_comes(path: str | None) -> None:
    writer, reader = pair(path)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(reader.dequeue, indefinite=True)
        time.sleep(0.3)
        writer.enqueue(("method", (), {}, None))
        assert got.result(LONG) == ("method", (), {}, None)


@pytest.mark.parametrize("item", [b"x", bytes(2 << 20), np.zeros(2 << 20, "uint8")], ids=["short", "bytes", "array"])
def test_a_full_queue_times_out_and_goes_on(path: str | None, item: Any) -> None:
    writer, reader = pair(path, max_chunks=4)
    sent = 0
    with pytest.raises(TimeoutError):
        while True:
            writer.enqueue(item, timeout=0.1)
            sent += 1
    assert 4 <= sent < 20
    for _ in range(sent):
        assert len(reader.dequeue(timeout=LONG)) == len(item)
    writer.enqueue(item, timeout=LONG)
    assert len(reader.dequeue(timeout=LONG)) == len(item)


def test_the_steps_of_an_enqueue_share_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, _reader = pair(None)
    clock = types.SimpleNamespace(now=100.0)
    waits: list[float] = []

    def attempt(wait: float) -> None:
        waits.append(wait)
        clock.now += max(wait, 0.01)
        if len(waits) not in (3, 6):
            raise slipring.TimedOut("no room")

    monkeypatch.setattr(_queue.time, "monotonic", lambda: clock.now)
    patience = _queue._Patience(0.25)
    writer._retry(writer._publisher, attempt, patience)
    with pytest.raises(TimeoutError):
        for _ in range(9):
            writer._retry(writer._publisher, attempt, patience)
    assert sum(waits) == pytest.approx(0.25)


def test_raw_memory_is_written_and_read(path: str | None) -> None:
    writer, reader = pair(path, max_chunk_bytes=1000, max_chunks=3)
    for number in range(10):
        with writer.acquire_write(timeout=LONG) as chunk:
            assert len(chunk) == 1000
            chunk[:4] = bytes([number]) * 4
        with reader.acquire_read(timeout=LONG) as chunk:
            assert len(chunk) == 1000
            assert bytes(chunk[:4]) == bytes([number]) * 4
    with pytest.raises(TimeoutError), reader.acquire_read(timeout=0.01):
        pass
    with pytest.raises(ZeroDivisionError), writer.acquire_write():
        _ = 1 // 0
    with pytest.raises(TimeoutError), reader.acquire_read(timeout=0.01):
        pass


def test_only_writers_write_and_only_readers_read(path: str | None) -> None:
    writer, reader = pair(path)
    with pytest.raises(AssertionError, match="Only writers"):
        reader.enqueue(1)
    with pytest.raises(AssertionError, match="Only writers"), reader.acquire_write():
        pass
    with pytest.raises(AssertionError, match="Only readers"), writer.acquire_read():
        pass
    with pytest.raises(RuntimeError, match="Only readers"):
        writer.dequeue()
    with pytest.raises(AssertionError):
        load(path).MessageQueue(2, 2, local_reader_ranks=[1])


@pytest.mark.parametrize("item", ["lambda", "raising"])
def test_an_object_that_cannot_be_pickled_is_not_sent(path: str | None, item: str) -> None:
    writer, reader = pair(path)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        writer.enqueue((lambda: 1) if item == "lambda" else threading.Lock())
    writer.enqueue("next")
    assert reader.dequeue(timeout=LONG) == "next"


# --- groups: each rank is a thread ---


class Group:
    """A group of threads, with the methods of vLLM's stateless group and the functions of `torch.distributed`."""

    def __init__(self, size: int) -> None:
        self.world_size = size
        self._barrier = threading.Barrier(size)
        self._here = threading.local()
        self._items: dict[int, Any] = {}

    @property
    def rank(self) -> int:
        return int(self._here.rank)

    def _exchange(self, item: Any) -> dict[int, Any]:
        self._barrier.wait(LONG)
        self._items[self.rank] = pickle.dumps(item)
        self._barrier.wait(LONG)
        return {rank: pickle.loads(text) for rank, text in self._items.items()}

    def broadcast_obj(self, item: Any, source: int) -> Any:
        return self._exchange(item)[source]

    def gather_object(self, item: Any, items: list[Any] | None, dst: int, group: Any) -> None:
        got = self._exchange(item)
        if items is not None:
            items[:] = [got[rank] for rank in range(self.world_size)]

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        def of(rank: int) -> Any:
            self._here.rank = rank
            return body(rank)

        with ThreadPoolExecutor(self.world_size) as pool:
            return list(pool.map(of, range(self.world_size), timeout=LONG))


@pytest.fixture
def group(path: str | None, monkeypatch: pytest.MonkeyPatch) -> Group:
    """A group of four, where neither vLLM nor torch are installed."""
    load(path)
    made = Group(4)
    if path is None:
        # Its own stand-ins, for imports at the time of the call.
        for name in ("torch", "torch.distributed", "vllm", "vllm.platforms", "vllm.distributed.parallel_state"):
            monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or types.ModuleType(name))
        monkeypatch.setattr(sys.modules["torch"], "distributed", sys.modules["torch.distributed"], raising=False)
    dist = sys.modules["torch.distributed"]
    members = {
        "ProcessGroup": getattr(dist, "ProcessGroup", type("ProcessGroup", (), {})),
        "is_available": lambda: False,
        "get_rank": lambda group=None: made.rank,
        "get_world_size": lambda group=None: made.world_size,
        "gather_object": made.gather_object,
    }
    for name, member in members.items():
        monkeypatch.setattr(dist, name, member, raising=False)
    platform = types.SimpleNamespace(device_count=lambda: 4)
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", platform, raising=False)
    if path is not None:
        monkeypatch.setattr(load(path), "current_platform", platform)
    interface = types.ModuleType("vllm.platforms.interface")
    monkeypatch.setattr(interface, "get_assigned_physical_gpu_ids", lambda: None, raising=False)
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    near = lambda pg, source_rank: [True] * pg.world_size  # noqa: E731
    parallel = sys.modules["vllm.distributed.parallel_state"]
    monkeypatch.setattr(parallel, "in_the_same_node_as", near, raising=False)
    return made


@pytest.mark.parametrize("writer_rank", [0, 2])
def test_a_group_gets_what_its_writer_broadcasts(path: str | None, group: Group, writer_rank: int) -> None:
    def body(rank: int) -> Any:
        make = load(path).MessageQueue.create_from_process_group
        queue = make(group, 1 << 20, 6, writer_rank=writer_rank)
        assert queue._is_writer == (rank == writer_rank)
        return [queue.broadcast_object(number if rank == writer_rank else None) for number in range(20)]

    assert group.run(body) == [list(range(20))] * 4


def test_a_single_reader_hears_all_writers(path: str | None, group: Group) -> None:
    def body(rank: int) -> Any:
        queues = load(path).MessageQueue
        queue, handles = queues.create_from_process_group_single_reader(group, 1 << 20, 6, reader_rank=1)
        assert len(handles) == (4 if rank == 1 else 0)
        readers = [queues.create_from_handle(handle, 0) for handle in handles]
        with ThreadPoolExecutor(4) as pool:
            ready = [pool.submit(reader.wait_until_ready) for reader in readers]
            queue.wait_until_ready()
            for each in ready:
                each.result(LONG)
        queue.enqueue(("of", rank))
        got = [reader.dequeue(timeout=LONG) for reader in readers]
        # The queue lives until its message is read.
        group._barrier.wait(LONG)
        return got

    assert group.run(body) == [[], [("of", rank) for rank in range(4)], [], []]


def test_a_group_reads_from_a_writer_outside(path: str | None, group: Group) -> None:
    queue, handle = writer_of(path, 4)

    def body(rank: int) -> Any:
        make = load(path).MessageQueue.create_from_process_group
        external = pickle.loads(handle) if rank == 0 else None
        reader = make(group, 1 << 20, 6, external_writer_handle=external, blocking=False)
        reader.wait_until_ready()
        return reader.dequeue(timeout=LONG)

    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(group.run, body)
        queue.wait_until_ready()
        queue.enqueue("all")
        assert got.result(LONG) == ["all"] * 4


# --- remote readers ---


def test_a_remote_reader_gets_all_beside_a_local_one(path: str | None) -> None:
    pytest.importorskip("zmq")
    queue = load(path).MessageQueue(2, 1, local_reader_ranks=[1], connect_ip="127.0.0.1")
    handle = pickle.dumps(queue.export_handle())
    assert pickle.loads(handle).remote_subscribe_addr.startswith("tcp://127.0.0.1:")
    local, remote = reader_of(path, handle, 1), reader_of(path, handle, 5)
    with ThreadPoolExecutor(1) as pool:
        ready = pool.submit(queue.wait_until_ready)
        local.wait_until_ready()
        remote.wait_until_ready()
        ready.result(LONG)
    for item in ["text", bytes(3 << 20), {"a": np.arange(1 << 20)}]:
        queue.enqueue(item)
        for reader in (local, remote):
            got = reader.dequeue(timeout=LONG)
            assert np.array_equal(got["a"], item["a"]) if isinstance(item, dict) else got == item
    with pytest.raises(TimeoutError):
        remote.dequeue(timeout=0.01)


def test_without_pyzmq_remote_readers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ImportError, match="pip install pyzmq"):
        slipring.vllm.MessageQueue(1, 0)
    pair(None)


def test_a_remote_wait_ends_with_a_shutdown() -> None:
    pytest.importorskip("zmq")
    queue = slipring.vllm.MessageQueue(1, 0, connect_ip="127.0.0.1")
    reader = slipring.vllm.MessageQueue.create_from_handle(queue.export_handle(), 0)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(reader.dequeue)
        time.sleep(0.05)
        reader.shutdown()
        with pytest.raises(RuntimeError, match="cancelled"):
            got.result(LONG)


# --- what only slipring.vllm promises ---


def test_a_cancel_ends_a_wait() -> None:
    _writer, reader = pair(None)
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(reader.dequeue, indefinite=True, cancel=cancel)
        time.sleep(0.1)
        cancel.set()
        with pytest.raises(RuntimeError, match="cancelled"):
            got.result(LONG)


@pytest.mark.parametrize("length", [_objects.LONG_STREAM - 100, _objects.LONG_STREAM, 1 << 20, 60 << 20])
def test_bytes_of_any_length_arrive(length: int) -> None:
    writer, reader = pair(None, max_chunk_bytes=1000)
    item = [os.urandom(1000) * (length // 1000), "text", bytearray(b"x" * length)]
    writer.enqueue(item)
    assert reader.dequeue(timeout=LONG) == item


def test_long_arrays_are_read_where_the_writer_has_written_them() -> None:
    writer, reader = pair(None)
    writer.enqueue([np.arange(1 << 20), {"name": np.ones((300, 1000), "float32")}, np.arange(10)])
    first, second, short = reader.dequeue(timeout=LONG)
    assert reader._subscriber.held == 1
    for array in (first, second["name"]):
        assert not array.flags.writeable
        assert not array.flags.owndata
        assert array.ctypes.data % 64 == 0
    assert first[-1] == (1 << 20) - 1
    assert second["name"].sum() == 300_000
    assert second["name"].shape == (300, 1000)
    # Short ones are the reader's own.
    short[0] = 7
    del first, second, array
    gc.collect()
    assert reader._subscriber.held == 0


def test_a_reader_may_keep_any_number_of_arrays() -> None:
    writer, reader = pair(None)
    kept = []
    for number in range(3 * _queue._HOLD_LIMIT):
        writer.enqueue(np.full(100_000, number % 200, "uint8"), timeout=LONG)
        kept.append(reader.dequeue(timeout=LONG))
    assert [int(array[-1]) for array in kept] == list(range(3 * _queue._HOLD_LIMIT))
    assert {bool(array.flags.writeable) for array in kept} == {True, False}
    assert reader._subscriber.held <= _queue._HOLD_LIMIT


class FakeTensor:
    """What the queue uses of a tensor of torch."""

    layout = "strided"
    requires_grad = False

    def __init__(self, array: np.ndarray[Any, Any], device: str = "cpu") -> None:
        self.array = array
        self.device = types.SimpleNamespace(type=device)
        self.dtype = f"torch.{array.dtype}"
        self.shape = array.shape

    def is_contiguous(self) -> bool:
        return True

    def reshape(self, length: int) -> FakeTensor:
        return FakeTensor(self.array.reshape(length))

    def view(self, kind: Any) -> FakeTensor:
        return FakeTensor(self.array.reshape(kind) if isinstance(kind, tuple) else self.array.view(kind))

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array


@pytest.mark.parametrize("shape", [(3, 50_000), (7,), (), (0, 4)])
def test_tensors_of_torch_are_the_readers_own(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    torch = types.ModuleType("torch")
    members = {
        "Tensor": FakeTensor,
        "strided": "strided",
        "uint8": np.uint8,
        "float32": np.float32,
        "frombuffer": lambda buffer, dtype: FakeTensor(np.frombuffer(buffer, dtype)),
        "empty": lambda shape, dtype: FakeTensor(np.empty(shape, dtype)),
    }
    vars(torch).update(members)
    monkeypatch.setitem(sys.modules, "torch", torch)
    writer, reader = pair(None)
    sent = np.random.default_rng(1).random(shape, "float32")
    packer = _objects.Packer()
    packer.pack(FakeTensor(sent))
    assert [buffer.nbytes for buffer in packer.buffers] == ([600_000] if sent.nbytes == 600_000 else [])
    writer.enqueue({"embeddings": FakeTensor(sent), "other": FakeTensor(sent, "cuda")}, timeout=LONG)
    got = reader.dequeue(timeout=LONG)
    for tensor in got.values():
        assert np.array_equal(tensor.array, sent)
        assert tensor.shape == shape
    assert (got["embeddings"].device.type, got["other"].device.type) == ("cpu", "cuda")
    got["embeddings"].array.fill(1)
    # The array within the other one lies in the block.
    del got["other"], tensor
    assert reader._subscriber.held == 0


def wait_for_the_end(pipe: Any, handle: bytes, rank: int, reads: bool) -> None:
    reader = reader_of(None, handle, rank)
    reader.wait_until_ready()
    pipe.send(os.getpid())
    while True:
        if reads:
            reader.dequeue(indefinite=True)
        else:
            time.sleep(1)


@pytest.mark.parametrize("how", ["idle", "blocked", "blocked with long ones"])
def test_the_death_of_a_reader_is_told_with_its_rank(start: Start, how: str) -> None:
    queue, handle = writer_of(None, 3, local_reader_ranks=[4, 5, 6])
    readers = [start(wait_for_the_end, handle, rank, how == "idle" or rank != 5) for rank in (4, 5, 6)]
    queue.wait_until_ready()
    pid = [answer(reader) for reader in readers][1]
    item = bytes(1 << 20) if "long" in how else b"x"
    with ThreadPoolExecutor(1) as pool:

        def write() -> None:
            while True:
                queue.enqueue(item)
                if how == "idle":
                    time.sleep(0.001)

        failed = pool.submit(write)
        time.sleep(0.3)
        assert not failed.done()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(slipring.PeerDied, match=rf"rank 5 \(process {pid}\) has died"):
            failed.result(LONG)
    with pytest.raises(slipring.PeerDied, match="rank 5"):
        queue.enqueue(1)


def test_a_writer_that_waits_names_the_slowest(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    queue, handle = writer_of(None, 2, max_chunks=3)
    readers = [start(wait_for_the_end, handle, rank, rank == 0) for rank in (0, 1)]
    queue.wait_until_ready()
    pid = [answer(reader) for reader in readers][1]
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "vllm.slipring"):
        patch.setattr(_queue, "_INTERVAL", 0.1)
        with pytest.raises(TimeoutError, match=rf"rank 1 \(process {pid}\) has not read \d+ messages"):
            while True:
                queue.enqueue(1, timeout=0.5)
    assert f"rank 1 (process {pid}) has not read" in caplog.text
    assert "rank 0" not in caplog.text


def test_a_reader_that_leaves_is_told() -> None:
    writer, reader = pair(None)
    writer.enqueue(1)
    del reader
    gc.collect()
    with pytest.raises(slipring.PeerClosed, match=rf"rank 0 \(process {os.getpid()}\) has left"):
        while True:
            writer.enqueue(2, timeout=LONG)


def test_each_error_of_a_reader_that_is_gone_is_an_object_of_its_own() -> None:
    writer, reader = pair(None)
    del reader
    gc.collect()
    errors = []
    while len(errors) < 2:
        try:
            writer.enqueue(1, timeout=LONG)
        except slipring.PeerClosed as error:
            errors.append(error)
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])


def test_memory_that_a_reader_holds_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_queue, "_quota", lambda: 64 << 20)
    writer, reader = pair(None)
    # There is room for two, and the reader holds them.
    array = np.ones(24 << 20, dtype="uint8")
    held = []
    for _ in range(2):
        writer.enqueue(array)
        held.append(reader.dequeue(timeout=LONG))
    with pytest.raises(TimeoutError):
        writer.enqueue(array, timeout=0.2)
    with pytest.raises(slipring.ResourceLimit):
        writer.enqueue(np.ones(80 << 20, dtype="uint8"), timeout=LONG)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(writer.enqueue, array, LONG)
        assert [each[-1] for each in held] == [1, 1]
        held.clear()
        assert reader.dequeue(timeout=LONG)[-1] == 1
        waiting.result(LONG)


def write_and_wait(pipe: Any, readers: int) -> None:
    queue, handle = writer_of(None, readers)
    pipe.send(handle)
    queue.wait_until_ready()
    queue.enqueue("last")
    pipe.recv()
    if readers == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    del queue
    pipe.send("closed")
    pipe.recv()


def test_the_death_of_the_writer_is_told(start: Start) -> None:
    writer = start(write_and_wait, 1)
    handle = answer(writer)
    reader = reader_of(None, handle, 0)
    reader.wait_until_ready()
    with ThreadPoolExecutor(1) as pool:
        assert reader.dequeue(timeout=LONG) == "last"
        failed = pool.submit(reader.dequeue)
        time.sleep(0.2)
        writer.pipe.send("die")
        with pytest.raises(slipring.PeerDied, match=rf"the writer \(process {writer.pid}\) has died"):
            failed.result(LONG)
    with pytest.raises(slipring.PeerDied, match="the writer"):
        reader.dequeue(timeout=LONG)
    # The kernel may close the writer's listener a moment later.
    with pytest.raises((slipring.NobodyListens, slipring.PeerClosed, slipring.PeerDied)):
        reader_of(None, handle, 0)


def test_the_end_of_the_writer_is_told(start: Start) -> None:
    writer = start(write_and_wait, 2)
    handle = answer(writer)
    readers = [reader_of(None, handle, rank) for rank in (0, 1)]
    for reader in readers:
        reader.wait_until_ready()
    writer.pipe.send("close")
    assert answer(writer) == "closed"
    for reader in readers:
        assert reader.dequeue(timeout=LONG) == "last"
        with pytest.raises(slipring.PeerClosed, match=r"the writer \(process \d+\) has closed the queue"):
            reader.dequeue(timeout=LONG)


def fork_and_die(pipe: Any) -> None:
    queue, handle = writer_of(None, 2)
    for rank in (0, 1):
        if os.fork() == 0:
            reader = reader_of(None, handle, rank)
            reader.wait_until_ready()
            pipe.send(reader.dequeue(timeout=LONG))
            try:
                reader.dequeue(timeout=LONG)
            except slipring.Error as error:
                pipe.send(str(error))
            os._exit(0)
    queue.wait_until_ready()
    queue.enqueue(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def test_forked_readers_hear_of_the_death_of_their_parent(start: Start) -> None:
    process = start(fork_and_die)
    got = [answer(process) for _ in range(4)]
    pid = process.pid
    assert sorted(got, key=str) == [pid, pid] + [f"the writer (process {pid}) has died"] * 2


def left_behind(pid: int) -> set[str]:
    """Returns the files and sockets whose names tell of a process."""
    names = {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).iterdir()}
    names |= set(Path("/proc/net/unix").read_text().splitlines())
    return {name for name in names if f"slipring-vllm-{pid}-" in name}


def test_nothing_is_left_after_a_kill_of_all(start: Start) -> None:
    before = set(os.listdir("/dev/shm"))
    writer = start(write_and_wait, 2)
    handle = answer(writer)
    readers = [start(wait_for_the_end, handle, rank, False) for rank in (0, 1)]
    for reader in readers:
        answer(reader)
    assert left_behind(writer.pid)
    for process in (writer, *readers):
        os.kill(process.pid, signal.SIGKILL)
        process.join(LONG)
    end = time.monotonic() + LONG
    while left_behind(writer.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert left_behind(writer.pid) == set()
    assert {name for name in set(os.listdir("/dev/shm")) - before if "slipring" in name} == set()


def as_other_user(pipe: Any, handle: bytes | None) -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    if handle is None:
        queue, made = writer_of(None, 1)
        pipe.send(made)
        pipe.recv()
        del queue
        return
    _ranks.tell(pickle.loads(handle).address, 0)
    try:
        reader_of(None, handle, 0)
    except slipring.Error as error:
        pipe.send((type(error).__name__, str(error)))
    else:
        pipe.send("joined")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's processes take root")
def test_processes_of_another_user_are_refused(start: Start) -> None:
    queue, handle = writer_of(None, 1)
    stranger = start(as_other_user, handle)
    kind, _text = answer(stranger)
    assert kind in ("Refused", "PeerClosed", "PeerDied")
    with pytest.raises(TimeoutError, match="0 of 1 local readers have joined"):
        queue.enqueue(1, timeout=0.1)
    writer = start(as_other_user, None)
    with pytest.raises(slipring.Refused):
        reader_of(None, answer(writer), 0)


def test_a_reader_without_a_rank_is_named_by_its_process() -> None:
    writer, reader = pair(None)
    (facts,) = writer._publisher.subscribers()
    assert writer._ranks.name(facts["id"], facts["pid"]) == f"rank 0 (process {os.getpid()})"
    assert writer._ranks.name(facts["id"] + 1, 12345) == "a reader (process 12345)"
    assert reader.local_reader_rank == 0


# --- versions ---


def test_a_handle_of_the_other_implementation_is_refused(original_path: str) -> None:
    theirs, ours = load(original_path), slipring.vllm
    with pytest.raises(TypeError, match="set SLIPRING_VLLM=1 in the writer's process"):
        ours.MessageQueue.create_from_handle(theirs.Handle(local_reader_ranks=[0]), 0)
    writer, handle = writer_of(None, 1)
    with pytest.raises(RuntimeError, match="set SLIPRING_VLLM=1 here"):
        reader_of(original_path, handle, 0)
    del writer


def test_a_handle_of_another_version_is_refused() -> None:
    handle = slipring.vllm.Handle(local_reader_ranks=[0], address="x", format=_handle.FORMAT + 1)
    with pytest.raises(ValueError, match="have format 2, and this version of slipring reads format 1"):
        slipring.vllm.MessageQueue.create_from_handle(pickle.loads(pickle.dumps(handle)), 0)


# --- the plugin ---


@pytest.fixture
def vllm_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Two modules of a vLLM: that of the queue, and one that has imported from it."""
    names = ["vllm", "vllm.distributed", "vllm.distributed.device_communicators"]
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    queue, user = types.ModuleType(_plugin._MODULE), types.ModuleType("vllm.user")
    for module in (queue, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv(_plugin.VARIABLE, "1")
    return queue, user


def test_the_plugin_replaces_the_classes_of_the_published_version(
    original_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, user = load(original_path), types.ModuleType("vllm.user")
    monkeypatch.setitem(sys.modules, user.__name__, user)
    theirs = queue.MessageQueue
    for name in ("MessageQueue", "Handle"):
        # The end of the test restores both.
        monkeypatch.setattr(queue, name, getattr(queue, name))
        setattr(user, name, getattr(queue, name))
    monkeypatch.delenv(_plugin.VARIABLE, raising=False)
    assert not slipring.vllm.activate()
    assert (queue.MessageQueue, user.MessageQueue) == (theirs, theirs)
    monkeypatch.setenv(_plugin.VARIABLE, "1")
    assert slipring.vllm.activate()
    assert slipring.vllm.activate()
    for module in (queue, user):
        assert (module.MessageQueue, module.Handle) == (slipring.vllm.MessageQueue, slipring.vllm.Handle)


class _Longer:
    def __init__(self, n_reader: int, n_local_reader: int, another: int) -> None: ...


class _Further:
    def flush(self) -> None: ...


@pytest.mark.parametrize(("theirs", "why"), [(_Longer, "its __init__() takes"), (_Further, "it has flush()")])
def test_the_plugin_leaves_a_version_that_does_not_fit(
    vllm_modules: tuple[Any, Any], caplog: pytest.LogCaptureFixture, theirs: type, why: str
) -> None:
    queue, user = vllm_modules
    queue.MessageQueue = user.MessageQueue = theirs
    queue.Handle = user.Handle = int
    assert not slipring.vllm.activate()
    assert queue.MessageQueue is theirs
    assert user.MessageQueue is theirs
    assert "vLLM's queue stays" in caplog.text
    assert why in caplog.text


def test_the_plugin_says_that_a_version_has_no_queue(
    vllm_modules: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert not slipring.vllm.activate()
    assert "vLLM's queue stays" in caplog.text


def test_the_package_names_the_plugin() -> None:
    from importlib.metadata import entry_points

    (found,) = [each for each in entry_points(group="vllm.general_plugins") if each.name == "slipring"]
    assert found.load() is slipring.vllm.activate
    assert _remote.READY == b"READY"
