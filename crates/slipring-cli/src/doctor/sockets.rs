//! Unix sockets that listen, as `/proc/PID/net/unix` shows them, also in other network namespaces.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use slipring::Address;

use crate::process::Process;

/// The most processes that are looked at: a machine with more is no place for a search.
const MOST_PROCESSES: usize = 100_000;

/// `__SO_ACCEPTCON` of the kernel: the socket listens.
const LISTENS: &str = "00010000";

/// `SOCK_SEQPACKET`, in hexadecimal.
const SEQPACKET: &str = "0005";

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Listener {
    /// The type is the one of slipring.
    is_seqpacket: bool,
    inode: u64,
}

/// Who listens in this process's network namespace.
#[derive(Debug)]
pub(super) enum Here {
    /// A socket of slipring's type. `None`: nobody knows whose.
    Seqpacket(Option<Process>),
    /// Another socket.
    Other(Option<Process>),
}

/// Returns who listens on an address in this process's network namespace.
pub(super) fn here(address: &Address) -> Option<Here> {
    let table = fs::read("/proc/self/net/unix").unwrap_or_default();
    let Listener { is_seqpacket, inode } = listener(&table, &address.to_string())?;
    let owner = owner(inode).map(|pid| Process::look(Some(pid), 0));
    Some(if is_seqpacket { Here::Seqpacket(owner) } else { Here::Other(owner) })
}

/// Returns a process of each other network namespace in which an abstract address has a listener. The listener itself, where
/// `/proc` shows who that is.
pub(super) fn in_other_namespaces(address: &Address) -> Vec<Process> {
    let name = address.to_string();
    let mut seen: HashSet<PathBuf> = fs::read_link("/proc/self/ns/net").into_iter().collect();
    let mut found = Vec::new();
    for pid in pids() {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        let table = fs::read(format!("/proc/{pid}/net/unix")).unwrap_or_default();
        if let Some(Listener { is_seqpacket: true, inode }) = listener(&table, &name) {
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

/// Returns the listener with an abstract name or a path in a table of sockets, one of slipring's type before others. Source:
/// proc_net_unix(5).
fn listener(table: &[u8], name: &str) -> Option<Listener> {
    let mut other = None;
    for line in table.split(|byte| *byte == b'\n') {
        let columns = || {
            let mut columns = str::from_utf8(line).ok()?.split_ascii_whitespace();
            let (flags, kind) = (columns.nth(3)?, columns.next()?);
            let (inode, found) = (columns.nth(1)?, columns.next()?);
            let is_it = flags == LISTENS && found == name;
            is_it.then_some((kind == SEQPACKET, inode.parse().ok()?))
        };
        match columns() {
            Some((true, inode)) => return Some(Listener { is_seqpacket: true, inode }),
            Some((false, inode)) => other = Some(Listener { is_seqpacket: false, inode }),
            None => {}
        }
    }
    other
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listener_with_the_name_counts() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 11 @camera\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 12 @camera\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 13 @camera2\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 14 @\xff\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 15 @camera\n";
        let is = |is_seqpacket, inode| Some(Listener { is_seqpacket, inode });
        assert_eq!(listener(table, "@camera"), is(true, 15));
        assert_eq!(listener(&table[..table.len() - 60], "@camera"), is(false, 11));
        assert_eq!(listener(table, "@cam"), None);
        assert_eq!(listener(b"short\n", "@cam"), None);
    }
}
