"""The queues and the loader for users of torch.

Torch is not in `requirements.txt`: its tests skip where it is not installed. What of the loader needs no torch is
tested without it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipring
import slipring.torch
from conftest import LONG
from slipring.torch import _pins, _results, gpu_bench

SPAWN = multiprocessing.get_context("spawn")
HAS_TORCH = importlib.util.find_spec("torch") is not None
with_torch = pytest.mark.skipif(
    not HAS_TORCH, reason="torch is not installed: its tensors and its loader are not checked"
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore::DeprecationWarning")

if HAS_TORCH:
    import torch
    from torch.utils import data
else:
    torch = types.SimpleNamespace()  # type: ignore[assignment]
    data = types.SimpleNamespace(Dataset=object, IterableDataset=object)


# --- without torch ---


def failure() -> str:
    return f"failed: {type(sys.exc_info()[1]).__name__}"


@pytest.fixture
def results() -> Iterator[_results.Results]:
    made = _results.Results(shared=False, failure=failure)
    yield made
    made.close()


def put_batches(results: _results.Results, batches: list[Any], end: int | None) -> None:
    for number, batch in enumerate(batches):
        results.put((number, (lambda: 1) if isinstance(batch, str) and batch == "a lambda" else batch))
    if end is not None:
        os.kill(os.getpid(), end)


def worker_of(results: _results.Results, *arguments: Any, method: str = "spawn") -> Any:
    process = multiprocessing.get_context(method).Process(target=put_batches, args=(results, *arguments), daemon=True)
    process.start()
    return process


def test_a_batch_that_cannot_be_pickled_is_a_failure_of_its_number(results: _results.Results) -> None:
    process = worker_of(results, [np.ones(100_000), "a lambda", "text"], None)
    assert results.get(timeout=LONG)[1].sum() == 100_000
    number, text = results.get(timeout=LONG)
    assert number == 1
    assert text in ("failed: AttributeError", "failed: PicklingError")
    assert results.get(timeout=LONG) == (2, "text")
    process.join(LONG)


def test_the_death_of_a_worker_ends_a_get_behind_its_batches(results: _results.Results) -> None:
    process = worker_of(results, ["one", "two"], signal.SIGKILL)
    first = results.get(timeout=LONG)
    process.join(LONG)
    assert [first, results.get(timeout=LONG)] == [(0, "one"), (1, "two")]
    with pytest.raises(slipring.PeerDied, match=f"process {process.pid}"):
        results.get(timeout=LONG)
    with pytest.raises(slipring.Empty):
        results.get(timeout=0.05)
    assert _results.ends([process], 0) == [f"worker 0 (pid {process.pid}) was killed by SIGKILL"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_leaves_in_order_ends_no_get(results: _results.Results, method: str) -> None:
    # A forked one ends without a tidy interpreter.
    process = worker_of(results, ["one"], None, method=method)
    assert results.get(timeout=LONG) == (0, "one")
    process.join(LONG)
    with pytest.raises(slipring.Empty):
        results.get(timeout=0.2)
    assert results._sources == []
    assert _results.ends([process], 0) == []


def leave(status: int) -> None:
    os._exit(status)


def test_the_ends_of_workers_are_named_by_their_ranks() -> None:
    processes = [SPAWN.Process(target=leave, args=(status,)) for status in (0, 3)]
    for process in processes:
        process.start()
    assert _results.ends(processes, LONG) == [f"worker 1 (pid {processes[1].pid}) has exited with status 3"]
    processes[0].join(LONG)


def test_a_worker_goes_on_after_the_end_of_its_loader(results: _results.Results) -> None:
    late = pickle.loads(pickle.dumps(results))
    with ThreadPoolExecutor(1) as pool:
        # No get accepts the first connection.
        putting = pool.submit(late.put, (0, "first"))
        time.sleep(0.1)
        assert not putting.done()
        results.close()
        assert putting.result(LONG) is None
        assert pool.submit(late.put, (1, "second")).result(LONG) is None


def test_the_loader_itself_puts_while_another_thread_gets(results: _results.Results) -> None:
    # The thread that pins batches is ended so.
    with ThreadPoolExecutor(1) as pool:
        getting = pool.submit(results.get, timeout=LONG)
        time.sleep(0.05)
        results.put((None, None))
        assert getting.result(LONG) == (None, None)


class FakeCuda:
    """A CUDA that notes its calls, and what of them was mapped."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: list[tuple[int, int, int]] = []
        self.unregistered: list[tuple[int, bool]] = []
        self.threads: set[int] = set()
        self.done = threading.Event()
        self.done.set()

    def cudaHostRegister(self, start: int, length: int, flags: int) -> int:
        self.registered.append((start, length, flags))
        self.threads.add(threading.get_ident())
        return self.error

    def cudaHostUnregister(self, start: int) -> int:
        self.unregistered.append((start, is_mapped(start)))
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return f"error {error}"

    def pins(self) -> _pins.Pins:
        return _pins.Pins(lambda: self, lambda: lambda: None, lambda: bool(self.done.wait(LONG)) or None)


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            return True
    return False


