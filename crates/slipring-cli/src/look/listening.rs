//! The Unix sockets that listen in the network namespace of a process, as the kernel tells it.

use std::collections::HashMap;
use std::fs;

/// The flag of a socket that listens. Source: `__SO_ACCEPTCON` of `include/uapi/linux/net.h`.
const LISTENS: u32 = 1 << 16;

/// `SOCK_SEQPACKET`, in hexadecimal.
const SEQPACKET: &str = "0005";

/// Addresses, as `/proc/net/unix` prints them, and the sockets that listen there.
///
/// The kernel prints names as they are. So a name with a line break in it can look like another socket's line, and a relative path
/// like an abstract name. An inode of two lines counts for neither, and [`on`](Self::on) returns all that look alike.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    sockets: HashMap<Vec<u8>, Vec<Socket>>,
}

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) inode: u64,
    /// It has the type of slipring's sockets.
    pub(crate) is_seqpacket: bool,
}

impl Listening {
    /// Reads those of the namespace that a process is in; `self` is this one.
    pub(crate) fn read(process: impl std::fmt::Display) -> Self {
        Self::of(&fs::read(format!("/proc/{process}/net/unix")).unwrap_or_default())
    }

    fn of(table: &[u8]) -> Self {
        let mut listening = Self::default();
        let mut lines: HashMap<u64, u32> = HashMap::new();
        for line in table.split(|byte| *byte == b'\n') {
            let Some(entry) = entry(line) else { continue };
            *lines.entry(entry.socket.inode).or_default() += 1;
            if entry.listens {
                listening.sockets.entry(entry.address.to_vec()).or_default().push(entry.socket);
            }
        }
        for sockets in listening.sockets.values_mut() {
            sockets.retain(|socket| lines[&socket.inode] == 1);
        }
        listening
    }

    /// Returns the sockets that listen on an address as in `sun_path`, or on one that is printed like it.
    pub(crate) fn on(&self, address: &[u8]) -> &[Socket] {
        // The kernel prints `@` for the first byte of an abstract name and for each later NUL.
        let printed: Vec<u8> =
            address.iter().map(|byte| if *byte == 0 { b'@' } else { *byte }).collect();
        self.sockets.get(&printed).map_or(&[], Vec::as_slice)
    }
}

/// A line about a socket.
struct Entry<'a> {
    address: &'a [u8],
    socket: Socket,
    listens: bool,
}

/// Returns what a line says: `num: refs protocol flags type state inode address`. Source: proc_net_unix(5).
fn entry(line: &[u8]) -> Option<Entry<'_>> {
    let mut rest = line;
    let mut fields = [&b""[..]; 7];
    for field in &mut fields {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        (*field, rest) = rest.split_at(end);
    }
    let text = |nth: usize| std::str::from_utf8(fields[nth]).ok();
    let flags = u32::from_str_radix(text(3)?, 16).ok()?;
    let socket = Socket { inode: text(6)?.parse().ok()?, is_seqpacket: text(4)? == SEQPACKET };
    // One space, then the address, which may hold spaces itself.
    Some(Entry {
        address: rest.get(1..).unwrap_or_default(),
        socket,
        listens: flags & LISTENS != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_that_listen_count_and_each_once() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 11 @camera\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 12 @camera\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 13 @a b@c\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 14 @\xff\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 15 @camera\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 16 @x\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 16 @forged\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 17\n";
        let listening = Listening::of(table);
        let socket = |inode, is_seqpacket| Socket { inode, is_seqpacket };
        assert_eq!(listening.on(b"\0camera"), [socket(11, false), socket(15, true)]);
        assert_eq!(listening.on(b"\0a b\0c"), [socket(13, true)]);
        assert_eq!(listening.on(b"\0\xff"), [socket(14, true)]);
        assert_eq!(listening.on(b"\0cam"), []);
        assert_eq!((listening.on(b"\0x"), listening.on(b"\0forged")), (&[][..], &[][..]));
    }
}
