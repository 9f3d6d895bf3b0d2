//! What clients ask beside executions, as a worker does it: load, commit, update, release, unload.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::commit::buffer;
use crate::commit::description::Layout;
use crate::commit::guest::{Committed, Guest, Held, Loaded, count, lock};
use crate::commit::ledger::Claim;
use crate::commit::limits::One;
use crate::commit::memory::{Memory, View};
use crate::commit::message::{self, Answer, Object, Request};
use crate::commit::service::{Buffers, ModelSource, Refused, Service};
use crate::error::{CommitFault, Error, ErrorKind, Result};
use crate::region::Opened;
use crate::transport::Foreign;

/// What a client asks, with the descriptors that came along.
pub(super) struct Ask {
    pub(super) ticket: u64,
    pub(super) request: Request,
    /// The message that it came in, where a model follows.
    pub(super) message: Vec<u8>,
    pub(super) descriptors: Result<Vec<Foreign>>,
}

impl Ask {
    /// Does it, and answers; what ends by it answers when it has ended.
    pub(super) fn serve<S: Service>(self, guest: &Arc<Guest<S>>) {
        let ticket = self.ticket;
        let answer = match self.act(guest) {
            Ok(Some(answer)) => answer,
            Ok(None) => return,
            Err(fault) => Answer::Failed(fault),
        };
        guest.answer(ticket, &answer);
    }

    fn act<S: Service>(self, guest: &Arc<Guest<S>>) -> Result<Option<Answer>, CommitFault> {
        let descriptors = self.descriptors.map_err(|error| lacking(&error));
        match self.request {
            Request::Load => {
                let bytes = self.message.get(message::HEAD..).unwrap_or_default();
                load(guest, ModelSource::Bytes(bytes)).map(Some)
            }
            Request::LoadDescriptor { offset, len, .. } => {
                let descriptors = descriptors?;
                let fd = descriptors.first().ok_or(CommitFault::Count { count: 0, expected: 1 })?;
                let opened = buffer::open(fd.as_fd(), Object::Memfd, offset, len);
                let memory = opened.and_then(|opened| Memory::of(opened, false));
                let memory = memory.map_err(|error| in_words(0, &error))?;
                drop(descriptors);
                load(guest, ModelSource::View(View::new(&memory, 0, len, false))).map(Some)
            }
            Request::Commit { model, memory, .. } => {
                let model = lock(&guest.ledger).models.get(model)?.clone();
                let id = commit(&model, &memory, &descriptors?)?;
                Ok(Some(Answer::Committed { id }))
            }
            Request::Update { id, memory, .. } => {
                let commit = lock(&guest.ledger).commits.get(id)?.clone();
                commit.begin()?;
                let updated =
                    descriptors.and_then(|descriptors| update(&commit, &memory, &descriptors));
                commit.finish();
                updated.map(|()| Some(Answer::Done))
            }
            Request::Release { id } => {
                let commit = lock(&guest.ledger).commits.remove(id)?;
                *lock(&commit.releasing) = Some(self.ticket);
                Ok(None)
            }
            Request::Unload { model } => {
                let mut ledger = lock(&guest.ledger);
                let model = ledger.models.remove(model)?;
                let commits =
                    ledger.commits.remove_all(|commit| Arc::ptr_eq(&commit.model, &model));
                drop(ledger);
                *lock(&model.closing) = Some(self.ticket);
                drop(commits);
                Ok(None)
            }
            // Served where they came.
            Request::Execute { .. } | Request::Discard { .. } => Ok(None),
        }
    }
}

/// Runs what a service does. Its panic is a fault of its own.
pub(super) fn guarded<T>(run: impl FnOnce() -> Result<T, Refused>) -> Result<T, CommitFault> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(answer) => answer.map_err(CommitFault::from),
        Err(panic) => {
            // What was thrown may panic when it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
            Err(CommitFault::Panicked)
        }
    }
}

fn load<S: Service>(guest: &Arc<Guest<S>>, source: ModelSource<'_>) -> Result<Answer, CommitFault> {
    let host = &guest.host;
    lock(&guest.ledger).account.take_model(&host.options)?;
    // From here on dropping it counts it back.
    let one = One::more(&host.tally.models);
    let loaded =
        guarded(|| host.service.load(&guest.caller, source)).and_then(|(kept, description)| {
            match Layout::new(description) {
                Ok(layout) => Ok((kept, layout)),
                Err(fault) => {
                    let _ = guarded(|| {
                        host.service.unload(kept);
                        Ok(())
                    });
                    Err(fault)
                }
            }
        });
    let (kept, layout) = match loaded {
        Ok(loaded) => loaded,
        Err(fault) => {
            lock(&guest.ledger).account.models -= 1;
            return Err(fault);
        }
    };
    one.keep();
    let description = layout.description.clone();
    let (layout, kept, closing) = (Arc::new(layout), Some(kept), Default::default());
    let model = Arc::new(Loaded { guest: guest.clone(), layout, kept, closing });
    let mut ledger = lock(&guest.ledger);
    let id = ledger.models.reserve(host.number());
    let Some(id) = id.filter(|_| !guest.gone.load(Ordering::Relaxed)) else {
        drop(ledger);
        return Err(CommitFault::Resources { why: "no more models can be loaded".into() });
    };
    ledger.models.put(id, model);
    Ok(Answer::Loaded { model: id, description })
}

