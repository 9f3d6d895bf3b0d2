"""Serves a file that hangs: hanging.py FILE. Opening it is answered, nothing else: not its state, not its close.

The mount is in a namespace of this process. Others open the file under /proc/PID/root. The end of this process lets go of
all who wait. Says "ready", or why this machine cannot do it.
"""

import ctypes
import os
import struct
import sys

import kernel

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
OPEN, INIT = 14, 26

kernel.die_with_parent()
libc = ctypes.CDLL(None, use_errno=True)
try:
    device = os.open("/dev/fuse", os.O_RDWR)
except OSError as error:
    sys.exit(print(error, flush=True))
options = f"fd={device},rootmode=100644,user_id={os.getuid()},group_id={os.getgid()},allow_other".encode()
if (
    libc.unshare(CLONE_NEWNS)
    or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    or libc.mount(b"hanging", sys.argv[1].encode(), b"fuse", 0, options)
):
    sys.exit(print(os.strerror(ctypes.get_errno()), flush=True))
print("ready", flush=True)
while True:
    request = os.read(device, 1 << 20)
    _, kind, unique = struct.unpack_from("<IIQ", request)
    if kind == INIT:
        body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 8, 8, 4096, 1, 1, 0, 0)
    elif kind == OPEN:
        body = struct.pack("<QII", 1, 0, 0)
    else:
        continue
    os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
