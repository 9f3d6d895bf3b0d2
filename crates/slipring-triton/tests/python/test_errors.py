"""Errors that Triton's clients can cause, and their texts."""

import numpy as np
import pytest

from refusals import refused
from regions import Region

A = np.arange(16, dtype=np.int32).reshape(1, 16)


def simple(front, **changed):
    inputs = changed.pop("inputs", None) or [front.input("INPUT0", A), front.input("INPUT1", A)]
    return front.infer(changed.pop("model", "simple"), inputs, **changed)


def works(front):
    """Checks that the client, its connection and the server are in step."""
    result = simple(front)
    assert (result.as_numpy("OUTPUT0") == A + A).all()


def test_an_unknown_model(front):
    with refused(front, 404, "NOT_FOUND", "Request for unknown model: 'nobody' is not found"):
        simple(front, model="nobody")
    works(front)


@pytest.mark.parametrize("version", ["9", "0", "18446744073709551616"])
def test_an_unknown_version(front, version):
    known = version == "9"
    text = "Request for unknown model: 'simple' version 9 is not found" if known else ""
    with refused(front, 404 if known else None, "NOT_FOUND" if known else None, text):
        simple(front, model_version=version)
    works(front)


@pytest.mark.parametrize("version", ["x", "-1", "1.0"])
def test_a_version_that_is_no_number(front, version):
    with refused(front, None, None, ""):
        simple(front, model_version=version)
    works(front)


def test_an_unknown_output(front):
    with refused(front, 400, "INVALID_ARGUMENT", "unexpected inference output 'NOBODY' for model 'simple'"):
        simple(front, outputs=[front.output("NOBODY")])
    works(front)


def test_an_unknown_input(front):
    inputs = [front.input("INPUT0", A), front.input("NOBODY", A)]
    with refused(front, 400, "INVALID_ARGUMENT", "NOBODY"):
        simple(front, inputs=inputs)
    inputs += [front.input("INPUT1", A)]
    with refused(front, 400, "INVALID_ARGUMENT", "expected 2 inputs but got 3 inputs for model 'simple'"):
        simple(front, inputs=inputs)
    works(front)


def test_an_input_that_is_missing(front):
    text = (
        "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], "
        "but missing required input(s) ['INPUT1']."
    )
    with refused(front, 400, "INVALID_ARGUMENT", text):
        simple(front, inputs=[front.input("INPUT0", A)])
    works(front)


def test_an_input_twice(front):
    with refused(front, 400, "INVALID_ARGUMENT", "input 'INPUT0' already exists in request"):
        simple(front, inputs=[front.input("INPUT0", A), front.input("INPUT0", A)])
    works(front)


def test_another_datatype(front):
    inputs = [front.input("INPUT0", A.astype(np.float32)), front.input("INPUT1", A)]
    text = "inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'"
    with refused(front, 400, "INVALID_ARGUMENT", text):
        simple(front, inputs=inputs)
    works(front)


def test_another_shape(front):
    short = A[:, :8].copy()
    text = "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,8]."
    with refused(front, 400, "INVALID_ARGUMENT", text):
        simple(front, inputs=[front.input("INPUT0", short), front.input("INPUT1", short)])
    works(front)


def test_another_rank(front):
    flat = A.reshape(16)
    with refused(front, 400, "INVALID_ARGUMENT", "unexpected shape for input 'INPUT0' for model 'simple'"):
        simple(front, inputs=[front.input("INPUT0", flat), front.input("INPUT1", flat)])
    works(front)


def test_too_large_a_batch(front):
    nine = np.zeros((9, 16), dtype=np.int32)
    with refused(front, 400, "INVALID_ARGUMENT", "inference request batch-size must be <= 8 for 'simple'"):
        simple(front, inputs=[front.input("INPUT0", nine), front.input("INPUT1", nine)])
    works(front)


def test_batches_that_differ(front):
    inputs = [front.input("INPUT0", np.zeros((2, 16), dtype=np.int32)), front.input("INPUT1", A)]
    with refused(front, 400, "INVALID_ARGUMENT", ""):
        simple(front, inputs=inputs)
    works(front)


