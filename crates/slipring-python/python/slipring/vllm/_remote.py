"""Readers on other machines, over zmq, as vLLM's own queue has them."""

from __future__ import annotations

import ipaddress
import os
import pickle
import socket
from typing import Any

READY = b"READY"


def _zmq() -> Any:
    try:
        import zmq
    except ImportError:
        raise ImportError("readers on other machines need pyzmq: pip install pyzmq") from None
    return zmq


def _own_address() -> str:
    try:
        from vllm.utils.network_utils import get_ip
    except ImportError:
        return os.environ.get("VLLM_HOST_IP") or socket.gethostbyname(socket.gethostname())
    found: str = get_ip()
    return found


def _is_ipv6(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 6
    except ValueError:
        return False


class RemoteWriter:
    """Sends to readers on other machines."""

    def __init__(self, address: str | None) -> None:
        zmq = _zmq()
        host = address or _own_address()
        self.is_ipv6 = _is_ipv6(host)
        self._socket = zmq.Context.instance().socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, True)
        if self.is_ipv6:
            self._socket.setsockopt(zmq.IPV6, 1)
            host = f"[{host}]"
        port = self._socket.bind_to_random_port(f"tcp://{host}")
        self.address = f"tcp://{host}:{port}"

    def meet(self) -> None:
        """Waits for one reader more."""
        self._socket.recv()

    def ready(self) -> None:
        """Tells all readers that the queue works."""
        self._socket.send(READY)

    def send(self, parts: list[bytes | memoryview]) -> None:
        """Sends an object: its pickle, and its long buffers."""
        self._socket.send_multipart(parts, copy=False)

    def close(self) -> None:
        """Ends the socket."""
        self._socket.close(0)


class RemoteReader:
    """Receives from a writer on another machine."""

    def __init__(self, address: str, is_ipv6: bool) -> None:
        zmq = _zmq()
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        if is_ipv6:
            self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.connect(address)

    def meet(self) -> None:
        """Waits until the writer says that the queue works."""
        first = self._socket.recv()
        assert first == READY, f"the writer's first message has {len(first)} bytes, must be READY"

    def poll(self, timeout: float) -> bool:
        """Returns whether a message comes in so many seconds."""
        return bool(self._socket.poll(int(timeout * 1000)))

    def load(self) -> Any:
        """Returns the object of the next message."""
        return load(self._socket)

    def close(self) -> None:
        """Ends the socket."""
        self._socket.close(0)


def load(socket: Any) -> Any:
    """Returns the object of the next message of a socket."""
    stream, *buffers = socket.recv_multipart(copy=False)
    return pickle.loads(stream, buffers=buffers)
