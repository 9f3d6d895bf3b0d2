"""The example `triton_server` as a child process on free ports."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import threading
import time

BINARY = os.environ["SLIPRING_TRITON_SERVER"]

# Long enough for a busy machine; the server prints its addresses within milliseconds.
STARTS_WITHIN = 30


# A lookup between fork and exec of a process with threads is not safe.
PRCTL = ctypes.CDLL(None).prctl
PR_SET_PDEATHSIG = 1


def dies_with_its_parent():
    """Lets the kernel end the server when the test suite is killed."""
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A server and its two addresses."""

    def __init__(self, *options):
        self.lines = []
        command = [BINARY, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=dies_with_its_parent,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        try:
            self.http = self.address("http")
            self.grpc = self.address("grpc")
        except BaseException:
            self.stop()
            raise

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def address(self, wire):
        deadline = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < deadline:
            found = re.search(rf"{wire}\W+(127\.0\.0\.1:\d+)", "".join(self.lines), re.IGNORECASE)
            if found:
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"no {wire} address: {''.join(self.lines)!r}")

    def alive(self):
        return self.process.poll() is None

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self, what="VmRSS"):
        """Returns the memory in bytes, now (`VmRSS`) or at its peak (`VmHWM`)."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(rf"{what}:\s+(\d+) kB", status.read())[1]) * 1024

    @contextlib.contextmanager
    def watched(self, what):
        """Measures the peak growth of this memory while the body runs, sampled each millisecond."""
        before = self.memory(what)
        seen, end = [before], threading.Event()

        def look():
            while not end.wait(0.001):
                seen.append(self.memory(what))

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield lambda: max(seen) - before
        finally:
            end.set()
            watcher.join(10)

    def forget_peak(self):
        """Resets `VmHWM`."""
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as refs:
            refs.write("5")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(10)
        self.process.stdout.close()
