"""Python objects over a connection, by ``pickle``: for peers that you trust with all that this process may do.

``pickle.loads`` runs what the sender of the bytes chooses. A peer that can send to ``recv`` of this module is this
process: it can read its files and start its programs. Nothing else of this package unpickles but ``slipring.vllm`` and
``slipring.torch``, so without these modules a peer cannot.
"""

from __future__ import annotations

import pickle as _pickle
from typing import TYPE_CHECKING, Any

from ._objects_queue import Queue, SimpleQueue

if TYPE_CHECKING:
    from ._slipring import Connection

__all__ = ["Queue", "SimpleQueue", "recv", "send"]


def send(connection: Connection, item: Any, *, timeout: float | None = None) -> None:
    """Sends a pickled object in one message. Waits and raises as ``Connection.send`` and ``pickle.dumps``."""
    connection.send(_pickle.dumps(item, protocol=5), timeout=timeout)


def recv(connection: Connection, timeout: float | None = None) -> Any:
    """Receives an object, and runs what its sender chose.

    Waits and raises as ``Connection.recv`` and ``pickle.loads``.
    """
    return _pickle.loads(memoryview(connection.recv(timeout)))
