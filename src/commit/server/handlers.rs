//! Handlers of loads, commits and updates. Workers run them.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::commit::buffer;
use crate::commit::description::Layout;
use crate::commit::memory::{Memory, View};
use crate::commit::server::account::Claim;
use crate::commit::server::client_session::{
    ClientSession, Committed, Held, LoadedModel, WaitingRequest,
};
use crate::commit::server::host::guarded;
use crate::commit::server::service::{Buffers, ModelSource, Service};
use crate::commit::wire::message::{self, Answer, Object, Request};
use crate::error::{CommitFault, Error, ErrorKind, Result, Slot};
use crate::handshake::UntrustedFd;
use crate::region::Opened;

/// What is wrong with memory that is sealed, and whose pages are not all there.
const HOLES: &str = "sealed, but not all of its pages are allocated: allocate them (fallocate)";

/// What is wrong with memory whose owner can truncate it.
const LOOSE: &str =
    "can be truncated by its owner: seal it with F_SEAL_SHRINK (or ServerOptions::allow_unsealed)";

/// A request, and the descriptors that came with it.
pub(super) struct ControlRequest {
    ticket: u64,
    request: Request,
    /// The message that the request came in. A load has the model's bytes behind the head.
    message: Vec<u8>,
    _counted: WaitingRequest,
    descriptors: Result<Vec<UntrustedFd>>,
}

impl ControlRequest {
    pub(super) fn new(
        ticket: u64,
        request: Request,
        (message, counted): (Vec<u8>, WaitingRequest),
        descriptors: Result<Vec<UntrustedFd>>,
    ) -> Self {
        Self { ticket, request, message, _counted: counted, descriptors }
    }

    /// Handles the request, and answers it.
    pub(super) fn handle<S: Service>(self, session: &Arc<ClientSession<S>>) {
        let ticket = self.ticket;
        match self.apply(session) {
            Ok(Some(answer)) => session.answer(ticket, &answer),
            Ok(None) => {}
            Err(fault) => session.answer(ticket, &Answer::Failed(fault)),
        }
    }

    fn apply<S: Service>(
        self,
        session: &Arc<ClientSession<S>>,
    ) -> Result<Option<Answer>, CommitFault> {
        let descriptors = self.descriptors.map_err(|error| lack_of_resources(&error));
        match self.request {
            Request::Load => {
                let bytes = self.message.get(message::HEAD..).unwrap_or_default();
                load(session, ModelSource::Bytes(bytes)).map(Some)
            }
            Request::LoadDescriptor { offset, len, .. } => {
                let descriptors = descriptors?;
                let fd = descriptors.first().ok_or(CommitFault::Count { count: 0, expected: 1 })?;
                let opened = buffer::open(fd.as_fd(), Object::Memfd, offset, len);
                let opened = opened.map_err(|error| to_commit_fault(None, &error))?;
                if opened.is_loose() && !session.host().options().allows_unsealed() {
                    let why = if opened.has_holes() { HOLES } else { LOOSE };
                    return Err(CommitFault::Model { why: why.into() });
                }
                let memory = Memory::of(opened, false);
                let memory = memory.map_err(|error| to_commit_fault(None, &error))?;
                drop(descriptors);
                load(session, ModelSource::View(View::new(&memory, 0, len, false))).map(Some)
            }
            Request::Commit { model, memory, .. } => {
                let model = session.ledger().models.get(model)?.clone();
                let id = commit(&model, &memory, &descriptors?)?;
                Ok(Some(Answer::Committed { id }))
            }
            Request::Update { id, memory, .. } => {
                let commit = session.ledger().commits.get(id)?.clone();
                commit.begin()?;
                let updated =
                    descriptors.and_then(|descriptors| update(&commit, &memory, &descriptors));
                commit.finish();
                updated.map(|()| Some(Answer::Done))
            }
            // The reactor's thread has handled these.
            Request::Execute { .. }
            | Request::Discard { .. }
            | Request::Release { .. }
            | Request::Unload { .. } => Ok(None),
        }
    }
}

fn load<S: Service>(
    session: &Arc<ClientSession<S>>,
    source: ModelSource<'_>,
) -> Result<Answer, CommitFault> {
    let host = session.host();
    session.ledger().account.add_model(host.options())?;
    let counted = host.tally().model();
    let service = host.service();
    let loaded = guarded(|| {
        let (kept, description) = service.load(session.caller(), source)?;
        let inline = service.runs_inline(&kept);
        Ok((kept, inline, description))
    });
    let loaded = loaded.and_then(|(kept, inline, description)| match Layout::new(description) {
        Ok(layout) => Ok((kept, inline, layout)),
        Err(fault) => {
            let _ = guarded(|| {
                service.unload(kept);
                Ok(())
            });
            Err(fault)
        }
    });
    let (kept, inline, layout) = match loaded {
        Ok(loaded) => loaded,
        Err(fault) => {
            session.ledger().account.remove_model();
            return Err(fault);
        }
    };
    let description = layout.description().clone();
    // The end of this undoes all of the above.
    let model = LoadedModel::new(session.clone(), Arc::new(layout), (kept, inline), counted);
    let mut ledger = session.ledger();
    let id = ledger.models.reserve(host.number());
    let Some(id) = id.filter(|_| !session.is_gone()) else {
        drop(ledger);
        return Err(CommitFault::Resources { why: "no more models can be loaded".into() });
    };
    ledger.models.put(id, Arc::new(model));
    Ok(Answer::Loaded { model: id, description })
}

