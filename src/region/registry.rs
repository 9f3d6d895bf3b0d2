//! Names and their regions.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{RegionFault, Result};
use crate::region::limits::RegionLimits;
use crate::region::limits::Totals;
use crate::region::named::{Opened, Region};
use crate::region::{Lease, RegionKind, RegionStatus, Source};
use crate::shm::fork::Generation;

/// The longest name in bytes.
const LONGEST_NAME: usize = 1024;

/// The most regions of a registry, by default.
pub(crate) const REGIONS: usize = 1024;

/// The most bytes of all its regions in host memory, by default.
pub(crate) const BYTES: u64 = 64 << 30;

/// Memory of other processes under names. Clones share one set of names, and any thread may use them.
///
/// All kinds of regions share one set of names. Dropping the last clone unregisters all regions.
///
/// # Examples
///
/// ```
/// use slipring::region::{PosixShm, Registry, Source};
///
/// # let key = format!("/slipring-doc-{}", std::process::id());
/// let object = PosixShm::create(&key, 4096)?; // usually another process's
/// let registry = Registry::new()?;
/// registry.register("input", Source::Posix(&key), 0, 4096)?;
///
/// let lease = registry.lease("input", 1024, 64)?;
/// object.write_at(1024, &[7; 64])?;
/// let mut bytes = [0; 64];
/// lease.read_at(0, &mut bytes)?;
/// assert_eq!(bytes, [7; 64]);
///
/// // New users are refused at once; the memory goes with the last lease.
/// assert_eq!(registry.unregister("input")?, 1); // one lease still uses it
/// assert!(registry.lease("input", 0, 64).is_err());
/// lease.read_at(0, &mut bytes)?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Clone)]
pub struct Registry {
    shared: Arc<RegistryCore>,
}

struct RegistryCore {
    generation: Generation,
    limits: RegionLimits,
    totals: Arc<Totals>,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    registered: BTreeMap<String, Arc<Region>>,
    /// Regions that only leases keep, and weak pointers to some that are gone.
    going_away: Vec<Weak<Region>>,
}

impl Registry {
    /// Returns a registry for at most 1024 regions, which have 64 GiB of host memory at most.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel is too old.
    pub fn new() -> Result<Self> {
        Self::with_limits(REGIONS, BYTES)
    }

    /// Returns a registry for at most `regions` regions, which have `bytes` bytes at most. Each object takes a
    /// descriptor, whatever number of regions it has; memory of CUDA takes none. Memory of a GPU does not count as bytes. A region counts until its memory is
    /// unmapped.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::region::Registry;
    ///
    /// let registry = Registry::with_limits(16, 1 << 30)?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_limits(regions: usize, bytes: u64) -> Result<Self> {
        let shared = RegistryCore {
            generation: Generation::current()?,
            limits: RegionLimits::new(regions, bytes),
            totals: Arc::new(Totals::default()),
            names: Mutex::new(Names::default()),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Registers `len` bytes at `offset` of an object under a name. An object may have several names. The
    /// offset into memory of a GPU counts from the start of its handle's memory.
    ///
    /// A call that fails registers nothing and keeps no descriptor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Region`](crate::ErrorKind::Region) with
    /// - [`NameEmpty`](RegionFault::NameEmpty), [`NameTooLong`](RegionFault::NameTooLong),
    ///   [`Exists`](RegionFault::Exists): the name is impossible or taken;
    /// - [`KeyNamesNothing`](RegionFault::KeyNamesNothing), [`KeyTooLong`](RegionFault::KeyTooLong),
    ///   [`KeyCharacter`](RegionFault::KeyCharacter), [`Open`](RegionFault::Open): the key is impossible, or
    ///   the kernel cannot open its object;
    /// - [`NotThat`](RegionFault::NotThat), [`AccessMode`](RegionFault::AccessMode): the object has another
    ///   kind, or the descriptor another mode;
    /// - [`Empty`](RegionFault::Empty), [`Overflow`](RegionFault::Overflow), [`Offset`](RegionFault::Offset),
    ///   [`Range`](RegionFault::Range): the object has no such bytes;
    /// - [`TooManyRegions`](RegionFault::TooManyRegions), [`TooManyBytes`](RegionFault::TooManyBytes): a limit
    ///   of [`with_limits`](Self::with_limits) is reached.
    ///
    /// [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit), and
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn register(&self, name: &str, source: Source<'_>, offset: u64, len: u64) -> Result<()> {
        if name.is_empty() {
            return Err(RegionFault::NameEmpty.into());
        }
        if name.len() > LONGEST_NAME {
            return Err(RegionFault::NameTooLong { len: name.len(), max: LONGEST_NAME }.into());
        }
        self.names()?.is_free(name)?;
        // Outside of the lock, so that other threads do not wait for these system calls.
        let mut opened = Opened::new(source, offset, len)?;
        let RegistryCore { generation, limits, totals, .. } = &*self.shared;
        let mut names = self.names()?;
        names.is_free(name)?;
        let share = totals.take(*limits, opened.bytes())?;
        names.registered.values().for_each(|region| opened.share(region));
        let region = opened.into_region(name, *generation, share);
        names.going_away.retain(|region| region.strong_count() > 0);
        names.registered.insert(name.to_owned(), Arc::new(region));
        Ok(())
    }

    /// Returns the status of the region with this name.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::region::{CudaHandle, RegionKind, Registry, Source};
    ///
    /// let registry = Registry::new()?;
    /// let handle = CudaHandle { raw: [0; 64], device: 1 }; // as data: no GPU is asked
    /// registry.register("frames", Source::Cuda(handle), 256, 1024)?;
    /// let status = registry.status("frames")?;
    /// assert_eq!((status.kind, status.device), (RegionKind::Cuda, Some(1)));
    /// assert_eq!((status.offset, status.len, status.leases), (256, 1024, 0));
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RegionFault::Unknown`], and [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn status(&self, name: &str) -> Result<RegionStatus> {
        Ok(self.names()?.find(name)?.status())
    }

    /// Returns the status of all registered regions, sorted by name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn statuses(&self) -> Result<Vec<RegionStatus>> {
        Ok(self.names()?.registered.values().map(|region| region.status()).collect())
    }

    /// Returns the status of the regions that are unregistered and that leases keep.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn going_away(&self) -> Result<Vec<RegionStatus>> {
        let kept: Vec<Arc<Region>> =
            self.names()?.going_away.iter().filter_map(Weak::upgrade).collect();
        // The last lease may end in between. Then the region is dropped here, outside of the lock.
        let kept = kept.iter().filter(|region| region.leases() > 0);
        Ok(kept.map(|region| region.status()).collect())
    }

    /// Returns a lease of `len` bytes at `offset` of a region.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Region`](crate::ErrorKind::Region) with [`Unknown`](RegionFault::Unknown),
    /// [`Overflow`](RegionFault::Overflow), [`Offset`](RegionFault::Offset), or [`Range`](RegionFault::Range);
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn lease(&self, name: &str, offset: u64, len: u64) -> Result<Lease> {
        let names = self.names()?;
        let region = names.find(name)?;
        let extent = region.extent().part(offset, len)?;
        Ok(Lease::new(region.clone(), extent))
    }

