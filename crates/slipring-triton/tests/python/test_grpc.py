"""gRPC alone: typed parameters and contents, streams, health, and messages that no client builds."""

import queue
import socket

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from fronts import CONTENTS, Front, service_pb2, stub, wire
from refusals import leaks
from regions import Region
from server import Server

A = np.arange(16, dtype=np.int32).reshape(1, 16)


@pytest.fixture(scope="module")
def client(server):
    with Front("grpc", server) as client:
        yield client


@pytest.fixture(scope="module")
def service(server):
    return stub(server)


def refused(call, code, text):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == getattr(grpc.StatusCode, code), caught.value.details()
    assert text in caught.value.details()
    assert not leaks(caught.value.details())


def request(model="simple", names=("INPUT0", "INPUT1"), raw=True):
    message = service_pb2.ModelInferRequest(model_name=model)
    for name in names:
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        if raw:
            message.raw_input_contents.append(wire(A))
    return message


def in_memory(tensor, region, size=64, offset=None):
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    if offset is not None:
        tensor.parameters["shared_memory_offset"].int64_param = offset


# --- parameters


def test_a_region_without_a_size(service, client):
    with Region(client, 64) as region:
        message = request(raw=False)
        message.inputs[0].parameters["shared_memory_region"].string_param = region.name
        message.raw_input_contents.append(wire(A))
        text = (
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'"
        )
        refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text)
        message = request()
        output = message.outputs.add(name="OUTPUT1")
        output.parameters["shared_memory_region"].string_param = region.name
        refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text.replace("INPUT0", "OUTPUT1"))


@pytest.mark.parametrize("name", ["shared_memory_byte_size", "shared_memory_offset"])
def test_a_size_or_offset_without_a_region(service, name):
    text = f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor 'INPUT0'"
    message = request()
    message.inputs[0].parameters[name].int64_param = 64
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text)
    message = request()
    message.outputs.add(name="OUTPUT0").parameters[name].int64_param = 64
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text.replace("INPUT0", "OUTPUT0"))


WRONG = [
    ("shared_memory_region", "int64_param", 1, "string_param"),
    ("shared_memory_region", "bool_param", True, "string_param"),
    ("shared_memory_byte_size", "string_param", "64", "int64_param"),
    ("shared_memory_byte_size", "bool_param", True, "int64_param"),
    ("shared_memory_byte_size", "double_param", 64.0, "int64_param"),
    ("shared_memory_byte_size", "uint64_param", 64, "int64_param"),
    ("shared_memory_offset", "string_param", "0", "int64_param"),
    ("shared_memory_offset", "double_param", 0.0, "int64_param"),
    ("shared_memory_offset", "uint64_param", 0, "int64_param"),
    ("shared_memory_offset", "bool_param", False, "int64_param"),
]


@pytest.mark.parametrize("name, field, value, wanted", WRONG)
def test_a_parameter_of_another_type(service, client, name, field, value, wanted):
    with Region(client, 64) as region:
        text = f"invalid value type for '{name}' parameter for tensor 'INPUT0', expected {wanted}."
        message = request(raw=False)
        message.raw_input_contents.append(wire(A))
        in_memory(message.inputs[0], region.name, offset=0)
        setattr(message.inputs[0].parameters[name], field, value)
        refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text)
        message = request()
        output = message.outputs.add(name="OUTPUT0")
        in_memory(output, region.name, offset=0)
        setattr(output.parameters[name], field, value)
        refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text.replace("INPUT0", "OUTPUT0"))


def test_a_parameter_without_a_value(service, client):
    with Region(client, 64) as region:
        message = request(raw=False)
        message.raw_input_contents.append(wire(A))
        in_memory(message.inputs[0], region.name)
        message.inputs[0].parameters["shared_memory_offset"].SetInParent()
        refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", "shared_memory_offset")


@pytest.mark.parametrize("offset, size", [(64, -32), (-32, 64), (0, -64), (-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1), (2**63 - 1, 1)])
def test_windows_that_cannot_be(service, client, offset, size):
    with Region(client, 64) as region:
        message = request(raw=False)
        message.raw_input_contents.append(wire(A))
        in_memory(message.inputs[0], region.name, size, offset)
        refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", "")
        message = request()
        in_memory(message.outputs.add(name="OUTPUT0"), region.name, size, offset)
        refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", "")


