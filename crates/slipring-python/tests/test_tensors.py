"""Tensors: whose memory it is, how long it lives, and what may be written."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import slipring
from conftest import LONG, Child, connected

Link = tuple[slipring.Connection, slipring.Connection]

NUMBERS = [
    "bool",
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_tensor_arrives_as_it_was_written(name: str, child: Child, dtype: str) -> None:
    with slipring.listen(name) as listener:
        child("echo_tensors", name)
        with listener.accept(LONG) as link:
            frame = link.empty((3, 5, 2), dtype)
            assert (frame.dtype, frame.shape, frame.ndim, frame.size) == (dtype, (3, 5, 2), 3, 30)
            assert frame.nbytes == 30 * np.dtype(dtype).itemsize
            values = np.arange(30).reshape(3, 5, 2).astype(dtype)
            np.copyto(np.asarray(frame), values)
            link.send_tensor(frame, meta={"dtype": dtype})
            back = link.recv_tensor(LONG)
            assert back.meta == {"dtype": dtype}
            array = np.asarray(back)
            assert array.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(array, values)


def test_a_received_tensor_is_read_only_and_says_so(link: Link) -> None:
    near, far = link
    near.send_tensor(np.arange(6, dtype="int32").reshape(2, 3))
    tensor = far.recv_tensor(LONG)
    assert (tensor.writable, tensor.stable, tensor.on_loan) == (False, False, True)
    assert "its sender can change it" in repr(tensor)
    array = np.asarray(tensor)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    assert memoryview(tensor).readonly
    assert not np.from_dlpack(tensor).flags.writeable
    copy = tensor.copy()
    assert (copy.stable, copy.on_loan) == (True, False)
    np.testing.assert_array_equal(np.asarray(copy), array)


def test_a_trusted_peers_tensor_is_stable(name: str) -> None:
    near, far = connected(name, trust=True)
    near.send_tensor(np.arange(6))
    tensor = far.recv_tensor(LONG)
    assert (tensor.stable, tensor.on_loan) == (True, True)


def held(link: slipring.Connection) -> int:
    return link.stats()["loans_held"]


@pytest.mark.parametrize("view", [memoryview, np.asarray, np.from_dlpack, lambda tensor: np.asarray(tensor)[1:, 0]])
def test_a_loan_lives_exactly_as_long_as_a_view_of_it(link: Link, view: Any) -> None:
    near, far = link
    near.send_tensor(np.arange(2000).reshape(1000, 2))
    tensor = far.recv_tensor(LONG)
    assert (held(far), near.stats()["loans_out"]) == (1, 1)
    first, second = view(tensor), view(tensor)
    del tensor
    gc.collect()
    assert held(far) == 1
    del first
    assert held(far) == 1
    del second
    assert (held(far), near.stats()["loans_out"]) == (0, 0)


def test_a_capsule_that_nobody_takes_gives_the_loan_back(link: Link) -> None:
    near, far = link
    near.send_tensor(np.arange(2000))
    tensor = far.recv_tensor(LONG)
    for version in (None, (1, 0)):
        capsule = tensor.__dlpack__(max_version=version)
        del capsule
    tensor.release()
    assert held(far) == 0


def test_release_waits_for_views(link: Link) -> None:
    near, far = link
    near.send_tensor(np.arange(2000))
    with far.recv_tensor(LONG) as tensor:
        array = np.asarray(tensor)
        with pytest.raises(slipring.ViewsAlive, match="1 views"):
            tensor.release()
        del array
    assert held(far) == 0
    tensor.release()
    for use in (
        lambda: memoryview(tensor),
        lambda: np.asarray(tensor),
        tensor.copy,
        tensor.check,
        tensor.share,
    ):
        with pytest.raises(slipring.TensorGone, match="released"):
            use()


def test_what_was_sent_is_gone(link: Link) -> None:
    near, far = link
    tensor = near.empty((4,), "float32", zeroed=True)
    near.send_tensor(tensor)
    uses = [
        lambda: np.asarray(tensor),
        lambda: memoryview(tensor),
        lambda: np.from_dlpack(tensor),
        lambda: near.send_tensor(tensor),
        lambda: near.send_tensors([tensor]),
        tensor.share,
        tensor.copy,
    ]
    for use in uses:
        with pytest.raises(slipring.TensorGone, match="was sent"):
            use()
    assert "gone" in repr(tensor)
    assert np.asarray(far.recv_tensor(LONG)).sum() == 0


@pytest.mark.parametrize("view", [memoryview, np.asarray, np.from_dlpack])
def test_a_tensor_with_a_writable_view_is_not_sent(link: Link, view: Any) -> None:
    near, far = link
    tensor = near.empty((4,), "uint8", zeroed=True)
    alive = view(tensor)
    sends = [
        lambda: near.send_tensor(tensor),
        lambda: near.send_tensors({"a": tensor}),
        tensor.share,
    ]
    for send in sends:
        with pytest.raises(slipring.ViewsAlive, match="1 views of the tensor are alive") as raised:
            send()
        assert isinstance(raised.value, BufferError)
    alive[2] = 7
    del alive
    near.send_tensor(tensor)
    assert bytes(far.recv_tensor(LONG)) == bytes([0, 0, 7, 0])
    assert far.try_recv_tensor() is None


def test_a_shared_tensor_goes_to_many_and_is_no_longer_written(name: str) -> None:
    context = slipring.Context()
    near, far = connected(name, near=context)
    other, another = connected(name + "-other", near=context)
    tensor = near.empty((1000,), "int64")
    np.asarray(tensor)[:] = np.arange(1000)
    assert tensor.share() is tensor
    assert not np.asarray(tensor).flags.writeable
    array = np.asarray(tensor)
    before = near.stats()["pool_bytes"]
    near.send_tensor(tensor)
    other.send_tensor(tensor, meta={"second": True})
    for receiver in (far, another):
        np.testing.assert_array_equal(np.asarray(receiver.recv_tensor(LONG)), array)
    # One block for both.
    assert near.stats()["pool_bytes"] == before


def test_a_failed_send_loses_nothing(name: str) -> None:
    near, far = connected(name, near=slipring.Context(ring_capacity=4096, loan_slots=4))
    near_sent = 0
    tensor = near.empty((100,), "uint8", zeroed=True)
    try:
        while True:
            tensor = near.empty((100,), "uint8", zeroed=True)
            near.send_tensor(tensor, timeout=0.05)
            near_sent += 1
    except slipring.TimedOut:
        pass
    assert near_sent > 0
    # It is ready to be read and to be sent.
    assert bytes(tensor) == bytes(100)
    for _ in range(near_sent):
        far.recv_tensor(LONG)
    near.send_tensor(tensor)
    assert bytes(far.recv_tensor(LONG)) == bytes(100)


def test_a_frozen_tensor_cannot_change(link: Link) -> None:
    near, far = link
    tensor = near.empty((100,), "uint8", frozen=True)
    np.asarray(tensor)[:] = 3
    near.send_tensor(tensor)
    got = far.recv_tensor(LONG)
    assert (got.stable, got.on_loan) == (True, False)
    assert bytes(got) == bytes([3]) * 100
    far.send_tensor(got)
    assert bytes(near.recv_tensor(LONG)) == bytes([3]) * 100


def test_what_was_received_is_sent_on_by_copy(link: Link) -> None:
    near, far = link
    near.send_tensor(np.arange(1000))
    got = far.recv_tensor(LONG)
    far.send_tensor(got)
    far.send_tensors({"again": got})
    np.testing.assert_array_equal(np.asarray(near.recv_tensor(LONG)), np.arange(1000))
    np.testing.assert_array_equal(np.asarray(near.recv_tensors(LONG)["again"]), np.arange(1000))
    del got
    assert held(far) == 0


def test_a_set_keeps_names_order_and_metadata(link: Link) -> None:
    near, far = link
    near.send_tensors({"ids": np.arange(3), "mask": np.ones((2, 2), bool)}, meta={"step": 3})
    got = far.recv_tensors(LONG)
    assert (got.names, len(got), got.meta) == (("ids", "mask"), 2, {"step": 3})
    assert got["ids"] is got[0] is got[-2]
    assert "mask" in got
    assert "other" not in got
    assert [tensor.dtype for tensor in got] == ["int64", "bool"]
    assert [name for name, _ in got.items()] == ["ids", "mask"]
    for key, error in [("other", KeyError), (2, IndexError), (-3, IndexError), (1.5, TypeError)]:
        with pytest.raises(error):
            got[key]  # type: ignore[index]
    near.send_tensors([np.zeros(1), np.zeros(2)])
    assert far.recv_tensors(LONG).names == ("", "")
    near.send_tensors({})
    assert len(far.recv_tensors(LONG)) == 0


def test_a_set_finds_each_of_many_names(link: Link) -> None:
    near, far = link
    # In no order of the alphabet.
    names = [f"{at * 7 % 100}" for at in range(100)]
    near.send_tensors({name: np.full(1, at) for at, name in enumerate(names)})
    got = far.recv_tensors(LONG)
    assert got.names == tuple(names)
    assert all(got[name] is got[at] and name in got for at, name in enumerate(names))
    assert not any(other in got for other in ["", "100", "a", " "])
    near.send_tensors([np.zeros(1), np.zeros(2)])
    unnamed = far.recv_tensors(LONG)
    assert "" not in unnamed
    with pytest.raises(KeyError):
        unnamed[""]


def test_a_set_of_another_size_stays_the_next_message(link: Link) -> None:
    near, far = link
    near.send_tensors({"a": np.zeros(1), "b": np.ones(1)})
    near.send(b"behind")
    for receive in (far.recv_tensor, far.try_recv_tensor):
        with pytest.raises(slipring.OtherKind, match="recv_tensors"):
            receive()
    with pytest.raises(slipring.OtherKind, match="recv_tensor"):
        far.recv()
    assert far.stats()["received"]["tensors"] == 1
    assert far.recv_tensors(LONG).names == ("a", "b")
    assert far.recv(LONG) == b"behind"


def test_strings(link: Link) -> None:
    near, far = link
    words = ["", "one", "zwölf", b"\xff\0"]
    near.send_tensor(slipring.strings(words, (2, 2)))
    got = far.recv_tensor(LONG)
    assert (got.dtype, got.shape) == ("bytes", (2, 2))
    expected = [word.encode() if isinstance(word, str) else word for word in words]
    assert got.strings() == expected
    assert np.asarray(got).tolist() == [expected[:2], expected[2:]]
    with pytest.raises(slipring.InvalidTensor):
        slipring.strings(words, (3,))
    near.send_tensor(np.zeros(3))
    with pytest.raises(TypeError, match="must be bytes"):
        far.recv_tensor(LONG).strings()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_goes_by_dlpack_and_as_bytes(link: Link, name: str) -> None:
    near, far = link
    tensor = near.empty((2, 2), name)
    assert (tensor.nbytes, tensor.dtype) == (4, name)
    np.asarray(tensor.view("uint8"))[:] = [[0x00, 0x38], [0x3C, 0xC0]]
    with pytest.raises(BufferError, match="no format"):
        memoryview(tensor)
    near.send_tensor(tensor)
    got = far.recv_tensor(LONG)
    assert got.dtype == name
    assert np.asarray(got.view("uint8")).tolist() == [[0x00, 0x38], [0x3C, 0xC0]]
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: the values of fp8 are not checked")
    assert far.empty(3, getattr(ml_dtypes, name)).dtype == name
    array = np.asarray(got)
    assert array.dtype == getattr(ml_dtypes, name)
    # 0x38 is 1 with 3 bits of mantissa, and 0x3C is 1 with 2.
    expected = [[0, 1], [1.5, -2]] if name == "float8_e4m3fn" else [[0, 0.5], [1, -2]]
    assert array.astype("float32").tolist() == expected
    jax = pytest.importorskip("jax", reason="jax is not installed: fp8 by DLPack is not checked")
    assert jax.dlpack.from_dlpack(got).astype("float32").tolist() == expected
    near.send_tensor(jax.numpy.asarray([1, 2.5, -3], name))
    back = far.recv_tensor(LONG)
    assert back.dtype == name
    assert np.asarray(back).astype("float32").tolist() == [1, 2.5, -3]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_ml_dtypes_are_copied(link: Link, name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: its arrays are not checked")
    near, far = link
    array = np.asarray([[1, 2.5], [-3, 0]]).astype(getattr(ml_dtypes, name))
    near.send_tensors([array, array[:, ::-1]])
    whole, turned = far.recv_tensors(LONG)
    assert (whole.dtype, whole.shape) == (name, (2, 2))
    assert np.asarray(whole).astype("float32").tolist() == [[1, 2.5], [-3, 0]]
    assert np.asarray(turned).astype("float32").tolist() == [[2.5, 1], [0, -3]]
    with pytest.raises((TypeError, ValueError)):
        near.send_tensor(np.zeros(2, ml_dtypes.float8_e3m4))


def test_bfloat16_goes_by_dlpack_or_as_a_view(link: Link) -> None:
    near, far = link
    tensor = near.empty((3,), "bfloat16")
    np.asarray(tensor.view("uint16"))[:] = [0x3F80, 0x4000, 0x4040]
    with pytest.raises(BufferError, match="no format"):
        memoryview(tensor)
    near.send_tensor(tensor)
    got = far.recv_tensor(LONG)
    assert got.dtype == "bfloat16"
    assert np.asarray(got.view("uint16")).tolist() == [0x3F80, 0x4000, 0x4040]
    for wrong in ("uint8", "float32", "bool", "bytes"):
        with pytest.raises(ValueError, match="one length"):
            got.view(wrong)


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32"])
def test_a_dtype_has_many_names(link: Link, dtype: Any) -> None:
    assert link[0].empty(3, dtype).dtype == "float32"


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        ((-1,), "uint8", ValueError),
        ((1,) * 9, "uint8", slipring.InvalidTensor),
        ((1 << 40, 1 << 40), "uint8", slipring.InvalidTensor),
        ("3", "uint8", TypeError),
        ((1.5,), "uint8", TypeError),
        ((3,), "complex64", ValueError),
        ((3,), object, TypeError),
        ((3,), 7, TypeError),
        ((3,), "bytes", slipring.InvalidTensor),
        ((3 << 30,), "uint8", slipring.ResourceLimit),
    ],
)
def test_impossible_tensors_are_refused(link: Link, shape: Any, dtype: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        link[0].empty(shape, dtype)


@pytest.mark.parametrize(
    "tensor",
    [
        np.array([None, 1]),
        np.zeros(3, "complex128"),
        np.zeros(3, ">i4"),
        np.zeros(3, "datetime64[s]"),
        np.zeros(3, [("a", "i4")]),
        np.zeros(3, "U4"),
        [1, 2, 3],
        3,
        "text",
        None,
    ],
)
def test_what_has_no_dtype_is_refused_and_nothing_is_sent(link: Link, tensor: Any) -> None:
    near, far = link
    with pytest.raises((TypeError, ValueError, BufferError)):
        near.send_tensor(tensor)
    with pytest.raises((TypeError, ValueError, BufferError)):
        near.send_tensors({"good": np.zeros(1), "bad": tensor})
    assert far.try_recv_tensors() is None
    assert near.stats()["loans_out"] == 0


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_arrays_of_any_shape_and_strides_arrive(link: Link, data: st.DataObject) -> None:
    near, far = link
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5))
    dtype = data.draw(st.sampled_from(NUMBERS))
    values = data.draw(arrays.arrays(dtype, shape))
    if shape:
        values = values.transpose(data.draw(st.permutations(range(len(shape)))))
        steps = st.sampled_from([None, -1, 2, -2])
        values = values[tuple(slice(None, None, data.draw(steps)) for _ in shape)]
    near.send_tensor(values)
    got = far.recv_tensor(LONG)
    assert got.shape == values.shape
    np.testing.assert_array_equal(np.asarray(got), values)
    np.testing.assert_array_equal(np.from_dlpack(got), values)


def test_dlpack_follows_the_protocol(link: Link) -> None:
    near, far = link
    assert near.empty(1).__dlpack_device__() == (1, 0)
    near.send_tensor(np.arange(1000.0))
    tensor = far.recv_tensor(LONG)
    copy = np.from_dlpack(tensor, copy=True)
    assert copy.flags.writeable
    copy[:] = 0
    assert np.asarray(tensor)[1] == 1
    assert not np.from_dlpack(tensor, copy=False).flags.writeable
    with pytest.raises(BufferError, match="DLPack before"):
        tensor.__dlpack__(copy=False)
    with pytest.raises(BufferError, match="device"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="streams"):
        tensor.__dlpack__(stream=1)  # type: ignore[arg-type]
    draft = near.empty((3,), "int32", zeroed=True)
    array = np.from_dlpack(draft)
    array[1] = 5
    del array
    near.send_tensor(draft)
    assert np.asarray(far.recv_tensor(LONG)).tolist() == [0, 5, 0]


class Before1:
    """An exporter that knows no DLPack version."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


