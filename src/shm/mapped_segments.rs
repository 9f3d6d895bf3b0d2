//! The segments of peers that are mapped: each once for all links of a context to one process.
//!
//! Links to one process name the same memory: its pool, and the topics that several subscribers join. One mapping takes one set of
//! page tables, and a processor finds a cached line faster at the address where it found the line before.
//!
//! 1. Each link checks the descriptor that it received, and counts the memory for its own account.
//! 2. Links to different processes share nothing. What one peer passes on of another's is mapped again.
//! 3. A mapping ends with the last link that uses it.

use std::collections::HashMap;
use std::fmt::Debug;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::shm::mapping::WeakMapping;
use crate::shm::segment::{Identity, PeerSegment};

/// The process of a peer: its user, and its number, unless it lies outside of this pid namespace.
type Process = (u32, Option<u32>);

/// The mapped segments.
#[derive(Debug, Default)]
pub(crate) struct MappedSegments {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    mappings: HashMap<(Process, Identity), WeakMapping>,
    /// With so many entries those that are unmapped are removed.
    full: usize,
}

impl MappedSegments {
    /// Checks a descriptor of a peer as a segment of `len` bytes, and maps it unless it is mapped. `is_counted`: its pages were
    /// counted before. `charge` is what it counts for.
    ///
    /// # Errors
    ///
    /// As [`PeerSegment::attach`].
    pub(crate) fn attach(
        &self,
        peer: Process,
        fd: impl AsFd,
        (len, is_counted): (usize, bool),
        prefault: bool,
        charge: impl Debug + Send + Sync + 'static,
    ) -> Result<PeerSegment> {
        let key = (peer, PeerSegment::identify(&fd, len)?);
        let lock = || self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().mappings.get(&key).and_then(WeakMapping::upgrade);
        // Before Linux 5.9 the numbers of inodes come again.
        if let Some(mapping) = known.filter(|mapping| mapping.len() == len) {
            return Ok(PeerSegment::shared(mapping, len, Box::new(charge)));
        }
        let segment = PeerSegment::map(fd, (len, is_counted), len, prefault)?;
        segment.mapping().count(charge);
        lock().insert(key, segment.mapping().downgrade());
        Ok(segment)
    }
}

impl Table {
    fn insert(&mut self, key: (Process, Identity), mapping: WeakMapping) {
        if self.mappings.len() >= self.full {
            self.mappings.retain(|_, mapping| mapping.is_mapped());
            self.full = (2 * self.mappings.len()).max(16);
        }
        self.mappings.insert(key, mapping);
    }
}

#[cfg(test)]
mod tests;
