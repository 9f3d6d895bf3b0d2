//! Where a listener is found.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::net::SocketAddrUnix;
use uuid::Uuid;

use crate::error::{AddressFault, Error, ErrorKind, Result};

/// The longest abstract name in bytes: `sun_path` of `unix(7)` less its leading NUL.
const LONGEST: usize = 107;

/// The address of a listener: an abstract name, or a path.
///
/// Abstract names need no cleaning up after a crash, but do not cross network namespaces
/// (containers); a path on a shared volume does, and has permissions of its own.
///
/// # Examples
///
/// ```
/// use slipring::Address;
///
/// let given = Address::named("camera")?;
/// assert_eq!(given.to_string(), "@camera");
/// let fresh = Address::fresh(); // a UUID, to be told to the peer by other means
/// assert_ne!(fresh, Address::fresh());
/// assert!(Address::named("").is_err());
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address(Place);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    Abstract(Vec<u8>),
    Path(PathBuf),
}

impl Address {
    /// An abstract name of 1 to 107 bytes without NUL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidAddress`] says what is wrong with the name.
    pub fn named(name: impl AsRef<[u8]>) -> Result<Self> {
        let name = name.as_ref();
        judge(name, LONGEST)?;
        Ok(Self(Place::Abstract(name.to_vec())))
    }

    /// An abstract name that nobody else has: a random UUID.
    pub fn fresh() -> Self {
        Self(Place::Abstract(format!("slipring-{}", Uuid::new_v4()).into_bytes()))
    }

    /// A path in the filesystem, of 1 to 107 bytes without NUL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidAddress`] says what is wrong with the path.
    pub fn path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        judge(path.as_os_str().as_encoded_bytes(), LONGEST)?;
        Ok(Self(Place::Path(path.to_owned())))
    }

    pub(super) fn to_socket_address(&self) -> Result<SocketAddrUnix> {
        let address = match &self.0 {
            Place::Abstract(name) => SocketAddrUnix::new_abstract_name(name),
            Place::Path(path) => SocketAddrUnix::new(path.as_path()),
        };
        address.map_err(|errno| Error::os("socket address", errno))
    }

    /// The path, if the address is one.
    pub fn as_path(&self) -> Option<&Path> {
        match &self.0 {
            Place::Abstract(_) => None,
            Place::Path(path) => Some(path),
        }
    }
}

fn judge(name: &[u8], max: usize) -> Result<()> {
    let fault = if name.is_empty() {
        AddressFault::Empty
    } else if name.len() > max {
        AddressFault::TooLong { len: name.len(), max }
    } else if let Some(at) = name.iter().position(|byte| *byte == 0) {
        AddressFault::Nul { at }
    } else {
        return Ok(());
    };
    Err(ErrorKind::InvalidAddress(fault).into())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Abstract(name) => write!(f, "@{}", name.escape_ascii()),
            Place::Path(path) => path.display().fmt(f),
        }
    }
}

impl TryFrom<&str> for Address {
    type Error = Error;

    /// An abstract name, as [`Address::named`].
    fn try_from(name: &str) -> Result<Self> {
        Self::named(name)
    }
}

impl TryFrom<&String> for Address {
    type Error = Error;

    /// An abstract name, as [`Address::named`].
    fn try_from(name: &String) -> Result<Self> {
        Self::named(name)
    }
}

impl TryFrom<String> for Address {
    type Error = Error;

    /// An abstract name, as [`Address::named`].
    fn try_from(name: String) -> Result<Self> {
        Self::named(name)
    }
}

impl TryFrom<&Path> for Address {
    type Error = Error;

    /// A path, as [`Address::path`].
    fn try_from(path: &Path) -> Result<Self> {
        Self::path(path)
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Self {
        address.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_107_bytes_and_no_nul() {
        assert!(Address::named("x").is_ok());
        assert!(Address::named([b'x'; 107]).is_ok());
        let fault = |name: &[u8]| match Address::named(name).unwrap_err().kind() {
            ErrorKind::InvalidAddress(fault) => *fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(fault(b""), AddressFault::Empty);
        assert_eq!(fault(&[b'x'; 108]), AddressFault::TooLong { len: 108, max: 107 });
        assert_eq!(fault(b"cam\0era"), AddressFault::Nul { at: 3 });
    }

    #[test]
    fn a_fresh_address_is_a_valid_name() {
        let text = Address::fresh().to_string();
        assert!(Address::named(&text[1..]).is_ok());
    }
}
