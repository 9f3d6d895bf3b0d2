"""What a reader needs to know of a queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

# The layout of messages. It changes with `_objects`.
FORMAT = 1


@dataclass
class Handle:
    """Names a queue to its readers. It is pickled."""

    local_reader_ranks: list[int] = field(default_factory=list)
    address: str | None = None
    max_chunk_bytes: int = 0
    remote_subscribe_addr: str | None = None
    remote_addr_ipv6: bool = False
    writer_pid: int = 0
    writer_rank: int | None = None
    format: int = FORMAT

    @property
    def buffer_handle(self) -> NoReturn:
        """Raises: vLLM's own queue asks a handle of its own for this."""
        raise RuntimeError(
            "the writer is slipring.vllm, and this process has vLLM's own queue: set SLIPRING_VLLM=1 here"
        )

    def writer(self) -> str:
        """Returns the writer's name for an error."""
        rank = "" if self.writer_rank is None else f", rank {self.writer_rank}"
        return f"the writer{rank} (process {self.writer_pid})"


def check(handle: Any) -> Handle:
    """Returns a handle that this version reads.

    Raises ``TypeError`` for that of vLLM's own queue, and ``ValueError`` for that of another version.
    """
    if not isinstance(handle, Handle):
        raise TypeError(
            f"the handle is {type(handle).__module__}.{type(handle).__qualname__}, not slipring.vllm.Handle: "
            "set SLIPRING_VLLM=1 in the writer's process, too"
        )
    if handle.format != FORMAT:
        raise ValueError(
            f"the writer's messages have format {handle.format}, and this version of slipring reads format {FORMAT}: "
            "install the same version in all processes"
        )
    return handle
