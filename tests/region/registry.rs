//! A registry holds named memory: the rules of registration, the life of a region, and owners that truncate or replace
//! their memory.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::census::descriptors;
use crate::support::census::limit_files;
use crate::support::other::{Other, alone, listen_for, say};
use crate::support::{pair_of, unique_name, wait_until};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use slipring::error::RegionFault;
use slipring::region::{CudaHandle, PosixShm, RegionKind, Registry, SigbusGuard, Source};
use slipring::{Context, DType, Error, ErrorKind, Tensor};

const PAGE: u64 = 4096;

fn fault<T: std::fmt::Debug>(answer: Result<T, Error>) -> RegionFault {
    match answer.unwrap_err().kind() {
        ErrorKind::Region(fault) => fault.clone(),
        kind => panic!("{kind:?}"),
    }
}

/// A key that no other test has, and whose object is gone when the test is over.
struct Key(String);

impl Key {
    fn new() -> Self {
        Self(format!("/{}", unique_name()))
    }

    fn path(&self) -> String {
        format!("/dev/shm{}", self.0)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        for suffix in ["", "-link", "-fifo"] {
            let _ = fs::remove_file(self.path() + suffix);
        }
        let _ = fs::remove_dir(self.path() + "-dir");
    }
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("slipring-test-region", flags).unwrap();
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn file(fd: impl AsFd) -> File {
    fd.as_fd().try_clone_to_owned().unwrap().into()
}

/// Mappings of objects that tests have made.
fn mapped(what: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(what)).count()
}

/// A registry with one region of a fresh POSIX object.
fn registered(len: u64) -> (Registry, PosixShm) {
    let object = PosixShm::create(&format!("/{}", unique_name()), len).unwrap();
    let registry = Registry::new().unwrap();
    registry.register("region", Source::Posix(object.key()), 0, len).unwrap();
    (registry, object)
}

#[test]
fn what_one_side_writes_the_other_reads() {
    let (registry, object) = registered(3 * PAGE);
    let lease = registry.lease("region", 100, 5000).unwrap();
    assert_eq!((lease.name(), lease.offset(), lease.len()), ("region", 100, 5000));
    object.write_at(100, &[1; 5000]).unwrap();
    let mut bytes = [0; 5000];
    lease.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 5000]);
    lease.write_at(4999, &[2]).unwrap();
    let mut bytes = [0; 3];
    object.read_at(5098, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 0]);
}

#[test]
fn the_offset_of_a_region_is_applied_once_and_may_be_any() {
    let (registry, object) = registered(3 * PAGE);
    let content: Vec<u8> = (0..3 * PAGE).map(|at| (at % 251) as u8).collect();
    object.write_at(0, &content).unwrap();
    for offset in [0, 1, 64, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 4000] {
        let name = format!("at {offset}");
        registry.register(&name, Source::Posix(object.key()), offset, 96).unwrap();
        let lease = registry.lease(&name, 32, 8).unwrap();
        let mut bytes = [0; 8];
        lease.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, content[offset as usize + 32..][..8]);
    }
}

#[test]
fn an_access_outside_of_the_lease_is_refused_with_both_numbers() {
    let (registry, _object) = registered(100);
    let over = RegionFault::Range { offset: 60, len: 41, size: 100 };
    assert_eq!(fault(registry.lease("region", 60, 41)), over);
    let behind = RegionFault::Offset { offset: 101, size: 100 };
    assert_eq!(fault(registry.lease("region", 101, 0)), behind);
    let wraps = RegionFault::Overflow { offset: 64, len: u64::MAX - 31 };
    assert_eq!(fault(registry.lease("region", 64, u64::MAX - 31)), wraps);

    let lease = registry.lease("region", 60, 40).unwrap();
    assert!(registry.lease("region", 100, 0).unwrap().is_empty());
    let over = RegionFault::Range { offset: 33, len: 8, size: 40 };
    assert_eq!(fault(lease.read_at(33, &mut [0; 8])), over);
    assert_eq!(fault(lease.write_at(33, &[0; 8])), over);
    let wraps = RegionFault::Overflow { offset: u64::MAX, len: 8 };
    assert_eq!(fault(lease.read_at(u64::MAX, &mut [0; 8])), wraps);
    lease.read_at(32, &mut [0; 8]).unwrap();
    lease.read_at(40, &mut []).unwrap();
}

