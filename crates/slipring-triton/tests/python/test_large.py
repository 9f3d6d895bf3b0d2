"""Tensors of 64 MiB in every placement, and of 1 GiB by reference."""

import shutil

import numpy as np
import pytest

from fronts import Front
from regions import Region
from server import Server

MIB = 1 << 20


def varied(size):
    """Returns bytes that depend on their position, as a batch of one."""
    return np.arange(size // 8, dtype=np.int64).reshape(1, -1)


@pytest.mark.parametrize("how", ["binary", "shm"])
@pytest.mark.parametrize("to", ["binary", "shm"])
def test_64_mib(front, how, to):
    values = varied(64 * MIB)
    size = values.nbytes
    with Region(front, 2 * size) as region:
        outputs = [front.output("OUTPUT0", to, region, size, size)]
        result = front.infer("identity_int64", [front.input("INPUT0", values, how, region)], outputs=outputs)
        got = region.array(np.int64, values.shape, size) if to == "shm" else result.as_numpy("OUTPUT0")
        assert np.array_equal(got, values)


def test_64_mib_by_copy(servers):
    for kind in ("http", "grpc"):
        with Front(kind, servers["by-copy"]) as front, Region(front, 128 * MIB) as region:
            values = varied(64 * MIB)
            outputs = [front.output("OUTPUT0", "shm", region, values.nbytes, values.nbytes)]
            front.infer("identity_int64", [front.input("INPUT0", values, "shm", region)], outputs=outputs)
            assert np.array_equal(region.array(np.int64, values.shape, values.nbytes), values)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_16_mib_compressed_both_ways_over_http(server, algorithm):
    values = varied(16 * MIB) // 1024
    for kind in ("http", "aio-http"):
        with Front(kind, server) as front:
            result = front.infer(
                "identity_int64",
                [front.input("INPUT0", values)],
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            assert np.array_equal(result.as_numpy("OUTPUT0"), values)


def test_16_mib_compressed_over_grpc(server):
    values = varied(16 * MIB) // 1024
    with Front("grpc", server) as front:
        result = front.infer("identity_int64", [front.input("INPUT0", values)], compression_algorithm="gzip")
        assert np.array_equal(result.as_numpy("OUTPUT0"), values)


def test_an_inline_tensor_takes_no_more_than_twice_its_size():
    """Measures the peak memory over HTTP of a server that has served nothing large."""
    server = Server()
    try:
        values = varied(64 * MIB)
        with Front("http", server) as front:
            front.infer("identity_int64", [front.input("INPUT0", values[:, :8].copy())])
            before = server.memory()
            front.infer("identity_int64", [front.input("INPUT0", values)])
            assert server.memory("VmHWM") - before < 2 * values.nbytes + 8 * MIB
    finally:
        server.stop()


def memory_for(size):
    with open("/proc/meminfo") as meminfo:
        available = next(int(line.split()[1]) for line in meminfo if line.startswith("MemAvailable")) * 1024
    return min(available, shutil.disk_usage("/dev/shm").free) > 2 * size


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("mode", ["in-place", "by-copy"])
def test_1_gib_by_reference(servers, kind, mode):
    size = 1 << 30
    if not memory_for(2 * size):
        print("skipped: too little memory for two tensors of 1 GiB")
        pytest.skip("too little memory for two tensors of 1 GiB")
    server = servers[mode]
    with Front(kind, server) as front, Region(front, 2 * size) as region:
        view = np.frombuffer(region.memory, dtype=np.int64, count=size // 8)
        view[:] = 1
        view[:: 4096 // 8] = np.arange(size // 4096)
        tensor = front.module.InferInput("INPUT0", [1, size // 8], "INT64")
        tensor.set_shared_memory(region.name, size)
        outputs = [front.output("OUTPUT0", "shm", region, size, size)]
        with server.watched("RssAnon") as most:
            front.infer("identity_int64", [tensor], outputs=outputs)
        out = np.frombuffer(region.memory, dtype=np.int64, count=size // 8, offset=size)
        assert np.array_equal(view, out)
        del view, out
        # The server's own memory does not grow with the tensor. The region's pages count separately.
        assert most() < 64 * MIB
