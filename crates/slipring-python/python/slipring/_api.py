"""The functions of the module, which use the default context if they get none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._slipring import Connection, Context, Listener

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ._slipring import Tensor


def listen(address: str, *, context: Context | None = None, trust: bool = False) -> Listener:
    """Listens on an address: a name, or a path with a slash in it.

    ``trust=True`` vouches for all peers: they do not write memory that they have lent.

    Raises ``AddressInUse``, ``InvalidAddress``, ``ResourceLimit``.
    """
    return (context or Context.default()).listen(address, trust=trust)


def connect(
    address: str,
    *,
    retry: float | None = None,
    timeout: float | None = None,
    context: Context | None = None,
    trust: bool = False,
) -> Connection:
    """Connects to a listener, and tries for ``retry`` seconds while nobody listens.

    Raises ``NobodyListens``, ``TimedOut``, ``Refused``, ``InvalidAddress``, ``PeerClosed``, ``PeerDied``,
    ``ResourceLimit``.
    """
    context = context or Context.default()
    return context.connect(address, retry=retry, timeout=timeout, trust=trust)


def empty(
    shape: int | Sequence[int],
    dtype: Any = "uint8",
    *,
    zeroed: bool = False,
    frozen: bool = False,
    timeout: float | None = None,
) -> Tensor:
    """Returns shared memory for a tensor, as ``Connection.empty`` does, of the default context.

    Raises ``ResourceLimit``, ``TimedOut``, ``InvalidTensor``.
    """
    context = Context.default()
    return context.empty(shape, dtype, zeroed=zeroed, frozen=frozen, timeout=timeout)