#[test]
fn a_region_beyond_its_object_is_refused() {
    let object = PosixShm::create(&format!("/{}", unique_name()), 100).unwrap();
    let registry = Registry::new().unwrap();
    let register =
        |offset, len| fault(registry.register("r", Source::Posix(object.key()), offset, len));
    assert_eq!(register(0, 101), RegionFault::Range { offset: 0, len: 101, size: 100 });
    assert_eq!(register(99, 2), RegionFault::Range { offset: 99, len: 2, size: 100 });
    assert_eq!(register(101, 1), RegionFault::Offset { offset: 101, size: 100 });
    let wraps = RegionFault::Overflow { offset: 64, len: u64::MAX - 31 };
    assert_eq!(register(64, u64::MAX - 31), wraps);
    assert_eq!(register(0, 0), RegionFault::Empty);
    assert!(registry.statuses().unwrap().is_empty());
}

#[test]
fn a_name_is_registered_once_whatever_its_kind() {
    let (registry, object) = registered(64);
    let exists = RegionFault::Exists { name: "region".to_owned() };
    let again = registry.register("region", Source::Posix(object.key()), 0, 64);
    assert_eq!(fault(again), exists);
    let handle = CudaHandle { raw: [9; 64], device: 1 };
    assert_eq!(fault(registry.register("region", Source::Cuda(handle), 0, 64)), exists);
    // A taken name is told before anything is opened.
    assert_eq!(fault(registry.register("region", Source::Posix("/no such"), 0, 64)), exists);
    assert_eq!(fault(registry.register("", Source::Cuda(handle), 0, 64)), RegionFault::NameEmpty);
    let long = registry.register(&"n".repeat(1025), Source::Cuda(handle), 0, 64);
    assert_eq!(fault(long), RegionFault::NameTooLong { len: 1025, max: 1024 });
    // A second name of the same object is fine.
    registry.register("second", Source::Posix(object.key()), 32, 32).unwrap();
}

