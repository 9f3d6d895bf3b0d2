"""POSIX shared memory objects of a client, and their registration."""

import itertools
import os

import numpy as np
import tritonclient.utils.shared_memory as shm

counter = itertools.count()


def fresh(what="region"):
    """Returns a unique name."""
    return f"slipring-{os.getpid()}-{next(counter)}-{what}"


class Region:
    """A registered object of shared memory, removed at the end of `with`."""

    def __init__(self, front, size, offset=0, object_size=None, register=True):
        self.front = front
        self.size = size
        self.offset = offset
        self.name = fresh()
        self.key = "/" + fresh("key")
        self.handle = shm.create_shared_memory_region(
            self.name, self.key, object_size or offset + size, create_only=True
        )
        self.registered = False
        if register:
            front.register_system_shared_memory(self.name, self.key, size, offset)
            self.registered = True

    @property
    def path(self):
        return "/dev/shm" + self.key

    @property
    def memory(self):
        """Returns the bytes of the region and of the object behind it."""
        return self.handle._mpsm_handle.buf[self.offset :]

    def write(self, at, data):
        self.memory[at : at + len(data)] = data

    def read(self, at, size):
        return bytes(self.memory[at : at + size])

    def array(self, dtype, shape, offset=0):
        """Returns a copy of the tensor at this place; BYTES as `object`."""
        return np.array(shm.get_contents_as_numpy(self.handle, dtype, shape, self.offset + offset))

    def close(self):
        if self.registered:
            self.front.unregister_system_shared_memory(self.name)
        try:
            shm.destroy_shared_memory_region(self.handle)
        except FileNotFoundError:
            pass  # a test unlinked it

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
