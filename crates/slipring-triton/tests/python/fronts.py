"""One interface to Triton's four Python clients, so that one test body drives all of them.

A front has every method of `tritonclient`'s clients; those of the asynchronous ones are run to their end on
an event loop in a thread of its own. What differs between HTTP and gRPC (how a status or a statistic looks, how
a tensor is placed) is made the same here.
"""

import asyncio
import threading

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpclient_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

KINDS = ["http", "grpc", "aio-http", "aio-grpc"]

# The field of gRPC's typed contents for a datatype.
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def wire(array):
    """The bytes of an array as Triton's clients send them."""
    if array.dtype == np.object_ or array.dtype.type == np.bytes_:
        serialized = serialize_byte_tensor(array)
        return serialized.item() if serialized.size else b""
    return array.tobytes()


class Loop:
    """An event loop in a thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, awaitable, timeout=120):
        async def wait():
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(timeout)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


class Front:
    """One client of one server."""

    def __init__(self, kind, server):
        self.kind = kind
        self.server = server
        self.is_grpc = kind.endswith("grpc")
        self.is_aio = kind.startswith("aio")
        self.module = grpcclient if self.is_grpc else httpclient
        self.loop = Loop() if self.is_aio else None
        url = server.grpc if self.is_grpc else server.http
        if not self.is_aio:
            self.client = self.module.InferenceServerClient(url)
        else:
            module = grpcclient_aio if self.is_grpc else httpclient_aio

            async def make():
                return module.InferenceServerClient(url)

            self.client = self.loop.run(make())

    def close(self):
        if self.is_aio:
            self.loop.run(self.client.close())
            self.loop.close()
        else:
            self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getattr__(self, name):
        method = getattr(self.client, name)
        if not self.is_aio:
            return method
        return lambda *args, **options: self.loop.run(method(*args, **options))

    # --- differences between the protocols

    def system_status(self, name=""):
        """Returns name to (key, offset, byte size)."""
        status = self.get_system_shared_memory_status(name)
        if self.is_grpc:
            assert all(key == region.name for key, region in status.regions.items())
            return {r.name: (r.key, r.offset, r.byte_size) for r in status.regions.values()}
        assert isinstance(status, list)
        return {r["name"]: (r["key"], r["offset"], r["byte_size"]) for r in status}

    def cuda_status(self, name=""):
        """Returns name to (device, byte size)."""
        status = self.get_cuda_shared_memory_status(name)
        if self.is_grpc:
            return {r.name: (r.device_id, r.byte_size) for r in status.regions.values()}
        assert isinstance(status, list)
        return {r["name"]: (r["device_id"], r["byte_size"]) for r in status}

    def json(self, method, *args, **options):
        """Returns a method's answer as JSON. Numbers that protobuf's JSON writes as text become numbers."""
        if self.is_grpc:
            return numbers(getattr(self, method)(*args, as_json=True, **options))
        return getattr(self, method)(*args, **options)

    # --- tensors

    def input(self, name, array, how="binary", region=None, offset=0, datatype=None):
        """Returns an input whose bytes are `json`, `binary` (raw contents over gRPC), `typed` contents, or in `shm`."""
        datatype = datatype or np_to_triton_dtype(array.dtype)
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        if how == "shm":
            region.write(offset, wire(array))
            tensor.set_shared_memory(region.name, len(wire(array)), offset)
        elif how == "typed":
            contents = getattr(tensor._get_tensor().contents, CONTENTS[datatype])
            contents.extend(array.flatten().tolist())
        elif self.is_grpc:
            tensor.set_data_from_numpy(array)
        else:
            tensor.set_data_from_numpy(array, binary_data=how == "binary")
        return tensor

    def output(self, name, how="binary", region=None, size=0, offset=0):
        if self.is_grpc:
            tensor = self.module.InferRequestedOutput(name)
        else:
            tensor = self.module.InferRequestedOutput(name, binary_data=how == "binary")
        if how == "shm":
            tensor.set_shared_memory(region.name, size, offset)
        return tensor

    def ways_in(self, datatype="INT32"):
        """Returns the placements of an input that the protocol has for this datatype."""
        halves = datatype in ("FP16", "BF16")
        if self.is_grpc:
            return ["binary", "shm"] + ([] if halves else ["typed"])
        return ["binary", "shm"] + ([] if halves else ["json"])

    def ways_out(self, datatype="INT32"):
        halves = datatype in ("FP16", "BF16")
        return ["binary", "shm"] + ([] if self.is_grpc or halves else ["json"])

    def outputs_of(self, result):
        """Returns the outputs of a response in order: name, datatype, shape."""
        response = result.get_response()
        if self.is_grpc:
            return [(o.name, o.datatype, list(o.shape)) for o in response.outputs]
        return [(o["name"], o["datatype"], o["shape"]) for o in response["outputs"]]


def numbers(value):
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    if isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 20:
        return int(value)
    return value


def stub(server):
    """Returns the generated gRPC client, for messages that `tritonclient` never sends."""
    import grpc

    whole = 2**31 - 1
    options = [("grpc.max_send_message_length", whole), ("grpc.max_receive_message_length", whole)]
    channel = grpc.insecure_channel(server.grpc, options=options)
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def size_of(array):
    """Returns the encoded length of an array in bytes."""
    return len(wire(array))


__all__ = ["CONTENTS", "KINDS", "Front", "Loop", "service_pb2", "size_of", "stub", "wire"]
