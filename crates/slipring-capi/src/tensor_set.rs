//! Sets of tensors, which travel in one message.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::thread::LocalKey;

use slipring::message::Metadata;
use slipring::{Tensor, TensorSet};

use crate::failure::{Answer, Failure, guard};
use crate::half::{Half, free_half};
use crate::handle::{Handle, Kind, Lately};
use crate::pointers::{Out, text};
use crate::status::slipring_status::{self, SLIPRING_INVALID_ARGUMENT, SLIPRING_WRONG_STATE};
use crate::tensor::{Held, free_sent, slipring_tensor, tensor_of};

/// Tensors that travel in one message, in order and with names, such as the inputs of a model. One thread uses a set at a time.
pub struct slipring_tensors(());

/// What a handle of a set holds.
#[derive(Default)]
pub(crate) struct Set {
    entries: Vec<Entry>,
    metadata: Metadata,
}

struct Entry {
    name: Box<str>,
    /// The name for C, which has no NUL in it: the name up to its first one.
    shown: CString,
    /// Nothing is left if the caller has taken it.
    tensor: Option<Tensor>,
}

impl Entry {
    fn new(name: Box<str>, tensor: Tensor) -> Self {
        let shown = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
        Self { name, shown, tensor: Some(tensor) }
    }
}

thread_local! {
    static LATELY: Lately<Half<Set>> = const { Lately::new() };
}

impl Kind for Half<Set> {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0006;
    const WRONG: &'static str = "the handle is no slipring_tensors";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LATELY
    }
}

impl Set {
    /// Returns a handle of a set that was received.
    pub(crate) fn handle(tensors: TensorSet) -> Answer<*mut slipring_tensors> {
        Ok(Handle::make(Half::new(Self::from(tensors))?))
    }

    /// Calls `act` with the set, to send it. If that fails, all tensors stay.
    pub(crate) fn send(&mut self, act: impl FnOnce(&TensorSet) -> Answer) -> Answer {
        let tensors = self.take_all()?;
        let sent = act(&tensors);
        if sent.is_err() {
            self.metadata = tensors.metadata().clone();
            for (entry, (_, tensor)) in self.entries.iter_mut().zip(tensors) {
                entry.tensor = Some(tensor);
            }
        }
        sent
    }

    /// Returns all tensors, which leave the set. Those of a set from which one was taken stay.
    pub(crate) fn take_all(&mut self) -> Answer<TensorSet> {
        if self.entries.iter().any(|entry| entry.tensor.is_none()) {
            let text = "a tensor of the set was taken: send it in another set";
            return Err(Failure::Border(SLIPRING_WRONG_STATE, text));
        }
        let mut tensors = TensorSet::new();
        for Entry { name, tensor, .. } in &mut self.entries {
            let Some(tensor) = tensor.take() else { continue };
            // No two of them have a name, which is no longer than it may be.
            if name.is_empty() {
                tensors.push(tensor);
            } else {
                tensors.insert(name, tensor)?;
            }
        }
        tensors.set_metadata(std::mem::take(&mut self.metadata));
        Ok(tensors)
    }

    fn entry(&mut self, index: usize) -> Answer<&mut Entry> {
        let text = "the index is not less than the count of tensors";
        let none = Failure::Border(SLIPRING_INVALID_ARGUMENT, text);
        self.entries.get_mut(index).ok_or(none)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| !name.is_empty() && *entry.name == *name)
    }
}

impl From<TensorSet> for Set {
    fn from(tensors: TensorSet) -> Self {
        let metadata = tensors.metadata().clone();
        let entry = |(name, tensor)| Entry::new(name, tensor);
        Self { entries: tensors.into_iter().map(entry).collect(), metadata }
    }
}

/// Returns the set behind a pointer.
///
/// # Safety
///
/// No other thread frees the handle meanwhile.
pub(crate) unsafe fn set_of<'a>(set: *const slipring_tensors) -> Answer<&'a Half<Set>> {
    // SAFETY: as the caller vouches.
    let half = unsafe { Handle::<Half<Set>>::of(set) }?;
    half.check_process()?;
    Ok(half)
}

/// Frees the handle of a set that was sent.
///
/// # Safety
///
/// No other thread uses the handle.
pub(crate) unsafe fn free_sent_set(set: *mut slipring_tensors) {
    // SAFETY: as the caller vouches.
    drop(unsafe { Handle::<Half<Set>>::free(set) });
}