def until(condition: Any) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def pinned(cuda: FakeCuda, batches: int) -> tuple[_results.Results, Any, list[Any]]:
    """Returns a queue that registers with a CUDA, its worker, which waits to be killed, and the first batches."""
    results = _results.Results(shared=True, failure=failure, pins=cuda.pins())
    images = np.arange(200_000, dtype=np.uint8)
    worker = worker_of(results, [images] * batches, None)
    return results, worker, [results.get(timeout=LONG)[1] for _ in range(batches)]


def test_the_memory_of_a_worker_is_registered_once_and_unregistered_before_it_goes() -> None:
    cuda = FakeCuda()
    results, worker, batches = pinned(cuda, 3)
    starts = [start for start, _, _ in cuda.registered]
    assert len(set(starts)) == len(starts)
    assert {flags for _, _, flags in cuda.registered} == {1 | 8}
    for batch in batches:
        address = batch.ctypes.data
        assert any(start <= address < start + length for start, length, _ in cuda.registered)
    # CUDA keeps the error of a call for its thread.
    assert threading.get_ident() not in cuda.threads
    worker.join(LONG)
    results.close()
    kept = batches.pop()
    del batches, batch
    gc.collect()
    # The arrays outlive their worker, and so does the registration of what they lie in.
    address = kept.ctypes.data
    time.sleep(0.1)
    assert address not in {start for start, _ in cuda.unregistered}
    assert kept.sum() == np.arange(200_000, dtype=np.uint8).sum()
    del kept
    until(lambda: len(cuda.unregistered) == len(starts))
    assert dict(cuda.unregistered) == dict.fromkeys(starts, True)
    until(lambda: not any(map(is_mapped, starts)))


def test_a_block_goes_back_when_the_gpu_has_read_it() -> None:
    cuda = FakeCuda()
    cuda.done.clear()
    results, _worker, batches = pinned(cuda, 1)
    source = results._sources[0]
    assert source.stats()["loans_held"] > 0
    del batches
    gc.collect()
    time.sleep(0.1)
    assert source.stats()["loans_held"] > 0
    cuda.done.set()
    until(lambda: source.stats()["loans_held"] == 0)
    results.close()


def test_memory_that_cuda_refuses_is_left_to_torch_with_one_warning() -> None:
    cuda = FakeCuda(801)
    with pytest.warns(UserWarning, match="bytes of a worker, and says 'error 801'") as warned:
        results, _worker, batches = pinned(cuda, 3)
    assert len(warned) == len(cuda.registered) == 1
    assert all(batch.sum() == batches[0].sum() for batch in batches)
    del batches
    gc.collect()
    # Nothing of it waits for a GPU.
    until(lambda: results._sources[0].stats()["loans_held"] == 0)
    assert not cuda.unregistered
    results.close()


def test_a_forked_child_unregisters_nothing() -> None:
    cuda = FakeCuda()
    results, _worker, batches = pinned(cuda, 1)
    assert results._pins is not None
    if (child := os.fork()) == 0:
        del batches
        gc.collect()
        time.sleep(0.1)
        os._exit(len(cuda.unregistered) + len(results._pins._registered))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert results._pins._registered
    results.close()


