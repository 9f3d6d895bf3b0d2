"""Pickled objects, whose long buffers lie beside the pickle (protocol 5, out of band).

A tensor of torch in memory of the host is a buffer, as an array of NumPy is. The pickle names the buffers by their
order, so what carries them keeps it.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from typing import TYPE_CHECKING, Any

from ._slipring import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    _Reduced = tuple[Callable[..., Any], tuple[Any, ...]] | str

# Buffers of so many bytes lie beside the pickle. Shorter ones are in it, and their arrays are the reader's own.
LONG_BUFFER = 64 << 10

# A pickle of so many bytes is written into a block and loaded from there, which saves a copy on both sides.
LONG_STREAM = 32 << 10

_modules = sys.modules


class _Pieces(list[Any]):
    """A file to a pickler. Long bytes are not copied to it."""

    write = list.append


class Packer:
    """Pickles one object after the other: each into pieces of a stream, and its long buffers."""

    __slots__ = ("_clear_memo", "_dump", "_most", "_pickler", "buffers", "pieces", "stream")

    def __init__(self, most: int = sys.maxsize) -> None:
        """Takes how many long buffers of one object lie beside its pickle at most. Further ones are in it."""
        self.pieces = _Pieces()
        self.buffers: list[memoryview] = []
        self.stream = 0
        self._most = most
        pickler = pickle.Pickler(self.pieces, 5, buffer_callback=self._is_in_band)
        self._pickler, self._dump, self._clear_memo = pickler, pickler.dump, pickler.clear_memo

    def _is_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LONG_BUFFER or len(self.buffers) >= self._most:
            return True
        self.buffers.append(raw)
        return False

    def _reducers(self) -> dict[type, Callable[[Any], Any]]:
        """Returns how objects are reduced, by their types, before their own methods are asked."""
        return copyreg.dispatch_table

    def pack(self, item: Any) -> bytes | None:
        """Pickles an object. Returns the message of a short one, and otherwise keeps it until ``clear()``.

        After an exception the packer is of no more use.
        """
        reducers = self._reducers()
        if (torch := _modules.get("torch")) is not None and (tensor := getattr(torch, "Tensor", None)) is not None:
            otherwise = reducers.get(tensor, _by_its_method)
            reducers = reducers | {tensor: lambda each: _reduce_tensor(each, otherwise)}
        self._pickler.dispatch_table = reducers
        self._dump(item)
        self._clear_memo()
        pieces = self.pieces
        if len(pieces) == 1 and not self.buffers and len(pieces[0]) < LONG_STREAM:
            message: bytes = pieces.pop()
            return message
        # A long buffer in the pickle is a piece of its own.
        pieces[:] = [piece.raw() if isinstance(piece, pickle.PickleBuffer) else piece for piece in pieces]
        self.stream = sum(map(len, pieces))
        return None

    def clear(self) -> None:
        """Forgets a long object."""
        self.pieces.clear()
        self.buffers.clear()

    def parts(self) -> list[bytes | memoryview]:
        """Returns the pickle of a long object in one piece, and its long buffers."""
        return [b"".join(self.pieces), *self.buffers]


def _by_its_method(item: Any) -> _Reduced:
    reduced: _Reduced = item.__reduce_ex__(5)
    return reduced


def _reduce_tensor(tensor: Any, otherwise: Callable[[Any], _Reduced]) -> _Reduced:
    """Reduces a tensor of torch in memory of the host to its bytes, and any other one ``otherwise``."""
    import torch

    if tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad:
        dense, order = tensor, None
        if not tensor.is_contiguous():
            # Elements without gaps keep their order in memory, such as that of `torch.channels_last`.
            order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
            dense = tensor.permute(order)
            if not dense.is_contiguous():
                dense, order = tensor.contiguous(), None
        try:
            raw = dense.reshape(-1).view(torch.uint8).numpy()
        except RuntimeError:
            # A conjugate view, for example: NumPy has no such array.
            pass
        else:
            name = str(tensor.dtype).removeprefix("torch.")
            return _rebuild_tensor, (pickle.PickleBuffer(raw), tuple(dense.shape), name, order)
    return otherwise(tensor)


def _rebuild_tensor(raw: Any, shape: tuple[int, ...], name: str, order: list[int] | None = None) -> Any:
    """Returns a tensor of torch. That of a ``Tensor`` lies in its memory. Any other one is in memory of its own.

    Torch has no tensors that refuse a write. ``order`` is that of the dimensions in memory.
    """
    import torch

    dtype = getattr(torch, name)
    if isinstance(raw, Tensor):
        flat = torch.from_dlpack(raw)
    else:
        own = raw if isinstance(raw, bytearray) else bytearray(raw)
        if not own:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(own, dtype=torch.uint8)
    dense = flat.view(dtype).view(shape)
    return dense if order is None else dense.permute(sorted(range(len(order)), key=order.__getitem__))
