"""A server that refuses client shared memory."""

import numpy as np
import pytest

from fronts import KINDS, Front
from refusals import refused
from server import Server

TEXT = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@pytest.fixture(scope="module")
def closed():
    server = Server("--allow-client-shm=false")
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_client_memory_is_switched_off(closed, kind):
    with Front(kind, closed) as front:
        handle = b"A" * 86 + b"=="
        for verb in (
            lambda: front.register_system_shared_memory("a", "/a", 64),
            lambda: front.unregister_system_shared_memory("a"),
            lambda: front.unregister_system_shared_memory(),
            lambda: front.get_system_shared_memory_status(),
            lambda: front.get_system_shared_memory_status("a"),
            lambda: front.register_cuda_shared_memory("a", handle, 0, 64),
            lambda: front.unregister_cuda_shared_memory("a"),
            lambda: front.unregister_cuda_shared_memory(),
            lambda: front.get_cuda_shared_memory_status(),
        ):
            with refused(front, 501, "UNIMPLEMENTED", TEXT):
                verb()
        values = np.arange(16, dtype=np.int32).reshape(1, 16)
        assert (front.infer("identity_int32", [front.input("INPUT0", values)]).as_numpy("OUTPUT0") == values).all()