def test_a_loader_without_torch_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "slipring.torch._loader", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="needs torch: pip install torch"):
        _ = slipring.torch.DataLoader
    with pytest.raises(AttributeError, match="no attribute 'Dataloader'"):
        _ = slipring.torch.Dataloader


def test_the_bench_runs(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys; sys.modules['torch'] = None; from slipring.torch import bench; sys.exit(bench.main())"
    command = [sys.executable, "-c", program, "--turns", "1", "--count", "6"]
    assert subprocess.run(command, timeout=LONG, check=False).returncode == 0
    out = capfd.readouterr().out
    assert "ratio" in out
    assert "torch is not installed: no rows of tensors and loaders" in out


# --- tensors of torch ---


@with_torch
@pytest.mark.parametrize("shared", [False, True])
def test_tensors_of_torch_come_as_they_were(shared: bool) -> None:
    queue = slipring.torch.Queue(shared=shared)
    sent = {
        "long": torch.arange(100_000).reshape(10, 10_000),
        "short": torch.arange(6.0).reshape(2, 3),
        "bfloat16": torch.ones(100_000, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False] * 50_000),
        "complex": torch.ones(3, dtype=torch.complex64).conj(),
        "channels last": torch.randn(2, 3, 100, 100).to(memory_format=torch.channels_last),
        "transposed": torch.randn(300, 200).T,
        "gaps": torch.randn(300, 200)[:, ::2],
        "expanded": torch.ones(1, 300).expand(300, 300),
        "scalar": torch.tensor(5),
        "empty": torch.empty(0, 4),
        "gradient": torch.ones(3, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
    }
    queue.put(sent)
    got = queue.get(timeout=LONG)
    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name].to_dense(), tensor.to_dense()), name
    assert got["gradient"].requires_grad
    assert got["channels last"].is_contiguous(memory_format=torch.channels_last)
    assert got["transposed"].stride() == sent["transposed"].stride()
    queue.close()


@with_torch
def test_a_tensor_is_a_copy_that_can_be_written() -> None:
    queue = slipring.torch.Queue()
    queue.put([torch.ones(100_000), torch.ones(3)])
    for tensor in queue.get(timeout=LONG):
        tensor.add_(1)
        assert tensor.sum() == 2 * len(tensor)
    assert queue._sources[0].stats()["loans_held"] == 0
    queue.close()


@with_torch
def test_a_shared_tensor_lies_in_the_memory_of_its_producer_until_it_is_dropped() -> None:
    queue = slipring.torch.Queue(shared=True)
    queue.put({"long": torch.ones(100_000), "short": torch.ones(3)})
    got = queue.get(timeout=LONG)
    (source,) = queue._sources
    assert source.stats()["loans_held"] == 1
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "slipring" in line]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps if " r--s " in line]
    assert any(start <= got["long"].data_ptr() < end for start, end in ranges)
    part = got["long"][5:]
    got["short"].add_(1)
    del got
    assert source.stats()["loans_held"] == 1
    del part
    assert source.stats()["loans_held"] == 0
    queue.close()


# --- the loader ---


class Images(data.Dataset):  # type: ignore[misc]
    def __init__(self, count: int = 32, wrong: int = -1, endless: int = -1, unpicklable: int = -1) -> None:
        self.count, self.wrong, self.endless, self.unpicklable = count, wrong, endless, unpicklable

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.wrong:
            raise KeyError(f"no image {index}")
        while index == self.endless:
            time.sleep(0.05)
        return {
            "image": torch.full((3, 96, 96), float(index)),
            "label": index,
            "noise": torch.rand(3),
            "array": np.full(4, index),
            "name": (lambda: 1) if index == self.unpicklable else f"image {index}",
        }


class Numbers(data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        # The workers end one after the other.
        return iter([torch.full((20_000,), 100 * info.id + n) for n in range(2 + 3 * info.id)])


def loader(dataset: Any, **options: Any) -> Any:
    return slipring.torch.DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, "timeout": LONG} | options)


def flat(batches: Any) -> list[Any]:
    return [
        (
            b["image"].shape,
            b["image"][:, 2, 95, 95].tolist(),
            b["label"].tolist(),
            b["noise"].tolist(),
            b["array"].tolist(),
            b["name"],
        )
        for b in batches
    ]


