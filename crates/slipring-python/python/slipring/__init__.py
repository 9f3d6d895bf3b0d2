"""Messages and tensors between processes of one Linux machine, through shared memory.

One process listens, another one connects, and both send and receive::

    with slipring.listen("camera") as listener:        # process A
        link = listener.accept()
        for frame in link.tensors():                   # no copy, read-only
            print(np.asarray(frame).mean())

    link = slipring.connect("camera", retry=5.0)       # process B
    frame = link.empty((1080, 1920, 3), "uint8")       # shared memory
    np.copyto(np.asarray(frame), image)
    link.send_tensor(frame, meta={"stamp": 7})

All exceptions are of ``slipring.Error``.
"""

from ._api import connect, empty, listen, publish, subscribe
from ._endpoint import Endpoint, pair
from ._errors import (
    AddressInUse,
    Closed,
    Error,
    Evicted,
    Forked,
    GpuError,
    HoldLimit,
    InvalidAddress,
    InvalidOption,
    InvalidTensor,
    LoanRevoked,
    NobodyListens,
    OtherKind,
    PeerClosed,
    PeerDied,
    ProtocolFault,
    Refused,
    ResourceLimit,
    SystemCallFailed,
    TensorGone,
    TimedOut,
    TooLarge,
    ViewsAlive,
)
from ._queue import Empty, Full, Queue
from ._slipring import (
    Connection,
    Context,
    Listener,
    Message,
    Peer,
    Publisher,
    Request,
    Sample,
    Subscriber,
    Tensor,
    Tensors,
    __version__,
    from_dlpack,
    pin,
    strings,
    trim_gpus,
)

__all__ = [
    "AddressInUse",
    "Closed",
    "Connection",
    "Context",
    "Empty",
    "Endpoint",
    "Error",
    "Evicted",
    "Forked",
    "Full",
    "GpuError",
    "HoldLimit",
    "InvalidAddress",
    "InvalidOption",
    "InvalidTensor",
    "Listener",
    "LoanRevoked",
    "Message",
    "NobodyListens",
    "OtherKind",
    "Peer",
    "PeerClosed",
    "PeerDied",
    "ProtocolFault",
    "Publisher",
    "Queue",
    "Refused",
    "Request",
    "ResourceLimit",
    "Sample",
    "Subscriber",
    "SystemCallFailed",
    "Tensor",
    "TensorGone",
    "Tensors",
    "TimedOut",
    "TooLarge",
    "ViewsAlive",
    "__version__",
    "connect",
    "empty",
    "from_dlpack",
    "listen",
    "pair",
    "pin",
    "publish",
    "strings",
    "subscribe",
    "trim_gpus",
]
