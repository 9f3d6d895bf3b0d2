//! The Unix sockets that listen in the network namespace of a process, as the kernel tells it.

use std::collections::HashMap;
use std::fs;

/// The flag of a socket that listens. Source: `__SO_ACCEPTCON` of `include/uapi/linux/net.h`.
const LISTENS: u32 = 1 << 16;

/// Addresses, as `/proc/net/unix` prints them, and the inodes of the sockets that listen there.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    sockets: HashMap<Vec<u8>, Vec<u64>>,
}

impl Listening {
    /// Reads those of the namespace that a process is in.
    pub(crate) fn read(pid: u32) -> Self {
        let mut listening = Self::default();
        let text = fs::read(format!("/proc/{pid}/net/unix")).unwrap_or_default();
        for line in text.split(|byte| *byte == b'\n') {
            if let Some((address, inode)) = parts(line) {
                listening.sockets.entry(address.to_vec()).or_default().push(inode);
            }
        }
        listening
    }

    /// Returns the inodes of the sockets that listen on an address as in `sun_path`.
    pub(crate) fn on(&self, address: &[u8]) -> &[u64] {
        // The kernel prints `@` for the first byte of an abstract name and for each later NUL.
        let printed: Vec<u8> =
            address.iter().map(|byte| if *byte == 0 { b'@' } else { *byte }).collect();
        self.sockets.get(&printed).map_or(&[], Vec::as_slice)
    }
}

/// Returns address and inode of a line about a socket that listens: `num: refs protocol flags type state inode address`.
fn parts(line: &[u8]) -> Option<(&[u8], u64)> {
    let mut rest = line;
    let mut fields = [&b""[..]; 7];
    for field in &mut fields {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|byte| *byte == b' ')?;
        (*field, rest) = rest.split_at(end);
    }
    let text = |nth: usize| std::str::from_utf8(fields[nth]).ok();
    let flags = u32::from_str_radix(text(3)?, 16).ok()?;
    // One space, then the address, which may hold spaces itself.
    (flags & LISTENS != 0).then_some((rest.get(1..)?, text(6)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_that_listen_count() {
        let line = b"0000000000000000: 00000002 00000000 00010000 0005 01 10190001 @a b@c";
        assert_eq!(parts(line), Some((&b"@a b@c"[..], 10190001)));
        let connected = b"0000000000000000: 00000003 00000000 00000000 0005 03 10190002 @a";
        assert_eq!(parts(connected), None);
        assert_eq!(parts(b"Num       RefCount Protocol Flags    Type St Inode Path"), None);
        assert_eq!(parts(b""), None);
    }
}
