"""Programs that use vLLM's own modules: `python programs.py NAME ARGUMENTS`. Each prints what it found as JSON.

The environment decides whose queue they use. The processes that they start have it, too.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = 3

# As small as vLLM's checks allow. No weights are loaded.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 128,
}

# A deadline against hangs, in seconds.
LONG = 600.0

# What waits longer has not been told, in seconds.
PATIENCE = 30.0


def queue_names() -> list[str]:
    """Returns the classes of the queue that vLLM's modules have."""
    found = set()
    for name, module in list(sys.modules.items()):
        queue = vars(module).get("MessageQueue")
        if name.partition(".")[0] == "vllm" and queue is not None:
            found.add(f"{queue.__module__}.{queue.__name__}")
    return sorted(found)


def plugin() -> Any:
    """Loads the plugins as each process of vLLM does, before and after imports of the queue."""
    import vllm.v1.executor.multiproc_executor as executor
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    import vllm.distributed.parallel_state
    import vllm.v1.executor.uniproc_executor  # noqa: F401

    return {"queues": queue_names(), "handle": executor.Handle.__module__}


def make_executor() -> Any:
    from vllm.config import ModelConfig, ParallelConfig, VllmConfig
    from vllm.plugins import load_general_plugins
    from vllm.v1.executor.abstract import Executor

    load_general_plugins()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32")
    parallel = ParallelConfig(
        tensor_parallel_size=WORKERS, distributed_executor_backend="mp", worker_cls="worker.Worker"
    )
    config = VllmConfig(model_config=model, parallel_config=parallel)
    return Executor.get_class(config)(config)


def raised(call: Any, *arguments: Any, **options: Any) -> str:
    """Returns the exception of a call."""
    try:
        return f"nothing, it returned {call(*arguments, **options)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def executor() -> Any:
    """Calls workers in the ways that vLLM's engine does, and ends in order."""
    import torch
    from vllm.v1.core.sched.output import SchedulerOutput

    made = make_executor()
    processes = [worker.proc for worker in made.workers]
    call = made.collective_rpc
    step = SchedulerOutput.make_empty()
    for _ in range(20):
        made.execute_model(step)
    times = []
    for _ in range(1000):
        start = time.perf_counter()
        made.execute_model(step)
        times.append(time.perf_counter() - start)
    ahead = [made.execute_model(step, non_block=True) for _ in range(2)]
    array = np.arange(4 << 20, dtype=np.int64)
    found = {
        "queue": f"{type(made.rpc_broadcast_mq).__module__}.{type(made.rpc_broadcast_mq).__name__}",
        "ranks": [rank for rank, _ in call("place")],
        "pids": [pid for _, pid in call("place")] == [process.pid for process in processes],
        "steps ahead": [type(future.result()).__name__ for future in ahead],
        "array": call("sum", args=(array,)) == [int(array.sum())] * WORKERS,
        "tensor": call("sum", args=(torch.ones(1 << 20),)) == [1 << 20] * WORKERS,
        "bytes": call("echo", args=(b"x" * (30 << 20),), unique_reply_rank=1) == b"x" * (30 << 20),
        "function": call(lambda worker: worker.rank),
        "broadcast": call("broadcast", args=({"step": [1, 2, 3]},)),
        "failure": raised(call, "fail", unique_reply_rank=0),
        "timeout": raised(call, "nap", args=(1.0,), timeout=0.2, unique_reply_rank=2),
        "after the timeout": call("nap", args=(0.0,), unique_reply_rank=2),
    }
    start = time.monotonic()
    made.shutdown()
    for process in processes:
        process.join(PATIENCE)
    found["exit codes"] = [process.exitcode for process in processes]
    found["shutdown"] = f"{time.monotonic() - start:.1f} s"
    found["median of a step"] = f"{statistics.median(times) * 1e6:.0f} us"
    return found


def killed_worker() -> Any:
    """Kills a worker whose answer is waited for."""
    made = make_executor()
    made.collective_rpc("place")
    told: list[float] = []
    waiting = made.collective_rpc("nap", args=(60.0,), unique_reply_rank=1, non_block=True)
    time.sleep(0.5)
    start = time.monotonic()
    made.register_failure_callback(lambda: told.append(time.monotonic() - start))
    os.kill(made.workers[1].proc.pid, signal.SIGKILL)
    answer = raised(waiting.result)
    heard = time.monotonic() - start
    # A second call meets the dead reader.
    second = raised(made.collective_rpc, "place")
    while not told and time.monotonic() - start < 30:
        time.sleep(0.1)
    return {"answer": answer, "heard": heard, "second": second, "callback": bool(told)}


def killed_executor() -> Any:
    """Prints the processes of the workers, and waits for its end."""
    made = make_executor()
    print(json.dumps([pid for _, pid in made.collective_rpc("place")]), flush=True)
    time.sleep(600)


def group() -> Any:
    """Starts members of a gloo group, and kills a reader in one run, and the writer in another."""
    return {dies: _run_group(dies) for dies in ("reader", "writer")}


def _run_group(dies: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "member", dies, f"file://{folder}/store"]
        members = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(WORKERS)
        ]
        answers = [member.communicate(timeout=LONG)[0].splitlines() for member in members]
    return [json.loads(lines[-1]) if lines else "killed" for lines in answers]


def member(dies: str, store: str, rank: str) -> Any:
    """Is a member of a group, whose rank 0 writes."""
    import threading

    import torch.distributed as dist
    from vllm.distributed.parallel_state import get_world_group, init_distributed_environment
    from vllm.distributed.parallel_state import init_model_parallel_group as make_group
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    init_distributed_environment(WORKERS, int(rank), store, 0, "gloo")
    made = make_group([list(range(WORKERS))], 0, "gloo", use_message_queue_broadcaster=True)
    heard = [made.broadcast_object({"n": n} if rank == "0" else None)["n"] for n in range(100)]
    # Ranks are those of the group: rank 0 of the second one is rank 1 of all.
    part = make_group([[0], [1, 2]], 0, "gloo", use_message_queue_broadcaster=True)
    heard.append(part.broadcast_object("part" if rank == "1" else None))
    _queue, handles = get_world_group().create_single_reader_mq_broadcasters()
    dist.barrier()
    if rank == ("0" if dies == "writer" else "2"):
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    ends: list[str] = []

    def wait() -> None:
        with suppress(EOFError):
            for _ in range(100):
                made.broadcast_object(None)
                time.sleep(0.05)
        ends.append("nothing")

    waiting = threading.Thread(target=lambda: ends.append(raised(wait)), daemon=True)
    waiting.start()
    waiting.join(PATIENCE)
    end = ends[0] if ends and not ends[0].startswith("nothing") else "nothing"
    told = {"heard": heard[-2:], "handles": len(handles), "end": end, "after": time.monotonic() - start}
    print(json.dumps(told), flush=True)
    # The other members are gone, so no group can end in order.
    os._exit(0)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