/// Memory that was opened, and what is claimed of it.
struct Checked {
    region: u32,
    opened: Opened,
    written: bool,
    claim: Claim,
}

/// Opens and checks what a client provides.
fn check<S: Service>(
    model: &Loaded<S>,
    memory: &[message::Memory],
    descriptors: &[Foreign],
) -> Result<Vec<Checked>, CommitFault> {
    let description = &model.layout.description;
    let check = |piece: &message::Memory| {
        let message::Memory { region, descriptor, object, offset, len } = *piece;
        let expected = description.region(region)?.size;
        if len != expected {
            return Err(CommitFault::Size { len, expected });
        }
        // Judged when the message was: there are as many as it says.
        let (count, expected) = (descriptors.len(), descriptor as usize + 1);
        let fd = descriptors.get(descriptor as usize);
        let fd = fd.ok_or(CommitFault::Count { count, expected })?;
        let opened = buffer::open(fd.as_fd(), object, offset, len);
        let opened = opened.map_err(|error| in_words(region, &error))?;
        let (written, output) = model.layout.written[region as usize];
        if opened.is_loose() && !model.guest.host.options.unsealed {
            return Err(CommitFault::Unsealed { region });
        }
        if written && !opened.is_writable() {
            return Err(CommitFault::ReadOnly { region });
        }
        let object = opened.identity().unwrap_or_default();
        let serial = model.guest.host.number();
        let claim = Claim { serial, region, object, start: offset, end: offset + len, output };
        Ok(Checked { region, opened, written, claim })
    };
    memory.iter().map(check).collect()
}

/// Maps what was checked.
fn map<S: Service>(
    guest: &Guest<S>,
    checked: Vec<Checked>,
) -> Result<Vec<(u32, Arc<Memory>)>, CommitFault> {
    let mut mapped = Vec::new();
    for Checked { region, opened, written, .. } in checked {
        let memory = Memory::of(opened, written).map_err(|error| in_words(region, &error))?;
        mapped.push((region, Arc::new(memory)));
    }
    let memory: Vec<Arc<Memory>> = mapped.iter().map(|(_, memory)| memory.clone()).collect();
    guest.host.remember(&memory)?;
    Ok(mapped)
}

fn commit<S: Service>(
    model: &Arc<Loaded<S>>,
    memory: &[message::Memory],
    descriptors: &[Foreign],
) -> Result<u64, CommitFault> {
    let guest = &model.guest;
    let expected = model.layout.description.regions.len();
    is_each_once(memory)?;
    if memory.len() != expected {
        return Err(CommitFault::Count { count: memory.len(), expected });
    }
    let checked = check(model, memory, descriptors)?;
    let claims: Vec<Claim> = checked.iter().map(|checked| checked.claim).collect();
    let mut ledger = lock(&guest.ledger);
    ledger.account.take_commit(&guest.host.options)?;
    let reserved = ledger.commits.reserve(guest.host.number());
    let claimed = match reserved {
        Some(id) => ledger.account.claim(&guest.host.options, id, &claims).map(|()| id),
        None => Err(CommitFault::Resources { why: "no more commits can be made".into() }),
    };
    drop(ledger);
    let held = claimed.and_then(|id| Ok((id, hold(model, checked)?)));
    let (id, held) = match held {
        Ok(held) => held,
        Err(fault) => {
            let mut ledger = lock(&guest.ledger);
            ledger.account.commits -= 1;
            if let Some(id) = reserved {
                ledger.account.unclaim(id, |_| true);
                ledger.commits.give_back(id);
            }
            return Err(fault);
        }
    };
    // From here on dropping it undoes all of that.
    let commit = Arc::new(Committed::new(model.clone(), id, held));
    let mut ledger = lock(&guest.ledger);
    let is_there = ledger.models.has(|loaded| Arc::ptr_eq(loaded, model));
    if !is_there || guest.gone.load(Ordering::Relaxed) {
        ledger.commits.give_back(id);
        drop(ledger);
        return Err(CommitFault::ModelClosed);
    }
    ledger.commits.put(id, commit);
    Ok(id)
}

