"""Pickled objects in messages.

A short message is the pickle. A long one is a block of the writer's pool::

    count, stream, length of each buffer     u64 each, in the order of the machine
    the pickle                               `stream` bytes
    the buffers                              each from a multiple of 64 bytes on

The pickle names the buffers by their order (protocol 5, out of band), so arrays lie in the block.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Buffers of so many bytes lie beside the pickle. Shorter ones are in it, and their arrays are the reader's own.
LONG_BUFFER = 64 << 10

# A pickle of so many bytes is written into a block and loaded from there, which saves a copy on both sides.
LONG_STREAM = 32 << 10

# A block starts at a multiple of 64 bytes, and so does each buffer in it: any element is aligned.
_ALIGNMENT = 64

# The bytes that are copied before other threads may run: about 1 ms.
_PIECE = 4 << 20

_modules = sys.modules


class _Pieces(list[Any]):
    """A file to a pickler. Long bytes are not copied to it."""

    write = list.append


class Packer:
    """Pickles one object after the other: each into pieces of a stream, and its long buffers."""

    __slots__ = ("_clear_memo", "_dump", "_pickler", "buffers", "pieces", "stream")

    def __init__(self) -> None:
        self.pieces = _Pieces()
        self.buffers: list[memoryview] = []
        self.stream = 0
        pickler = pickle.Pickler(self.pieces, 5, buffer_callback=self._is_in_band)
        self._pickler, self._dump, self._clear_memo = pickler, pickler.dump, pickler.clear_memo

    def _is_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LONG_BUFFER:
            return True
        self.buffers.append(raw)
        return False

    def pack(self, item: Any) -> bytes | None:
        """Pickles an object. Returns the message of a short one, and otherwise keeps it until ``clear()``.

        After an exception the packer is of no more use.
        """
        if (torch := _modules.get("torch")) is not None and (tensor := getattr(torch, "Tensor", None)) is not None:
            self._pickler.dispatch_table = copyreg.dispatch_table | {tensor: _reduce_tensor}
        self._dump(item)
        self._clear_memo()
        pieces = self.pieces
        if len(pieces) == 1 and not self.buffers and len(pieces[0]) < LONG_STREAM:
            message: bytes = pieces.pop()
            return message
        self.stream = sum(map(len, pieces))
        return None

    def clear(self) -> None:
        """Forgets a long object."""
        self.pieces.clear()
        self.buffers.clear()

    def parts(self) -> list[bytes | memoryview]:
        """Returns the pickle of a long object in one piece, and its long buffers."""
        return [b"".join(self.pieces), *self.buffers]

    def _header(self) -> bytes:
        lengths = [buffer.nbytes for buffer in self.buffers]
        return struct.pack(f"={2 + len(lengths)}Q", len(lengths), self.stream, *lengths)

    def block_len(self) -> int:
        """Returns the bytes of the block of a long object."""
        end = len(self._header()) + self.stream
        for buffer in self.buffers:
            end = _aligned(end) + buffer.nbytes
        return end

    def write_to(self, block: memoryview) -> None:
        """Writes the block of a long object."""
        end = 0
        for piece in (self._header(), *self.pieces):
            end = _copy(block, end, memoryview(piece))
        for buffer in self.buffers:
            end = _copy(block, _aligned(end), buffer)


def load_block(block: memoryview, *, keeps: bool) -> Any:
    """Returns the object of a block. Its long arrays lie in the block if it ``keeps`` it, and are copies otherwise."""
    count, stream = struct.unpack_from("=2Q", block)
    lengths = struct.unpack_from(f"={count}Q", block, 16)
    end = 16 + 8 * count
    pickled = block[end : end + stream]
    end += stream
    buffers: list[Any] = []
    for length in lengths:
        start = _aligned(end)
        end = start + length
        buffers.append(block[start:end] if keeps else bytearray(block[start:end]))
    return pickle.loads(pickled, buffers=buffers)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _copy(block: memoryview, start: int, source: memoryview) -> int:
    length = source.nbytes
    for at in range(0, length, _PIECE):
        upto = min(at + _PIECE, length)
        block[start + at : start + upto] = source[at:upto]
    return start + length


def _reduce_tensor(tensor: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | str:
    """Reduces a tensor of torch in memory of the host to its bytes, and any other one as torch does."""
    import torch

    reduced: tuple[Callable[..., Any], tuple[Any, ...]] | str
    if tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad:
        try:
            raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        except RuntimeError:
            # A conjugate view, for example: NumPy has no such array.
            pass
        else:
            name = str(tensor.dtype).removeprefix("torch.")
            return _rebuild_tensor, (pickle.PickleBuffer(raw), tuple(tensor.shape), name)
    reduced = tensor.__reduce_ex__(5)
    return reduced


def _rebuild_tensor(raw: Any, shape: tuple[int, ...], name: str) -> Any:
    """Returns a tensor in memory of its own: torch has no tensors that refuse a write."""
    import torch

    own = raw if isinstance(raw, bytearray) else bytearray(raw)
    dtype = getattr(torch, name)
    return torch.frombuffer(own, dtype=torch.uint8).view(dtype).view(shape) if own else torch.empty(shape, dtype=dtype)
