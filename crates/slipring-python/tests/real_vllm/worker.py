"""A worker of vLLM without a model. vLLM's own executor starts it by its name."""

from __future__ import annotations

import os
import time
from typing import Any

from vllm.distributed.parallel_state import (
    ensure_model_parallel_initialized,
    get_tp_group,
    init_distributed_environment,
)
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.worker_base import WorkerBase


class Worker(WorkerBase):
    """Answers calls of the executor, and broadcasts to its group by gloo and vLLM's queue."""

    def init_device(self) -> None:
        config = self.parallel_config
        init_distributed_environment(
            config.world_size, self.rank, self.distributed_init_method, self.local_rank, "gloo"
        )
        ensure_model_parallel_initialized(config.tensor_parallel_size, 1)

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """There is none."""

    def execute_model(self, scheduler_output: Any) -> Any:
        assert type(scheduler_output).__name__ == "SchedulerOutput"
        return EMPTY_MODEL_RUNNER_OUTPUT

    def place(self) -> tuple[int, int]:
        """Returns this worker's rank and process."""
        return self.rank, os.getpid()

    def sum(self, item: Any) -> int:
        """Returns the sum of an array or a tensor."""
        return int(item.sum())

    def echo(self, item: Any) -> Any:
        return item

    def nap(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.rank

    def fail(self) -> None:
        raise ValueError(f"rank {self.rank} fails")

    def broadcast(self, item: Any) -> tuple[str, Any]:
        """Returns the class of the group's queue, and what rank 0 has broadcast by it."""
        group = get_tp_group()
        queue = type(group.mq_broadcaster)
        return f"{queue.__module__}.{queue.__name__}", group.broadcast_object(item if self.rank == 0 else None)
