"""The shared-memory operations: register, status, unregister; system and GPU memory; one name and all names."""

import base64
import os

import pytest
import tritonclient.utils.shared_memory as shm

from refusals import refused
from regions import Region, fresh


def test_nothing_is_registered_at_first(front):
    assert front.system_status() == {}
    assert front.cuda_status() == {}


def test_a_registered_region_is_shown_alone_and_among_all(front):
    with Region(front, 4096) as one, Region(front, 64, offset=4096) as two:
        shown_one = {one.name: (one.key, 0, 4096)}
        shown_two = {two.name: (two.key, 4096, 64)}
        assert front.system_status(one.name) == shown_one
        assert front.system_status(two.name) == shown_two
        assert front.system_status() == shown_one | shown_two
        assert front.cuda_status() == {}


def test_a_region_that_is_unregistered_is_gone(front):
    with Region(front, 64) as one, Region(front, 64) as two:
        front.unregister_system_shared_memory(one.name)
        assert list(front.system_status()) == [two.name]
        with refused(front, 404, "NOT_FOUND", f"Unable to find system shared memory region: '{one.name}'"):
            front.system_status(one.name)


def test_all_regions_are_unregistered_at_once(front):
    with Region(front, 64), Region(front, 64), Region(front, 64):
        assert len(front.system_status()) == 3
        front.unregister_system_shared_memory()
        assert front.system_status() == {}


def test_unregistering_what_is_not_there_succeeds(front):
    front.unregister_system_shared_memory("never-registered")
    front.unregister_cuda_shared_memory("never-registered")
    front.unregister_system_shared_memory()


def test_all_gpu_regions_are_unregistered_on_a_machine_without_a_gpu(front):
    front.unregister_cuda_shared_memory()
    assert front.cuda_status() == {}


def test_a_verb_of_the_other_kind_leaves_a_region_alone(front):
    with Region(front, 64) as region:
        front.unregister_cuda_shared_memory(region.name)
        front.unregister_cuda_shared_memory()
        assert list(front.system_status()) == [region.name]


def test_the_status_of_the_other_kind_says_which_kind_it_is(front):
    with Region(front, 64) as region:
        text = (
            f"The region named '{region.name}' is registered as system shared memory, not CUDA shared memory"
        )
        with refused(front, 404, "NOT_FOUND", text):
            front.cuda_status(region.name)


def test_the_status_of_an_unknown_name_is_refused(front):
    with refused(front, 404, "NOT_FOUND", "Unable to find system shared memory region: 'nobody'"):
        front.system_status("nobody")
    with refused(front, 404, "NOT_FOUND", "Unable to find cuda shared memory region: 'nobody'"):
        front.cuda_status("nobody")


def test_a_name_is_registered_once(front):
    with Region(front, 64) as region:
        text = f"shared memory region '{region.name}' already in manager"
        with refused(front, 400, "ALREADY_EXISTS", text):
            front.register_system_shared_memory(region.name, region.key, 64)
        assert list(front.system_status()) == [region.name]


def test_a_name_is_free_again_after_it_was_taken_back(front):
    with Region(front, 64) as region:
        front.unregister_system_shared_memory(region.name)
        front.register_system_shared_memory(region.name, region.key, 32, 32)
        assert front.system_status(region.name) == {region.name: (region.key, 32, 32)}


def test_an_object_may_have_any_number_of_names(front):
    with Region(front, 128) as region:
        others = [fresh() for _ in range(3)]
        for at, name in enumerate(others):
            front.register_system_shared_memory(name, region.key, 128 - 8 * at, 8 * at)
        assert len(front.system_status()) == 4
        front.unregister_system_shared_memory(others[0])
        assert front.system_status(others[2]) == {others[2]: (region.key, 16, 112)}
        front.unregister_system_shared_memory()


def test_a_key_is_told_as_it_was_given(front):
    with Region(front, 64, register=False) as region:
        bare = region.key.lstrip("/")
        front.register_system_shared_memory(region.name, bare, 64)
        assert front.system_status()[region.name][0] == bare
        front.unregister_system_shared_memory(region.name)


@pytest.mark.parametrize(
    "name",
    ["with space", "a/b", "100%", "%2e%2e", "ü-ß-漢", "a?b=c#d", "..", "a+b&c", '"quoted"', "x" * 1000, "\\"],
)
def test_any_text_is_a_name(front, name):
    if "/" in name and not front.is_grpc:
        pytest.skip("these clients do not escape a slash, and no path of the protocol has one there")
    if name == ".." and front.kind == "aio-http":
        pytest.skip("this client normalises dots in a URL by itself")
    with Region(front, 64, register=False) as region:
        front.register_system_shared_memory(name, region.key, 64)
        assert front.system_status(name) == {name: (region.key, 0, 64)}
        assert front.system_status() == {name: (region.key, 0, 64)}
        front.unregister_system_shared_memory(name)
        assert front.system_status() == {}


def test_a_key_of_nothing_is_refused(front):
    key = "/" + fresh("nothing")
    with refused(front, 500, "INTERNAL", f"Unable to open shared memory region: '{key}'"):
        front.register_system_shared_memory(fresh(), key, 64)
    assert front.system_status() == {}


