"""The message queue of vLLM over shared memory of slipring.

``MessageQueue`` and ``Handle`` have the interface of ``vllm.distributed.device_communicators.shm_broadcast``. vLLM uses
them if its processes have the environment variable ``SLIPRING_VLLM=1``: it calls ``activate`` as a general plugin.

A queue loads what it receives by ``pickle``, and so runs what the sender chose. Local readers and writers therefore
refuse processes of other users: the kernel tells the user of each peer. Remote readers trust the network, as those of
vLLM do.
"""

from ._handle import Handle
from ._plugin import activate
from ._queue import MessageQueue

__all__ = ["Handle", "MessageQueue", "activate"]
