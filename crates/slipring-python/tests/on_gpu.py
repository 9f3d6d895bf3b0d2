"""A library with tensors on a GPU, in plain Python: the driver by ctypes, and DLPack as `dlpack.h` has it."""

from __future__ import annotations

import ctypes as c
import itertools
import math
import os
from pathlib import Path
from typing import Any

VERSIONED, USED_VERSIONED = b"dltensor_versioned", b"used_dltensor_versioned"
LEGACY, USED_LEGACY = b"dltensor", b"used_dltensor"
READ_ONLY, IS_COPIED = 1, 2

new_capsule = c.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
get_pointer = c.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
set_name = c.pythonapi.PyCapsule_SetName
set_name.argtypes = [c.py_object, c.c_char_p]
get_name = c.pythonapi.PyCapsule_GetName
get_name.restype, get_name.argtypes = c.c_char_p, [c.py_object]

Deleter = c.CFUNCTYPE(None, c.c_void_p)
Attached = c.PYFUNCTYPE(None, c.c_void_p)


class DLTensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    )


class Versioned(c.Structure):
    _fields_ = (
        ("major", c.c_uint32),
        ("minor", c.c_uint32),
        ("manager_ctx", c.c_void_p),
        ("deleter", Deleter),
        ("flags", c.c_uint64),
        ("tensor", DLTensor),
    )


class Legacy(c.Structure):
    _fields_ = (("tensor", DLTensor), ("manager_ctx", c.c_void_p), ("deleter", Deleter))


class Location(c.Structure):
    _fields_ = (("type", c.c_int), ("id", c.c_int))


class Properties(c.Structure):
    """Of an allocation: pinned, exported as a descriptor, on a GPU."""

    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", Location),
        ("meta", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    )


class Access(c.Structure):
    _fields_ = (("location", Location), ("flags", c.c_int))


class Driver:
    """The driver, with the primary context of a GPU current on this thread."""

    def __init__(self, gpu: int = 0) -> None:
        self.library = c.CDLL("libcuda.so.1")
        context = c.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", c.byref(context), gpu)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        assert code == 0, (name, code)

    def alloc(self, size: int) -> int:
        start = c.c_uint64()
        self.call("cuMemAlloc_v2", c.byref(start), c.c_size_t(size))
        return start.value

    def free(self, start: int) -> None:
        self.call("cuMemFree_v2", c.c_uint64(start))

    def map(self, size: int) -> int:
        """Returns memory of GPU 0 that travels by descriptor."""
        here = Location(1, 0)
        handle, start, length = c.c_uint64(), c.c_uint64(), c.c_size_t(size)
        self.call("cuMemCreate", c.byref(handle), length, c.byref(Properties(1, 1, here)), c.c_uint64(0))
        self.call("cuMemAddressReserve", c.byref(start), length, c.c_size_t(0), c.c_uint64(0), c.c_uint64(0))
        self.call("cuMemMap", start, length, c.c_size_t(0), handle, c.c_uint64(0))
        self.call("cuMemRelease", handle)
        self.call("cuMemSetAccess", start, length, c.byref(Access(here, 3)), c.c_size_t(1))
        return start.value

    def unmap(self, start: int, size: int) -> None:
        self.call("cuMemUnmap", c.c_uint64(start), c.c_size_t(size))
        self.call("cuMemAddressFree", c.c_uint64(start), c.c_size_t(size))

    def stream(self) -> int:
        stream = c.c_void_p()
        self.call("cuStreamCreate", c.byref(stream), 1)
        assert stream.value is not None
        return stream.value

    def end_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", c.c_void_p(stream))

    def fill(self, start: int, byte: int, size: int, stream: int = 0) -> None:
        """Queues a write of all bytes."""
        self.call("cuMemsetD8Async", c.c_uint64(start), c.c_ubyte(byte), c.c_size_t(size), c.c_void_p(stream))

    def write(self, start: int, data: bytes) -> None:
        self.call("cuMemcpyHtoDAsync_v2", c.c_uint64(start), data, c.c_size_t(len(data)), None)
        self.call("cuStreamSynchronize", None)

    def read(self, start: int, size: int, stream: int = 0) -> bytes:
        data = c.create_string_buffer(size)
        self.call("cuMemcpyDtoHAsync_v2", data, c.c_uint64(start), c.c_size_t(size), c.c_void_p(stream))
        self.call("cuStreamSynchronize", c.c_void_p(stream))
        return data.raw

    def order(self, first: int, then: int) -> None:
        """Makes later work of one stream wait for the work that another one has got."""
        event = c.c_void_p()
        self.call("cuEventCreate", c.byref(event), 2)
        self.call("cuEventRecord", event, c.c_void_p(first))
        self.call("cuStreamWaitEvent", c.c_void_p(then), event, 0)
        self.call("cuEventDestroy_v2", event)

    def is_idle(self, stream: int) -> bool:
        code: int = self.library.cuStreamQuery(c.c_void_p(stream))
        return code == 0