#[test]
fn a_hostile_key_is_refused_and_leaves_nothing_open() {
    let test = "a_hostile_key_is_refused_and_leaves_nothing_open";
    let key = Key::new();
    let mut other = Other::start(test, &key.0, |key| {
        let registry = Registry::new().unwrap();
        let before = descriptors();
        let path = format!("/dev/shm{key}");
        fs::create_dir_all(format!("{path}-dir")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", format!("{path}-link")).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, format!("{path}-fifo"), mode).unwrap();

        let register = |key: &str| fault(registry.register("r", Source::Posix(key), 0, 1));
        for key in ["/../../etc/passwd", "//etc/passwd", "x/y", "a\0b", "/dev/shm/x", "a\nb"] {
            let refused = register(key);
            assert!(matches!(refused, RegionFault::KeyCharacter { .. }), "{key:?}: {refused:?}");
        }
        for key in ["", "/", ".", "..", "/.."] {
            assert_eq!(register(key), RegionFault::KeyNamesNothing { key: key.to_owned() });
        }
        let long = "k".repeat(300);
        assert_eq!(register(&long), RegionFault::KeyTooLong { len: 300, max: 255 });
        for suffix in ["-dir", "-link", "-none"] {
            let key = format!("{key}{suffix}");
            assert_eq!(register(&key), RegionFault::Open { key: key.clone() });
        }
        let expected = "a regular file on tmpfs";
        assert_eq!(register(&format!("{key}-fifo")), RegionFault::NotThat { expected });

        // Descriptors, too, are what they are said to be.
        let (null, disk) =
            (File::open("/dev/null").unwrap(), File::open("/proc/self/exe").unwrap());
        let (pipe, _end) = std::io::pipe().unwrap();
        for fd in [null.as_fd(), disk.as_fd(), pipe.as_fd()] {
            let expected = "a memfd on tmpfs";
            assert_eq!(
                fault(registry.register("r", Source::Memfd(fd), 0, 1)),
                RegionFault::NotThat { expected }
            );
        }
        let plain = memfd(64, SealFlags::empty());
        for fd in [null.as_fd(), plain.as_fd()] {
            let expected = "a dmabuf";
            assert_eq!(
                fault(registry.register("r", Source::Dmabuf(fd), 0, 1)),
                RegionFault::NotThat { expected }
            );
        }
        let own = format!("/proc/self/fd/{}", plain.as_raw_fd());
        for flags in [OFlags::PATH, OFlags::WRONLY, OFlags::RDWR | OFlags::APPEND] {
            let fd = rustix::fs::open(&own, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let refused = fault(registry.register("r", Source::Memfd(fd.as_fd()), 0, 1));
            assert!(matches!(refused, RegionFault::AccessMode { .. }), "{flags:?}: {refused:?}");
        }
        let beyond = registry.register("r", Source::Memfd(plain.as_fd()), 0, 65);
        assert_eq!(fault(beyond), RegionFault::Range { offset: 0, len: 65, size: 64 });
        drop((null, disk, pipe, plain, _end));
        assert_eq!(descriptors(), before, "descriptors stay open after refusals");
    });
    other.succeeds();
}

#[test]
fn an_error_never_follows_a_link_or_names_more_than_the_key() {
    let key = Key::new();
    std::os::unix::fs::symlink("/etc/passwd", key.path()).unwrap();
    let registry = Registry::new().unwrap();
    let error = registry.register("r", Source::Posix(&key.0), 0, 1).unwrap_err();
    let text = format!("{error:#}");
    let start = format!("shared memory object {:?} cannot be opened: ", key.0);
    assert!(text.starts_with(&start), "{text}");
    assert!(!text.contains("/dev/shm") && !text.contains("passwd"), "{text}");
}

#[test]
fn regions_of_one_object_share_its_descriptor() {
    let test = "regions_of_one_object_share_its_descriptor";
    let mut other = Other::start(test, "", |_| {
        let registry = Registry::new().unwrap();
        let fd = memfd(PAGE, SealFlags::SHRINK);
        let before = descriptors();
        for name in ["a", "b", "c"] {
            registry.register(name, Source::Memfd(fd.as_fd()), 0, PAGE).unwrap();
        }
        assert_eq!(descriptors(), before + 1);
        registry.unregister("a").unwrap();
        registry.lease("b", 0, 8).unwrap().write_at(0, &[7; 8]).unwrap();
        registry.unregister("b").unwrap();
        let mut bytes = [0; 8];
        registry.lease("c", 0, 8).unwrap().read_at(0, &mut bytes).unwrap();
        assert_eq!((bytes, registry.unregister("c").unwrap()), ([7; 8], 0));
        assert_eq!(descriptors(), before);
    });
    other.succeeds();
}

#[test]
fn unregistering_a_leased_region_refuses_new_users_and_ends_with_the_last() {
    let test = "unregistering_a_leased_region_refuses_new_users_and_ends_with_the_last";
    let mut other = Other::start(test, "", |_| {
        let registry = Registry::new().unwrap();
        let before = descriptors();
        let fd = memfd(PAGE, SealFlags::SHRINK);
        registry.register("r", Source::Memfd(fd.as_fd()), 0, PAGE).unwrap();
        drop(fd);
        assert_eq!(descriptors(), before + 1);
        let (first, second) =
            (registry.lease("r", 0, 8).unwrap(), registry.lease("r", 8, 8).unwrap());
        assert_eq!(registry.status("r").unwrap().leases, 2);
        assert_eq!(first.bytes().unwrap().len(), 8);
        assert_eq!(mapped("slipring-test-region"), 1);

        assert_eq!(registry.unregister("r").unwrap(), 2);
        let unknown = RegionFault::Unknown { name: "r".to_owned() };
        assert_eq!(fault(registry.lease("r", 0, 8)), unknown);
        assert_eq!(fault(registry.status("r")), unknown);
        assert_eq!(fault(registry.unregister("r")), unknown);
        assert!(registry.statuses().unwrap().is_empty());
        let going: Vec<_> = registry.going_away().unwrap();
        assert_eq!((going.len(), going[0].leases, going[0].going_away), (1, 2, true));

        // The name is free at once; the old memory stays with its leases.
        let fd = memfd(PAGE, SealFlags::empty());
        file(&fd).write_at(&[5; 8], 0).unwrap();
        registry.register("r", Source::Memfd(fd.as_fd()), 0, PAGE).unwrap();
        let (mut old, mut new) = ([1; 8], [1; 8]);
        first.read_at(0, &mut old).unwrap();
        registry.lease("r", 0, 8).unwrap().read_at(0, &mut new).unwrap();
        assert_eq!((old, new), ([0; 8], [5; 8]));
        assert_eq!(registry.unregister("r").unwrap(), 0);
        drop(fd);

        drop(first);
        second.write_at(0, b"still ok").unwrap();
        assert_eq!(descriptors(), before + 1);
        drop(second);
        assert_eq!((descriptors(), mapped("slipring-test-region")), (before, 0));
        assert!(registry.going_away().unwrap().is_empty());
    });
    other.succeeds();
}

#[test]
fn a_clone_of_a_lease_is_one_more_lease_of_the_same_bytes() {
    let (registry, object) = registered(64);
    object.write_at(0, &[3; 64]).unwrap();
    let lease = registry.lease("region", 8, 16).unwrap();
    let clone = lease.clone();
    assert_eq!(registry.status("region").unwrap().leases, 2);
    assert_eq!((clone.offset(), clone.len()), (lease.offset(), lease.len()));
    registry.unregister("region").unwrap();
    drop(lease);
    let mut bytes = [0; 16];
    clone.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 16]);
    assert!(clone.read_at(1, &mut bytes).is_err(), "no more than the lease's own bytes");
}

