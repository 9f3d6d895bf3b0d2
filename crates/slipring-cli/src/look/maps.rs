//! The memfds that a process has mapped, as the kernel tells it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// The most bytes of `/proc/PID/maps` that are read.
const MOST: u64 = 64 << 20;

/// The inodes of the memfds that a process has mapped.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    inodes: BTreeSet<u64>,
}

impl Maps {
    /// Reads them. `None`: the caller may not look into the process.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let file = File::open(format!("/proc/{pid}/maps")).ok()?;
        let mut lines = BufReader::new(file.take(MOST));
        let (mut maps, mut line) = (Self::default(), Vec::new());
        while lines.read_until(b'\n', &mut line).ok()? > 0 {
            maps.inodes.extend(inode(&line));
            line.clear();
        }
        Some(maps)
    }

    /// Returns whether the process has mapped the segment with this inode.
    pub(crate) fn has(&self, inode: u64) -> bool {
        self.inodes.contains(&inode)
    }
}

/// Returns the inode of a line that maps a memfd: `start-end mode offset device inode /memfd:name (deleted)`.
fn inode(line: &[u8]) -> Option<u64> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let inode = fields.nth(4)?;
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    fields.next()?.starts_with(b"/memfd:").then_some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memfds_count() {
        let line = b"7f00-7f01 rw-s 00000000 00:01 2055                       /memfd:slipring.ring (deleted)\n";
        assert_eq!(inode(line), Some(2055));
        assert_eq!(inode(b"7f00-7f01 r-xp 00000000 fe:00 131 /usr/bin/cat\n"), None);
        assert_eq!(inode(b"7f00-7f01 rw-p 00000000 00:00 0 \n"), None);
        assert_eq!(inode(b"nonsense"), None);
    }
}
