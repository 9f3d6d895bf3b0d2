//! The memfds that a process has mapped, as the kernel tells it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use crate::look::page::Memfds;

/// The most bytes of `/proc/PID/maps` that are read.
const MOST: u64 = 64 << 20;

/// The inodes of the memfds that a process has mapped.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    inodes: BTreeSet<u64>,
    /// Those that it may write.
    writable: BTreeSet<u64>,
}

impl Maps {
    /// Reads them. `None`: the caller may not look into the process.
    pub(crate) fn read(pid: u32, memfds: Memfds) -> Option<Self> {
        let file = File::open(format!("/proc/{pid}/maps")).ok()?;
        let mut lines = BufReader::new(file.take(MOST));
        let (mut maps, mut line) = (Self::default(), Vec::new());
        while lines.read_until(b'\n', &mut line).ok()? > 0 {
            if let Some((inode, is_writable)) = memfd(&line, memfds.device()) {
                maps.inodes.insert(inode);
                if is_writable {
                    maps.writable.insert(inode);
                }
            }
            line.clear();
        }
        Some(maps)
    }

    /// Returns whether the process may write the memfd with this inode.
    pub(crate) fn writes(&self, inode: u64) -> bool {
        self.writable.contains(&inode)
    }

    /// Returns whether the process has mapped the segment with this inode.
    pub(crate) fn has(&self, inode: u64) -> bool {
        self.inodes.contains(&inode)
    }
}

/// Returns the inode of a line that maps a memfd, and whether for writing: `start-end mode offset device inode path`.
fn memfd(line: &[u8], device: u64) -> Option<(u64, bool)> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let mode = fields.nth(1)?;
    let (major, minor) = std::str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let inode = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let is_memfd = rustix::fs::makedev(number(major)?, number(minor)?) == device;
    is_memfd.then_some((inode, mode.starts_with(b"rw")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memfds_count() {
        let device = rustix::fs::makedev(0, 1);
        let line = b"7f00-7f01 rw-s 00000000 00:01 2055    /memfd:slipring.ring (deleted)\n";
        assert_eq!(memfd(line, device), Some((2055, true)));
        let line = b"7f00-7f01 r--s 00000000 00:01 2056    /memfd:slipring.ring (deleted)\n";
        assert_eq!(memfd(line, device), Some((2056, false)));
        assert_eq!(memfd(b"7f00-7f01 r-xp 00000000 fe:00 131 /memfd:x (deleted)\n", device), None);
        assert_eq!(memfd(b"7f00-7f01 rw-p 00000000 00:00 0 \n", device), None);
        assert_eq!(memfd(b"nonsense", device), None);
    }
}