#[test]
fn leases_outlive_their_registry() {
    let (registry, object) = registered(64);
    object.write_at(0, &[3; 64]).unwrap();
    let lease = registry.lease("region", 0, 64).unwrap();
    assert!(!lease.status().going_away);
    let clone = registry.clone();
    drop(registry);
    assert!(clone.lease("region", 0, 1).is_ok());
    drop(clone);
    assert!(lease.status().going_away);
    let mut bytes = [0; 64];
    lease.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 64]);
}

#[test]
fn an_unlinked_object_stays_usable() {
    let (registry, object) = registered(64);
    let key = object.key().to_owned();
    object.write_at(0, &[3; 64]).unwrap();
    object.unlink().unwrap();
    let lease = registry.lease("region", 0, 64).unwrap();
    let mut bytes = [0; 64];
    lease.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 64]);
    assert_eq!(registry.status("region").unwrap().key, Some(key));
}

#[test]
fn status_tells_what_was_registered_and_unregistering_goes_by_kind() {
    let (registry, object) = registered(128);
    let sealed = memfd(PAGE, SealFlags::SHRINK);
    registry.register("a memfd", Source::Memfd(sealed.as_fd()), 1, 32).unwrap();
    let handle = CudaHandle { raw: [7; 64], device: 3 };
    registry.register("gpu", Source::Cuda(handle), 0, 1 << 40).unwrap();
    registry.register("second", Source::Posix(object.key()), 64, 64).unwrap();

    let names: Vec<String> =
        registry.statuses().unwrap().into_iter().map(|status| status.name).collect();
    assert_eq!(names, ["a memfd", "gpu", "region", "second"]);
    let second = registry.status("second").unwrap();
    assert_eq!(second.kind, RegionKind::Posix);
    assert_eq!(second.key.as_deref(), Some(object.key()));
    assert_eq!((second.offset, second.len, second.leases), (64, 64, 0));
    assert!(second.writable && !second.sealed && !second.going_away);
    let gpu = registry.status("gpu").unwrap();
    assert_eq!((gpu.kind, gpu.device, gpu.key), (RegionKind::Cuda, Some(3), None));
    assert!(registry.status("a memfd").unwrap().sealed);

    let other_kind = RegionFault::OtherKind {
        name: "gpu".to_owned(),
        is: "CUDA shared memory",
        wanted: "system shared memory",
    };
    assert_eq!(fault(registry.unregister_of(RegionKind::Posix, "gpu")), other_kind);
    assert_eq!(
        registry.unregister_all(RegionKind::Posix).unwrap(),
        [("region".to_owned(), 0), ("second".to_owned(), 0)]
    );
    assert!(registry.unregister_all(RegionKind::Posix).unwrap().is_empty());
    assert_eq!(registry.unregister_of(RegionKind::Cuda, "gpu").unwrap(), 0);
    assert_eq!(registry.statuses().unwrap().len(), 1);
}

#[test]
fn memory_of_a_gpu_is_data_and_not_reached() {
    let registry = Registry::new().unwrap();
    let handle = CudaHandle { raw: [7; 64], device: 0 };
    registry.register("gpu", Source::Cuda(handle), 256, 1024).unwrap();
    let lease = registry.lease("gpu", 64, 64).unwrap();
    assert_eq!(lease.cuda_handle(), Some(handle));
    assert_eq!((lease.offset(), lease.len()), (64, 64));
    let out_of_reach = RegionFault::OutOfReach { kind: "CUDA shared memory" };
    assert_eq!(fault(lease.read_at(0, &mut [0; 8])), out_of_reach);
    assert_eq!(fault(lease.write_at(0, &[0; 8])), out_of_reach);
    assert_eq!(fault(lease.in_place(|_| ())), out_of_reach);
    assert_eq!(fault(lease.bytes()), out_of_reach);
    assert!(!format!("{handle:?}").contains('7'));
}