def test_parameters_of_all_types_are_taken(service):
    message = request()
    message.parameters["a"].bool_param = True
    message.parameters["b"].int64_param = -1
    message.parameters["c"].string_param = "x"
    message.parameters["d"].double_param = 0.5
    message.parameters["e"].uint64_param = 2**64 - 1
    message.parameters["f"].SetInParent()
    assert len(service.ModelInfer(message).outputs) == 2


def test_reserved_parameters(service):
    message = request()
    message.parameters["triton_x"].bool_param = True
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", "'triton_'")


# --- contents


def test_contents_of_an_input_in_memory(service, client):
    with Region(client, 64) as region:
        message = request("identity_int32", ["INPUT0"], raw=False)
        in_memory(message.inputs[0], region.name)
        message.inputs[0].contents.int_contents.extend(range(16))
        text = (
            "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' "
            "for model 'identity_int32'"
        )
        refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text)


def test_contents_beside_raw_contents(service):
    message = request()
    message.inputs[0].contents.int_contents.extend(range(16))
    text = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'simple'"
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text)


def test_an_input_without_data(service):
    text = "unable to find data for input tensor 'INPUT0' for model 'simple' in request."
    refused(lambda: service.ModelInfer(request(raw=False)), "INVALID_ARGUMENT", text)
    message = request(raw=False)
    message.inputs[0].contents.int_contents.extend(range(16))
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text.replace("INPUT0", "INPUT1"))
    # One raw tensor for two inputs.
    message = request(raw=False)
    message.raw_input_contents.append(wire(A))
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", text.replace("INPUT0", "INPUT1"))


def test_more_raw_contents_than_inputs(service):
    message = request()
    message.raw_input_contents.append(wire(A))
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", "")


@pytest.mark.parametrize("datatype", ["INT32", "FP16", "BF16", "NONE", ""])
@pytest.mark.parametrize("field", sorted(set(CONTENTS.values())))
def test_contents_of_another_type(service, datatype, field):
    if field == CONTENTS.get(datatype):
        return
    model = "identity_" + (datatype.lower() if datatype in ("FP16", "BF16") else "int32")
    message = service_pb2.ModelInferRequest(model_name=model)
    tensor = message.inputs.add(name="INPUT0", datatype=datatype, shape=[1, 1])
    getattr(tensor.contents, field).append(b"1" if field == "bytes_contents" else 1)
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", "")


def test_contents_of_two_types(service):
    message = request("identity_int32", ["INPUT0"], raw=False)
    message.inputs[0].contents.int_contents.extend(range(16))
    message.inputs[0].contents.fp32_contents.append(1)
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", "")


@pytest.mark.parametrize("count", [1, 15, 17])
def test_another_count_of_elements(service, count):
    message = request("identity_int32", ["INPUT0"], raw=False)
    message.inputs[0].contents.int_contents.extend(range(count))
    refused(lambda: service.ModelInfer(message), "INVALID_ARGUMENT", f"Expected 64, got {4 * count}")


@pytest.mark.parametrize(
    "datatype, field, value",
    [("INT8", "int_contents", 128), ("INT16", "int_contents", -(2**15) - 1), ("UINT8", "uint_contents", 256), ("UINT16", "uint_contents", 2**16)],
)
def test_elements_that_do_not_fit_are_errors_or_cut(service, datatype, field, value):
    """The reference server cuts them. Here the server must survive."""
    message = service_pb2.ModelInferRequest(model_name=f"identity_{datatype.lower()}")
    tensor = message.inputs.add(name="INPUT0", datatype=datatype, shape=[1, 1])
    getattr(tensor.contents, field).append(value)
    try:
        service.ModelInfer(message)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_large_string_among_typed_contents(service):
    message = service_pb2.ModelInferRequest(model_name="identity_bytes")
    tensor = message.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, 3])
    tensor.contents.bytes_contents.extend([b"", b"x" * 1_000_000, b"\xff\x00"])
    (raw,) = service.ModelInfer(message).raw_output_contents
    assert raw == b"\0\0\0\0" + (1_000_000).to_bytes(4, "little") + b"x" * 1_000_000 + b"\x02\0\0\0\xff\x00"