@pytest.mark.parametrize(
    "key",
    ["", "/", "..", "/..", ".", "/../etc/passwd", "../etc/passwd", "/a/b", "//a", "a\0b", "/" + "k" * 256, "ü", "a b"],
)
def test_a_key_that_no_object_can_have_is_refused(front, key):
    with refused(front, 500, "INTERNAL", "Unable to open shared memory region: "):
        front.register_system_shared_memory(fresh(), key, 64)
    assert front.system_status() == {}


def test_a_symlink_a_folder_and_a_fifo_are_refused(front):
    target = fresh("target")
    names = [fresh(what) for what in ("link", "folder", "fifo")]
    paths = ["/dev/shm/" + name for name in names]
    with open("/dev/shm/" + target, "wb") as file:
        file.write(bytes(64))
    os.symlink("/dev/shm/" + target, paths[0])
    os.mkdir(paths[1])
    os.mkfifo(paths[2])
    try:
        for name in names:
            with refused(front, None, None, ""):
                front.register_system_shared_memory(fresh(), "/" + name, 64)
    finally:
        os.unlink("/dev/shm/" + target)
        os.unlink(paths[0])
        os.rmdir(paths[1])
        os.unlink(paths[2])
    assert front.system_status() == {}


def invalid_args(name):
    return f"failed to register shared memory region '{name}': invalid args"


@pytest.mark.parametrize(
    "offset, size",
    [(0, 4097), (4096, 1), (4097, 1), (4000, 100), (2**63, 1), (2**64 - 1, 1), (1, 2**64 - 1), (2**63, 2**63), (0, 2**63)],
)
def test_a_range_beyond_the_object_is_refused(front, offset, size):
    with Region(front, 4096, register=False) as region:
        with refused(front, 400, "INVALID_ARGUMENT", invalid_args(region.name)):
            front.register_system_shared_memory(region.name, region.key, size, offset)
        assert front.system_status() == {}


def test_a_region_of_no_bytes_is_refused(front):
    with Region(front, 4096, register=False) as region:
        text = f"failed to register shared memory region '{region.name}': unable to process address space"
        with refused(front, 400, "INVALID_ARGUMENT", text):
            front.register_system_shared_memory(region.name, region.key, 0)


@pytest.mark.parametrize("offset", [1, 8, 63, 4095, 4096])
def test_any_offset_is_supported_and_applied_once(front, offset):
    import numpy as np

    values = np.arange(16, dtype=np.int32).reshape(1, 16)
    with Region(front, 64, offset=offset, object_size=offset + 64) as region:
        assert front.system_status(region.name) == {region.name: (region.key, offset, 64)}
        result = front.infer("identity_int32", [front.input("INPUT0", values, "shm", region)])
        assert (result.as_numpy("OUTPUT0") == values).all()


def test_a_registration_that_fails_holds_no_descriptor(front):
    with Region(front, 64, register=False) as region:

        def fail():
            with refused(front, None, None, ""):
                front.register_system_shared_memory(region.name, region.key, 65)
            with refused(front, None, None, ""):
                front.register_system_shared_memory(region.name, "/" + fresh("nothing"), 64)

        fail()
        before = front.server.descriptors()
        for _ in range(200):
            fail()
        assert front.server.descriptors() <= before


def test_a_region_that_is_unregistered_holds_no_descriptor(front):
    with Region(front, 64) as region:
        before = front.server.descriptors()
        for _ in range(50):
            front.unregister_system_shared_memory(region.name)
            front.register_system_shared_memory(region.name, region.key, 64)
        assert front.server.descriptors() <= before


HANDLE = bytes(range(64))


def test_a_gpu_handle_is_refused_clearly_where_there_is_no_gpu(front):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU")
    handle = base64.b64encode(HANDLE)
    with refused(front, 400, "INVALID_ARGUMENT", "failed to register shared memory region: invalid args"):
        front.register_cuda_shared_memory(fresh(), handle, 0, 64)
    assert front.cuda_status() == {}


@pytest.mark.parametrize("length", [0, 1, 63, 65, 4096])
def test_a_gpu_handle_of_another_length_is_refused(front, length):
    # gRPC clients decode the base64 themselves.
    handle = base64.b64encode(bytes(length))
    text = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
    with refused(front, 400, "INVALID_ARGUMENT", "" if front.is_grpc else text):
        front.register_cuda_shared_memory(fresh(), handle, 0, 64)
    assert front.cuda_status() == {}


def test_a_name_is_needed_over_grpc(front):
    if not front.is_grpc:
        pytest.skip("HTTP has the name in its path")
    text = "'region name' is necessary to register system shared memory region"
    with refused(front, 400, "INVALID_ARGUMENT", text):
        front.register_system_shared_memory("", "/x", 64)


def test_the_clients_helpers_leave_no_region_behind(front):
    with Region(front, 64) as region:
        assert region.key in shm.mapped_shared_memory_regions()
    assert shm.mapped_shared_memory_regions() == []