#[test]
fn limits_are_met_with_both_numbers_and_given_back() {
    let object = PosixShm::create(&format!("/{}", unique_name()), 1000).unwrap();
    let registry = Registry::with_limits(3, 1500).unwrap();
    let register = |name: &str, len| registry.register(name, Source::Posix(object.key()), 0, len);
    register("a", 1000).unwrap();
    let bytes = RegionFault::TooManyBytes { used: 1000, needed: 501, limit: 1500 };
    assert_eq!(fault(register("b", 501)), bytes);
    register("b", 500).unwrap();
    let gpu = CudaHandle { raw: [0; 64], device: 0 };
    registry.register("gpu", Source::Cuda(gpu), 0, u64::MAX).unwrap();
    let count = RegionFault::TooManyRegions { count: 3, limit: 3 };
    assert_eq!(fault(registry.register("c", Source::Cuda(gpu), 0, 1)), count);

    // A region that goes away counts until it is gone.
    let lease = registry.lease("a", 0, 1).unwrap();
    assert_eq!(registry.unregister("a").unwrap(), 1);
    assert_eq!(fault(register("c", 1)), count);
    drop(lease);
    register("c", 1000).unwrap();
}

#[test]
fn regions_that_fill_a_registry_leave_its_leases_to_an_honest_peer() {
    let object = PosixShm::create(&format!("/{}", unique_name()), 4096).unwrap();
    // Nobody touches its pages, so it takes no memory.
    let all = 64u64 << 30;
    let long = rustix::fs::memfd_create("slipring-test-region", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&long, all).unwrap();
    let registry = Registry::new().unwrap();
    registry.register("honest", Source::Posix(object.key()), 0, 4096).unwrap();
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let mut honest = |round: u8| {
        let lease = registry.lease("honest", 64, 8).unwrap();
        lease.write_at(0, &[round; 8]).unwrap();
        near.send_tensor(Tensor::in_region(lease, DType::Uint8, [8]).unwrap()).unwrap();
        let tensor = far.recv_tensor().unwrap().unwrap().resolve(&registry).unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), [round; 8]);
    };
    let register = |name: &str, len| registry.register(name, Source::Memfd(long.as_fd()), 0, len);
    assert_eq!(
        fault(register("long", all)),
        RegionFault::TooManyBytes { used: 4096, needed: all, limit: all }
    );
    register("long", all - 4096).unwrap();
    assert!(matches!(fault(register("byte", 1)), RegionFault::TooManyBytes { .. }));
    honest(1);
    // Memory of a GPU has no bytes and no descriptors.
    let gpu = CudaHandle { raw: [0; 64], device: 0 };
    for number in 2..1024 {
        registry.register(&number.to_string(), Source::Cuda(gpu), 0, 1).unwrap();
        if number % 100 == 0 {
            honest(number as u8);
        }
    }
    let count = RegionFault::TooManyRegions { count: 1024, limit: 1024 };
    assert_eq!(fault(registry.register("more", Source::Cuda(gpu), 0, 1)), count);
    honest(3);
    registry.unregister("long").unwrap();
    register("long", 1).unwrap();
    honest(4);
}

#[test]
fn a_region_that_may_only_be_read_says_so() {
    let key = Key::new();
    fs::write(key.path(), [6; 64]).unwrap();
    let read_only = File::open(key.path()).unwrap();
    let sealed = memfd(PAGE, SealFlags::SHRINK | SealFlags::WRITE);
    let late = memfd(PAGE, SealFlags::empty());
    let registry = Registry::new().unwrap();
    registry.register("fd", Source::Memfd(read_only.as_fd()), 0, 64).unwrap();
    registry.register("sealed", Source::Memfd(sealed.as_fd()), 0, PAGE).unwrap();
    registry.register("late", Source::Memfd(late.as_fd()), 0, PAGE).unwrap();
    assert!(registry.status("late").unwrap().writable);
    rustix::fs::fcntl_add_seals(&late, SealFlags::WRITE).unwrap();
    for name in ["fd", "sealed", "late"] {
        let lease = registry.lease(name, 0, 64).unwrap();
        assert!(!lease.status().writable, "{name}");
        assert_eq!(fault(lease.write_at(0, &[1])), RegionFault::ReadOnly, "{name}");
        assert_eq!(fault(lease.in_place_mut(|_| ())), RegionFault::ReadOnly, "{name}");
        lease.read_at(0, &mut [0; 64]).unwrap();
    }
    // A key is opened to read where its mode allows no more; root may write everywhere.
    if !rustix::process::geteuid().is_root() {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        fs::set_permissions(key.path(), mode).unwrap();
        registry.register("mode", Source::Posix(&key.0), 0, 64).unwrap();
        let lease = registry.lease("mode", 0, 64).unwrap();
        assert_eq!(fault(lease.write_at(0, &[1])), RegionFault::ReadOnly);
    }
}

