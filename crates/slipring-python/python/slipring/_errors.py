"""The exceptions of slipring. Their texts say the fact, both numbers, and what helps."""

import errno as _errno


class Error(Exception):
    """An operation failed. All exceptions of this package are of this class."""


class TimedOut(Error, TimeoutError):
    """The time was over. Nothing was sent or received."""


class PeerClosed(Error, EOFError):
    """The peer has closed the connection, and all that it sent was received."""


class PeerDied(Error, ConnectionError):
    """The peer's process ended without closing the connection."""


class Closed(Error, ValueError):
    """This side has closed the object."""


class AddressInUse(Error, OSError):
    """Another listener has the address."""

    errno = _errno.EADDRINUSE


class NobodyListens(Error, ConnectionRefusedError):
    """No listener has the address."""

    errno = _errno.ECONNREFUSED


class InvalidAddress(Error, ValueError):
    """A text is no address, or a descriptor no socket of the needed kind."""


class InvalidOption(Error, ValueError):
    """An option has a value that it may not have."""


class Refused(Error, PermissionError):
    """One of the sides does not admit the other, or offers something else."""


class ProtocolFault(Error):
    """The peer broke the protocol. This connection is over, and all others go on."""


class TooLarge(Error, ValueError):
    """A message is longer than the connection takes."""


class ResourceLimit(Error, MemoryError):
    """Memory, descriptors or a quota are used up. The text names the option that raises the limit."""


class LoanRevoked(Error):
    """The peer has taken back the memory of a tensor. What was read there may be other bytes."""


class OtherKind(Error):
    """The next message is of another kind. It stays the next one; the text names the method that receives it."""


class InvalidTensor(Error, ValueError):
    """A tensor, a shape or metadata is impossible."""


class TensorGone(Error, ValueError):
    """The tensor was sent or released, or is still being written."""


class ViewsAlive(Error, BufferError):
    """Arrays or other views of a tensor's memory are alive."""


class Evicted(Error):
    """The publisher has evicted this subscriber."""


class HoldLimit(Error):
    """This subscriber holds as many messages as it may. The next one stays the next one."""


class Forked(Error, RuntimeError):
    """The object belongs to the parent of this forked process."""


class GpuError(Error):
    """The driver of the GPUs is missing, does not see a GPU, or refuses a call."""


class SystemCallFailed(Error, OSError):
    """The kernel refused a system call."""
