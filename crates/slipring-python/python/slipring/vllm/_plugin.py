"""The replacement of vLLM's queue: a general plugin of vLLM."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from typing import Any

logger = logging.getLogger("vllm.slipring")

_MODULE = "vllm.distributed.device_communicators.shm_broadcast"

# What switches the replacement on.
VARIABLE = "SLIPRING_VLLM"


def activate() -> bool:
    """Puts this package's queue in the place of vLLM's own in this process, if there is ``SLIPRING_VLLM=1``.

    Returns whether it has. It logs why it has not, and then changes nothing.
    """
    if os.environ.get(VARIABLE) != "1":
        return False
    import importlib

    from ._handle import Handle
    from ._queue import MessageQueue

    try:
        module = importlib.import_module(_MODULE)
        theirs, their_handle = module.MessageQueue, module.Handle
    except (ImportError, AttributeError) as error:
        logger.warning("%s is set, and vLLM's queue stays: this version has none there (%s)", VARIABLE, error)
        return False
    if theirs is MessageQueue:
        return True
    if (why := misfit(theirs, MessageQueue)) is not None:
        logger.warning("%s is set, and vLLM's queue stays: %s", VARIABLE, why)
        return False
    for name, other in list(sys.modules.items()):
        if name.partition(".")[0] == "vllm":
            for attribute, old, new in (("MessageQueue", theirs, MessageQueue), ("Handle", their_handle, Handle)):
                if getattr(other, "__dict__", {}).get(attribute) is old:
                    setattr(other, attribute, new)
    logger.info("slipring.vllm.MessageQueue is in place of vLLM's own")
    return True


def misfit(theirs: type, ours: type) -> str | None:
    """Returns why a class cannot stand in for another one, or ``None`` if it can."""
    for name, member in vars(theirs).items():
        if (name.startswith("_") and name != "__init__") or inspect.isclass(member):
            continue
        function = getattr(theirs, name)
        if not callable(function):
            continue
        if (our_function := getattr(ours, name, None)) is None:
            return f"it has {name}(), which slipring.vllm lacks"
        wanted = _parameters(function)
        # More parameters may follow, which have defaults.
        if _parameters(our_function)[: len(wanted)] != wanted:
            return f"its {name}() takes ({', '.join(wanted)}), and that of slipring.vllm other parameters"
    return None


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)