/// Maps memory, and has the service take it.
fn hold<S: Service>(model: &Loaded<S>, checked: Vec<Checked>) -> Result<Held<S>, CommitFault> {
    let host = &model.guest.host;
    let mut mapped = map(&model.guest, checked)?;
    mapped.sort_by_key(|(region, _)| *region);
    let regions = mapped.into_iter().map(|(_, memory)| memory).collect();
    let buffers = Buffers { layout: model.layout.clone(), regions };
    let kept = match &model.kept {
        Some(kept) => guarded(|| host.service.commit(kept, &buffers)),
        None => Err(CommitFault::ModelClosed),
    };
    match kept {
        Ok(kept) => Ok(Held { buffers, kept }),
        Err(fault) => {
            host.forget(&buffers.regions);
            Err(fault)
        }
    }
}

/// Replaces memory of some regions. Nothing runs meanwhile.
fn update<S: Service>(
    commit: &Committed<S>,
    memory: &[message::Memory],
    descriptors: &[Foreign],
) -> Result<(), CommitFault> {
    let (model, guest) = (&commit.model, commit.guest());
    let description = &model.layout.description;
    is_each_once(memory)?;
    for piece in memory {
        description.region(piece.region)?;
        let fixed = description.buffers_of(piece.region).map(|at| &description.buffers[at]);
        if let Some(buffer) = fixed.into_iter().find(|buffer| !buffer.is_able_to_update) {
            let (direction, index) = (buffer.direction, buffer.index);
            return Err(CommitFault::NotUpdatable { direction, index });
        }
    }
    let checked = check(model, memory, descriptors)?;
    let claims: Vec<Claim> = checked.iter().map(|checked| checked.claim).collect();
    let old = lock(&guest.ledger).account.replace(&guest.host.options, commit.id, &claims)?;
    let replaced = map(guest, checked).and_then(|mapped| replace(commit, mapped));
    // What goes is not claimed any more: the old memory, or the new.
    let goes = if replaced.is_ok() { &old } else { &claims };
    lock(&guest.ledger).account.unclaim(commit.id, |claim| goes.contains(claim));
    replaced
}

fn replace<S: Service>(
    commit: &Committed<S>,
    mapped: Vec<(u32, Arc<Memory>)>,
) -> Result<(), CommitFault> {
    let host = &commit.guest().host;
    let new: Vec<Arc<Memory>> = mapped.iter().map(|(_, memory)| memory.clone()).collect();
    let mut held = lock(&commit.held);
    let (Some(held), Some(model)) = (held.as_mut(), &commit.model.kept) else {
        host.forget(&new);
        return Err(CommitFault::UnknownId { id: commit.id });
    };
    let mut regions = held.buffers.regions.clone();
    let mut old = Vec::new();
    for (region, memory) in mapped {
        old.push(std::mem::replace(&mut regions[region as usize], memory));
    }
    let buffers = Buffers { layout: commit.model.layout.clone(), regions };
    match guarded(|| host.service.update(model, &mut held.kept, &buffers)) {
        Ok(()) => {
            held.buffers = buffers;
            host.forget(&old);
            Ok(())
        }
        Err(fault) => {
            host.forget(&new);
            Err(fault)
        }
    }
}

fn is_each_once(memory: &[message::Memory]) -> Result<(), CommitFault> {
    let mut regions: Vec<u32> = memory.iter().map(|piece| piece.region).collect();
    regions.sort_unstable();
    match regions.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let why = "named twice".into();
            Err(CommitFault::Memory { region: pair[0], why })
        }
        None => Ok(()),
    }
}

/// A fault of a region's memory, for the client.
fn in_words(region: u32, error: &Error) -> CommitFault {
    match error.kind() {
        ErrorKind::Commit(CommitFault::Unsupported { why }) => {
            CommitFault::Memory { region, why: why.clone() }
        }
        ErrorKind::Commit(fault) => fault.clone(),
        ErrorKind::Region(fault) => CommitFault::Memory { region, why: fault.to_string() },
        _ => lacking(error),
    }
}

fn lacking(error: &Error) -> CommitFault {
    CommitFault::Resources { why: format!("{error:#}") }
}

/// Counts of what is mapped, for all clients.
pub(super) mod mapped {
    use super::{Arc, CommitFault, Memory, Ordering, count};
    use crate::commit::limits::{ALL_REGIONS, Tally};

    pub(in crate::commit) fn remember(
        tally: &Tally,
        regions: &[Arc<Memory>],
    ) -> Result<(), CommitFault> {
        let (mappings, descriptors) = count(regions);
        let before = tally.mappings.fetch_add(mappings, Ordering::Relaxed);
        if before + mappings > ALL_REGIONS {
            tally.mappings.fetch_sub(mappings, Ordering::Relaxed);
            let why = format!("{before} regions are mapped, {ALL_REGIONS} may be");
            return Err(CommitFault::Resources { why });
        }
        tally.descriptors.fetch_add(descriptors, Ordering::Relaxed);
        Ok(())
    }

    pub(in crate::commit) fn forget(tally: &Tally, regions: &[Arc<Memory>]) {
        let (mappings, descriptors) = count(regions);
        tally.mappings.fetch_sub(mappings, Ordering::Relaxed);
        tally.descriptors.fetch_sub(descriptors, Ordering::Relaxed);
    }
}