def test_one_output_asked_for_twice(service):
    message = request()
    message.outputs.add(name="OUTPUT0")
    message.outputs.add(name="OUTPUT0")
    try:
        assert service.ModelInfer(message).outputs
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_an_empty_request(service):
    with pytest.raises(grpc.RpcError):
        service.ModelInfer(service_pb2.ModelInferRequest())
    with pytest.raises(grpc.RpcError):
        service.ModelInfer(service_pb2.ModelInferRequest(model_name="simple"))


# --- other methods


def test_readiness_of_what_is_unknown(service):
    refused(
        lambda: service.ModelMetadata(service_pb2.ModelMetadataRequest(name="nobody")),
        "NOT_FOUND",
        "Request for unknown model: 'nobody' is not found",
    )


def test_names_that_are_no_text(service, server):
    """protobuf's `string` is UTF-8. Decoding refuses other bytes."""
    channel = grpc.insecure_channel(server.grpc)
    method = channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
    for message in (b"\x0a\x02\xff\xfe", b"\x0a\x7f", b"\x0a", b"\xff" * 100, b"\x08" + b"\xff" * 11, b"\x0b" * 5000):
        with pytest.raises(grpc.RpcError) as caught:
            method(message)
        assert caught.value.code() != grpc.StatusCode.OK
    assert service.ServerLive(service_pb2.ServerLiveRequest()).live


def test_a_method_that_is_not_served(server):
    channel = grpc.insecure_channel(server.grpc)
    for path in ("/inference.GRPCInferenceService/Nothing", "/nothing.Service/ServerLive"):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("service_name", [b"", b"inference.GRPCInferenceService"])
def test_health_is_checked(server, service_name):
    channel = grpc.insecure_channel(server.grpc)
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    message = b"\x0a" + bytes([len(service_name)]) + service_name if service_name else b""
    assert check(message) == b"\x08\x01"


def test_the_health_of_an_unknown_service(server):
    channel = grpc.insecure_channel(server.grpc)
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"\x0a\x01x")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_gpu_handles_by_hand(service):
    for length in (0, 1, 63, 65):
        message = service_pb2.CudaSharedMemoryRegisterRequest(name="a", raw_handle=bytes(length), byte_size=1)
        refused(lambda: service.CudaSharedMemoryRegister(message), "INVALID_ARGUMENT", "")
    for device in (-1, 2**31, 2**63 - 1):
        message = service_pb2.CudaSharedMemoryRegisterRequest(
            name="a", raw_handle=bytes(64), byte_size=1, device_id=device
        )
        refused(lambda: service.CudaSharedMemoryRegister(message), "INVALID_ARGUMENT", "")


# --- streams


class Stream:
    """tritonclient's stream, with its responses in a queue."""

    def __init__(self, server):
        self.client = grpcclient.InferenceServerClient(server.grpc)
        self.answers = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()
        self.client.close()

    def send(self, value, **options):
        tensor = grpcclient.InferInput("INPUT0", [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), value, dtype=np.int32))
        options = {"model_name": "identity_int32"} | options
        self.client.async_stream_infer(inputs=[tensor], **options)

    def next(self):
        return self.answers.get(timeout=20)


def test_a_stream_answers_each_request_in_order(server):
    with Stream(server) as stream:
        for n in range(200):
            stream.send(n, request_id=str(n))
        for n in range(200):
            result, error = stream.next()
            assert error is None
            assert result.get_response().id == str(n)
            assert (result.as_numpy("OUTPUT0") == n).all()


def test_an_error_is_one_answer_and_not_the_end_of_a_stream(server):
    with Stream(server) as stream:
        stream.send(1)
        stream.send(2, model_name="nobody")
        stream.send(3, model_name="simple")
        stream.send(4)
        result, error = stream.next()
        assert error is None and (result.as_numpy("OUTPUT0") == 1).all()
        _, error = stream.next()
        assert "Request for unknown model: 'nobody' is not found" in str(error)
        _, error = stream.next()
        assert "expected 2 inputs but got 1 inputs for model 'simple'" in str(error)
        result, error = stream.next()
        assert error is None and (result.as_numpy("OUTPUT0") == 4).all()