/// A region's memory, opened and checked.
struct Checked {
    region: u32,
    opened: Opened,
    /// The service writes it.
    written: bool,
    claim: Claim,
}

/// Opens and checks the memory that a client provides.
fn check<S: Service>(
    model: &LoadedModel<S>,
    memory: &[message::Memory],
    descriptors: &[UntrustedFd],
) -> Result<Vec<Checked>, CommitFault> {
    let (layout, host) = (model.layout(), model.session().host());
    let check = |piece: &message::Memory| {
        let message::Memory { region, descriptor, object, offset, len } = *piece;
        let expected = layout.description().region(region)?.size;
        if len != expected {
            let slot = Slot::Region { index: region };
            return Err(CommitFault::Size { slot, len, expected });
        }
        // The decoder has compared `descriptor` with the number that the message says.
        let (count, expected) = (descriptors.len(), descriptor as usize + 1);
        let fd = descriptors.get(descriptor as usize);
        let fd = fd.ok_or(CommitFault::Count { count, expected })?;
        let opened = buffer::open(fd.as_fd(), object, offset, len);
        let opened = opened.map_err(|error| to_commit_fault(Some(region), &error))?;
        if opened.is_loose() && !host.options().allows_unsealed() {
            return Err(match opened.has_holes() {
                true => CommitFault::Memory { region, why: HOLES.into() },
                false => CommitFault::Unsealed { region },
            });
        }
        let written = layout.is_written(region);
        let object = opened.identity().unwrap_or_default();
        let (serial, output) = (host.number(), layout.holds_output(region));
        let claim = Claim { serial, region, object, start: offset, end: offset + len, output };
        Ok(Checked { region, opened, written, claim })
    };
    memory.iter().map(check).collect()
}

/// Maps the memory that was checked.
fn map<S: Service>(
    session: &ClientSession<S>,
    checked: Vec<Checked>,
) -> Result<Vec<(u32, Arc<Memory>)>, CommitFault> {
    let mut mapped = Vec::new();
    for Checked { region, opened, written, .. } in checked {
        let memory = Memory::of(opened, written);
        let memory = memory.map_err(|error| to_commit_fault(Some(region), &error))?;
        if written && !memory.is_writable() {
            return Err(CommitFault::ReadOnly { region });
        }
        mapped.push((region, Arc::new(memory)));
    }
    let memory: Vec<Arc<Memory>> = mapped.iter().map(|(_, memory)| memory.clone()).collect();
    let host = session.host();
    host.tally().map(host.options(), &memory)?;
    Ok(mapped)
}

fn commit<S: Service>(
    model: &Arc<LoadedModel<S>>,
    memory: &[message::Memory],
    descriptors: &[UntrustedFd],
) -> Result<u64, CommitFault> {
    let session = model.session();
    let host = session.host();
    let expected = model.layout().description().regions.len();
    check_distinct(memory)?;
    if memory.len() != expected {
        return Err(CommitFault::Count { count: memory.len(), expected });
    }
    let checked = check(model, memory, descriptors)?;
    let claims: Vec<Claim> = checked.iter().map(|checked| checked.claim).collect();
    let mut ledger = session.ledger();
    ledger.account.add_commit(host.options())?;
    let reserved = ledger.commits.reserve(host.number());
    let claimed = match reserved {
        Some(id) => ledger.account.claim(host.options(), id, &claims).map(|()| id),
        None => Err(CommitFault::Resources { why: "no more commits can be made".into() }),
    };
    drop(ledger);
    let held = claimed.and_then(|id| Ok((id, hold(model, checked)?)));
    let (id, held) = match held {
        Ok(held) => held,
        Err(fault) => {
            let mut ledger = session.ledger();
            ledger.account.remove_commit();
            if let Some(id) = reserved {
                ledger.account.unclaim(id, |_| true);
                ledger.commits.give_back(id);
            }
            return Err(fault);
        }
    };
    // The end of this undoes all of the above.
    let commit = Arc::new(Committed::new(model.clone(), id, held));
    let mut ledger = session.ledger();
    let is_loaded = ledger.models.has(|loaded| Arc::ptr_eq(loaded, model));
    if !is_loaded || session.is_gone() {
        ledger.commits.give_back(id);
        drop(ledger);
        return Err(CommitFault::ModelClosed);
    }
    ledger.commits.put(id, commit);
    Ok(id)
}

