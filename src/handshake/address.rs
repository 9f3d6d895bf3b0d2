//! The address of a listener, and its written form.
//!
//! 1. An address has 1 to 107 bytes without NUL, the room of `sun_path`.
//! 2. A text with a slash is a path, every other text an abstract name. A printed UTF-8 address parses back.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::net::SocketAddrUnix;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};

/// The longest name in bytes: `sun_path` of `unix(7)` less the NUL that starts an abstract name or ends a path.
const LONGEST: usize = 107;

/// The address of a listener: an abstract name or a path.
///
/// An abstract name needs no cleaning up after a crash, but a process in another network namespace (a container)
/// does not see it. A path is seen wherever its directory is mounted, and has file permissions.
///
/// An address parses what it prints:
///
/// | text | address |
/// |---|---|
/// | `camera` | the abstract name `camera` |
/// | `@camera` | the abstract name `camera`; `\xNN`, `\\`, `\n`, `\r`, `\t`, `\'` and `\"` stand for single bytes |
/// | `/run/camera`, `./camera`, `run/camera` | a path: every text with a slash is one |
///
/// A path that is not UTF-8 prints with replacement characters and does not parse back.
///
/// # Examples
///
/// ```
/// use slipring::Address;
///
/// let camera: Address = "camera".parse()?;
/// assert_eq!(camera, Address::named("camera")?);
/// assert_eq!(camera.to_string(), "@camera");
/// let socket: Address = "/run/camera".parse()?;
/// assert_eq!(socket.as_path(), Some("/run/camera".as_ref()));
/// let fresh = Address::fresh(); // a random name, for one peer that is told of it
/// assert_ne!(fresh, Address::fresh());
/// assert!(Address::named("").is_err());
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address(SocketName);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum SocketName {
    Abstract(Vec<u8>),
    /// A path without a slash is stored without `./`.
    Path(PathBuf),
}

impl Address {
    /// Returns the address with an abstract name of 1 to 107 bytes without NUL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AddressEmpty`], [`ErrorKind::AddressTooLong`], [`ErrorKind::AddressNul`].
    pub fn named(name: impl AsRef<[u8]>) -> Result<Self> {
        let name = name.as_ref();
        check(name)?;
        Ok(Self(SocketName::Abstract(name.to_vec())))
    }

    /// Returns an abstract name that nobody else uses: `slipring-` and a random UUID.
    pub fn fresh() -> Self {
        Self(SocketName::Abstract(format!("slipring-{}", Uuid::new_v4()).into_bytes()))
    }

    /// Returns the address with a path of 1 to 107 bytes without NUL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AddressEmpty`], [`ErrorKind::AddressTooLong`], [`ErrorKind::AddressNul`].
    pub fn path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = path.as_os_str().as_encoded_bytes();
        check(bytes)?;
        // "camera" and "./camera" are one address. The second prints.
        let bare = bytes.strip_prefix(b"./");
        let bare = bare.filter(|name| !name.is_empty() && !name.contains(&b'/'));
        let path = bare.map_or(path, |name| Path::new(OsStr::from_bytes(name)));
        Ok(Self(SocketName::Path(path.to_owned())))
    }

    pub(crate) fn to_socket_address(&self) -> Result<SocketAddrUnix> {
        let address = match &self.0 {
            SocketName::Abstract(name) => SocketAddrUnix::new_abstract_name(name),
            SocketName::Path(path) => SocketAddrUnix::new(path.as_path()),
        };
        address.map_err(|errno| Error::os("socket address", errno))
    }

    /// Returns the bytes of the name, if the address is an abstract one.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::Address;
    ///
    /// let camera: Address = "@camera".parse()?;
    /// assert_eq!(camera.as_abstract_name(), Some(&b"camera"[..]));
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn as_abstract_name(&self) -> Option<&[u8]> {
        match &self.0 {
            SocketName::Abstract(name) => Some(name),
            SocketName::Path(_) => None,
        }
    }

    /// Returns the path, if the address is one.
    pub fn as_path(&self) -> Option<&Path> {
        match &self.0 {
            SocketName::Abstract(_) => None,
            SocketName::Path(path) => Some(path),
        }
    }
}

