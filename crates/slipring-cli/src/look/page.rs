//! The status page of a process, found by `/proc` and copied.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::MemfdFlags;
use slipring::status::layout;

use crate::look::descriptors::Descriptors;
use crate::look::row::Row;

/// The mount that all memfds of this machine lie on. No other file does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemfdMount(u64);

impl MemfdMount {
    /// Returns it, or `None` if `/proc` does not tell.
    pub(crate) fn find() -> Option<Self> {
        let probe = rustix::fs::memfd_create("slipring.probe", MemfdFlags::CLOEXEC).ok()?;
        mount_of(Path::new(&format!("/proc/self/fdinfo/{}", probe.as_raw_fd()))).map(Self)
    }
}

/// The status page of a process.
#[derive(Debug)]
pub(crate) struct Page {
    file: File,
}

impl Page {
    /// Finds the page of a process with these descriptors, whose id within its own namespace is `inner`. `None`: it has none.
    pub(crate) fn find(descriptors: &Descriptors, inner: u32, memfds: MemfdMount) -> Option<Self> {
        descriptors.claims().find_map(|(file, info)| {
            // A file of that name on another filesystem could let the reader wait for as long as its owner likes.
            if mount_of(&info) != Some(memfds.0) {
                return None;
            }
            let page = Self { file: File::open(file).ok()? };
            (page.owner() == Some(inner)).then_some(page)
        })
    }

    /// Returns the process id in the head, if the page has this version.
    fn owner(&self) -> Option<u32> {
        let mut head = [0; layout::ROW];
        self.file.read_exact_at(&mut head, 0).ok()?;
        let word = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap_or_default());
        let version = u64::from(layout::VERSION) | (layout::ROW as u64) << 32;
        let fits = word(0) == layout::MAGIC && word(layout::HEAD_VERSION) == version;
        fits.then(|| u32::try_from(word(layout::HEAD_PID)).ok()).flatten()
    }

    /// Returns the rows that are whole. A row that changes hands meanwhile is left out.
    pub(crate) fn rows(&self) -> io::Result<Vec<Row>> {
        let (first, second) = (self.copy()?, self.copy()?);
        let pairs = first.chunks_exact(layout::ROW).zip(second.chunks_exact(layout::ROW));
        // The head and the spare row are no object's.
        let whole = pairs
            .skip(2)
            .filter(|(first, second)| first[..layout::FACTS] == second[..layout::FACTS]);
        Ok(whole.filter_map(|(_, row)| Row::read(row)).collect())
    }

    fn copy(&self) -> io::Result<Vec<u8>> {
        let most = (layout::MOST_ROWS + 1) * layout::ROW;
        let len = usize::try_from(self.file.metadata()?.len()).unwrap_or(most).min(most);
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

/// Returns the mount of an open file, from its `/proc/PID/fdinfo/FD`.
fn mount_of(fdinfo: &Path) -> Option<u64> {
    let text = fs::read_to_string(fdinfo).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}
