"""Process groups of torch and of vLLM."""

from __future__ import annotations

import sys
from typing import Any


def own_rank() -> int | None:
    """Returns this process's rank in torch's default group, if it is in one."""
    torch = sys.modules.get("torch")
    dist: Any = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    rank: int = dist.get_rank()
    return rank


def _is_of_torch(pg: Any) -> bool:
    from torch.distributed import ProcessGroup

    return isinstance(pg, ProcessGroup)


def place(pg: Any) -> tuple[int, int]:
    """Returns the rank of this process in a group, and the group's size."""
    if not _is_of_torch(pg):
        return pg.rank, pg.world_size
    import torch.distributed as dist

    return dist.get_rank(pg), dist.get_world_size(pg)


def near(pg: Any, rank: int) -> list[bool]:
    """Returns for each process of a group whether it is on the machine of the process of this rank. All call it."""
    from vllm.distributed.parallel_state import in_the_same_node_as

    found: list[bool] = in_the_same_node_as(pg, source_rank=rank)
    return found


def broadcast(pg: Any, item: Any, rank: int) -> Any:
    """Returns the item of the process of this rank. All processes of the group call it."""
    if not _is_of_torch(pg):
        return pg.broadcast_obj(item, rank)
    import torch.distributed as dist

    items = [item]
    dist.broadcast_object_list(items, src=dist.get_process_group_ranks(pg)[rank], group=pg)
    return items[0]


def gather(pg: Any, item: Any, rank: int) -> list[Any]:
    """Returns the items of all processes of a group in the process of this rank, and an empty list in the others."""
    import torch.distributed as dist

    items = [None] * dist.get_world_size(pg) if dist.get_rank() == rank else None
    dist.gather_object(item, items, dst=rank, group=pg)
    return items or []


def is_local(rank: int) -> bool:
    """Returns whether the process of this rank of the default group is on this machine, as vLLM counts."""
    import torch.distributed as dist
    from vllm.platforms import current_platform

    try:
        from vllm.platforms.interface import get_assigned_physical_gpu_ids
    except ImportError:
        assigned = None
    else:
        assigned = get_assigned_physical_gpu_ids()
    size: int = current_platform.device_count() if assigned is None else len(assigned)
    return bool(dist.get_rank() // size == rank // size)