    /// Unregisters a region, and returns the number of leases that use it. Its name is free at once, and new leases are
    /// refused. The last lease unmaps the memory and closes the descriptor. After a return of 0 both are done.
    ///
    /// # Errors
    ///
    /// [`RegionFault::Unknown`], and [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn unregister(&self, name: &str) -> Result<usize> {
        self.take_back(name, None)
    }

    /// Unregisters a region of this kind, as [`unregister`](Self::unregister) does.
    ///
    /// # Errors
    ///
    /// As [`unregister`](Self::unregister), and [`RegionFault::OtherKind`].
    pub fn unregister_of(&self, kind: RegionKind, name: &str) -> Result<usize> {
        self.take_back(name, Some(kind))
    }

    /// Unregisters all regions of this kind, and returns the number of leases that use each.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn unregister_all(&self, kind: RegionKind) -> Result<Vec<(String, usize)>> {
        let mut names = self.names()?;
        let of_kind = names.registered.iter().filter(|(_, region)| region.kind() == kind);
        let taken: Vec<String> = of_kind.map(|(name, _)| name.clone()).collect();
        let (answers, gone): (Vec<_>, Vec<_>) = taken
            .into_iter()
            .filter_map(|name| {
                let (answer, gone) = names.let_go(&name)?;
                Some(((name, answer), gone))
            })
            .unzip();
        drop(names);
        // The regions are unmapped and closed outside of the lock.
        drop(gone);
        Ok(answers)
    }

    fn take_back(&self, name: &str, kind: Option<RegionKind>) -> Result<usize> {
        let mut names = self.names()?;
        let is = names.find(name)?.kind();
        if let Some(wanted) = kind.filter(|wanted| *wanted != is) {
            let (is, wanted) = (is.name(), wanted.name());
            return Err(RegionFault::OtherKind { name: name.to_owned(), is, wanted }.into());
        }
        let (answer, gone) = names.let_go(name).expect("just found under the lock");
        drop(names);
        // The region is unmapped and closed outside of the lock.
        drop(gone);
        Ok(answer)
    }

    /// Returns the names, in the process that made the registry.
    fn names(&self) -> Result<MutexGuard<'_, Names>> {
        // The check comes first: a child may have inherited a locked mutex that nobody unlocks.
        self.shared.generation.check()?;
        Ok(self.shared.names.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Names {
    fn is_free(&self, name: &str) -> Result<(), RegionFault> {
        if self.registered.contains_key(name) {
            return Err(RegionFault::Exists { name: name.to_owned() });
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<&Arc<Region>, RegionFault> {
        self.registered.get(name).ok_or_else(|| RegionFault::Unknown { name: name.to_owned() })
    }

    /// Removes a name. Returns the outcome, and the region if no lease uses it.
    fn let_go(&mut self, name: &str) -> Option<(usize, Option<Region>)> {
        let region = self.registered.remove(name)?;
        region.go_away();
        // A lease that ends at this moment has reduced the count and still holds its pointer for an instant.
        let leases = region.leases().max(1);
        let weak = Arc::downgrade(&region);
        let gone = Arc::into_inner(region);
        if gone.is_some() {
            return Some((0, gone));
        }
        self.going_away.push(weak);
        Some((leases, None))
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.registered.values().for_each(|region| region.go_away());
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}
