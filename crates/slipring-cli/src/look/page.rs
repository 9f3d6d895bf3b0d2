//! The status page of a process, found by `/proc` and copied.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, MemfdFlags, Mode, OFlags};
use slipring::status::{self, MOST_BYTES, ROW_BYTES, Snapshot};

use crate::look::descriptors::Descriptors;
use crate::look::maps::Maps;

/// The mount and the device that all memfds of this machine lie on. No other file has both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memfds {
    mount: u64,
    device: u64,
}

impl Memfds {
    /// Returns them, or `None` if `/proc` does not tell.
    pub(crate) fn find() -> Option<Self> {
        let probe = rustix::fs::memfd_create("slipring.probe", MemfdFlags::CLOEXEC).ok()?;
        let device = rustix::fs::fstat(&probe).ok()?.st_dev;
        Some(Self { mount: mount_of(probe.as_fd())?, device })
    }

    /// Returns the device, as `stat` has it.
    pub(crate) fn device(self) -> u64 {
        self.device
    }

    /// Opens a file if it is a memfd. A file on another filesystem could let the caller wait for as long as its owner likes, and
    /// the name may lead to another file with each use: so it is used once, for a descriptor that opens nothing yet.
    fn open(self, path: &Path) -> Option<(File, u64)> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        if mount_of(found.as_fd())? != self.mount {
            return None;
        }
        let stat = rustix::fs::fstat(&found).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || stat.st_dev != self.device {
            return None;
        }
        let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()?;
        Some((file, stat.st_ino))
    }
}

/// The status page of a process.
#[derive(Debug)]
pub(crate) struct Page {
    file: File,
}

impl Page {
    /// Finds the page of a process with these descriptors and mappings, whose id within its own namespace is `inner`. `None`: it
    /// has none. A page that somebody else has sent to the process is not mapped there for writing.
    pub(crate) fn find(
        descriptors: &Descriptors,
        maps: &Maps,
        inner: u32,
        memfds: Memfds,
    ) -> Option<Self> {
        descriptors.claims().filter_map(|claim| memfds.open(&claim)).find_map(|(file, inode)| {
            let page = Self { file };
            (maps.writes(inode) && page.owner() == Some(inner)).then_some(page)
        })
    }

    /// Returns the process id in the head, if the page has this version.
    fn owner(&self) -> Option<u32> {
        let mut head = [0; ROW_BYTES];
        self.file.read_exact_at(&mut head, 0).ok()?;
        status::owner(&head)
    }

    /// Returns at most so many rows that are whole. A row that changes hands meanwhile is left out.
    pub(crate) fn rows(&self, most: usize) -> io::Result<Vec<Snapshot>> {
        let (first, second) = (self.copy()?, self.copy()?);
        Ok(status::rows(&first, &second).take(most).collect())
    }

    fn copy(&self) -> io::Result<Vec<u8>> {
        let len = self.file.metadata()?.len();
        let len = usize::try_from(len).unwrap_or(MOST_BYTES).min(MOST_BYTES);
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match self.file.read_at(&mut bytes[done..], done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }
}

/// Returns the mount of an open file of this process.
fn mount_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}