@with_torch
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("options", [{}, {"shared": True, "persistent_workers": True, "shuffle": True}])
def test_batches_are_those_of_the_loader_of_torch(method: str, options: dict[str, Any]) -> None:
    lists = []
    for kind in (slipring.torch.DataLoader, data.DataLoader):
        options = {name: option for name, option in options.items() if name != "shared" or kind is not data.DataLoader}
        made = kind(
            Images(),
            batch_size=4,
            num_workers=2,
            multiprocessing_context=method,
            generator=torch.Generator().manual_seed(7),
            **options,
        )
        lists.append([flat(made), flat(made)])
    assert lists[0] == lists[1]
    assert sorted(label for batch in lists[0][0] for label in batch[2]) == list(range(32))


@with_torch
def test_the_options_of_the_loader_of_torch_hold() -> None:
    assert flat(loader(Images(8), num_workers=0, timeout=0))[1][2] == [4, 5, 6, 7]
    assert [b[2] for b in flat(loader(Images(8), batch_size=1, batch_sampler=[[3, 1], [5]]))] == [[3, 1], [5]]
    assert [b[2] for b in flat(loader(Images(10), drop_last=True, prefetch_factor=1))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [b[2] for b in flat(loader(Images(8), sampler=[7, 6, 5, 4]))] == [[7, 6, 5, 4]]
    summed = loader(Images(8), collate_fn=lambda batch: sum(sample["image"] for sample in batch))
    assert [float(batch[0, 0, 0]) for batch in summed] == [6, 22]
    single = loader(Images(3), batch_size=None)
    assert [sample["label"] for sample in single] == [0, 1, 2]
    seen = multiprocessing.SimpleQueue()
    list(loader(Images(8), worker_init_fn=seen.put))
    assert sorted(seen.get() for _ in range(2)) == [0, 1]
    with pytest.raises(ValueError, match="non-negative"):
        loader(Images(), num_workers=-1)


@with_torch
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_an_iterable_dataset_end_one_after_the_other(persistent: bool) -> None:
    made = loader(Numbers(), batch_size=None, persistent_workers=persistent)
    for _ in range(2):
        assert sorted(int(batch[-1]) for batch in made) == [0, 1, 100, 101, 102, 103, 104]


@with_torch
def test_an_exception_of_a_worker_comes_with_its_traceback_and_the_next_batches_follow() -> None:
    batches = iter(loader(Images(wrong=5)))
    assert next(batches)["label"].tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError, match=r"(?s)worker process 1.*__getitem__.*no image 5"):
        next(batches)
    assert next(batches)["label"].tolist() == [8, 9, 10, 11]


@with_torch
def test_a_batch_that_cannot_be_pickled_raises_in_the_loader() -> None:
    batches = iter(loader(Images(unpicklable=5)))
    next(batches)
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"(?s)worker process 1.*lambda"):
        next(batches)
    assert next(batches)["label"].tolist() == [8, 9, 10, 11]


def waits_for_killed(pid: int, batches: Any, text: str) -> BaseException:
    """Waits for a batch of a worker that is killed meanwhile. Ends the loader, and returns the exception."""

    def kill() -> None:
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(RuntimeError, match=text) as raised:
            next(batches)
    finally:
        killer.join()
        batches._shutdown_workers()
    return raised.value


def causes(error: BaseException | None) -> Iterator[type]:
    while error is not None:
        yield type(error)
        error = error.__cause__


@contextlib.contextmanager
def no_handler_of_torch() -> Iterator[None]:
    """Takes torch's handler of SIGCHLD away."""
    handling = data._utils.signal_handling
    handler, is_set = signal.signal(signal.SIGCHLD, signal.SIG_DFL), handling._SIGCHLD_handler_set
    # Torch sets no further one.
    handling._SIGCHLD_handler_set = True
    try:
        yield
    finally:
        handling._SIGCHLD_handler_set = is_set
        signal.signal(signal.SIGCHLD, handler)


