"""Fetches the file of vLLM's own queue, and prints its path: `python tests/original.py`.

pip finds the published wheel, and reads this one file out of it. The file stays in a cache outside of the repository:
`SLIPRING_VLLM_CACHE`, or `~/.cache/slipring`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "0.33.0"
FILE = "vllm/distributed/device_communicators/shm_broadcast.py"

# The longest wait for the package registry, in seconds.
_PATIENCE = 120


def fetch() -> Path:
    """Returns the path of the file. Raises `OSError`, `ImportError` or `CalledProcessError` if it cannot be had."""
    folder = Path(os.environ.get("SLIPRING_VLLM_CACHE", Path.home() / ".cache" / "slipring"))
    path = folder / f"vllm-{VERSION}" / Path(FILE).name
    if path.exists():
        return path
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP
    from pip._internal.network.session import PipSession

    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
    command += ["--disable-pip-version-check", "--report", "-", f"vllm=={VERSION}"]
    report = subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE).stdout
    session = PipSession()
    session.verify = os.environ.get("PIP_CERT", session.verify)
    with LazyZipOverHTTP(json.loads(report)["install"][0]["download_info"]["url"], session) as wheel:
        text = zipfile.ZipFile(wheel).read(FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Other tests may fetch it, too.
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(text)
    part.replace(path)
    return path


if __name__ == "__main__":
    print(fetch())
