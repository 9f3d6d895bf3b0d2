"""A process of a test that has a driver: `python gpu_peer.py ROLE ARGUMENTS`."""

from __future__ import annotations

import ctypes as c
import enum
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import slipring
from on_gpu import IS_COPIED, READ_ONLY, Array, Driver, Gate, OldArray, Taken

LONG = 60.0


def wait_until(is_there: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not is_there():
        assert time.monotonic() < end
        time.sleep(0.005)


def raises(kind: type[BaseException], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def pair() -> tuple[slipring.Connection, slipring.Connection]:
    """Returns both ends of a link of this process."""
    from conftest import connected

    return connected(f"slipring-gpu-{os.getpid()}")


@contextmanager
def waiting(gate: Gate, act: Callable[[], Any]) -> Iterator[list[Any]]:
    """Calls `act` on another thread, and goes on when that waits at the gate. At the end it has got through, and the
    list has what it returned."""
    done: list[Any] = []

    def run() -> None:
        Driver()
        done.append(act())

    thread = threading.Thread(target=run, daemon=True)
    gate.shut()
    thread.start()
    wait_until(gate.is_reached)
    yield done
    assert not done
    gate.open()
    thread.join(LONG)
    assert len(done) == 1


class Kind(enum.IntEnum):
    """A kind of device as NumPy has it."""

    CUDA = 2


class Again:
    """A received tensor as a library has it that took it, or a copy of it."""

    def __init__(self, tensor: slipring.Tensor, copy: bool) -> None:
        self.tensor, self.copy = tensor, copy

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> Any:
        return self.tensor.__dlpack__(copy=self.copy, **asked)


def exchange_owner(name: str) -> None:
    driver = Driver()
    arrays = [Array(driver, 2, 8), OldArray(driver, 2, 8), Array(driver, 2, 8)]
    for at, array in enumerate(arrays):
        array.write(list(range(at, at + 16)))
    with slipring.connect(name, retry=LONG) as link:
        # The elements are written while they are sent.
        driver.fill(arrays[2].start, 1, 64, arrays[2].stream)
        link.send_tensor(arrays[0], meta={"number": 7})
        link.send_tensors({"old": arrays[1], "host": np.arange(3), "filled": arrays[2]})
        sent = link.stats()["sent"]
        assert [sent["gpu_by_events"], sent["gpu_by_words"], sent["gpu_synchronized"]] == [0, 0, 3]
        slipring.trim_gpus()
        assert Array.deleted == 0
        taken = Taken(link.recv_tensor(LONG))
        assert taken.values(driver) == list(range(16))
        taken.delete()
        link.recv(LONG)
    wait_until(lambda: slipring.trim_gpus() == 0)
    assert (Array.deleted, Array.alive) == (3, {})
    for array in arrays:
        array.free()


def exchange_reader(name: str) -> None:
    driver = Driver()
    stream = driver.stream()
    with slipring.listen(name) as listener:
        link = listener.accept(LONG)
    tensor = link.recv_tensor(LONG)
    assert (tensor.dtype, tensor.shape, tensor.nbytes, tensor.meta) == ("uint32", (2, 8), 64, {"number": 7})
    assert tensor.__dlpack_device__() == (2, 0)
    assert (tensor.on_loan, tensor.stable, tensor.writable) == (True, False, False)
    assert "on a GPU" in repr(tensor)
    for number in (None, 1, 2, -1, stream):
        for version in (None, (1, 0)):
            taken = Taken(tensor, version, stream=number)
            assert (taken.device, taken.shape, taken.dtype) == ((2, 0), [2, 8], (1, 32, 1))
            assert taken.flags in (None, READ_ONLY)
            assert taken.values(driver, stream if number == stream else 0) == list(range(16))
            taken.delete()
    # A capsule that nobody takes ends its view.
    tensor.__dlpack__(stream=stream)
    taken = Taken(tensor, stream=stream)
    raises(slipring.ViewsAlive, "1 views", tensor.release)
    # A copy of its own, on the GPU.
    copy = Taken(tensor, stream=stream, copy=True)
    assert copy.flags == IS_COPIED and copy.start != taken.start
    driver.fill(copy.start, 9, 64, stream)
    assert copy.values(driver, stream) == [0x09090909] * 16
    assert taken.values(driver, stream) == list(range(16))
    for each in (copy, taken):
        each.delete()
    # Copies in memory of the host.
    home = tensor.copy()
    assert home.__dlpack_device__() == (1, 0) and home.meta == {"number": 7}
    assert np.asarray(home).ravel().tolist() == list(range(16))
    array = np.from_dlpack(tensor, device="cpu")
    assert array.ravel().tolist() == list(range(16))
    array[:] = 0
    signed = Taken(tensor.view("int32"), stream=stream)
    assert signed.dtype == (0, 32, 1)
    signed.delete()
    # What it does not do.
    for look in (np.asarray, memoryview):
        raises((slipring.InvalidTensor, BufferError), "GPU", lambda look=look: look(tensor))
    raises(slipring.InvalidTensor, "cannot be sent on", lambda: link.send_tensor(tensor))
    raises(slipring.InvalidTensor, "no allocation", lambda: link.send_tensor(Again(tensor, copy=False)))
    link.send_tensor(Again(tensor, copy=True))
    raises(BufferError, "(2, 0)", lambda: tensor.__dlpack__(dl_device=(2, 1)))
    raises(BufferError, "needs a copy", lambda: tensor.__dlpack__(dl_device=(1, 0), copy=False))
    raises(ValueError, "stream 0", lambda: tensor.__dlpack__(stream=0))
    raises(ValueError, "stream -2", lambda: tensor.__dlpack__(stream=-2))
    tensor.release()
    raises(slipring.TensorGone, "released", tensor.__dlpack__)
    tensors = link.recv_tensors(LONG)
    assert np.asarray(tensors["host"]).tolist() == [0, 1, 2]
    for key, values in (("old", list(range(1, 17))), ("filled", [0x01010101] * 16)):
        taken = Taken(tensors[key], stream=stream)
        assert taken.values(driver, stream) == values
        taken.delete()
    del tensors
    link.send(b"read")
    link.close()
    # The copy that was sent is deleted behind the stream's work.
    wait_until(lambda: slipring.trim_gpus() == 0)
    driver.end_stream(stream)


def refusals() -> None:
    driver = Driver()
    near, far = pair()

    def change(**fields: Any) -> Callable[[Any], None]:
        def lie(structure: Any) -> None:
            for name, value in fields.items():
                setattr(structure.tensor, name, value)

        return lie

    def transpose(structure: Any) -> None:
        strides = structure.tensor.strides
        strides[0], strides[1] = 1, 2

    lies = [
        (change(device_type=13), "managed memory"),
        (change(device_type=1), "device type 1"),
        (change(device_id=1), "on GPU 1"),
        (change(code=5), "type code 5"),
        (change(data=None), "data is null"),
        (change(byte_offset=4), "multiple of 256"),
        (change(byte_offset=1 << 40), "no allocation"),
        (transpose, "stride"),
        (lambda structure: setattr(structure, "major", 2), "version 2"),
    ]
    for number, (lie, text) in enumerate(lies, 1):
        array = Array(driver, 2, 8, lie=lie)
        send = near.send_tensor if number % 2 else (lambda array: near.send_tensors({"a": np.ones(1), "b": array}))
        raises(slipring.InvalidTensor, text, lambda array=array, send=send: send(array))
        assert (Array.deleted, Array.alive) == (number, {})
        array.free()
    empty = Array(driver, 0, 8)
    raises(slipring.InvalidTensor, "no bytes", lambda: near.send_tensor(empty))
    empty.free()
    array = Array(driver, 2, 8)
    array.device = (2, 7)
    raises(slipring.GpuError, "no GPU 7", lambda: near.send_tensor(array))
    array.device = (2, -1)
    raises(ValueError, "GPU -1", lambda: near.send_tensor(array))
    array.device = (13, 0)
    array.lie = change(device_type=13)
    raises(slipring.InvalidTensor, "managed memory", lambda: near.send_tensor(array))
    array.device, array.lie = (2, 0), None
    array.__class__ = type("Broken", (Array,), {"__dlpack__": lambda self, **_: b"no capsule"})
    raises(BufferError, "no DLPack capsule", lambda: near.send_tensor(array))
    array.__class__ = Array
    publisher = slipring.publish(f"slipring-gpu-topic-{os.getpid()}")
    raises(slipring.InvalidTensor, "GPU", lambda: publisher.send_tensor(array))
    assert far.try_recv_tensor() is None
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    array.free()


def waits() -> None:
    """The driver lets each piece of work wait for 300 ms."""
    driver = Driver()
    near, far = pair()
    array = Array(driver, 2, 8)
    driver.fill(array.start, 1, 64, array.stream)
    raises(slipring.TimedOut, "stream", lambda: near.send_tensor(array, timeout=0.05))
    assert not near.try_send_tensors([array])
    assert not driver.is_idle(array.stream)
    near.send_tensor(array)
    assert driver.is_idle(array.stream)
    tensor = far.recv_tensor(LONG)
    assert np.asarray(tensor.copy()).ravel().tolist() == [0x01010101] * 16
    del tensor
    # The receiver has the allocation open as long as its link.
    far.close()
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    assert Array.deleted == 3
    array.free()


def held_up(act: str) -> None:
    driver, gate = Driver(), Gate()
    near, far = pair()
    array, other = Array(driver, 2, 8).write(list(range(16))), Array(driver, 2, 8)
    near.send_tensor(array)
    tensor = far.recv_tensor(LONG)
    acts: dict[str, Callable[[], Any]] = {
        "export": lambda: Taken(tensor, stream=-1).delete(),
        "export_copy": lambda: Taken(tensor, stream=1, copy=True).delete(),
        "copy": tensor.copy,
        "check": partial(tensor.check, timeout=LONG),
        "send": lambda: near.send_tensor(other),
        "on_gpu": lambda: tensor.on_gpu(1),
    }
    with waiting(gate, acts[act]):
        assert (tensor.nbytes, tensor.writable, tensor.stable, tensor.on_loan) == (64, False, False, True)
        assert "on a GPU" in repr(tensor)
        tensor.share()
        if act in ("export", "export_copy", "copy", "check"):
            raises(slipring.ViewsAlive, "1 views", tensor.release)
        near.send(b"a message")
        assert bytes(far.recv(LONG)) == b"a message"
    if act == "send":
        far.recv_tensor(LONG).release()
    assert not tensor._viewed
    tensor.release()
    far.close()
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    array.free()
    other.free()


def calls_of(call: str) -> int:
    """Returns how many calls of the driver, with this name if there is one, this thread has made."""
    me = f"{os.getpid()} {threading.get_native_id()} "
    with open(os.environ["FAKE_CUDA_TRACE"]) as trace:
        return sum(line.startswith(me) and (not call or f" {call} " in line) for line in trace)


PARTS = 300


def parts_owner(name: str) -> None:
    """More parts than a message has attachments, each of 64 elements."""
    array = Array(Driver(), PARTS, 64).write([at // 64 for at in range(PARTS * 64)])
    whole = slipring.from_dlpack(array)
    assert (whole.dtype, whole.shape, whole.on_loan, whole.writable) == ("uint32", (PARTS, 64), False, False)
    assert repr(whole) == f"<slipring.Tensor uint32 [{PARTS}, 64], on a GPU>"
    parts = {f"part {at}": whole.part(64, offset=256 * at) for at in range(PARTS)}
    nested = whole.part((2, 64), offset=512).part((256,), "uint8", offset=256)
    assert (nested.dtype, nested.shape, nested.nbytes) == ("uint8", (256,), 256)
    raises(slipring.InvalidTensor, "256", lambda: whole.part(1, offset=4))
    raises(slipring.InvalidTensor, "76800 bytes at offset 256", lambda: whole.part((PARTS, 64), offset=256))
    raises(slipring.GpuError, "memory of the host", lambda: slipring.empty(8).share().part(1))
    raises(slipring.GpuError, "memory of the host", lambda: slipring.empty(8).share().on_gpu(0))
    raises(ValueError, "uint32 as bool", lambda: whole.part(64, "bool"))
    raises(TypeError, "no GPU", lambda: slipring.from_dlpack(np.ones(1)))
    with slipring.connect(name, retry=LONG) as link:
        # Any number of times.
        for _ in range(2):
            link.send_tensors({**parts, "nested": nested, "host": np.arange(3)}, meta={"number": 7})
        whole.release()
        raises(slipring.TensorGone, "released", lambda: whole.part(1))
        parts.clear()
        del nested
        assert slipring.trim_gpus() > 0 and Array.alive
        link.recv(LONG)
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    array.free()


def parts_reader(name: str) -> None:
    driver = Driver()
    stream = driver.stream()
    with slipring.listen(name) as listener:
        link = listener.accept(LONG)
    read_parts(driver, stream, link)
    link.send(b"read")
    link.close()
    wait_until(lambda: slipring.trim_gpus() == 0)
    driver.end_stream(stream)


def read_parts(driver: Driver, stream: int, link: slipring.Connection) -> None:
    tensors, again = link.recv_tensors(LONG), link.recv_tensors(LONG)
    raises(slipring.InvalidTensor, "cannot be sent on", lambda: tensors[0].part(1))
    before = calls_of("cuStreamIsCapturing")
    tensors[0].__dlpack_device__()
    everything = calls_of("")
    tensors.open(stream=-1)
    of_all, everything = calls_of("") - everything, calls_of("")
    tensors["part 0"].__dlpack__(stream=-1)
    of_one = calls_of("") - everything
    assert 0 < of_all <= of_one + 2, (of_all, of_one)
    before = calls_of("cuStreamIsCapturing")
    opened = tensors.open(stream=stream)
    assert calls_of("cuStreamIsCapturing") - before == 1
    everything = calls_of("")
    assert (opened.names, opened.meta, len(opened)) == (tensors.names, {"number": 7}, PARTS + 2)
    taken = [Taken(opened[f"part {at}"], stream=stream) for at in range(PARTS)]
    assert calls_of("") == everything
    for at in range(0, PARTS, 37):
        assert taken[at].values(driver, stream) == [at] * 64
    assert taken[0].flags == READ_ONLY
    nested = Taken(opened["nested"], stream=-1)
    assert nested.values(driver, stream) == [3] * 64
    assert np.asarray(opened["host"]).tolist() == [0, 1, 2]
    signed = opened["part 7"].view("int32")
    as_signed = Taken(signed, stream=stream)
    assert (as_signed.dtype, as_signed.start) == ((0, 32, 1), taken[7].start)
    as_signed.delete()
    assert calls_of("cuStreamIsCapturing") - before == 1
    # Another stream opens it by itself, and a copy is one.
    for asked in ({"stream": 1}, {"stream": stream, "copy": True}):
        other = Taken(opened["part 7"], **asked)
        assert other.values(driver, asked["stream"] if asked["stream"] > 2 else 0) == [7] * 64
        other.delete()
    assert calls_of("cuStreamIsCapturing") - before > 1
    # All are checked once, and nothing is opened for it.
    everything = calls_of("")
    opened.check(timeout=LONG)
    assert calls_of("") - everything <= of_one
    opened["part 7"].check(timeout=LONG)
    # A view ends with the tensor, and with what was made of it.
    raises(slipring.ViewsAlive, "1 views", tensors["part 8"].release)
    as_signed = opened["part 8"].view("int32")
    twice = tensors.open(stream=1)
    for views in (2, 1):
        # A release that fails changes nothing: no driver is asked for what is still open.
        everything = calls_of("")
        for each in (opened["part 8"], as_signed):
            raises(slipring.ViewsAlive, f"{views} views", each.release)
        Taken(opened["part 8"], stream=stream).delete()
        assert calls_of("") == everything
        if views == 2:
            del twice
    taken[8].delete()
    opened["part 8"].release()
    for gone in (tensors["part 8"], as_signed):
        raises(slipring.TensorGone, "released", gone.__dlpack__)
        gone.release()
    for each in (tensors, opened):
        raises(slipring.TensorGone, "released", lambda each=each: each.open(stream=stream))
        raises(slipring.TensorGone, "released", each.check)
    for at, one in enumerate(taken):
        if at != 8:
            one.delete()
    nested.delete()
    assert calls_of("cuIpcOpenMemHandle_v2") == 1

    class Protocol:
        def __init__(self, version: int) -> None:
            self.version = version

        def __cuda_stream__(self) -> tuple[int, int]:
            return (self.version, stream)

    for number, named in (
        (stream, Stream(cuda_stream=stream)),
        (stream, Stream(ptr=stream, wait_event=None)),
        (stream, Protocol(0)),
        (1, Stream(cuda_stream=0)),
        (2, 2),
        (-1, -1),
    ):
        theirs = again.open(stream=named)
        count = calls_of("cuStreamIsCapturing")
        last = Taken(theirs[0], stream=number)
        assert calls_of("cuStreamIsCapturing") == count
        last.delete()
        del theirs
    raises(ValueError, "stream 0", lambda: again.open(stream=0))
    raises(ValueError, "stream -2", lambda: again.open(stream=-2))
    raises(OverflowError, "", lambda: again.open(stream=1 << 63))
    raises(ValueError, "version 1", lambda: again.open(stream=Protocol(1)))
    raises(TypeError, "stream", lambda: again.open())  # type: ignore[call-arg]
    # Memory and events of CuPy have `ptr`, too.
    memory, event = Stream(ptr=stream, device_id=0), Stream(ptr=stream, synchronize=None)
    for text, no_stream in (
        ("not str", "default"),
        ("not NoneType", None),
        ("not bool", True),
        ("not Stream", memory),
        ("not Stream", event),
    ):
        raises(TypeError, text, lambda no_stream=no_stream: again.open(stream=no_stream))
    raises(slipring.GpuError, "no GPU 7", lambda: again.open(stream=1, gpu=7))
    # The GPU is known.
    everything = calls_of("")
    again["part 0"].on_gpu(0)
    assert calls_of("") == everything
    opened_stream_lives(stream, again)


class Stream:
    """A stream as a library has it."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def opened_stream_lives(stream: int, tensors: slipring.Tensors) -> None:
    """The object lives until the last tensor and view are gone."""
    for attached in (True, False):
        named = Stream(cuda_stream=stream)
        lives = weakref.ref(named)
        opened = tensors.open(stream=named)
        del named
        one, taken = opened["part 1"], Taken(opened["part 2"], stream=stream)
        del opened
        assert lives() is not None
        del one
        assert lives() is not None
        taken.delete(attached)
        # A thread that is not attached leaves it to the next call.
        assert (lives() is None) == attached
        slipring.trim_gpus()
        assert lives() is None


def apart_owner(name: str) -> None:
    """Two arrays, each in an allocation of its own that goes by descriptor, and two parts of another one."""
    driver = Driver()
    starts = [driver.map(SIZE) for _ in range(3)]
    arrays = [Array(driver, 64, start=start) for start in starts]
    with slipring.connect(name, retry=LONG) as link:
        shared = slipring.from_dlpack(arrays[2])
        parts = {"left": shared.part(16), "right": shared.part(16)}
        link.send_tensors({"kept": arrays[0], "released": arrays[1], **parts})
        del shared, parts
        for left in (2, 1, 0):
            assert bytes(link.recv(LONG)) == b"let go"
            wait_until(lambda left=left: slipring.trim_gpus() == left)
            assert len(Array.alive) == left
            link.send(b"seen")
    for array, start in zip(arrays, starts, strict=True):
        driver.end_stream(array.stream)
        driver.unmap(start, SIZE)


def apart_reader(name: str) -> None:
    driver = Driver()
    stream = driver.stream()
    with slipring.listen(name) as listener:
        link = listener.accept(LONG)

    def let_go() -> None:
        link.send(b"let go")
        link.recv(LONG)

    opened = link.recv_tensors(LONG).open(stream=stream)
    kept = Taken(opened["kept"], stream=stream)
    opened["released"].release()
    let_go()
    # Of one allocation both go back with the last one.
    opened["left"].release()
    opened["right"].release()
    let_go()
    del opened
    kept.delete()
    let_go()
    link.close()
    wait_until(lambda: slipring.trim_gpus() == 0)
    driver.end_stream(stream)


def streams() -> None:
    driver = Driver()
    near, far = pair()
    array = Array(driver, 2, 8).write(list(range(16)))
    near.send_tensor(array)
    tensor = far.recv_tensor(LONG)
    assert [number is not None and number > 2 for number in array.streams] == [True]
    own, other = driver.stream(), driver.stream()

    def made() -> int:
        return calls_of("cuStreamCreate")

    def awaited(stream: str) -> int:
        with open(os.environ["FAKE_CUDA_TRACE"]) as trace:
            return sum(f" cuStreamIsCapturing {stream} " in line for line in trace)

    for number in (None, 1, 2, own, -1):
        default, before = awaited("stream:0"), made()
        taken = Taken(tensor, stream=number)
        # The tensor is opened for the default stream, for that of the caller, or for one of its own.
        assert awaited("stream:0") - default == (number in (None, 1, 2)), number
        assert made() - before == (number == -1), number
        assert taken.values(driver, own if number == own else 0) == list(range(16))
        taken.delete()
        # A copy is there for later work of the stream, and without an order for all work.
        copy = Taken(tensor, stream=number, copy=True)
        behind = {own: own, -1: other}.get(number or 0, 0)
        if number == -1:
            with open(os.environ["FAKE_CUDA_TRACE"]) as trace:
                calls = trace.read()
            name = re.findall(r" cuStreamCreate .*(stream:\d+)", calls)[-1]
            assert f" cuStreamQuery {name} = 0" in calls, name
        assert copy.values(driver, behind) == list(range(16)), number
        copy.delete()
    on_host = {"dl_device": (1, 0)}
    for asked in ({}, on_host, {"copy": True}):
        for number in (0, -2, -(1 << 63)):
            raises(ValueError, f"stream {number} of DLPack", partial(tensor.__dlpack__, stream=number, **asked))
        raises(OverflowError, "", partial(tensor.__dlpack__, stream=1 << 63, **asked))
        raises(TypeError, "", partial(tensor.__dlpack__, stream="1", **asked))
    for number in (None, 1, 2, own, -1):
        assert Taken(tensor, stream=number, **on_host).device == (1, 0)
    host = slipring.empty(8, zeroed=True)
    assert Taken(host, stream=None).device == (1, 0)
    for number in (-1, 0, 1, 2, own):
        raises(BufferError, "no streams", partial(host.__dlpack__, stream=number))
    no_integers: list[dict[str, Any]] = [
        {"stream": True},
        {"stream": 1.0},
        {"stream": np.True_},
        {"max_version": (True, 0)},
        {"max_version": (1, False)},
        {"max_version": 1},
        {"max_version": "10"},
        {"dl_device": (True, 0)},
        {"dl_device": (2, False)},
        {"dl_device": 2},
        {"dl_device": "cpu"},
        {"copy": 1},
        {"copy": 0},
        {"copy": "yes"},
    ]
    for asked in no_integers:
        for each in (tensor, host):
            raises(TypeError, "", partial(each.__dlpack__, **asked))
    taken = Taken(tensor, stream=np.int64(1), dl_device=(Kind.CUDA, 0), copy=None)
    assert taken.device == (2, 0)
    taken.delete()
    assert not tensor._viewed
    tensor.release()
    far.close()
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    array.free()
    for stream in (own, other):
        driver.end_stream(stream)


def page_programs() -> tuple[str, str]:
    """Returns the example of docs/python.md, one half for each process."""
    page = (Path(__file__).parents[3] / "docs" / "python.md").read_text()
    [block] = [block for block in page.split("```python\n") if block.startswith("flat = ")]
    owner, reader = block.partition("```")[0].split("\n\n")
    return owner, reader


def page_owner(name: str) -> None:
    driver, arrays = Driver(), []

    class Torch:
        """What the example uses of PyTorch."""

        uint8 = "uint8"

        def ones(self, size: int, dtype: str, device: str) -> Array:
            assert (dtype, device) == ("uint8", "cuda")
            arrays.append(Array(driver, size // 4))
            driver.fill(arrays[0].start, 1, size, arrays[0].stream)
            return arrays[0]

    with slipring.connect(name, retry=LONG) as link:
        names: dict[str, Any] = {"slipring": slipring, "torch": Torch(), "link": link}
        exec(page_programs()[0], names)
        link.recv(LONG)
        names.clear()
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    arrays[0].free()


def page_reader(name: str) -> None:
    driver = Driver()

    class Cuda:
        current_stream = staticmethod(lambda: Stream(cuda_stream=0))

    class Torch:
        cuda = Cuda
        from_dlpack = staticmethod(lambda tensor: Taken(tensor, stream=1))

    with slipring.listen(name) as listener:
        link = listener.accept(LONG)
    names: dict[str, Any] = {"slipring": slipring, "torch": Torch(), "link": link}
    exec(page_programs()[1], names)
    layers = names["layers"]
    assert {name: layer.shape for name, layer in layers.items()} == {"up": [512, 1024], "down": [1024, 512]}
    for layer in layers.values():
        assert layer.values(driver) == [0x01010101] * (1 << 18)
        layer.delete()
    names.clear()
    link.send(b"read")
    link.close()
    wait_until(lambda: slipring.trim_gpus() == 0)


def sent_meanwhile() -> None:
    """Another thread asks the driver for the end of a use of the tensor."""
    driver, gate = Driver(), Gate()
    near, far = pair()
    array = Array(driver, 2, 8)
    tensor, stream = slipring.from_dlpack(array), driver.stream()
    taken = Taken(tensor, stream=stream)
    driver.fill(array.start, 0, 64, stream)
    taken.delete()
    sent = threading.Event()

    def send() -> None:
        near.send_tensor(tensor)
        sent.set()

    with waiting(gate, slipring.trim_gpus):
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        # Long enough for the thread to wait, or to be done. Either lets this one go on.
        for _ in range(50):
            time.sleep(0.01)
    thread.join(LONG)
    assert sent.is_set()
    far.recv_tensor(LONG).release()
    tensor.release()
    far.close()
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    array.free()
    driver.end_stream(stream)


SIZE = 2 << 20


def gpus_owner(name: str) -> None:
    driver = Driver()
    start = driver.map(SIZE)
    array, by_handle = Array(driver, 64, start=start).write(list(range(64))), Array(driver, 64)
    with slipring.connect(name, retry=LONG) as link:
        link.send_tensors({"there": slipring.from_dlpack(array), "by handle": by_handle})
        link.recv(LONG)
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    by_handle.free()
    driver.end_stream(array.stream)
    driver.unmap(start, SIZE)


def gpus_reader(name: str) -> None:
    """The tensors lie on GPU 0, and GPU 1 reads them."""
    driver = Driver(1)
    stream = driver.stream()
    with slipring.listen(name) as listener:
        link = listener.accept(LONG)
    read_there(driver, stream, link)
    link.send(b"read")
    link.close()
    wait_until(lambda: slipring.trim_gpus() == 0)
    driver.end_stream(stream)


def read_there(driver: Driver, stream: int, link: slipring.Connection) -> None:
    tensors = link.recv_tensors(LONG)
    tensor = tensors["there"]
    assert tensor.__dlpack_device__() == (2, 0)
    there = tensor.on_gpu(1)
    assert there.__dlpack_device__() == (2, 1)
    assert (there.view("int32").__dlpack_device__(), there.on_gpu(0).__dlpack_device__()) == ((2, 1), (2, 0))
    for taken in (Taken(there, stream=stream), Taken(there, stream=stream, dl_device=(2, 1))):
        assert taken.device == (2, 1)
        assert taken.values(driver, stream) == list(range(64))
        taken.delete()
    assert np.asarray(there.copy()).tolist() == list(range(64))
    raises(BufferError, "(2, 1)", lambda: there.__dlpack__(dl_device=(2, 0)))
    raises(BufferError, "on_gpu", lambda: tensor.__dlpack__(dl_device=(2, 1)))
    raises(slipring.GpuError, "no GPU 7", lambda: tensor.on_gpu(7))
    raises(slipring.GpuError, "cannot use it", tensors["by handle"].on_gpu(1).__dlpack__)
    raises(slipring.GpuError, "cannot use it", lambda: tensors.open(stream=1, gpu=1))
    assert not tensor._viewed


def ends(end: str) -> None:
    driver, gate = Driver(), Gate()
    near, far = pair()
    array = Array(driver, 2, 8)
    near.send_tensor(array)
    tensor = far.recv_tensor(LONG)
    kept = [tensor.__dlpack__(stream=1)]
    taken = Taken(tensor, stream=1)

    def act() -> None:
        if end == "deleter":
            taken.delete(attached=True)
        elif end == "capsule":
            kept.clear()

    with waiting(gate, act):
        assert tensor._viewed
    if end == "deleter":
        kept.clear()
    else:
        taken.delete()
    assert not tensor._viewed
    tensor.release()
    far.close()
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    array.free()


def ends_elsewhere() -> None:
    driver = Driver()
    near, far = pair()
    array = Array(driver, 2, 8)
    near.send_tensor(array)
    tensor = far.recv_tensor(LONG)
    taken = Taken(tensor, stream=1)
    # These calls keep the interpreter: no other thread runs in it before they return.
    libc, thread = c.PyDLL(None), c.c_ulong()
    deleter, structure = c.cast(taken.structure.deleter, c.c_void_p), c.byref(taken.structure)
    assert libc.pthread_create(c.byref(thread), None, deleter, structure) == 0
    assert libc.pthread_join(thread, None) == 0
    assert not tensor._viewed
    tensor.release()
    far.close()
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    array.free()


LATE: list[Any] = []


def ends_late() -> None:
    """Views end when the interpreter clears its modules, and after it is gone. Some hold a stream of Python."""
    driver = Driver()
    near, far = pair()
    near.send_tensor(Array(driver, 2, 8))
    near.send_tensors([Array(driver, 2, 8)])
    near.send_tensors([Array(driver, 2, 8)])
    tensor, sets = far.recv_tensor(LONG), [far.recv_tensors(LONG) for _ in range(2)]
    opened = [tensors.open(stream=SimpleNamespace(cuda_stream=0)) for tensors in sets]
    LATE.extend((tensor.__dlpack__(stream=1), opened[0][0].__dlpack__(stream=1), near, far))
    for taken in (Taken(tensor, stream=1), Taken(opened[1][0], stream=1)):
        deleter, structure = c.cast(taken.structure.deleter, c.c_void_p), c.byref(taken.structure)
        assert c.CDLL(None).__cxa_atexit(deleter, structure, None) == 0
    with open(os.environ["FAKE_CUDA_TRACE"], "a") as trace:
        trace.write("LATE\n")


def pinned_meanwhile() -> None:
    from conftest import connected

    Driver()
    gate = Gate()

    def use(near: slipring.Connection, far: slipring.Connection) -> None:
        draft = near.empty(100_000, "uint8")
        with waiting(gate, lambda: slipring.pin(draft, 1 << 30)):
            assert (draft.nbytes, draft.writable) == (100_000, True)
            np.asarray(draft)[:] = 1
            raises(slipring.ViewsAlive, "1 views", lambda: near.send_tensor(draft))
            raises(slipring.ViewsAlive, "1 views", draft.release)
        near.send_tensor(draft)
        tensor = far.recv_tensor(LONG)
        with waiting(gate, lambda: slipring.pin(tensor, 1 << 30)):
            assert np.asarray(tensor).sum() == 100_000
        tensor.release()

    use(*connected(f"slipring-gpu-{os.getpid()}", slipring.Context(), slipring.Context()))
    wait_until(lambda: slipring.trim_gpus() == 0)


def captured() -> None:
    """The driver says that each stream is captured."""
    driver = Driver()
    near, _far = pair()
    array = Array(driver, 2, 8)
    # To order work in a capture would be a misuse of the test's.
    driver.order = lambda *_: None  # type: ignore[method-assign]
    raises(slipring.GpuError, "captured", lambda: near.send_tensor(array))
    assert (Array.deleted, Array.alive) == (1, {})


def lazy() -> None:
    """No library of the driver is loaded before a tensor on a GPU is met."""

    def is_loaded() -> bool:
        with open("/proc/self/maps") as maps:
            return "libcuda" in maps.read()

    near, far = pair()
    near.send_tensor(np.arange(5))
    near.send_tensors({"a": np.from_dlpack(near.empty(3, zeroed=True))})
    assert np.from_dlpack(far.recv_tensor(LONG)).tolist() == [0, 1, 2, 3, 4]
    assert far.recv_tensors(LONG)["a"].__dlpack_device__() == (1, 0)
    assert slipring.trim_gpus() == 0
    assert not is_loaded()

    class Broken:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise RuntimeError("asked")

    raises(RuntimeError, "asked", lambda: near.send_tensor(Broken()))
    assert is_loaded()


def pins() -> None:
    from conftest import connected

    def use(near: slipring.Connection, far: slipring.Connection) -> None:
        near.send_tensor(np.arange(100_000))
        tensor = far.recv_tensor(LONG)
        raises(slipring.GpuError, "pinned", lambda: slipring.pin(tensor, 4096))
        raises(slipring.GpuError, "no GPU 7", lambda: slipring.pin(tensor, 1 << 30, gpu=7))
        for _ in range(2):
            slipring.pin(tensor, 1 << 30)
        draft = near.empty(100_000, "uint8")
        slipring.pin(draft, 1 << 30)
        np.asarray(draft)[:] = 1
        near.send_tensor(draft)
        raises(slipring.TensorGone, "sent", lambda: slipring.pin(draft, 1 << 30))
        private = tensor.copy()
        raises(slipring.GpuError, "segment", lambda: slipring.pin(private, 1 << 30))

    # Their pools end with them, as that of the module's context does not.
    near, far = connected(f"slipring-gpu-{os.getpid()}", slipring.Context(), slipring.Context())
    use(near, far)
    near.close()
    far.close()
    del near, far
    # What nobody else uses is unpinned.
    wait_until(lambda: slipring.trim_gpus() == 0)


def forked() -> None:
    driver = Driver()
    near, far = pair()
    array = Array(driver, 2, 8)
    near.send_tensor(array)
    tensor = far.recv_tensor(LONG)
    assert tensor.__dlpack_device__() == (2, 0)
    child = os.fork()
    if child == 0:
        raises(slipring.Forked, "", tensor.__dlpack_device__)
        raises(slipring.Forked, "", tensor.__dlpack__)
        raises(slipring.Forked, "", slipring.trim_gpus)
        raises(slipring.Forked, "", lambda: near.send_tensor(array))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    del tensor
    wait_until(lambda: slipring.trim_gpus() == 0 and not Array.alive)
    array.free()


def dying_owner(name: str) -> None:
    array = Array(Driver(), 2, 8)
    with slipring.connect(name, retry=LONG) as link:
        link.send_tensor(array)
        link.send_tensors({"a": array})
        link.recv(LONG)
        os._exit(0)


def surviving_reader(name: str) -> None:
    with slipring.listen(name) as listener:
        link = listener.accept(LONG)
    tensor = link.recv_tensor(LONG)
    opened = link.recv_tensors(LONG).open(stream=1)
    process = os.pidfd_open(link.peer.pid or 0)
    link.send(b"die")
    raises(slipring.PeerDied, "", lambda: link.recv(LONG))
    # The kernel closes the link of a process before it has ended.
    select.select([process], [], [])
    assert tensor.__dlpack_device__() == (2, 0)
    raises(slipring.PeerDied, "", tensor.__dlpack__)
    raises(slipring.PeerDied, "", tensor.copy)
    raises(slipring.PeerDied, "", partial(opened["a"].__dlpack__, stream=1))
    raises(slipring.PeerDied, "", link.close)
    del tensor, opened
    wait_until(lambda: slipring.trim_gpus() == 0)


@contextmanager
def rust_owner(name: str, how: str, seconds: float) -> Iterator[tuple[subprocess.Popen[bytes], slipring.Tensors]]:
    """Starts the example `cuda_pair`, whose streams wait so many seconds before each piece of work, and returns the
    tensors that it sends."""
    command = [os.environ["SLIPRING_EXAMPLES"] + "/cuda_pair", "send", name, "1", "1", *how.split()]
    environment = {**os.environ, "FAKE_CUDA_DELAY_US": str(int(seconds * 1e6)), "FAKE_CUDA_LOCKED": "0"}
    with slipring.listen(name) as listener:
        owner = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        link = listener.accept(LONG)
    link.recv(LONG)
    try:
        yield owner, link.recv_tensors(LONG)
    finally:
        owner.kill()
        owner.wait(LONG)
    # Its process has ended.
    raises(slipring.PeerDied, "", link.close)
    wait_until(lambda: slipring.trim_gpus() == 0)


# An owner that is this slow writes no word before it is stopped.
SLOW = 2.0


def succeeds(check: Callable[[], None]) -> bool:
    """Returns whether a check does not time out."""
    try:
        check()
    except slipring.TimedOut:
        return False
    return True


def checks_unwritten(name: str, how: str) -> None:
    """The owner lives and does not write, and then dies."""
    stream = Driver().stream()
    with rust_owner(name, how, SLOW) as (owner, tensors):
        owner.send_signal(signal.SIGSTOP)
        opened = tensors.open(stream=stream)
        taken = Taken(opened[0], stream=stream)
        checks = [each.check for each in (opened, opened[0], opened[0].view("uint32"), tensors, tensors[0])]
        for check in checks:
            raises(slipring.TimedOut, "stream", partial(check, timeout=0.1))
            raises(TimeoutError, "stream", partial(check, timeout=0))
            raises(ValueError, "timeout is -1", partial(check, timeout=-1))
        owner.kill()
        owner.wait(LONG)
        for check in checks:
            raises(slipring.PeerDied, "", check)
        taken.delete()
        del tensors, opened, checks, check


def checks_written(name: str, how: str) -> None:
    """The owner writes, and then dies."""
    driver = Driver()
    stream = driver.stream()
    with rust_owner(name, how, 0.05) as (owner, tensors):
        opened = tensors.open(stream=stream)
        taken = Taken(opened[0], stream=stream)
        for each in (opened, opened[0], tensors, tensors[0]):
            each.check()
            assert driver.is_idle(stream)
            each.check(timeout=LONG)
            wait_until(partial(succeeds, partial(each.check, timeout=0)))
        assert driver.read(taken.start, 4, stream) == b"\1\1\1\1"
        owner.kill()
        owner.wait(LONG)
        for each in (tensors, tensors[0]):
            raises(slipring.PeerDied, "", each.check)
        for each in (opened, opened[0]):
            # An event does not tell whether a dead owner's writer was done.
            if how == "fd":
                each.check()
            else:
                raises(slipring.PeerDied, "", each.check)
        taken.delete()
        del tensors, opened, each


def checks_held_up(name: str) -> None:
    """A free of the program holds up each call of the driver until the owner writes, which it never does."""
    driver = Driver()
    stream, start = driver.stream(), driver.alloc(4096)
    with rust_owner(name, "fd", SLOW) as (owner, tensors):
        owner.send_signal(signal.SIGSTOP)
        opened = tensors.open(stream=stream)

        def free() -> None:
            Driver().free(start)

        freeing = threading.Thread(target=free, daemon=True)
        freeing.start()
        for _ in range(50):
            raises(slipring.TimedOut, "stream", partial(opened.check, timeout=0.02))
        assert freeing.is_alive()
        owner.kill()
        os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