@with_torch
@pytest.mark.parametrize(("method", "main"), [("fork", True), ("fork", False), ("forkserver", True)])
def test_the_death_of_a_worker_is_told_with_its_rank_and_leaves_nothing(method: str, main: bool) -> None:
    before = set(os.listdir("/dev/shm"))
    # Torch's handler runs in the main thread alone, and for children. Otherwise the connection tells.
    with contextlib.nullcontext() if main else no_handler_of_torch(), ThreadPoolExecutor(1) as pool:
        batches = iter(loader(Images(64, endless=20), num_workers=3, timeout=0, multiprocessing_context=method))
        for number in range(5):
            assert next(batches)["label"][0] == 4 * number
        workers = list(batches._workers)
        text = rf"worker 2 \(pid {workers[2].pid}\) was killed by SIGKILL"
        arguments = (workers[2].pid, batches, text)
        error = waits_for_killed(*arguments) if main else pool.submit(waits_for_killed, *arguments).result(LONG)
        if not main or method == "forkserver":
            assert slipring.PeerDied in causes(error)
    assert not any(worker.is_alive() for worker in workers)
    assert {name for name in set(os.listdir("/dev/shm")) - before if "slipring" in name or "torch" in name} == set()


@with_torch
def test_the_rank_is_told_if_the_handler_of_torch_raises_in_the_wait_for_a_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from slipring.torch import _loader

    waits: list[float] = []

    def lost(_: Any) -> Any:
        raise slipring.PeerDied("the connection of a worker")

    def interrupted(workers: Any, patience: float) -> list[str]:
        waits.append(patience)
        if len(waits) == 1:
            _results.ends(workers, LONG)
            raise RuntimeError("DataLoader worker is killed by signal")
        return _results.ends(workers, patience)

    with no_handler_of_torch():
        batches = iter(loader(Images(64), timeout=0))
        worker = batches._workers[1]
        worker.kill()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(_loader._MultiProcessingDataLoaderIter, "_get_data", lost)
                patch.setattr(_loader, "ends", interrupted)
                with pytest.raises(RuntimeError, match=rf"worker 1 \(pid {worker.pid}\) was killed by SIGKILL"):
                    next(batches)
        finally:
            batches._shutdown_workers()
    assert waits == [_loader._PATIENCE, 0]


@with_torch
def test_a_loader_without_an_accelerator_warns_of_pin_memory_and_pins_nothing() -> None:
    if torch.accelerator.is_available():
        pytest.skip("torch has an accelerator: that a loader without one pins nothing is not checked")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batches = iter(loader(Images(8), pin_memory=True))
    first = next(batches)
    assert first["label"].tolist() == [0, 1, 2, 3]
    assert not first["image"].is_pinned()
    assert batches._data_queue is batches._worker_result_queue
    assert [batch["label"].tolist() for batch in batches] == [[4, 5, 6, 7]]


