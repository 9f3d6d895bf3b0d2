//! Dmabufs, which `/dev/udmabuf` makes of a memfd where the kernel has it (`CONFIG_UDMABUF`).

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

pub const PAGE: u64 = 4096;

/// A dmabuf of four pages and the memfd beneath it, or nothing where there can be none.
pub fn dmabuf() -> Option<(OwnedFd, File)> {
    let device = match File::options().read(true).write(true).open("/dev/udmabuf") {
        Ok(device) => device,
        Err(error) => {
            eprintln!("skipped: no dmabuf can be made here, /dev/udmabuf: {error}");
            return None;
        }
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("slipring-test-dmabuf", flags).unwrap();
    rustix::fs::ftruncate(&memory, 4 * PAGE).unwrap();
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();

    /// `struct udmabuf_create` of `linux/udmabuf.h`.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const UDMABUF_CREATE: libc::Ioctl = libc::_IOW::<Create>(b'u' as u32, 0x42);
    const UDMABUF_FLAGS_CLOEXEC: u32 = 1;
    let create = Create {
        memfd: memory.as_raw_fd() as u32,
        flags: UDMABUF_FLAGS_CLOEXEC,
        offset: 0,
        size: 4 * PAGE,
    };
    // SAFETY: the argument is laid out as the call demands, and outlives it.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &create) };
    assert!(fd >= 0, "UDMABUF_CREATE: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nobody else's.
    Some((unsafe { OwnedFd::from_raw_fd(fd) }, memory.into()))
}