class Gate:
    """A call of the driver, which waits while the gate is shut."""

    def __init__(self) -> None:
        self.file = Path(os.environ["FAKE_CUDA_GATE"].partition(":")[2])
        self.reached = Path(f"{self.file}.reached")

    def shut(self) -> None:
        self.reached.unlink(missing_ok=True)
        self.file.touch()

    def is_reached(self) -> bool:
        return self.reached.exists()

    def open(self) -> None:
        self.file.unlink()


class Array:
    """uint32 elements on GPU 0, written by a stream of their own. `lie` changes the structure that it exports."""

    # What is exported, until its deleter is called.
    alive: dict[int, Any] = {}  # noqa: RUF012
    numbers = itertools.count()
    deleted = 0

    def __init__(self, driver: Driver, *shape: int, lie: Any = None, start: int | None = None) -> None:
        self.driver, self.shape, self.lie = driver, shape, lie
        self.nbytes = 4 * math.prod(shape)
        self.start = driver.alloc(max(self.nbytes, 4096)) if start is None else start
        self.stream = driver.stream()
        self.device = (2, 0)
        self.streams: list[Any] = []

    def write(self, values: list[int]) -> Array:
        self.driver.write(self.start, b"".join(value.to_bytes(4, "little") for value in values))
        return self

    def free(self) -> None:
        self.driver.end_stream(self.stream)
        self.driver.free(self.start)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **_: Any) -> Any:
        return self.export(stream, Versioned if max_version and max_version[0] >= 1 else Legacy)

    def export(self, stream: int | None, kind: type[Any]) -> Any:
        self.streams.append(stream)
        assert stream is not None and stream > 2
        self.driver.order(self.stream, stream)
        rank = len(self.shape)
        dims = (c.c_int64 * (2 * rank or 1))(*self.shape, *(math.prod(self.shape[at + 1 :]) for at in range(rank)))
        structure = kind()
        if kind is Versioned:
            structure.major, structure.minor = 1, 0
        tensor = structure.tensor
        tensor.data, tensor.device_type, tensor.device_id = self.start, 2, 0
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = rank, 1, 32, 1
        pointer = c.POINTER(c.c_int64)
        tensor.shape = c.cast(dims, pointer)
        tensor.strides = c.cast(c.addressof(dims) + 8 * rank, pointer)
        number = next(Array.numbers)

        def delete(_: int) -> None:
            del Array.alive[number]
            Array.deleted += 1

        structure.deleter = Deleter(delete)
        if self.lie:
            self.lie(structure)
        Array.alive[number] = (structure, dims, structure.deleter)
        return new_capsule(c.addressof(structure), VERSIONED if kind is Versioned else LEGACY, None)


class OldArray(Array):
    """An array of a library that knows no DLPack version."""

    def __dlpack__(self, stream: int | None = None) -> Any:  # type: ignore[override]
        return self.export(stream, Legacy)


class Taken:
    """A tensor that was taken by DLPack, until `delete()`."""

    def __init__(self, tensor: Any, version: tuple[int, int] | None = (1, 0), **asked: Any) -> None:
        capsule = tensor.__dlpack__(max_version=version, **asked)
        name = get_name(capsule)
        assert name == (VERSIONED if version else LEGACY), name
        kind: Any = Versioned if version else Legacy
        self.structure = kind.from_address(get_pointer(capsule, name))
        set_name(capsule, USED_VERSIONED if version else USED_LEGACY)
        self.flags = self.structure.flags if version else None
        found = self.structure.tensor
        self.device = (found.device_type, found.device_id)
        self.shape = found.shape[: found.ndim]
        self.dtype = (found.code, found.bits, found.lanes)
        self.start = found.data + found.byte_offset
        self.nbytes = math.prod(self.shape) * found.bits // 8

    def values(self, driver: Driver, stream: int = 0) -> list[int]:
        data = driver.read(self.start, self.nbytes, stream)
        return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]

    def delete(self, attached: bool = False) -> None:
        """Calls the deleter, on a thread that is attached to the interpreter or not."""
        kind = Attached if attached else Deleter
        kind(c.cast(self.structure.deleter, c.c_void_p).value)(c.addressof(self.structure))