@with_torch
@pytest.mark.parametrize(("shared", "pin_memory"), [(True, True), (True, False), (False, True)])
def test_a_shared_loader_that_pins_registers_its_memory(
    shared: bool, pin_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipring.torch import _loader

    cuda = FakeCuda()
    monkeypatch.setattr(_loader, "cuda_pins", cuda.pins)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(loader(Images(8), shared=shared, pin_memory=pin_memory))
    assert bool(cuda.registered) == (shared and pin_memory)
    assert [batch["label"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@with_torch
@pytest.mark.parametrize("taken", [0, 1])
def test_a_loader_that_is_dropped_early_waits_for_no_worker(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = iter(loader(Images(400), num_workers=3))
    for _ in range(taken):
        next(batches)
    # Workers that hang are terminated, each after 5 s.
    terminated: list[int] = []
    workers = batches._workers
    for worker in workers:
        monkeypatch.setattr(worker, "terminate", lambda pid=worker.pid: terminated.append(pid))
    # Batches come in meanwhile.
    time.sleep(0.3)
    batches._shutdown_workers()
    for worker in workers:
        worker.kill()
    assert terminated == []


@with_torch
@pytest.mark.parametrize("shared", [False, True])
def test_batches_that_are_kept_hold_no_descriptor(shared: bool) -> None:
    made = loader(Images(400), batch_size=2, shared=shared, persistent_workers=True)
    list(made)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept = list(made)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    for number, batch in enumerate(kept):
        assert batch["image"].min() == 2 * number
        assert batch["image"].max() == 2 * number + 1
    sources = made._iterator._worker_result_queue._sources
    assert [source.stats()["loans_held"] > 0 for source in sources] == [shared] * 2
    del kept, batch
    gc.collect()
    assert [source.stats()["loans_held"] for source in sources] == [0, 0]


@with_torch
def test_the_collation_of_a_worker_uses_no_shared_memory_of_torch() -> None:
    def is_shared(batch: list[Any]) -> Any:
        collated = data.default_collate(batch)
        return [collated["image"].is_shared(), torch.equal(collated["image"][1], batch[1]["image"])]

    assert list(loader(Images(4), collate_fn=is_shared)) == [[False, True]]


@with_torch
def test_64_workers_under_a_limit_of_1024_descriptors() -> None:
    command = [sys.executable, "-m", "slipring.torch.bench", "--side", "slipring"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=2 * LONG, check=False)
    assert found.stdout.startswith("all 256 batches"), found.stdout
    assert found.returncode == 0


@with_torch
def test_the_bench_of_gpus_carries_tensors_of_the_host() -> None:
    command = [
        sys.executable,
        "-m",
        "slipring.torch.gpu_bench",
        "--device",
        "cpu",
        "--sizes",
        "4096,64",
        "--rounds",
        "2",
    ]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LONG, check=True)
    rows = [line.split()[:4] for line in found.stdout.splitlines()]
    assert rows == [[size, "B", way, "p50"] for size in ("4096", "64") for way in gpu_bench.WAYS]


class Stale(gpu_bench.Leader):
    """Its tensor shows what was written before: nothing waits for the kernel."""

    def _send(self, way: str, tensor: torch.Tensor) -> None:
        super()._send(way, tensor - 1 if way == "slipring" else tensor)


@with_torch
def test_the_bench_of_gpus_sees_a_way_without_order(name: str) -> None:
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with slipring.listen(name) as listener:
        other = threading.Thread(target=gpu_bench._follow, args=(name, "cpu", queue))
        other.start()
        link = listener.accept(timeout=LONG)
    tensor = torch.zeros(4, dtype=torch.int64)
    assert gpu_bench.Leader(link, queue).trip(tensor, "slipring", 7) > 0
    with pytest.raises(SystemExit, match=r"slipring brought \[7, 7\] instead of 8"):
        Stale(link, queue).trip(tensor, "slipring", 8)
    with pytest.raises(gpu_bench.Failure, match="the other process: "):
        gpu_bench.Leader(link, queue).trip(torch.zeros(0, dtype=torch.int64), "slipring", 9)
    link.close()
    other.join()


def test_the_bench_of_gpus_refuses_sizes_and_rounds_that_it_cannot_measure() -> None:
    for wrong in ("0", "12", "-8", "8,4"):
        with pytest.raises(argparse.ArgumentTypeError, match="no multiple of 8"):
            gpu_bench._sizes(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="0 is not 1 or more"):
        gpu_bench._count("0")


def test_the_bench_of_gpus_leaves_out_what_does_not_carry_a_tensor() -> None:
    def trip(way: str, number: int) -> float:
        if way == "torch" and number > 2:
            raise gpu_bench.Failure("no handle\nand more")
        return 1.0

    shown: dict[str, str] = {}
    gpu_bench.measure(trip, 3, shown.__setitem__)
    assert shown["torch"] == "does not carry it: no handle"
    assert shown["slipring"].endswith("1.000 of the better rival")
    assert set(shown) == set(gpu_bench.WAYS)


def load(pipe: Any) -> None:
    batches = iter(loader(Images(400, endless=50)))
    next(batches)
    pipe.send([worker.pid for worker in batches._workers])
    for _ in batches:
        pass


@with_torch
def test_workers_end_with_their_killed_loader() -> None:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=load, args=(theirs,))
    process.start()
    assert ours.poll(LONG)
    workers = ours.recv()
    process.kill()
    process.join(LONG)
    end = time.monotonic() + LONG
    # The one whose item takes for ever looks for nothing.
    while len([pid for pid in workers if os.path.exists(f"/proc/{pid}")]) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    left = [pid for pid in workers if os.path.exists(f"/proc/{pid}")]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) <= 1
