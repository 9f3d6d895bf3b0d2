"""Runs a program as another user and with a limit of descriptors: limited.py UID LIMIT PROGRAM ARGUMENT..."""

import os
import resource
import sys

user, limit, *program = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
if int(user) != os.geteuid():
    os.setgroups([])
    os.setresgid(int(user), int(user), int(user))
    os.setresuid(int(user), int(user), int(user))
os.execv(program[0], program)
