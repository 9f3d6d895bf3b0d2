"""Tensors on a GPU, over a driver without a GPU: `tests/fake_cuda` of the library, compiled, which children of
the tests find as `libcuda.so.1`. With a GPU, PyTorch and CuPy are checked, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipring
from conftest import LONG

SOURCES = Path(__file__).parents[3] / "tests" / "fake_cuda"

Start = Callable[..., "subprocess.Popen[str]"]

# Roles in which a process dies, which frees nothing.
KILLED = {"dying_owner", "checks_unwritten", "checks_written", "checks_held_up"}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None or not SOURCES.is_dir():
        pytest.skip("there is no C compiler, or no source of the driver: tensors on a GPU are not checked")
    folder = tmp_path_factory.mktemp("driver")
    options = ["-std=c11", "-shared", "-fPIC", "-O1", "-pthread", "-Wl,-z,nodelete", "-Wl,-soname,libcuda.so.1"]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    subprocess.run([compiler, *options, "-o", str(folder / "libcuda.so.1"), *sources], check=True)
    return folder


@pytest.fixture
def gpu_child(library: Path, tmp_path: Path, name: str) -> Iterator[Start]:
    """Starts a role of `gpu_peer.py` in a process that has the driver. At the end all have succeeded, used the driver
    as its contract demands, and left nothing behind."""
    started: list[subprocess.Popen[str]] = []
    trace = tmp_path / "trace"

    def start(role: str, *arguments: str, **settings: object) -> subprocess.Popen[str]:
        if "gate" in settings:
            settings["gate"] = f"{settings['gate']}:{tmp_path / 'gate'}"
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "FAKE_CUDA_SESSION": name,
            "FAKE_CUDA_TRACE": str(trace),
            **{f"FAKE_CUDA_{key.upper()}": str(value) for key, value in settings.items()},
        }
        command = [sys.executable, str(Path(__file__).parent / "gpu_peer.py"), role, *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process

    yield start
    said = []
    for process in started:
        try:
            said.append(process.communicate(timeout=LONG)[1])
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(process.communicate()[1])
    left = [path.name for path in Path("/dev/shm").glob(f"fake-cuda-{name}-*")]
    for path in left:
        (Path("/dev/shm") / path).unlink()
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)
    calls = trace.read_text()
    assert calls and "MISUSE" not in calls, calls
    roles = {process.args[2] for process in started}  # type: ignore[index]
    assert left == [] or roles & KILLED, left


def test_tensors_of_a_library_are_read_by_another_one_in_another_process(gpu_child: Start, name: str) -> None:
    gpu_child("exchange_reader", name)
    gpu_child("exchange_owner", name)


@pytest.mark.parametrize("role", ["refusals", "lazy", "pins", "forked"])
def test_in_one_process(gpu_child: Start, role: str) -> None:
    """Refused tensors are let go of once; the driver is loaded late; a forked child has none."""
    gpu_child(role)


@pytest.mark.parametrize(
    ("act", "call"),
    [
        ("export", "cuStreamIsCapturing"),
        ("export", "cuStreamCreate"),
        ("export_copy", "cuMemcpyDtoDAsync_v2"),
        ("copy", "cuStreamCreate"),
        ("copy", "cuMemcpyDtoHAsync_v2"),
        ("check", "cuStreamCreate"),
        ("on_gpu", "cuDeviceGetCount"),
        ("send", "cuStreamIsCapturing"),
    ],
)
def test_other_threads_run_and_use_the_tensor_while_a_call_of_the_driver_waits(
    gpu_child: Start, act: str, call: str
) -> None:
    gpu_child("held_up", act, gate=call, devices=2)


def test_many_parts_of_a_tensor_go_in_one_message_and_are_opened_at_once(gpu_child: Start, name: str) -> None:
    gpu_child("parts_reader", name)
    gpu_child("parts_owner", name)


def test_what_lies_apart_goes_back_by_itself(gpu_child: Start, name: str) -> None:
    gpu_child("apart_reader", name)
    gpu_child("apart_owner", name)


def test_another_gpu_reads_a_tensor_where_it_lies(gpu_child: Start, name: str) -> None:
    gpu_child("gpus_reader", name, devices=2)
    gpu_child("gpus_owner", name, devices=2)


def test_each_stream_of_dlpack_is_used_as_its_standard_says(gpu_child: Start) -> None:
    gpu_child("streams", delay_us=50_000)


def test_the_example_of_the_page_runs(gpu_child: Start, name: str) -> None:
    gpu_child("page_reader", name)
    gpu_child("page_owner", name)


def test_other_threads_run_while_a_send_waits_for_what_the_driver_is_asked(gpu_child: Start) -> None:
    gpu_child("sent_meanwhile", gate="cuEventQuery", delay_us=100_000)


@pytest.mark.parametrize("end", ["deleter", "capsule"])
def test_other_threads_run_while_the_end_of_a_view_waits_for_the_driver(gpu_child: Start, end: str) -> None:
    gpu_child("ends", end, gate="cuStreamIsCapturing")


def test_a_deleter_on_a_thread_of_another_language_needs_no_interpreter(gpu_child: Start) -> None:
    gpu_child("ends_elsewhere")


def test_views_end_with_the_interpreter_and_after_it(gpu_child: Start, tmp_path: Path) -> None:
    process = gpu_child("ends_late")
    assert process.wait(LONG) == 0
    _, late = (tmp_path / "trace").read_text().split("LATE\n")
    assert late.count(" cuStreamIsCapturing ") == 4, late


def test_a_tensor_of_the_host_is_used_while_it_is_pinned(gpu_child: Start) -> None:
    gpu_child("pinned_meanwhile", gate="cuMemHostRegister_v2")


def test_a_send_waits_for_the_work_that_writes_the_elements(gpu_child: Start) -> None:
    gpu_child("waits", delay_us=300_000)


def test_a_send_within_the_capture_of_a_graph_is_refused(gpu_child: Start) -> None:
    gpu_child("captured", capturing=1)


def test_the_memory_of_a_dead_owner_is_gone(gpu_child: Start, name: str) -> None:
    gpu_child("surviving_reader", name)
    gpu_child("dying_owner", name)


def has_pair() -> bool:
    return (Path(os.environ.get("SLIPRING_EXAMPLES", "/nonexistent")) / "cuda_pair").exists()


no_pair = pytest.mark.skipif(
    not has_pair(), reason="cuda_pair is not built (SLIPRING_EXAMPLES): no check of a tensor from Rust is tested"
)


@no_pair
@pytest.mark.parametrize("how", ["fd", ""])
@pytest.mark.parametrize("role", ["checks_unwritten", "checks_written"])
def test_a_check_tells_of_an_owner_that_has_died_or_does_not_write(
    gpu_child: Start, name: str, role: str, how: str
) -> None:
    gpu_child(role, name, how)


@no_pair
def test_a_check_ends_in_time_while_the_driver_holds_up_its_callers(gpu_child: Start, name: str) -> None:
    gpu_child("checks_held_up", name, locked=1)


class WithoutDriver:
    """A tensor that says that it is on a GPU."""

    def __dlpack_device__(self) -> Any:
        return (2, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("asked without a driver")


def has_driver() -> bool:
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def test_without_a_driver_a_tensor_on_a_gpu_is_refused(link: tuple[slipring.Connection, slipring.Connection]) -> None:
    if has_driver():
        pytest.skip("this machine has a driver")
    near, far = link
    for send in (
        lambda: near.send_tensor(WithoutDriver()),
        lambda: near.send_tensors({"a": np.ones(1), "b": WithoutDriver()}),
        lambda: near.call_tensors([WithoutDriver()], timeout=LONG),
    ):
        with pytest.raises(slipring.GpuError, match=r"libcuda\.so\.1"):
            send()
    assert slipring.trim_gpus() == 0
    assert far.try_recv_tensor() is None


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_library_on_a_gpu_of_this_machine(
    link: tuple[slipring.Connection, slipring.Connection], library: str
) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed: its tensors on a GPU are not checked")
    if not (module.cuda.is_available() if library == "torch" else module.cuda.runtime.getDeviceCount()):
        pytest.skip(f"there is no GPU: {library}'s tensors on a GPU are not checked")
    near, far = link
    theirs = module.arange(1 << 20, device="cuda") if library == "torch" else module.arange(1 << 20)
    near.send_tensor(theirs)
    tensor = far.recv_tensor(LONG)
    assert tensor.__dlpack_device__() == (2, 0)
    back = module.from_dlpack(tensor)
    assert int(back.sum()) == sum(range(1 << 20))
    with pytest.raises(slipring.InvalidTensor, match="stride"):
        near.send_tensor(theirs.reshape(1024, 1024).T)
    del back, tensor
    slipring.trim_gpus()