@pytest.mark.parametrize("shape", [[1, -16], [-1, 16], [2**31, 2**31], [2**62, 4], [2**63 - 1, 16]])
def test_a_shape_that_cannot_be(front, shape):
    tensor = front.input("INPUT0", A)
    tensor.set_shape(shape)
    other = front.input("INPUT1", A)
    other.set_shape(shape)
    with refused(front, 400, "INVALID_ARGUMENT", ""):
        simple(front, inputs=[tensor, other])
    identity = front.input("INPUT0", A)
    identity.set_shape(shape)
    with refused(front, 400, "INVALID_ARGUMENT", ""):
        front.infer("identity_int32", [identity])
    works(front)


@pytest.mark.parametrize("got", [0, 4, 60, 68, 128])
def test_bytes_unlike_the_shape(front, got):
    tensor = front.input("INPUT0", np.zeros((1, got // 4), dtype=np.int32))
    tensor.set_shape([1, 16])
    text = (
        "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'simple'. "
        f"Expected 64, got {got}"
    )
    with refused(front, 400, "INVALID_ARGUMENT", text):
        simple(front, inputs=[tensor, front.input("INPUT1", A)])
    works(front)


def test_the_id_of_a_request_is_in_its_error(front):
    tensor = front.input("INPUT0", A[:, :15].copy())
    tensor.set_shape([1, 16])
    with refused(front, 400, "INVALID_ARGUMENT", "[request id: mine] input byte size mismatch"):
        simple(front, inputs=[tensor, front.input("INPUT1", A)], request_id="mine")


@pytest.mark.parametrize(
    "content",
    [b"\x05\0\0\0abcd", b"\x01\0\0", b"\xff\xff\xff\xffa", b"\x01\0\0\0ab", b"\x01\0\0\0a\x01\0\0\0b", b"", b"a"],
)
def test_broken_bytes_elements(front, content):
    tensor = front.input("INPUT0", np.array([[b""]], dtype=object))
    if front.is_grpc:
        tensor._raw_content = content
    else:
        tensor._raw_data = content
        tensor._parameters["binary_data_size"] = len(content)
    with refused(front, 400, "INVALID_ARGUMENT", ""):
        front.infer("identity_bytes", [tensor])
    works(front)


# --- regions


def test_an_unknown_region(either_front):
    front = either_front
    tensor = front.input("INPUT0", A)
    tensor.set_shared_memory("nobody", 64)
    with refused(front, 404, "NOT_FOUND", "Unable to find shared memory region: 'nobody'"):
        simple(front, inputs=[tensor, front.input("INPUT1", A)])
    output = front.output("OUTPUT0")
    output.set_shared_memory("nobody", 64)
    with refused(front, 404, "NOT_FOUND", "Unable to find shared memory region: 'nobody'"):
        simple(front, outputs=[output])
    works(front)


OFFSETS = [
    (64, 64, "Invalid offset for shared memory region: '{}'"),
    (65, 64, "Invalid offset for shared memory region: '{}'"),
    (2**62, 64, "Invalid offset for shared memory region: '{}'"),
    (2**63 - 1, 64, "Invalid offset for shared memory region: '{}'"),
    (4, 64, "Invalid offset + byte size for shared memory region: '{}'"),
    (63, 64, "Invalid offset + byte size for shared memory region: '{}'"),
    (0, 65, "Invalid offset + byte size for shared memory region: '{}'"),
    (0, 2**63 - 1, "Invalid offset + byte size for shared memory region: '{}'"),
]


@pytest.mark.parametrize("offset, size, text", OFFSETS)
def test_a_window_beyond_its_region(either_front, offset, size, text):
    front = either_front
    with Region(front, 64) as region:
        tensor = front.input("INPUT0", A)
        tensor.set_shared_memory(region.name, size, offset)
        with refused(front, 400, "INVALID_ARGUMENT", text.format(region.name)):
            front.infer("identity_int32", [tensor])
        output = front.output("OUTPUT0")
        output.set_shared_memory(region.name, size, offset)
        with refused(front, 400, "INVALID_ARGUMENT", text.format(region.name)):
            front.infer("identity_int32", [front.input("INPUT0", A)], outputs=[output])
        assert region.read(0, 64) == bytes(64)
    works(front)


def test_a_window_that_wraps_around(either_front):
    """HTTP's parameters are unsigned, so offset plus size may exceed 2^64."""
    front = either_front
    if front.is_grpc:
        pytest.skip("gRPC's parameters are signed")
    with Region(front, 64) as region:
        offset, size = 2**64 - 1, 64
        tensor = front.input("INPUT0", A)
        tensor.set_shared_memory(region.name, size, offset)
        text = (
            f"Integer overflow detected: byte_size ({size}) + offset ({offset}) exceeds maximum value "
            f"(18446744073709551615) for region '{region.name}'"
        )
        with refused(front, 400, None, ""):
            front.infer("identity_int32", [tensor])
        tensor.set_shared_memory(region.name, 2**64 - 1, 1)
        try:
            front.infer("identity_int32", [tensor])
        except Exception as error:
            assert text.split(":")[0] in str(error)
    works(front)


@pytest.mark.parametrize("offset, size", [(-1, 64), (0, -64), (64, -32), (-(2**63), 64), (1, -1)])
def test_negative_parameters_are_errors_and_never_wrap(either_front, offset, size):
    front = either_front
    with Region(front, 64) as region:
        tensor = front.input("INPUT0", A)
        tensor.set_shared_memory(region.name, size, offset)
        with refused(front, None, None, ""):
            front.infer("identity_int32", [tensor])
        output = front.output("OUTPUT0")
        output.set_shared_memory(region.name, size, offset)
        with refused(front, None, None, ""):
            front.infer("identity_int32", [front.input("INPUT0", A)], outputs=[output])
        assert region.read(0, 64) == bytes(64)
    works(front)


@pytest.mark.parametrize("size", [4, 60])
def test_an_input_window_unlike_the_shape(either_front, size):
    front = either_front
    with Region(front, 128) as region:
        tensor = front.input("INPUT0", A)
        tensor.set_shared_memory(region.name, size)
        text = f"input byte size mismatch for input 'INPUT0' for model 'identity_int32'. Expected 64, got {size}"
        with refused(front, 400, "INVALID_ARGUMENT", text):
            front.infer("identity_int32", [tensor])
        tensor.set_shared_memory(region.name, 128)
        with refused(front, 400, "INVALID_ARGUMENT", "Expected 64, got 128"):
            front.infer("identity_int32", [tensor])
    works(front)


@pytest.mark.parametrize("size", [1, 63])
def test_an_output_window_that_is_too_small_stays_as_it_is(either_front, size):
    front = either_front
    with Region(front, 64) as region:
        output = front.output("OUTPUT0")
        output.set_shared_memory(region.name, size)
        text = (
            f"shared memory size specified with the request for output 'OUTPUT0' ({size} bytes) "
            "should be at least 64 bytes to hold the results"
        )
        with refused(front, 500, "INTERNAL", text):
            front.infer("identity_int32", [front.input("INPUT0", A)], outputs=[output])
        assert region.read(0, 64) == bytes(64)
    works(front)


def test_a_region_that_cannot_be_written_takes_no_output(either_front):
    front = either_front
    import os

    with Region(front, 64, register=False) as region:
        if os.geteuid() == 0:
            pytest.skip("root may write everything")
        os.chmod(region.path, 0o400)
        front.register_system_shared_memory(region.name, region.key, 64)
        output = front.output("OUTPUT0")
        output.set_shared_memory(region.name, 64)
        with refused(front, None, None, region.name):
            front.infer("identity_int32", [front.input("INPUT0", A)], outputs=[output])
        front.unregister_system_shared_memory(region.name)


def test_a_region_that_was_taken_back_is_unknown(either_front):
    front = either_front
    with Region(front, 64) as region:
        tensor = front.input("INPUT0", A, "shm", region)
        front.infer("identity_int32", [tensor])
        front.unregister_system_shared_memory(region.name)
        with refused(front, 404, "NOT_FOUND", f"Unable to find shared memory region: '{region.name}'"):
            front.infer("identity_int32", [tensor])


def test_reserved_parameters(front):
    """Some clients refuse these themselves; test_http and test_grpc send them directly."""
    for name in ("triton_", "triton_x"):
        with refused(front, None, None, ""):
            front.infer("identity_int32", [front.input("INPUT0", A)], parameters={name: True})


def test_thousands_of_failing_requests_lose_no_descriptor(front):
    tensor = front.input("INPUT0", A)
    tensor.set_shared_memory("nobody", 64)

    def fail():
        with refused(front, 404, "NOT_FOUND", ""):
            front.infer("identity_int32", [tensor])

    fail()
    before = front.server.descriptors()
    for _ in range(500):
        fail()
    assert front.server.descriptors() <= before