class Only:
    """An exporter without a buffer protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [Before1, Only])
def test_an_array_with_dlpack_alone_is_sent(link: Link, wrap: Any) -> None:
    near, far = link
    array = np.arange(12.0).reshape(3, 4)
    references = sys.getrefcount(array)
    near.send_tensor(wrap(array))
    np.testing.assert_array_equal(np.asarray(far.recv_tensor(LONG)), array)
    with pytest.raises(slipring.InvalidTensor, match="stride"):
        near.send_tensor(wrap(array.T))
    assert sys.getrefcount(array) == references


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_libraries_take_and_give_tensors(link: Link, library: str) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed: its DLPack is not checked")
    near, far = link
    near.send_tensor(np.arange(6, dtype="float32").reshape(2, 3))
    tensor = far.recv_tensor(LONG)
    from_dlpack = module.from_dlpack if library == "torch" else module.dlpack.from_dlpack
    theirs = from_dlpack(tensor)
    assert theirs.sum() == 15
    far.send_tensor(theirs)
    assert np.asarray(near.recv_tensor(LONG)).sum() == 15


def test_bfloat16_of_jax_arrives_and_is_an_array_by_ml_dtypes(link: Link) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed: its bfloat16 is not checked")
    near, far = link
    near.send_tensor(jax.numpy.asarray([1, 2.5, -3], "bfloat16"))
    tensor = far.recv_tensor(LONG)
    assert tensor.dtype == "bfloat16"
    assert jax.dlpack.from_dlpack(tensor).astype("float32").tolist() == [1, 2.5, -3]
    array = np.asarray(tensor)
    assert array.dtype.name == "bfloat16"
    assert array.astype("float32").tolist() == [1, 2.5, -3]


def test_memory_that_others_hold_is_waited_for(name: str) -> None:
    context = slipring.Context(pool_quota=8 << 20)
    near, far = connected(name, near=context)
    first = near.empty((4 << 20,))
    second = near.empty((3 << 20,))
    with pytest.raises(slipring.ResourceLimit, match="pool_quota"):
        near.empty((4 << 20,))
    with pytest.raises(slipring.TimedOut, match="pool_quota"):
        near.empty((4 << 20,), timeout=0.1)
    timer = threading.Timer(0.2, first.release)
    timer.start()
    third = near.empty((4 << 20,), timeout=LONG)
    timer.join()
    assert third.nbytes == 4 << 20
    del second, far


def test_tensors_can_be_referenced_weakly(link: Link) -> None:
    tensor = link[0].empty(3)
    reference = weakref.ref(tensor)
    del tensor
    assert reference() is None


def test_sends_and_receives_leak_nothing(link: Link) -> None:
    near, far = link
    import os

    def turn() -> None:
        near.send(b"message", meta={"a": 1})
        far.recv(LONG)
        tensor = near.empty((100, 100))
        np.asarray(tensor)[:] = 1
        near.send_tensor(tensor, meta={"a": 1})
        got = far.recv_tensor(LONG)
        assert np.asarray(got)[3, 4] == 1
        assert np.from_dlpack(got)[3, 4] == 1
        assert far.try_recv() is None
        near.send_tensors({"a": np.zeros(1000)})
        far.recv_tensors(LONG)

    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(2000):
        turn()
    gc.collect()
    memory, descriptors = resident(), len(os.listdir("/proc/self/fd"))
    for _ in range(20_000):
        turn()
    gc.collect()
    assert resident() - memory < 1 << 20
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert (near.stats()["loans_out"], far.stats()["loans_held"]) == (0, 0)


def test_a_copy_without_memory_is_refused(link: Link) -> None:
    near, _ = link
    huge = np.broadcast_to(np.uint8(0), (1 << 50,))
    for send in (near.send, near.try_send, near.call):
        with pytest.raises(slipring.ResourceLimit):
            send(huge)


def test_a_view_of_another_dtype_is_not_sent(link: Link) -> None:
    near, far = link
    tensor = near.empty((3,), "float16", zeroed=True)
    with pytest.raises(TypeError, match="float16 as bfloat16"):
        near.send_tensor(tensor.view("bfloat16"))
    near.send_tensor(tensor.view("float16"))
    assert far.recv_tensor(LONG).dtype == "float16"


def test_strings_have_no_shape_without_a_format() -> None:
    tensor = slipring.strings(["a", "b"])
    view = (ctypes.c_ssize_t * 32)(*[-1] * 32)
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    nd = 8
    with pytest.raises(BufferError, match="strings"):
        get(tensor, view, nd)
    assert view[1] == 0


class OnDevice:
    """A tensor of DLPack that says that it lies on a device."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.owner = np.ones(4, dtype="float32")

    def __dlpack_device__(self) -> Any:
        return (self.device, 0)

    def __dlpack__(self, **arguments: Any) -> Any:
        capsule = self.owner.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # `DLManagedTensor` begins with the address of the elements and the type of the device.
        ctypes.c_int32.from_address(get(capsule, b"dltensor") + 8).value = self.device
        return capsule


