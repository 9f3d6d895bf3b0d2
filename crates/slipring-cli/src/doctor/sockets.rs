//! Unix sockets that listen, as `/proc/PID/net/unix` shows them, also in other network namespaces.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs;
use std::path::PathBuf;

use slipring::Address;

use crate::look::{Listening, Socket, sun_path};
use crate::process::Process;

/// The most processes that are looked at: a machine with more is no place for a search.
const MOST_PROCESSES: usize = 100_000;

/// A listener in this process's network namespace.
#[derive(Debug)]
pub(super) enum Here {
    /// A socket of slipring's type. `None`: nobody knows whose.
    Seqpacket(Option<Process>),
    /// Another socket.
    Other(Option<Process>),
}

/// Returns who listens on an address in this process's network namespace.
pub(super) fn here(address: &Address) -> Option<Here> {
    let Socket { is_seqpacket, inode } = listener("self", address)?;
    let owner = owner(inode).map(|pid| Process::look(Some(pid), 0));
    Some(if is_seqpacket { Here::Seqpacket(owner) } else { Here::Other(owner) })
}

/// Returns a process of each other network namespace in which an abstract address has a listener. The listener itself, where
/// `/proc` shows who that is.
pub(super) fn in_other_namespaces(address: &Address) -> Vec<Process> {
    let mut seen: HashSet<PathBuf> = fs::read_link("/proc/self/ns/net").into_iter().collect();
    let mut found = Vec::new();
    for pid in pids() {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        if let Some(Socket { is_seqpacket: true, inode }) = listener(pid, address) {
            found.push(Process::look(Some(owner(inode).unwrap_or(pid)), 0));
        }
    }
    found
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.take(MOST_PROCESSES)
}

/// Returns the listener on an address in the namespace of a process, one of slipring's type before others.
fn listener(process: impl Display, address: &Address) -> Option<Socket> {
    let listening = Listening::read(process);
    let sockets = listening.on(&sun_path(address));
    sockets.iter().find(|socket| socket.is_seqpacket).or(sockets.first()).copied()
}

/// Returns a process that has a socket.
fn owner(inode: u64) -> Option<u32> {
    pids().find(|pid| has_socket(*pid, inode))
}

fn has_socket(pid: u32, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|link| link.to_str() == Some(&wanted))
}
