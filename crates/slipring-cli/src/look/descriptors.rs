//! The descriptors of a process that matter here: its sockets, and files that claim to be its status page.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use slipring::status::NAME;

/// The most files of one process that may claim to be its page. More than one is a fork's inheritance, or a lie.
const CLAIMS: usize = 64;

/// The most descriptors of a process that are looked at.
const MOST: usize = 1 << 16;

/// The descriptors of a process.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    /// Files by the name of a page, as numbers of descriptors.
    claims: Vec<String>,
    /// The inodes of its sockets.
    sockets: BTreeSet<u64>,
    pid: u32,
}

impl Descriptors {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`: the caller may not look into the process.
    pub(crate) fn read(pid: u32) -> io::Result<Self> {
        let page = format!("/memfd:{NAME} (deleted)");
        let mut descriptors = Self { pid, ..Self::default() };
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.take(MOST) {
            let entry = entry?;
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let Some(target) = target.to_str() else { continue };
            if target == page && descriptors.claims.len() < CLAIMS {
                descriptors.claims.push(entry.file_name().to_string_lossy().into_owned());
            } else if let Some(inode) = target.strip_prefix("socket:[") {
                descriptors
                    .sockets
                    .extend(inode.strip_suffix(']').and_then(|inode| inode.parse::<u64>().ok()));
            }
        }
        Ok(descriptors)
    }

    /// Returns the paths of the files by the name of a page.
    pub(crate) fn claims(&self) -> impl Iterator<Item = PathBuf> {
        self.claims.iter().map(|fd| PathBuf::from(format!("/proc/{}/fd/{fd}", self.pid)))
    }

    /// Returns whether the process has the socket with this inode.
    pub(crate) fn has_socket(&self, inode: u64) -> bool {
        self.sockets.contains(&inode)
    }
}
