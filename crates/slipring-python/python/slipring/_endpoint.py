"""Connections to a child: two ends of a socket, one of which the child gets."""

from __future__ import annotations

import os
import socket
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Literal

from ._errors import Closed, PeerDied, TimedOut
from ._slipring import Connection, Context

if TYPE_CHECKING:
    from collections.abc import Callable

    _Role = Literal["accept", "connect"]


class Endpoint:
    """One end of ``pair()``. It becomes a connection in the process that opens it, at most once.

    Pass it in the ``args`` of a ``multiprocessing`` child of any start method, or its ``fileno()`` by ``pass_fds`` to
    a program that calls ``Endpoint(descriptor, role)``. Nothing else pickles it, and nobody passes it after it was
    opened.
    """

    def __init__(self, descriptor: int, role: _Role) -> None:
        """Takes a descriptor of a connected ``SOCK_SEQPACKET`` socket."""
        if role not in ("accept", "connect"):
            raise ValueError(f"role is {role!r}, must be accept or connect")
        self._descriptor: int | None = descriptor
        self._role: _Role = role

    @property
    def role(self) -> _Role:
        """Which side of the handshake the end takes: the other end takes the other one."""
        return self._role

    def fileno(self) -> int:
        """Returns the descriptor. Raises ``Closed`` after the end was opened or closed."""
        if self._descriptor is None:
            raise Closed("the endpoint was opened or closed")
        return self._descriptor

    def open(self, *, timeout: float | None = 60.0, context: Context | None = None, trust: bool = False) -> Connection:
        """Returns the connection. Waits until another process opens the other end, at most for ``timeout`` seconds.

        Raises ``TimedOut``, ``PeerDied`` if that process ended, ``Closed``, and otherwise as ``connect``.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout}, must be a number of seconds from 0 on")
        context = context or Context.default()
        descriptor = self.fileno()
        self._descriptor = None
        with socket.socket(fileno=descriptor) as end:
            _meet(end, timeout)
            shake = context.connect_socket if self._role == "connect" else context.accept_socket
            return shake(end.detach(), trust=trust)

    def close(self) -> None:
        """Closes the end, if it was not opened. The parent does so after it has started the child."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.close()

    def __reduce__(self) -> tuple[Callable[..., Endpoint], tuple[object, _Role]]:
        descriptor = self.fileno()
        if get_spawning_popen() is None:
            text = "an Endpoint goes to a child as it starts: in Process(args=...), or its fileno() by pass_fds"
            raise RuntimeError(text)
        return _rebuild, (reduction.DupFd(descriptor), self._role)


def _meet(end: socket.socket, timeout: float | None) -> None:
    """Waits until the process of the other end does the same: a handshake has little time."""
    # Without a wait a socket has no timeout, but an error.
    end.settimeout(None if timeout is None else max(timeout, 1e-3))
    try:
        end.send(b"\x01")
        if not end.recv(1):
            raise ConnectionResetError
    except TimeoutError:
        raise TimedOut(f"timed out after {(timeout or 0) * 1000:.0f} ms: nobody opens the other end") from None
    except ConnectionError:
        raise PeerDied("the process of the other end has ended") from None
    end.settimeout(None)


def _rebuild(duplicate: Any, role: _Role) -> Endpoint:
    return Endpoint(duplicate.detach(), role)


def pair() -> tuple[Endpoint, Endpoint]:
    """Returns two ends of a socket. One process opens the first, another one the second."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Endpoint(first.detach(), "accept"), Endpoint(second.detach(), "connect")