#[test]
fn sealed_memory_is_read_and_written_in_place() {
    let fd = memfd(2 * PAGE, SealFlags::SHRINK | SealFlags::GROW);
    let registry = Registry::new().unwrap();
    registry.register("r", Source::Memfd(fd.as_fd()), 100, 5000).unwrap();
    let lease = registry.lease("r", 10, 4990).unwrap();
    let content: Vec<u8> = (0..4990u32).map(|at| (at % 251) as u8).collect();
    lease.in_place_mut(|room| room.copy_from(&content)).unwrap();
    assert_eq!(lease.in_place(|bytes| bytes.to_vec()).unwrap(), content);
    let bytes = lease.bytes().unwrap();
    assert_eq!(bytes.to_vec(), content);
    lease.write_at(1000, &[0xAA; 8]).unwrap();
    assert_eq!(bytes.slice(1000, 8).to_vec(), [0xAA; 8]);
    let mut there = [0; 4];
    file(&fd).read_at(&mut there, 110).unwrap();
    assert_eq!(there, content[..4]);
}

#[test]
fn memory_that_can_be_truncated_is_not_touched_without_the_guard() {
    let sparse = memfd(PAGE, SealFlags::empty());
    rustix::fs::ftruncate(&sparse, 8 * PAGE).unwrap();
    rustix::fs::fcntl_add_seals(&sparse, SealFlags::SHRINK).unwrap();
    let (registry, _object) = registered(PAGE);
    let test = "memory_that_can_be_truncated_is_not_touched_without_the_guard";
    // In a process of its own, where nobody installs it.
    let mut other = Other::start(test, "", |_| {
        registry.register("sparse", Source::Memfd(sparse.as_fd()), 0, 8 * PAGE).unwrap();
        for name in ["region", "sparse"] {
            let lease = registry.lease(name, 0, 64).unwrap();
            assert!(!SigbusGuard::is_installed());
            assert_eq!(fault(lease.in_place(|_| ())), RegionFault::Unguarded);
            assert_eq!(fault(lease.in_place_mut(|_| ())), RegionFault::Unguarded);
            assert_eq!(fault(lease.bytes()), RegionFault::Unsealed);
            lease.read_at(0, &mut [0; 64]).unwrap();
        }
        // The part of a sparse object that is there can be registered alone.
        registry.register("there", Source::Memfd(sparse.as_fd()), 0, PAGE).unwrap();
        assert!(registry.lease("there", 0, 8).unwrap().bytes().is_ok());
        drop((registry, _object));
    });
    other.succeeds();
}

#[test]
fn a_truncated_object_is_an_error_with_both_numbers() {
    let (registry, object) = registered(4 * PAGE);
    let lease = registry.lease("region", PAGE, 2 * PAGE).unwrap();
    let mut bytes = vec![0; 2 * PAGE as usize];
    rustix::fs::ftruncate(&object, 2 * PAGE).unwrap();
    let truncated = RegionFault::Truncated { there: PAGE, len: 2 * PAGE };
    assert_eq!(fault(lease.read_at(0, &mut bytes)), truncated);
    assert_eq!(fault(lease.write_at(0, &bytes)), truncated);
    // Memory that is there can be used. Memory that is gone is not made anew.
    lease.write_at(0, &[1; 64]).unwrap();
    rustix::fs::ftruncate(&object, 0).unwrap();
    let truncated = RegionFault::Truncated { there: 0, len: 64 };
    assert_eq!(fault(lease.write_at(0, &[1; 64])), truncated);
    assert_eq!(fault(lease.read_at(0, &mut bytes[..64])), truncated);
    assert_eq!(rustix::fs::fstat(&object).unwrap().st_size, 0);
    // It heals with its object.
    rustix::fs::ftruncate(&object, 4 * PAGE).unwrap();
    lease.read_at(0, &mut bytes).unwrap();
}