def test_a_tensor_of_another_device_is_refused_with_the_remedy_and_let_go(link: Link) -> None:
    near, far = link
    # kDLROCM
    device = 10
    tensor = OnDevice(device)
    owner = weakref.ref(tensor.owner)
    for send in (
        lambda: near.send_tensor(tensor),
        lambda: near.send_tensors({"a": np.ones(1), "b": tensor}),
        lambda: near.call_tensors([tensor], timeout=LONG),
    ):
        with pytest.raises(slipring.InvalidTensor, match=rf"device type {device} .*tensor\.cpu\(\)"):
            send()
    assert far.try_recv_tensor() is None
    tensor.owner = None
    gc.collect()
    assert owner() is None


def test_a_dtype_has_the_order_of_bytes_of_this_machine_and_a_dimension_63_bits(link: Link) -> None:
    near, _far = link
    with pytest.raises(TypeError, match="big-endian"):
        near.empty(2, np.dtype(">f4"))
    for shape in ((1 << 63,), 1 << 70):
        with pytest.raises(ValueError, match="too large"):
            near.empty(shape)


def test_a_copy_for_dlpack_is_its_own(link: Link) -> None:
    near, far = link
    tensor = near.empty((4,), "int32", zeroed=True)
    np.asarray(tensor)[:] = range(4)
    copy = np.from_dlpack(tensor, copy=True)
    np.asarray(tensor)[:] = 7
    assert copy.tolist() == [0, 1, 2, 3]
    near.send_tensor(tensor)
    assert np.from_dlpack(far.recv_tensor(LONG), copy=True).tolist() == [7] * 4


def test_a_pool_in_use_refuses_an_attempt_at_once(name: str) -> None:
    near, far = connected(name, near=slipring.Context(pool_quota=8 << 20))
    held = near.empty((6 << 20,))
    start = time.monotonic()
    assert not near.try_send_tensors([np.zeros(4 << 20, "uint8")])
    with pytest.raises(slipring.ResourceLimit):
        near.try_send_tensors([np.zeros(9 << 20, "uint8")])
    assert time.monotonic() - start < 10
    held.release()
    assert near.try_send_tensors([np.zeros(4 << 20, "uint8")])
    assert len(far.recv_tensors(LONG)) == 1


def test_a_set_that_one_receiver_refuses_is_anothers(link: Link) -> None:
    near, far = link
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(far.recv_tensor, 1.0)
        several = pool.submit(far.recv_tensors, LONG)
        time.sleep(0.1)
        near.send_tensors([np.zeros(1), np.zeros(2)])
        assert len(several.result(LONG)) == 2
        with pytest.raises((slipring.OtherKind, slipring.TimedOut)):
            one.result(LONG)
