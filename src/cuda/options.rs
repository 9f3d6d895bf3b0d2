//! The options of a pool: how long its chunks are, how other processes get its memory, and what orders their work.

use crate::cuda::device::Device;
use crate::cuda::memory::PAGE;
use crate::error::{CudaFault, ErrorKind, Result};

/// Bytes that a pool takes from the driver at a time by default.
const CHUNK: u64 = 64 << 20;

/// How other processes get the memory of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Export {
    /// By a handle in each message (`cuIpcGetMemHandle`). The peer shares the pid and the IPC namespace of this process.
    #[default]
    IpcHandle,
    /// By a file descriptor, which the link passes once a peer and chunk (`cuMemExportToShareableHandle`). The peer may
    /// live in another container.
    FileDescriptor,
}

/// How the work of a borrower's stream comes after that of the writer's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By interprocess events (`cuIpcGetEventHandle`). The peer shares the pid and the IPC namespace of this process.
    Events,
    /// By a word in the allocation, which the writer's stream writes and the borrower's stream waits for
    /// (`cuStreamWriteValue64`, `cuStreamWaitValue64`).
    Words,
    /// [`Draft::share`](crate::cuda::Draft::share) waits for the writer's stream.
    Synchronized,
}

/// The options of a [`Pool`](crate::cuda::Pool).
///
/// # Examples
///
/// ```no_run
/// use slipring::cuda::{Device, Export, PoolOptions};
///
/// let device = Device::new(0)?;
/// let options = PoolOptions::new().export(Export::FileDescriptor).quota(8 << 30);
/// let pool = device.pool_with(options)?; // for peers in other containers
/// println!("{:?}", pool.order());
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct PoolOptions {
    chunk: u64,
    quota: u64,
    export: Export,
    order: Option<Order>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { chunk: CHUNK, quota: u64::MAX, export: Export::default(), order: None }
    }
}

impl PoolOptions {
    /// Returns the default options: chunks of 64 MiB, no quota, [`Export::IpcHandle`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many bytes the pool takes from the driver at a time. They are rounded up to 2 MiB. A longer tensor takes
    /// more.
    pub fn chunk(mut self, bytes: u64) -> Self {
        self.chunk = bytes;
        self
    }

    /// Sets how many bytes the pool takes from the driver at most. A chunk with a file descriptor that the pool has freed counts
    /// until each peer that mapped it says that it has unmapped it, or has ended.
    pub fn quota(mut self, bytes: u64) -> Self {
        self.quota = bytes;
        self
    }

    /// Sets how other processes get the memory.
    pub fn export(mut self, export: Export) -> Self {
        self.export = export;
        self
    }

    /// Sets what orders the work of two processes. The default is [`Order::Events`] for [`Export::IpcHandle`]. For
    /// [`Export::FileDescriptor`] it is [`Order::Words`] where the GPU can do that, and [`Order::Synchronized`] where
    /// it cannot.
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Checks the options for a GPU.
    pub(super) fn judge(&self, device: &Device) -> Result<Terms> {
        let Self { chunk, quota, export, order } = *self;
        let rounded = chunk.checked_next_multiple_of(PAGE).filter(|_| chunk > 0);
        let Some(rounded) = rounded.filter(|rounded| *rounded <= quota) else {
            let must = "over 0 bytes, and rounded up to 2 MiB no more than the quota";
            return Err(ErrorKind::InvalidOption { name: "chunk", value: chunk, must }.into());
        };
        if export == Export::FileDescriptor && !device.exports_descriptors()? {
            return Err(CudaFault::NoDescriptors { ordinal: device.ordinal() }.into());
        }
        let order = match (order, export) {
            (Some(Order::Words), _) => {
                device.words()?;
                Order::Words
            }
            (Some(order), _) => order,
            (None, Export::IpcHandle) => Order::Events,
            (None, Export::FileDescriptor) if device.words().is_ok() => Order::Words,
            (None, Export::FileDescriptor) => Order::Synchronized,
        };
        Ok(Terms { chunk: rounded, quota, export, order })
    }
}

/// The options of a pool on its GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    chunk: u64,
    quota: u64,
    export: Export,
    order: Order,
}

impl Terms {
    /// Returns those of memory that another library allocated: no more of it comes. Several stores may lend of one
    /// allocation, which a peer opens with the tickets of one of them. So they have no interprocess events, which the
    /// others' tickets would have to keep.
    pub(super) fn adopted(export: Export) -> Self {
        Self { chunk: PAGE, quota: 0, export, order: Order::Synchronized }
    }

    /// Returns the bytes that the pool takes from the driver at a time, in whole pages.
    pub(super) fn chunk(self) -> u64 {
        self.chunk
    }

    /// Returns the most bytes that the pool takes.
    pub(super) fn quota(self) -> u64 {
        self.quota
    }

    pub(super) fn export(self) -> Export {
        self.export
    }

    pub(super) fn order(self) -> Order {
        self.order
    }
}
