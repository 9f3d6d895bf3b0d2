"""`examples/triton_server` as a child process: started with ports of its own choice, ended whatever happens."""

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


# Looked up here: between fork and exec of a process with threads there is little that can be done.
PRCTL = ctypes.CDLL(None).prctl
PR_SET_PDEATHSIG = 1


def dies_with_its_parent():
    """Asked of the kernel, for a suite that is killed cannot end its servers."""
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A server, and the two addresses that it printed."""

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
        """Bytes: what it has (`VmRSS`) or the most that it had (`VmHWM`)."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(rf"{what}:\s+(\d+) kB", status.read())[1]) * 1024

    @contextlib.contextmanager
    def watched(self, what):
        """By how much this memory grows at most while the body runs, as far as a look each millisecond tells."""
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
        """From here on `VmHWM` counts anew."""
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as refs:
            refs.write("5")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(10)
        self.process.stdout.close()
