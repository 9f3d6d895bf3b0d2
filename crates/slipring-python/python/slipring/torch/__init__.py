"""Queues and a ``DataLoader`` for users of torch, over shared memory of slipring.

``Queue`` and ``SimpleQueue`` have the interface of those of ``torch.multiprocessing``, and need no torch.
``DataLoader`` is that of ``torch.utils.data``, whose workers hand over each batch as one message without descriptors.

All of them load what they receive by ``pickle``, and so run what the sender chose. They refuse processes of other
users: the kernel tells the user of each peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._objects_queue import Queue, SimpleQueue

if TYPE_CHECKING:
    from ._loader import DataLoader as DataLoader

# Without torch a star imports the queues alone.
__all__ = ["Queue", "SimpleQueue"]


def __getattr__(name: str) -> Any:
    if name != "DataLoader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from ._loader import DataLoader
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("slipring.torch.DataLoader needs torch: pip install torch") from None
    return DataLoader
