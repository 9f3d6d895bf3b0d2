"""`slipring.vllm` in vLLM's own processes: its plugin loader, its executor with workers, and its groups over gloo.

No model runs, and no GPU is needed. The same programs run with vLLM's own queue. `run` beside this file installs both.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/real_vllm/run installs and tests it")

HERE = Path(__file__).parent

# A deadline against hangs. A process takes 10 s of a CPU to import vLLM.
LONG = 900

QUEUES = {
    "slipring": "slipring.vllm._queue.MessageQueue",
    "original": "vllm.distributed.device_communicators.shm_broadcast.MessageQueue",
}
both = pytest.mark.parametrize("whose", QUEUES)

pytestmark = pytest.mark.timeout(2 * LONG)


def start(whose: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "SLIPRING_VLLM": "1" if whose == "slipring" else "0",
        "PYTHONPATH": str(HERE),
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "CRITICAL",
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "60",
    }
    command = [sys.executable, "-W", "ignore", str(HERE / "programs.py"), *arguments]
    return subprocess.Popen(command, env=environment | variables, stdout=subprocess.PIPE, text=True)


def run(whose: str, *arguments: str, **variables: str) -> Any:
    """Runs a program, and returns what it found."""
    with start(whose, *arguments, **variables) as process:
        try:
            lines = process.communicate(timeout=LONG)[0].splitlines()
        finally:
            process.kill()
    assert process.returncode == 0
    print(f"\n{whose}, {arguments[0]}: {lines[-1]}")
    return json.loads(lines[-1])


@both
def test_the_loader_of_plugins_decides_whose_queue_all_modules_have(whose: str) -> None:
    found = run(whose, "plugin")
    assert found["queues"] == [QUEUES[whose]]
    assert found["handle"].startswith("slipring") == (whose == "slipring")


def test_a_list_of_plugins_without_this_one_leaves_the_original() -> None:
    assert run("slipring", "plugin", VLLM_PLUGINS="another")["queues"] == [QUEUES["original"]]


@pytest.mark.parametrize(("whose", "method"), [("slipring", "spawn"), ("slipring", "fork"), ("original", "spawn")])
def test_the_executor_calls_its_workers_and_ends_in_order(whose: str, method: str) -> None:
    found = run(whose, "executor", VLLM_WORKER_MULTIPROC_METHOD=method)
    assert found["queue"] == QUEUES[whose]
    assert found["ranks"] == found["function"] == [0, 1, 2]
    assert found["pids"] and found["array"] and found["tensor"] and found["bytes"]
    assert found["steps ahead"] == ["ModelRunnerOutput"] * 2
    assert found["broadcast"] == [[QUEUES[whose], {"step": [1, 2, 3]}]] * 3
    assert "rank 0 fails" in found["failure"]
    assert found["timeout"] == "TimeoutError: RPC call to nap timed out."
    assert found["after the timeout"] == 2
    assert found["exit codes"] == [0, 0, 0]


@both
def test_the_executor_hears_of_the_death_of_a_worker(whose: str) -> None:
    found = run(whose, "killed_worker", VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS="5")
    assert found["callback"]
    if whose == "slipring":
        assert found["answer"].startswith("PeerDied: the writer, rank 1 (process ")
        # vLLM's own queue waits until the executor has ended the other workers: after a grace of 5 s.
        assert found["heard"] < 5.0


def test_the_members_of_a_group_hear_of_a_death() -> None:
    found = run("slipring", "group")
    writer, other, _ = found["reader"]
    assert (writer["heard"], other["heard"], writer["handles"]) == ([99, None], [99, "part"], 3)
    assert writer["end"].startswith("PeerDied: rank 2 (process ")
    for reader in found["writer"][1:]:
        assert reader["end"].startswith("PeerDied: the writer, rank 0 (process ")


def test_the_workers_end_with_their_executor_and_leave_nothing() -> None:
    before = set(os.listdir("/dev/shm"))
    process = start("slipring", "killed_executor")
    assert process.stdout is not None
    with process:
        workers = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        end = time.monotonic() + LONG
        while (alive := [pid for pid in workers if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end:
            time.sleep(0.1)
    assert not alive
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("psm_")]
