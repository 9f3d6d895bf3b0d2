"""The functions of the module, which use the default context if they get none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._slipring import Connection, Context, Listener, Publisher, Subscriber

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

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


def publish(
    address: str,
    *,
    context: Context | None = None,
    slots: int | None = None,
    slot_len: int | None = None,
    history: int | None = None,
    every: bool = True,
    newest_limit: int | None = None,
    hold_limit: int | None = None,
    subscriber_limit: int | None = None,
    stall_after: float | None = None,
) -> Publisher:
    """Publishes a topic under an address, with the options of ``Context.publish``.

    Raises ``AddressInUse``, ``InvalidAddress``, ``InvalidOption``, ``ResourceLimit``.
    """
    return (context or Context.default()).publish(
        address,
        slots=slots,
        slot_len=slot_len,
        history=history,
        every=every,
        newest_limit=newest_limit,
        hold_limit=hold_limit,
        subscriber_limit=subscriber_limit,
        stall_after=stall_after,
    )


def subscribe(
    address: str,
    policy: Literal["every", "latest"] | int = "every",
    *,
    reconnect: bool = True,
    wait: float | None = None,
    context: Context | None = None,
) -> Subscriber:
    """Subscribes to a topic: to every message, to the latest one, or to the newest so many.

    Raises ``NobodyListens``, ``Refused``, ``TimedOut``, ``InvalidAddress``, ``ResourceLimit``.
    """
    context = context or Context.default()
    return context.subscribe(address, policy, reconnect=reconnect, wait=wait)