/// In the other process: an object that is truncated and restored at full speed.
fn shake(key: &str) {
    let object = PosixShm::create(key, 64 * PAGE).unwrap();
    say("there");
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                rustix::fs::ftruncate(&object, 3 * PAGE).unwrap();
                rustix::fs::ftruncate(&object, 64 * PAGE).unwrap();
            }
        });
        listen_for("stop");
        stopped.store(true, Ordering::Relaxed);
    });
}

/// Runs `access` until it has met both a whole object and a truncated one, and that often.
fn until_both(access: impl Fn() -> Result<(), Error>) {
    let (mut whole, mut cut) = (0, 0);
    wait_until("a whole and a truncated object", || {
        for _ in 0..100 {
            match access() {
                Ok(()) => whole += 1,
                Err(error) => match error.kind() {
                    ErrorKind::Region(
                        RegionFault::Truncated { .. } | RegionFault::TruncatedInPlace { .. },
                    ) => cut += 1,
                    kind => panic!("{kind:?}"),
                },
            }
        }
        whole > 20 && cut > 20
    });
}

#[test]
fn an_object_that_is_truncated_while_it_is_copied_costs_an_error() {
    let key = Key::new();
    let test = "an_object_that_is_truncated_while_it_is_copied_costs_an_error";
    let mut other = Other::start(test, &key.0, shake);
    other.expect("there");
    let registry = Registry::new().unwrap();
    let register = || registry.register("r", Source::Posix(&key.0), 0, 64 * PAGE);
    wait_until("a moment when it is whole", || register().is_ok());
    let lease = registry.lease("r", 0, 64 * PAGE).unwrap();
    until_both(|| lease.read_at(0, &mut vec![0; 64 * PAGE as usize]));
    until_both(|| lease.write_at(0, &vec![0; 64 * PAGE as usize]));
    other.tell("stop");
    other.succeeds();
}

