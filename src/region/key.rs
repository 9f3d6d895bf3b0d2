//! Keys of POSIX shared memory objects.

use crate::error::RegionFault;

/// `NAME_MAX` of `limits.h`: the longest name in a directory.
const LONGEST: usize = 255;

/// A key that names an object directly in `/dev/shm`, in the form of `shm_open(3)`: a name with or without
/// leading slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    given: String,
}

impl Key {
    /// All characters but slashes and control characters are allowed: only a slash, or a name of dots, leads into
    /// another directory.
    pub(super) fn parse(given: &str) -> Result<Self, RegionFault> {
        let name = given.trim_start_matches('/');
        let slash = given.len() - name.len();
        if let Some((at, character)) =
            name.char_indices().find(|(_, character)| !allowed(*character))
        {
            return Err(RegionFault::KeyCharacter { character, at: slash + at });
        }
        if name.len() > LONGEST {
            return Err(RegionFault::KeyTooLong { len: name.len(), max: LONGEST });
        }
        if matches!(name, "" | "." | "..") {
            return Err(RegionFault::KeyNamesNothing { key: given.to_owned() });
        }
        Ok(Self { given: given.to_owned() })
    }

    /// Returns the key as the caller gave it.
    pub(super) fn given(&self) -> &str {
        &self.given
    }

    /// Returns the path of the object on Linux: `shm_open(3)`, section NOTES.
    pub(super) fn path(&self) -> String {
        format!("/dev/shm/{}", self.given.trim_start_matches('/'))
    }
}

fn allowed(character: char) -> bool {
    character != '/' && !character.is_control()
}

#[cfg(test)]
mod tests;
