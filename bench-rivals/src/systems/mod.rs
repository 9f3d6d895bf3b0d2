//! Who is measured. One file a system; every one brings what it can do.

mod cloudtoid;
mod floors;
mod iceoryx2;
mod ipc_channel;
mod kernel;
mod posix_mq;
mod ringfire;
mod shaq;
mod shmem_ipc;
mod sized;
pub mod slipring;
#[cfg(feature = "tachyon")]
mod tachyon;

use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::work::Work;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Slipring,
    Rival,
    /// What the kernel brings.
    Kernel,
    /// What the machine itself can do.
    Floor,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Slipring => "slipring",
            Kind::Rival => "rival",
            Kind::Kernel => "kernel",
            Kind::Floor => "floor",
        }
    }
}

/// Which of the memory that two sides share both of them may write, so that a faulty peer can break it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writable {
    /// None of it, or they share none.
    Nothing,
    /// What accounts for the messages, but not their bytes.
    Control,
    /// All of it.
    All,
}

impl Writable {
    pub fn name(self) -> &'static str {
        match self {
            Writable::Nothing => "nothing",
            Writable::Control => "control",
            Writable::All => "all",
        }
    }
}

pub trait System: Sync {
    fn name(&self) -> &'static str;

    fn kind(&self) -> Kind;

    /// The package whose version the table shows, as `version_of` takes it.
    fn package(&self) -> Option<&'static str> {
        None
    }

    /// Which of the memory that they share both sides may write.
    fn writable(&self) -> Writable {
        Writable::Nothing
    }

    /// What is not left at its default, or how it waits.
    fn options(&self, work: Work, bytes: usize) -> String;

    fn does(&self, work: Work, bytes: usize) -> bool;

    /// What `tune` is given; where there are several, the best in each state of the machine counts.
    fn variants(&self, _work: Work, _bytes: usize) -> Vec<u64> {
        vec![0]
    }

    /// Called on both sides at the same time, for work that it does.
    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>>;
}

/// All of them, in the table's order.
pub static ALL: &[&dyn System] = &[
    &slipring::MESSAGES,
    &slipring::TENSORS,
    &slipring::LONG_SLOTS,
    &slipring::POLLED,
    &iceoryx2::Iceoryx2,
    &ringfire::Ringfire,
    &shaq::SHAQ,
    &shaq::EACH,
    &shmem_ipc::ShmemIpc,
    #[cfg(feature = "tachyon")]
    &tachyon::Tachyon,
    &cloudtoid::Cloudtoid,
    &ipc_channel::IpcChannel,
    &kernel::UNIX_POLLED,
    &kernel::UNIX,
    &kernel::PIPE,
    &kernel::TCP,
    &posix_mq::POLLED,
    &posix_mq::BLOCKING,
    &kernel::EVENTFD,
    &floors::LINE,
    &floors::LINE_RO,
    &floors::MAILBOX,
    &floors::ROTATE,
    &floors::ROTATE_RO,
    &floors::MEMCPY,
    &floors::RING,
    &floors::FUTEX,
    &floors::FUTEX_LIMITED,
    &floors::UDS,
];

/// The version of a system's package in this crate's lock file, or the kernel's.
pub fn version(system: &dyn System) -> String {
    let Some(package) = system.package() else {
        return match system.kind() {
            Kind::Kernel => crate::machine::kernel(),
            _ => String::new(),
        };
    };
    version_of(package)
}

/// The version of a package in this crate's lock file. A number after the name says which, where there are several.
pub fn version_of(package: &str) -> String {
    let (name, number) = package.split_once(' ').unwrap_or((package, ""));
    let lock = include_str!("../../Cargo.lock");
    let version = |entry: &str| {
        let value = |key| entry.lines().find_map(|line| line.strip_prefix(key)?.split('"').nth(1));
        value("version = ").filter(|_| value("name = ") == Some(name)).map(str::to_owned)
    };
    let mut versions = lock.split("[[package]]").filter_map(version);
    versions.find(|version| version.starts_with(number)).unwrap_or_default()
}