/// Maps memory, and lets the service commit it.
fn hold<S: Service>(model: &LoadedModel<S>, checked: Vec<Checked>) -> Result<Held<S>, CommitFault> {
    let host = model.session().host();
    let mut mapped = map(model.session(), checked)?;
    mapped.sort_by_key(|(region, _)| *region);
    let regions = mapped.into_iter().map(|(_, memory)| memory).collect();
    let buffers = Buffers::new(model.layout().clone(), regions);
    let kept = match model.kept() {
        Some(kept) => guarded(|| host.service().commit(kept, &buffers)),
        None => Err(CommitFault::ModelClosed),
    };
    match kept {
        Ok(kept) => Ok(Held { buffers, kept }),
        Err(fault) => {
            host.tally().unmap(buffers.regions());
            Err(fault)
        }
    }
}

/// Replaces the memory of some regions. The commit is marked as in use: nothing runs on it.
fn update<S: Service>(
    commit: &Committed<S>,
    memory: &[message::Memory],
    descriptors: &[UntrustedFd],
) -> Result<(), CommitFault> {
    let (model, session) = (commit.model(), commit.model().session());
    let description = model.layout().description();
    check_distinct(memory)?;
    for piece in memory {
        description.region(piece.region)?;
        let buffers = description.buffers_of(piece.region).map(|at| &description.buffers[at]);
        if let Some(fixed) = buffers.into_iter().find(|buffer| !buffer.is_able_to_update) {
            let (direction, index) = (fixed.direction, fixed.index);
            return Err(CommitFault::NotUpdatable { direction, index });
        }
    }
    let checked = check(model, memory, descriptors)?;
    let claims: Vec<Claim> = checked.iter().map(|checked| checked.claim).collect();
    let options = session.host().options();
    let old = session.ledger().account.replace(options, commit.id(), &claims)?;
    let replaced = map(session, checked).and_then(|mapped| replace(commit, mapped));
    // Either the old memory goes, or the new one.
    let goes = if replaced.is_ok() { &old } else { &claims };
    session.ledger().account.unclaim(commit.id(), |claim| goes.contains(claim));
    replaced
}

fn replace<S: Service>(
    commit: &Committed<S>,
    mapped: Vec<(u32, Arc<Memory>)>,
) -> Result<(), CommitFault> {
    let host = commit.model().session().host();
    let new: Vec<Arc<Memory>> = mapped.iter().map(|(_, memory)| memory.clone()).collect();
    let mut held = commit.held();
    let (Some(held), Some(model)) = (held.as_mut(), commit.model().kept()) else {
        host.tally().unmap(&new);
        return Err(CommitFault::UnknownId { id: commit.id() });
    };
    let mut regions = held.buffers.regions().to_vec();
    let mut old = Vec::new();
    for (region, memory) in mapped {
        old.push(std::mem::replace(&mut regions[region as usize], memory));
    }
    let buffers = Buffers::new(commit.model().layout().clone(), regions);
    match guarded(|| host.service().update(model, &mut held.kept, &buffers)) {
        Ok(()) => {
            held.buffers = buffers;
            host.tally().unmap(&old);
            Ok(())
        }
        Err(fault) => {
            host.tally().unmap(&new);
            Err(fault)
        }
    }
}

/// Checks that a message names no region twice.
fn check_distinct(memory: &[message::Memory]) -> Result<(), CommitFault> {
    let mut regions: Vec<u32> = memory.iter().map(|piece| piece.region).collect();
    regions.sort_unstable();
    match regions.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(CommitFault::Memory { region: pair[0], why: "named twice".into() }),
        None => Ok(()),
    }
}

/// Returns the fault that tells the client about an error of a region's memory, or of a model's.
fn to_commit_fault(region: Option<u32>, error: &Error) -> CommitFault {
    let of_memory = |why: String| match region {
        Some(region) => CommitFault::Memory { region, why },
        None => CommitFault::Model { why },
    };
    match error.kind() {
        ErrorKind::Commit(CommitFault::Unsupported { why }) => of_memory(why.clone()),
        ErrorKind::Commit(CommitFault::Range { offset, len, size, .. }) => {
            CommitFault::Range { region, offset: *offset, len: *len, size: *size }
        }
        ErrorKind::Commit(fault) => fault.clone(),
        ErrorKind::Region(fault) => of_memory(fault.to_string()),
        _ => lack_of_resources(error),
    }
}

pub(super) fn lack_of_resources(error: &Error) -> CommitFault {
    CommitFault::Resources { why: format!("{error:#}") }
}
