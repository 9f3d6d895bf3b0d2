//! The limits of a context's accounts.

use crate::account::resource::{COUNT, Resource};

/// All peers that are not admitted yet get this part of the limit of the process. By the default limit of descriptors there
/// is room for the half-open peers of more than one listener (`half_open_limit`).
const STRANGERS: u64 = 8;

/// The limits that the user of the library has set. All others follow from the default limit of the process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    link: [Option<u64>; COUNT],
    peer: [Option<u64>; COUNT],
    user: [Option<u64>; COUNT],
    process: [Option<u64>; COUNT],
}

impl Limits {
    pub(crate) fn set_link(&mut self, resource: Resource, limit: u64) {
        self.link[resource.index()] = Some(limit);
    }

    pub(crate) fn set_peer(&mut self, resource: Resource, limit: u64) {
        self.peer[resource.index()] = Some(limit);
    }

    pub(crate) fn set_user(&mut self, resource: Resource, limit: u64) {
        self.user[resource.index()] = Some(limit);
    }

    pub(crate) fn set_process(&mut self, resource: Resource, limit: u64) {
        self.process[resource.index()] = Some(limit);
    }

    /// Returns the limit of all peers together.
    pub(super) fn process(&self, resource: Resource) -> u64 {
        self.process[resource.index()].unwrap_or_else(|| resource.default_limit())
    }

    /// Returns the limit of all peers that are not admitted yet.
    pub(super) fn strangers(&self, resource: Resource) -> u64 {
        (self.process(resource) / STRANGERS).max(1)
    }

    /// Returns the limit of a user, when other users leave `left`.
    pub(super) fn user(&self, resource: Resource, left: u64) -> u64 {
        self.user[resource.index()].unwrap_or(u64::MAX).min(left - left / 4)
    }

    /// Returns the limit of a peer process, when the other ones of its user leave `left`.
    pub(super) fn peer(&self, resource: Resource, left: u64) -> u64 {
        self.peer[resource.index()].unwrap_or(u64::MAX).min(left - left / 3)
    }

    /// Returns the limit of a link.
    pub(super) fn link(&self, resource: Resource) -> u64 {
        self.link[resource.index()].unwrap_or(u64::MAX)
    }
}