/// Makes an empty set. Free it with slipring_tensors_free(), unless a send took it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensors_new(set: *mut *mut slipring_tensors) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        unsafe { Out::new(set) }?.set(Handle::make(Half::new(Set::default())?));
        Ok(())
    })
}

/// Adds a tensor to a set, behind the others. `name` may be NULL or empty: then it has an index alone. With SLIPRING_OK the set
/// has the tensor: do not use the handle again. With any other status it stays yours. A tensor that is being written is shared.
///
/// SLIPRING_INVALID_ARGUMENT: another tensor has the name, or the name is no UTF-8 or longer than 255 bytes.
/// SLIPRING_WRONG_STATE: the tensor's memory is gone. SLIPRING_OS, SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensors_add(
    set: *mut slipring_tensors,
    name: *const c_char,
    tensor: *mut slipring_tensor,
) -> slipring_status {
    guard(|| {
        let name = if name.is_null() {
            ""
        } else {
            // SAFETY: the header demands a text.
            unsafe { text(name) }?
        };
        let wrong = |text| Err(Failure::Border(SLIPRING_INVALID_ARGUMENT, text));
        if name.len() > 255 {
            return wrong("the name is longer than 255 bytes");
        }
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let set = unsafe { set_of(set) }?;
        // SAFETY: as above.
        let held = unsafe { tensor_of(tensor) }?;
        set.enter(|set| {
            if set.position(name).is_some() {
                return wrong("another tensor of the set has this name");
            }
            let tensor = held.enter(Held::take_shared)?;
            set.entries.push(Entry::new(name.into(), tensor));
            Ok(())
        })?;
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent(tensor) };
        Ok(())
    })
}

/// Writes the count of tensors, also of those that were taken.
///
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensors_count(
    set: *const slipring_tensors,
    count: *mut usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(count) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        out.set(unsafe { set_of(set) }?.enter(|set| Ok(set.entries.len()))?);
        Ok(())
    })
}

/// Writes the name of a tensor: empty, never NULL, if it has none. Of a peer's name with a NUL in it, it is the part before that. It stays valid until the set is sent or freed. Do not free it.
///
/// SLIPRING_INVALID_ARGUMENT: there is no such index. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensors_name(
    set: *const slipring_tensors,
    index: usize,
    name: *mut *const c_char,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(name) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { set_of(set) }?.enter(|set| Ok(set.entry(index)?.shown.as_ptr()))?;
        out.set(found);
        Ok(())
    })
}

/// Writes the index of the tensor with a name.
///
/// SLIPRING_INVALID_ARGUMENT: no tensor has this name. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensors_find(
    set: *const slipring_tensors,
    name: *const c_char,
    index: *mut usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(index) }?;
        // SAFETY: the header demands a text.
        let name = unsafe { text(name) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { set_of(set) }?.enter(|set| Ok(set.position(name)))?;
        let text = "no tensor of the set has this name";
        out.set(found.ok_or(Failure::Border(SLIPRING_INVALID_ARGUMENT, text))?);
        Ok(())
    })
}

/// Takes a tensor out of a set, and makes a handle of its own for it. The other tensors keep their indices. Free it with
/// slipring_tensor_free(), unless a send took it.
///
/// SLIPRING_INVALID_ARGUMENT: there is no such index. SLIPRING_WRONG_STATE: it was taken before. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensors_take(
    set: *mut slipring_tensors,
    index: usize,
    tensor: *mut *mut slipring_tensor,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(tensor) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let taken = unsafe { set_of(set) }?.enter(|set| {
            let text = "the tensor was taken before";
            let none = Failure::Border(SLIPRING_WRONG_STATE, text);
            set.entry(index)?.tensor.take().ok_or(none)
        })?;
        out.set(Held::handle(taken)?);
        Ok(())
    })
}

/// Frees a set with the tensors that are in it. NULL has no effect.
///
/// SLIPRING_BUSY: another thread uses the set. It is not freed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensors_free(set: *mut slipring_tensors) -> slipring_status {
    // SAFETY: the header demands that no other thread frees the handle.
    unsafe { free_half::<Set, _>(set) }
}
