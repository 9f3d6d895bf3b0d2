"""vLLM's own queue, to test and measure this one beside it.

Its file is that of a published wheel, and is no part of this package: ``tests/original.py`` fetches it. Where vLLM or
torch are not installed, modules with the few names that the file imports stand in for them.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import sys
import tempfile
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAME = "vllm.distributed.device_communicators.shm_broadcast"

_numbers = itertools.count()


class ProcessGroup:
    """A group of torch. No test has one where torch is not installed."""


class _Filled:
    """What ``torch.frombuffer`` returns."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer

    def fill_(self, value: int) -> None:
        """Fills the memory with a byte."""
        self._buffer[:] = bytes([value]) * len(self._buffer)


def _fresh_path() -> str:
    return f"{tempfile.gettempdir()}/slipring-original-{os.getpid()}-{next(_numbers)}"


def _module(name: str, **members: Any) -> None:
    made = types.ModuleType(name)
    made.__path__ = []
    vars(made).update(members)
    sys.modules[name] = made
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, made)


def _stand_ins() -> None:
    if importlib.util.find_spec("torch") is None:
        tensor = type("Tensor", (), {})
        _module(
            "torch", uint8="uint8", dtype=type("dtype", (), {}), Tensor=tensor, frombuffer=lambda b, dtype: _Filled(b)
        )
        _module("torch.distributed", ProcessGroup=ProcessGroup, is_available=lambda: False)
    if importlib.util.find_spec("vllm") is None:
        _module("vllm")
        _module("vllm.envs", VLLM_USE_SPINLOOP_EXT=False, VLLM_RINGBUFFER_WARNING_INTERVAL=60)
        _module("vllm.logger", init_logger=logging.getLogger)
        _module("vllm.platforms", current_platform=None)
        _module("vllm.utils")
        _module("vllm.utils.cpu_resource_utils", check_cgroup_memory_available=lambda *_: None)
        _module(
            "vllm.utils.network_utils",
            get_ip=lambda: "127.0.0.1",
            get_open_zmq_inproc_path=lambda: f"inproc://{_fresh_path()}",
            get_open_zmq_ipc_path=lambda: f"ipc://{_fresh_path()}",
            is_valid_ipv6_address=lambda address: ":" in address,
        )
        _module("vllm.distributed")
        _module("vllm.distributed.utils", StatelessProcessGroup=object, sched_yield=os.sched_yield)
        _module("vllm.distributed.parallel_state", in_the_same_node_as=lambda pg, source_rank: [True] * pg.world_size)
        _module("vllm.distributed.device_communicators")


def load(path: str | Path) -> Any:
    """Returns the module of a file ``shm_broadcast.py`` of vLLM, under its own name. A second call returns the same."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    _stand_ins()
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module