#[test]
fn threads_lease_while_another_unregisters_and_nothing_is_left() {
    let test = "threads_lease_while_another_unregisters_and_nothing_is_left";
    let mut other = Other::start(test, "", |_| {
        // Three leases at a time keep regions that go away.
        let registry = Registry::with_limits(8, 8 * PAGE).unwrap();
        let fd = memfd(PAGE, SealFlags::SHRINK);
        file(&fd).write_at(&[4; 64], 0).unwrap();
        let before = descriptors();
        let (rounds, used) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let stopped = AtomicBool::new(false);
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for thread in 0..3 {
                let (registry, used) = (registry.clone(), &used);
                let (stopped, start) = (&stopped, &start);
                scope.spawn(move || {
                    start.wait();
                    while !stopped.load(Ordering::Relaxed) {
                        let Ok(lease) = registry.lease("r", 0, 64) else { continue };
                        let mut bytes = [0; 64];
                        match thread {
                            0 => lease.read_at(0, &mut bytes).unwrap(),
                            1 => lease.in_place(|view| view.copy_to(&mut bytes)).unwrap(),
                            _ => lease.bytes().unwrap().copy_to(&mut bytes),
                        }
                        assert_eq!(bytes, [4; 64]);
                        used.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            start.wait();
            let (mut done, mut leased) = (0, 0);
            while rounds.fetch_add(1, Ordering::Relaxed) < 3000 || leased < 20 || done < 20 {
                registry.register("r", Source::Memfd(fd.as_fd()), 0, PAGE).unwrap();
                thread::yield_now();
                match registry.unregister("r").unwrap() {
                    0 => done += 1,
                    _ => leased += 1,
                }
                let _ = registry.going_away().unwrap();
            }
            stopped.store(true, Ordering::Relaxed);
        });
        assert!(used.load(Ordering::Relaxed) > 0);
        assert!(registry.going_away().unwrap().is_empty());
        assert_eq!((descriptors(), mapped("slipring-test-region")), (before, 0));
        // Nor of the limits.
        for number in 0..8 {
            let name = number.to_string();
            registry.register(&name, Source::Memfd(fd.as_fd()), 0, PAGE).unwrap();
        }
    });
    other.succeeds();
}

#[test]
fn a_forked_child_finds_its_parents_regions_closed() {
    let test = "a_forked_child_finds_its_parents_regions_closed";
    let key = Key::new();
    let mut other = Other::start(test, &key.0, |key| {
        let object = PosixShm::create(key, PAGE).unwrap();
        let registry = Registry::new().unwrap();
        registry.register("r", Source::Posix(key), 0, PAGE).unwrap();
        let lease = registry.lease("r", 0, 8).unwrap();
        let mut held = Some((registry, object, lease));
        let forked = |answer: Result<(), Error>| *answer.unwrap_err().kind() == ErrorKind::Forked;
        let status = crate::support::other::fork(|| {
            let (registry, object, lease) = held.take().unwrap();
            assert!(forked(registry.lease("r", 0, 8).map(drop)));
            assert!(forked(registry.unregister("r").map(drop)));
            assert!(forked(lease.read_at(0, &mut [0; 8])));
            assert!(forked(lease.in_place(|_| ())));
            // A drop in the child takes nothing from the parent.
            drop((lease, object, registry));
        });
        assert_eq!(status, 0);
        assert!(fs::exists(format!("/dev/shm{key}")).unwrap());
    });
    other.succeeds();
}

#[test]
fn an_object_of_ours_is_private_whole_and_gone_with_its_handle() {
    let key = Key::new();
    let object = PosixShm::create(&key.0, 3 * PAGE + 1).unwrap();
    assert_eq!((object.key(), object.len()), (key.0.as_str(), 3 * PAGE + 1));
    let stat = rustix::fs::fstat(&object).unwrap();
    assert_eq!(stat.st_mode & 0o777, 0o600);
    assert_eq!(stat.st_blocks as u64 * 512, 4 * PAGE);
    let flags = rustix::io::fcntl_getfd(&object).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));

    let taken = PosixShm::create(&key.0, 64);
    assert_eq!(fault(taken), RegionFault::Create { key: key.0.clone() });
    assert_eq!(
        fault(PosixShm::create("/a/b", 64)),
        RegionFault::KeyCharacter { character: '/', at: 2 }
    );
    assert_eq!(fault(PosixShm::create("x", 0)), RegionFault::Empty);
    let over = RegionFault::Range { offset: 3 * PAGE, len: 2, size: 3 * PAGE + 1 };
    assert_eq!(fault(object.write_at(3 * PAGE, &[0; 2])), over);

    // Somebody else's object under the same key is left alone.
    fs::remove_file(key.path()).unwrap();
    fs::write(key.path(), "other").unwrap();
    drop(object);
    assert_eq!(fs::read(key.path()).unwrap(), b"other");
    fs::remove_file(key.path()).unwrap();
    drop(PosixShm::create(&key.0, 64).unwrap());
    assert!(!fs::exists(key.path()).unwrap());

    let too_much = PosixShm::create(&key.0, 1 << 60).unwrap_err();
    assert_eq!(*too_much.kind(), ErrorKind::OutOfMemory { bytes: 1 << 60 });
    assert!(!fs::exists(key.path()).unwrap(), "a failed creation leaves its name");
}

#[test]
fn what_is_registered_stays_the_callers() {
    let fd = memfd(PAGE, SealFlags::empty());
    let registry = Registry::new().unwrap();
    let borrowed: BorrowedFd<'_> = fd.as_fd();
    registry.register("r", Source::Memfd(borrowed), 0, PAGE).unwrap();
    assert_eq!(registry.unregister("r").unwrap(), 0);
    file(fd).write_at(b"still open", 0).unwrap();
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    alone("a_limit_on_the_size_of_files_is_an_error_and_no_signal", || {
        let (registry, object) = registered(3 * PAGE);
        let lease = registry.lease("region", 0, 3 * PAGE).unwrap();
        let refused = |answer: Result<(), slipring::Error>| {
            let expected = ErrorKind::FileSizeLimit { bytes: 3 * PAGE, limit: 2 * PAGE };
            assert_eq!(*answer.unwrap_err().kind(), expected);
        };
        limit_files(2 * PAGE);
        refused(PosixShm::create(&format!("/{}", unique_name()), 3 * PAGE).map(drop));
        // The kernel also refuses to write behind the limit where the object is long enough already.
        refused(object.write_at(2 * PAGE, &[1; PAGE as usize]));
        refused(lease.write_at(0, &[1; 3 * PAGE as usize]));
        lease.write_at(0, &[1; 2 * PAGE as usize]).unwrap();
        let mut bytes = [9; 3 * PAGE as usize];
        lease.read_at(0, &mut bytes).unwrap();
        assert_eq!((bytes[2 * PAGE as usize - 1], bytes[2 * PAGE as usize]), (1, 0));
    });
}
