//! Faults as numbers: the part of [`CommitFault`] that travels. The numbers never change; `docs/wire.md` lists them.

use crate::error::{CommitFault, Direction, Slot};

/// The length of the longest text in bytes.
pub(super) const LONGEST: usize = 1024;

const DESCRIPTION: u32 = 1;
const REFUSED: u32 = 2;
const PANICKED: u32 = 3;
const UNKNOWN_ID: u32 = 4;
const BUSY: u32 = 5;
const RANGE: u32 = 6;
const SIZE: u32 = 7;
const COUNT: u32 = 8;
const NOT_UPDATABLE: u32 = 9;
const OVERLAP: u32 = 10;
const UNSEALED: u32 = 11;
const READ_ONLY: u32 = 12;
const MEMORY: u32 = 13;
const QUOTA: u32 = 14;
const RESOURCES: u32 = 15;
const UNKNOWN_REGION: u32 = 16;
const MODEL_CLOSED: u32 = 17;
const MODEL: u32 = 18;

/// The things that quotas limit, by their numbers on the wire.
const QUOTAS: [&str; 6] =
    ["models", "commits", "bytes", "regions", "requests", "bytes of requests"];

/// Returns the code, three numbers, and the text.
pub(super) fn to_wire(fault: &CommitFault) -> (u32, u64, u64, u64, String) {
    let none = String::new;
    match fault {
        CommitFault::Description { why } => (DESCRIPTION, 0, 0, 0, why.clone()),
        CommitFault::Refused { code, why } => (REFUSED, u64::from(*code), 0, 0, why.clone()),
        CommitFault::Panicked => (PANICKED, 0, 0, 0, none()),
        CommitFault::UnknownId { id } => (UNKNOWN_ID, *id, 0, 0, none()),
        CommitFault::Busy => (BUSY, 0, 0, 0, none()),
        CommitFault::Range { region, offset, len, size } => {
            let region = region.map(|region| region.to_string());
            (RANGE, *offset, *len, *size, region.unwrap_or_default())
        }
        CommitFault::Size { slot: Slot::Region { index }, len, expected } => {
            (SIZE, *len, *expected, u64::from(*index), none())
        }
        CommitFault::Count { count, expected } => {
            (COUNT, *count as u64, *expected as u64, 0, none())
        }
        CommitFault::NotUpdatable { direction, index } => {
            (NOT_UPDATABLE, *direction as u64, u64::from(*index), 0, none())
        }
        CommitFault::Overlap { region, other, id } => {
            (OVERLAP, u64::from(*region), u64::from(*other), *id, none())
        }
        CommitFault::Unsealed { region } => (UNSEALED, u64::from(*region), 0, 0, none()),
        CommitFault::ReadOnly { region } => (READ_ONLY, u64::from(*region), 0, 0, none()),
        CommitFault::Memory { region, why } => (MEMORY, u64::from(*region), 0, 0, why.clone()),
        CommitFault::Quota { what, used, needed, limit } => {
            let what = QUOTAS.iter().position(|name| name == what).unwrap_or(QUOTAS.len());
            // Three numbers travel as such. The text has the fourth one.
            (QUOTA, what as u64, *used, *needed, limit.to_string())
        }
        CommitFault::Resources { why } => (RESOURCES, 0, 0, 0, why.clone()),
        CommitFault::UnknownRegion { index, count } => {
            (UNKNOWN_REGION, u64::from(*index), u64::from(*count), 0, none())
        }
        CommitFault::ModelClosed => (MODEL_CLOSED, 0, 0, 0, none()),
        CommitFault::Model { why } => (MODEL, 0, 0, 0, why.clone()),
        // Only clients raise the other faults.
        other => (REFUSED, 0, 0, 0, other.to_string()),
    }
}

/// Returns the direction with this number.
pub(super) fn direction(code: u32) -> Option<Direction> {
    Direction::ALL.get(code as usize).copied()
}

/// Returns the fault that a code, its numbers and its text stand for.
pub(super) fn from_wire(code: u32, a: u64, b: u64, c: u64, why: String) -> CommitFault {
    let word = |number: u64| number.min(u64::from(u32::MAX)) as u32;
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    match code {
        DESCRIPTION => CommitFault::Description { why },
        REFUSED => CommitFault::Refused { code: word(a), why },
        PANICKED => CommitFault::Panicked,
        UNKNOWN_ID => CommitFault::UnknownId { id: a },
        BUSY => CommitFault::Busy,
        RANGE => CommitFault::Range { region: why.parse().ok(), offset: a, len: b, size: c },
        SIZE => CommitFault::Size { slot: Slot::Region { index: word(c) }, len: a, expected: b },
        COUNT => CommitFault::Count { count: size(a), expected: size(b) },
        NOT_UPDATABLE => match direction(word(a)) {
            Some(direction) => CommitFault::NotUpdatable { direction, index: word(b) },
            None => CommitFault::Other { code, why },
        },
        OVERLAP => CommitFault::Overlap { region: word(a), other: word(b), id: c },
        UNSEALED => CommitFault::Unsealed { region: word(a) },
        READ_ONLY => CommitFault::ReadOnly { region: word(a) },
        MEMORY => CommitFault::Memory { region: word(a), why },
        QUOTA => match (QUOTAS.get(size(a)), why.parse()) {
            (Some(what), Ok(limit)) => CommitFault::Quota { what, used: b, needed: c, limit },
            _ => CommitFault::Other { code, why },
        },
        RESOURCES => CommitFault::Resources { why },
        MODEL_CLOSED => CommitFault::ModelClosed,
        MODEL => CommitFault::Model { why },
        UNKNOWN_REGION => CommitFault::UnknownRegion { index: word(a), count: word(b) },
        _ => CommitFault::Other { code, why },
    }
}

#[cfg(test)]
mod tests;
