"""Pickled objects in messages.

A short message is the pickle. A long one is a block of the writer's pool::

    count, stream, length of each buffer     u64 each, in the order of the machine
    the pickle                               `stream` bytes
    the buffers                              each from a multiple of 64 bytes on

The pickle names the buffers by their order (protocol 5, out of band), so arrays lie in the block.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from .. import _objects

# A block starts at a multiple of 64 bytes, and so does each buffer in it: any element is aligned.
_ALIGNMENT = 64

# The bytes that are copied before other threads may run: about 1 ms.
_PIECE = 4 << 20


class Packer(_objects.Packer):
    """Pickles one object after the other, and writes the block of a long one."""

    __slots__ = ()

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
