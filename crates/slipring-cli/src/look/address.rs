//! The address of a row.

use std::os::unix::ffi::OsStrExt;

use slipring::Address;
use slipring::status::Snapshot;

use crate::escaped::Escaped;

/// Returns a row's address as a person writes it: an abstract name behind `@`.
pub(crate) fn address_of(row: &Snapshot) -> String {
    match row.address.split_first() {
        None => "(no address)".into(),
        Some((0, name)) => format!("@{}", Escaped(name)),
        Some(_) => Escaped(&row.address).to_string(),
    }
}

/// Returns an address as in `sun_path`.
pub(crate) fn sun_path(address: &Address) -> Vec<u8> {
    match (address.as_abstract_name(), address.as_path()) {
        (Some(name), _) => [&[0], name].concat(),
        (None, Some(path)) => path.as_os_str().as_bytes().to_vec(),
        (None, None) => Vec::new(),
    }
}