def test_a_stream_may_ask_for_its_final_response(server):
    with Stream(server) as stream:
        stream.send(5, enable_empty_final_response=True)
        result, error = stream.next()
        assert error is None and (result.as_numpy("OUTPUT0") == 5).all()
        assert result.get_response().parameters["triton_final_response"].bool_param


def test_a_stream_that_nobody_uses_ends(server):
    with Stream(server):
        pass
    assert server.alive()


def test_a_client_that_hangs_up_in_a_stream(server, service):
    for _ in range(20):
        client = grpcclient.InferenceServerClient(server.grpc)
        client.start_stream(lambda result, error: None)
        tensor = grpcclient.InferInput("INPUT0", [1, 4], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, 4), dtype=np.int32))
        client.async_stream_infer("identity_slow_int32", [tensor])
        client.stop_stream(cancel_requests=True)
        client.close()
    assert service.ServerLive(service_pb2.ServerLiveRequest()).live


def test_streams_of_the_asynchronous_client(server):
    with Front("aio-grpc", server) as front:
        tensor = front.input("INPUT0", A)

        async def go():
            async def requests():
                for n in range(10):
                    yield {"model_name": "identity_int32", "inputs": [tensor], "request_id": str(n)}

            answers = front.client.stream_infer(requests())
            return [answer async for answer in answers]

        answers = front.loop.run(go())
        assert [result.get_response().id for result, _ in answers] == [str(n) for n in range(10)]
        assert all(error is None and (result.as_numpy("OUTPUT0") == A).all() for result, error in answers)


def test_a_stream_uses_regions(server, client):
    with Region(client, 64) as region, Stream(server) as stream:
        output = grpcclient.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(region.name, 64)
        stream.send(77, outputs=[output])
        result, error = stream.next()
        assert error is None and list(result.get_response().raw_output_contents) == [b""]
        assert (region.array(np.int32, [16]) == 77).all()


# --- compression


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(server, algorithm):
    for kind in ("grpc", "aio-grpc"):
        with Front(kind, server) as front:
            tensor = front.input("INPUT0", A)
            result = front.infer("identity_int32", [tensor], compression_algorithm=algorithm)
            assert (result.as_numpy("OUTPUT0") == A).all()


# --- a Unix socket


def test_a_unix_socket_with_an_authority(tmp_path):
    path = tmp_path / "grpc"
    server = Server("--grpc-unix", str(path))
    try:
        # gRPC's own `:authority` is the path with percent signs, which HTTP/2 forbids.
        options = [("grpc.default_authority", "localhost")]
        with grpcclient.InferenceServerClient(f"unix:{path}", channel_args=options) as client:
            assert client.is_server_live()
            tensor = grpcclient.InferInput("INPUT0", [1, 16], "INT32")
            tensor.set_data_from_numpy(A)
            assert (client.infer("identity_int32", [tensor]).as_numpy("OUTPUT0") == A).all()
        with grpcclient.InferenceServerClient(f"unix:{path}") as client:
            with pytest.raises(InferenceServerException, match="RST_STREAM"):
                client.is_server_live()
    finally:
        server.stop()


# --- frames by hand


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"


def test_frames_that_are_broken(server, service):
    host, port = server.grpc.split(":")
    for data in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 1000,
        PREFACE[:10],
        PREFACE,
        PREFACE + b"\xff" * 1000,
        PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
        PREFACE + SETTINGS + b"\0\0\x05\x00\x00\x00\x00\x00\x01abcde",
        PREFACE + SETTINGS + b"\0\0\x05\x01\x04\x00\x00\x00\x01\xff\xff\xff\xff\xff",
        PREFACE + SETTINGS + b"\0\0\0\x04\0\0\0\0\x01",
        PREFACE + SETTINGS * 500,
    ):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass  # the server has hung up first
        assert server.alive()
    assert service.ServerLive(service_pb2.ServerLiveRequest()).live
