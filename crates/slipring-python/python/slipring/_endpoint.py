"""Connections to a child: two ends of a socket, one of which the child gets."""

from __future__ import annotations

import os
import socket
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, Literal

from ._errors import Closed
from ._slipring import Connection, Context

if TYPE_CHECKING:
    from collections.abc import Callable

    _Role = Literal["accept", "connect"]


class Endpoint:
    """One end of ``pair()``. It becomes a connection in the process that opens it, at most once.

    Pass it to a ``multiprocessing`` child of any start method, or its ``fileno()`` by ``pass_fds`` to a program
    that calls ``Endpoint(descriptor, role)``.
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

    def open(self, *, context: Context | None = None, trust: bool = False) -> Connection:
        """Returns the connection. Waits until the process of the other end opens that, or ends.

        Raises ``TimedOut`` after the context's ``handshake_timeout``, ``PeerDied``, ``Closed``, and otherwise as
        ``connect``.
        """
        context = context or Context.default()
        descriptor = self.fileno()
        self._descriptor = None
        shake = context.connect_socket if self._role == "connect" else context.accept_socket
        return shake(descriptor, trust=trust)

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
        return _rebuild, (reduction.DupFd(self.fileno()), self._role)


def _rebuild(duplicate: Any, role: _Role) -> Endpoint:
    return Endpoint(duplicate.detach(), role)


def pair() -> tuple[Endpoint, Endpoint]:
    """Returns two ends of a socket. One process opens the first, another one the second."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Endpoint(first.detach(), "accept"), Endpoint(second.detach(), "connect")