fn check(name: &[u8]) -> Result<()> {
    let fault = if name.is_empty() {
        ErrorKind::AddressEmpty
    } else if name.len() > LONGEST {
        ErrorKind::AddressTooLong { len: name.len(), max: LONGEST }
    } else if let Some(at) = name.iter().position(|byte| *byte == 0) {
        ErrorKind::AddressNul { at }
    } else {
        return Ok(());
    };
    Err(fault.into())
}

/// Returns the bytes that `text` stands for: the inverse of [`slice::escape_ascii`].
fn unescape(text: &str) -> Result<Vec<u8>, ErrorKind> {
    let bytes = text.as_bytes();
    let (mut name, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        if byte != b'\\' {
            name.push(byte);
            at += 1;
            continue;
        }
        let (byte, len) = match bytes.get(at + 1) {
            Some(quoted @ (b'\\' | b'\'' | b'"')) => (Some(*quoted), 2),
            Some(b'n') => (Some(b'\n'), 2),
            Some(b'r') => (Some(b'\r'), 2),
            Some(b't') => (Some(b'\t'), 2),
            Some(b'x') => {
                let digits = text.get(at + 2..at + 4);
                // `from_str_radix` takes a sign, too.
                let digits =
                    digits.filter(|two| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
                (digits.and_then(|two| u8::from_str_radix(two, 16).ok()), 4)
            }
            _ => (None, 0),
        };
        // The fault counts from the start of the text, which an `@` precedes.
        name.push(byte.ok_or(ErrorKind::AddressEscape { at: at + 1 })?);
        at += len;
    }
    Ok(name)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            SocketName::Abstract(name) => {
                f.write_str("@")?;
                let mut parts = name.split(|byte| *byte == b'/');
                // A text with a slash is a path.
                parts.next().map_or(Ok(()), |first| write!(f, "{}", first.escape_ascii()))?;
                parts.try_for_each(|part| write!(f, "\\x2f{}", part.escape_ascii()))
            }
            SocketName::Path(path) => {
                let has_slash = path.as_os_str().as_encoded_bytes().contains(&b'/');
                write!(f, "{}{}", if has_slash { "" } else { "./" }, path.display())
            }
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Parses a path, an `@` and an escaped abstract name, or a bare abstract name.
    fn from_str(text: &str) -> Result<Self> {
        if text.contains('/') {
            return Self::path(text);
        }
        match text.strip_prefix('@') {
            Some(escaped) => Self::named(unescape(escaped)?),
            None => Self::named(text),
        }
    }
}

impl TryFrom<&str> for Address {
    type Error = Error;

    /// Parses the text, as [`FromStr`] does.
    fn try_from(text: &str) -> Result<Self> {
        text.parse()
    }
}

impl TryFrom<&String> for Address {
    type Error = Error;

    /// Parses the text, as [`FromStr`] does.
    fn try_from(text: &String) -> Result<Self> {
        text.parse()
    }
}

impl TryFrom<String> for Address {
    type Error = Error;

    /// Parses the text, as [`FromStr`] does.
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl TryFrom<&Path> for Address {
    type Error = Error;

    /// Takes the path, as [`Address::path`] does.
    fn try_from(path: &Path) -> Result<Self> {
        Self::path(path)
    }
}

impl TryFrom<&PathBuf> for Address {
    type Error = Error;

    /// Takes the path, as [`Address::path`] does.
    fn try_from(path: &PathBuf) -> Result<Self> {
        Self::path(path)
    }
}

impl TryFrom<PathBuf> for Address {
    type Error = Error;

    /// Takes the path, as [`Address::path`] does.
    fn try_from(path: PathBuf) -> Result<Self> {
        Self::path(path)
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Self {
        address.clone()
    }
}

#[cfg(test)]
mod tests;
