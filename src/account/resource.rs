//! The resources that accounts count, and their default limits.
//!
//! `SECURITY.md` has the table. `slipring-bench write` makes it from [`Resource::ALL`].

use std::sync::OnceLock;

/// Something that a peer can make this process hold.
///
/// A context's [`Options`](crate::Options) limit each: for a link ([`link_limit`](crate::Options::link_limit)), a peer
/// process ([`peer_limit`](crate::Options::peer_limit)), a user ([`user_limit`](crate::Options::user_limit)), and all
/// together ([`process_limit`](crate::Options::process_limit)).
///
/// # Examples
///
/// ```
/// use slipring::options::Resource;
/// use slipring::{Context, Options};
///
/// let options = Options::new().link_limit(Resource::Mappings, 64);
/// let context = Context::with_options(options)?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// Descriptors: of accepted links, of peers whose Hello has not come, of frozen segments, and those that a peer sent
    /// and nobody has taken.
    Descriptors,
    /// Mappings of a peer's segments.
    Mappings,
    /// Bytes of these mappings.
    MappedBytes,
    /// Allocations of a peer's GPUs that links keep open.
    GpuMappings,
    /// Bytes of addresses for those of them that came as file descriptors.
    GpuMappedBytes,
    /// Bytes of this process's own memory: messages that a receiver set aside for a later call, long messages of which a
    /// reactor or a runtime has copied a part, and writes of a reactor that wait for room.
    Memory,
}

/// The number of resources.
pub(super) const COUNT: usize = Resource::ALL.len();

/// The default of Linux for the mappings that a process may have (`vm.max_map_count`).
const MAPPINGS: u64 = 65530;

impl Resource {
    /// Every resource.
    #[doc(hidden)]
    pub const ALL: [Self; 6] = [
        Self::Descriptors,
        Self::Mappings,
        Self::MappedBytes,
        Self::GpuMappings,
        Self::GpuMappedBytes,
        Self::Memory,
    ];

    /// Returns the name in errors and tables.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Descriptors => "descriptors",
            Self::Mappings => "mappings",
            Self::MappedBytes => "mapped bytes",
            Self::GpuMappings => "GPU mappings",
            Self::GpuMappedBytes => "mapped GPU bytes",
            Self::Memory => "memory",
        }
    }

    /// Returns how the default limit of the process is found, for the table.
    #[doc(hidden)]
    pub const fn default_text(self) -> &'static str {
        match self {
            Self::Descriptors => "3/4 of `RLIMIT_NOFILE`",
            Self::Mappings | Self::GpuMappings => "1/4 of `vm.max_map_count`",
            Self::MappedBytes => "32 TiB, a quarter of the address space; or half of `RLIMIT_AS`",
            Self::GpuMappedBytes => {
                "32 TiB, a quarter of the address space; or a quarter of `RLIMIT_AS`"
            }
            Self::Memory => "half of the machine's memory",
        }
    }

    /// Returns the consequence for a peer that is over a limit, for the table.
    #[doc(hidden)]
    pub const fn answer(self) -> &'static str {
        match self {
            Self::Descriptors => {
                "a new link, or a peer whose Hello is not there yet, is refused; a frozen segment ends its link; a descriptor for a message is missing, and the receive of the message fails"
            }
            Self::Mappings | Self::MappedBytes => "a new link is refused; a segment ends its link",
            Self::GpuMappings | Self::GpuMappedBytes => {
                "a tensor on a GPU is not opened, and its link goes on"
            }
            Self::Memory => {
                "a receive that would set a message aside, or copy it in slices, fails, and the message stays in the ring; in a reactor the read or the call gets the error instead of the message; a write that would wait ends its link"
            }
        }
    }

    /// Returns the test that uses the resource up beside an honest peer.
    #[doc(hidden)]
    pub const fn test(self) -> &'static str {
        match self {
            Self::Descriptors | Self::Mappings | Self::MappedBytes | Self::Memory => {
                "tests/transport/accounts.rs::a_hostile_peer_uses_up_each_row_of_the_table_and_an_honest_one_works"
            }
            Self::GpuMappings | Self::GpuMappedBytes => {
                "tests/cuda/failed.rs::a_peer_that_lies_while_its_word_is_awaited_is_refused_by_its_account"
            }
        }
    }

    /// Returns the default limit of the process, now.
    pub(super) fn default_limit(self) -> u64 {
        match self {
            Self::Descriptors => soft_limit(rustix::process::Resource::Nofile) / 4 * 3,
            Self::Mappings | Self::GpuMappings => most_mappings() / 4,
            Self::MappedBytes => (soft_limit(rustix::process::Resource::As) / 2).min(32 << 40),
            Self::GpuMappedBytes => (soft_limit(rustix::process::Resource::As) / 4).min(32 << 40),
            Self::Memory => memory() / 2,
        }
    }

    #[inline]
    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

fn soft_limit(resource: rustix::process::Resource) -> u64 {
    rustix::process::getrlimit(resource).current.unwrap_or(u64::MAX)
}

/// Returns the machine's memory, in bytes.
fn memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let info = rustix::system::sysinfo();
        (info.totalram as u64).saturating_mul(info.mem_unit.into())
    })
}

/// Returns how many mappings this process may have.
fn most_mappings() -> u64 {
    static MOST: OnceLock<u64> = OnceLock::new();
    *MOST.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MAPPINGS)
    })
}
