"""Two processes hand over 1080p frames: ``python -m slipring.demo``.

The first fills each frame and the second reads all of it, so the rate is that of the memory. The second run hands over
frames that nobody touches, so the rate is that of the hand-over.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

import slipring

SHAPE = (1080, 1920, 3)
SECONDS = 2.0


def consume(name: str) -> None:
    """Reads frames, and answers each with the time that it took to come, in nanoseconds."""
    with slipring.connect(name, retry=10.0) as link:
        for frame in link.tensors():
            came = time.monotonic_ns() - int(frame.meta["stamp"])  # type: ignore[arg-type]
            view = memoryview(frame).cast("B")
            if frame.meta["touch"]:
                bytes(view)
            link.send(came.to_bytes(8, "big"))


def run(link: slipring.Connection, touch: bool) -> None:
    """Sends frames for some seconds, and prints their rate and the time of a hand-over."""
    image = bytes(range(256)) * (SHAPE[0] * SHAPE[1] * SHAPE[2] // 256)
    times: list[int] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        frame = link.empty(SHAPE)
        if touch:
            with memoryview(frame).cast("B") as view:
                view[:] = image
        link.send_tensor(frame, meta={"stamp": time.monotonic_ns(), "touch": touch})
        times.append(int.from_bytes(bytes(link.recv(10.0)), "big"))
    times.sort()
    what = "filled and read" if touch else "handed over untouched"
    rate, middle, late = len(times) / SECONDS, times[len(times) // 2], times[len(times) * 99 // 100]
    print(f"1080p frames {what}: {rate:8.0f} /s, on the way {middle / 1e3:.1f} us (p50), {late / 1e3:.1f} us (p99)")


def main() -> int:
    """Runs both processes."""
    name = f"slipring-demo-{os.getpid()}"
    with slipring.listen(name) as listener:
        child = multiprocessing.get_context("spawn").Process(target=consume, args=(name,), daemon=True)
        child.start()
        with listener.accept(30.0) as link:
            print(f"process {os.getpid()} sends to process {link.peer.pid}")
            for touch in (True, False):
                run(link, touch)
        child.join(10.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
