//! A session of a client: what is set, what is committed, what runs. No I/O.
//!
//! ```text
//!            set                    commit                  execute
//!   Empty ───────▶ Partial, ... ──────────────▶ Committed ───────────▶ Executing
//!                  Complete ◀──┐ ◀── refused      │  ▲ ▲ └──────────────────┘ done
//!                              │          release │  │ └─ update
//!                              └──── Releasing ◀──┘  (and while it executes)
//! ```
//!
//! 1. A failed act changes nothing.
//! 2. What is set survives commits and releases, unless its buffer is released.
//! 3. One act on a session is under way at a time, and one execution beside a release.
//! 4. A region is filled by one buffer that is as long as it is, or by views of one such buffer, each where its
//!    tensor lies.

use std::collections::BTreeMap;

use crate::commit::description::Description;
use crate::error::{CommitFault, Unset};

/// How a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionState {
    /// Nothing is set.
    Empty,
    /// Something is set, not all.
    Partial,
    /// All is set.
    Complete,
    /// A commit is on its way.
    Committing,
    /// The service has it: it can be executed.
    Committed,
    /// It runs.
    Executing,
    /// An update is on its way.
    Updating,
    /// A release is on its way; what runs is finished before.
    Releasing,
}

/// A range of memory to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Stands for the buffer that it is a view of, or that it is.
    pub(super) root: u64,
    /// That buffer's length in bytes.
    pub(super) root_len: u64,
    /// Where in it the piece starts, in bytes.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) len: u64,
}

/// What is set for a region. `B` is what keeps it, or tells whether it is still there.
#[derive(Debug, Clone)]
enum Fill<B> {
    Empty,
    Whole(Piece, B),
    /// Views of one buffer, by where their tensors stand in the description.
    Views(BTreeMap<usize, (Piece, B)>),
}

/// What a region is committed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chosen<B> {
    pub(super) region: u32,
    pub(super) keep: B,
    /// Where the region starts in the root buffer of `keep`, in bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Committing,
    Committed(u64),
    Updating(u64),
    Releasing,
}

/// One session.
#[derive(Debug, Clone)]
pub(super) struct Session<B> {
    fills: Vec<Fill<B>>,
    phase: Phase,
    executing: bool,
}

impl<B: Clone> Session<B> {
    pub(super) fn new(description: &Description) -> Self {
        let fills = description.regions.iter().map(|_| Fill::Empty).collect();
        Self { fills, phase: Phase::Open, executing: false }
    }

    pub(super) fn state(
        &self,
        description: &Description,
        is_there: impl Fn(&B) -> bool,
    ) -> SessionState {
        match self.phase {
            Phase::Committing => SessionState::Committing,
            Phase::Updating(_) => SessionState::Updating,
            Phase::Releasing => SessionState::Releasing,
            Phase::Committed(_) if self.executing => SessionState::Executing,
            Phase::Committed(_) => SessionState::Committed,
            Phase::Open if self.unset(description, &is_there).is_empty() => SessionState::Complete,
            Phase::Open if self.fills.iter().all(|fill| matches!(fill, Fill::Empty)) => {
                SessionState::Empty
            }
            Phase::Open => SessionState::Partial,
        }
    }

    /// The id under which it is committed.
    pub(super) fn id(&self) -> Option<u64> {
        match self.phase {
            Phase::Committed(id) | Phase::Updating(id) => Some(id),
            Phase::Open | Phase::Committing | Phase::Releasing => None,
        }
    }

    /// Whether the service has it, or may have.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// That buffers may be set.
    fn is_settable(&self) -> Result<(), CommitFault> {
        match self.phase {
            Phase::Open => Ok(()),
            Phase::Committed(id) | Phase::Updating(id) => Err(CommitFault::AlreadyCommitted { id }),
            Phase::Committing | Phase::Releasing => Err(CommitFault::Busy),
        }
    }

    /// Sets a buffer of the description, given by where it stands there.
    pub(super) fn set(
        &mut self,
        description: &Description,
        at: usize,
        piece: Piece,
        keep: B,
    ) -> Result<(), CommitFault> {
        self.is_settable()?;
        place(description, at, piece)?;
        put(&mut self.fills, description, at, piece, keep);
        Ok(())
    }

    /// Sets all buffers: those of [`Description::in_order`].
    pub(super) fn set_all(
        &mut self,
        description: &Description,
        pieces: Vec<(Piece, B)>,
    ) -> Result<(), CommitFault> {
        self.is_settable()?;
        let order = description.in_order();
        let (count, expected) = (pieces.len(), order.len());
        if count != expected {
            return Err(CommitFault::Count { count, expected });
        }
        for (at, (piece, _)) in order.iter().zip(&pieces) {
            place(description, *at, *piece)?;
        }
        for (at, (piece, keep)) in order.into_iter().zip(pieces) {
            put(&mut self.fills, description, at, piece, keep);
        }
        Ok(())
    }

    /// Sets a region as a whole.
    pub(super) fn set_region(
        &mut self,
        description: &Description,
        region: u32,
        piece: Piece,
        keep: B,
    ) -> Result<(), CommitFault> {
        self.is_settable()?;
        let expected = description.region(region)?.size;
        if piece.len != expected {
            return Err(CommitFault::Size { len: piece.len, expected });
        }
        self.fills[region as usize] = Fill::Whole(piece, keep);
        Ok(())
    }

    /// What is missing, in the order of the description.
    pub(super) fn unset(
        &self,
        description: &Description,
        is_there: impl Fn(&B) -> bool,
    ) -> Vec<Unset> {
        let mut unset = Vec::new();
        for at in description.in_order() {
            let buffer = &description.buffers[at];
            let (direction, index) = (buffer.direction, buffer.index);
            let kept = match &self.fills[buffer.region as usize] {
                Fill::Empty => None,
                Fill::Whole(_, keep) => Some(keep),
                Fill::Views(views) => views.get(&at).map(|(_, keep)| keep),
            };
            if !kept.is_some_and(&is_there) {
                unset.push(Unset::Buffer { direction, index, released: kept.is_some() });
            }
        }
        for (index, fill) in (0..).zip(&self.fills) {
            if description.buffers_of(index).next().is_none() {
                match fill {
                    Fill::Whole(_, keep) if is_there(keep) => {}
                    Fill::Whole(..) => unset.push(Unset::Region { index, released: true }),
                    _ => unset.push(Unset::Region { index, released: false }),
                }
            }
        }
        unset
    }

    /// What every region is filled with.
    fn chosen(&self) -> Vec<Chosen<B>> {
        let fills = (0..).zip(&self.fills);
        fills.filter_map(|(region, fill)| choose(region, fill)).collect()
    }

    /// A commit is to be sent: gives what it commits.
    pub(super) fn start_commit(
        &mut self,
        description: &Description,
        is_there: impl Fn(&B) -> bool,
    ) -> Result<Vec<Chosen<B>>, CommitFault> {
        self.is_settable()?;
        let unset = self.unset(description, is_there);
        if !unset.is_empty() {
            return Err(CommitFault::Incomplete { unset });
        }
        self.phase = Phase::Committing;
        Ok(self.chosen())
    }

    /// The commit came to this: its id, or nothing.
    pub(super) fn end_commit(&mut self, id: Option<u64>) {
        if self.phase == Phase::Committing {
            self.phase = id.map_or(Phase::Open, Phase::Committed);
        }
    }

    /// An execution is to be sent: gives the id.
    pub(super) fn start_execution(&mut self) -> Result<u64, CommitFault> {
        match self.phase {
            Phase::Committed(_) if self.executing => Err(CommitFault::Busy),
            Phase::Committed(id) => {
                self.executing = true;
                Ok(id)
            }
            Phase::Open => Err(CommitFault::NotCommitted),
            Phase::Committing | Phase::Updating(_) | Phase::Releasing => Err(CommitFault::Busy),
        }
    }

    /// The execution is over, whatever came of it.
    pub(super) fn end_execution(&mut self) {
        self.executing = false;
    }

    /// A release is to be sent: gives the id. What runs goes on; nothing new does.
    pub(super) fn start_release(&mut self) -> Result<u64, CommitFault> {
        match self.phase {
            Phase::Committed(id) => {
                self.phase = Phase::Releasing;
                Ok(id)
            }
            Phase::Open => Err(CommitFault::NotCommitted),
            Phase::Committing | Phase::Updating(_) | Phase::Releasing => Err(CommitFault::Busy),
        }
    }

    /// The release is done, or was refused: then the session is committed as before.
    pub(super) fn end_release(&mut self, refused: Option<u64>) {
        if self.phase == Phase::Releasing {
            self.phase = refused.map_or(Phase::Open, Phase::Committed);
        }
    }

    /// An update is to be sent, of buffers given by where they stand in the description: gives the id, and the
    /// regions that change.
    pub(super) fn start_update(
        &mut self,
        description: &Description,
        pieces: Vec<(usize, Piece, B)>,
    ) -> Result<(u64, Update<B>), CommitFault> {
        let id = match self.phase {
            Phase::Committed(_) if self.executing => return Err(CommitFault::Busy),
            Phase::Committed(id) => id,
            Phase::Open => return Err(CommitFault::NotCommitted),
            Phase::Committing | Phase::Updating(_) | Phase::Releasing => {
                return Err(CommitFault::Busy);
            }
        };
        for (at, piece, _) in &pieces {
            let buffer = &description.buffers[*at];
            // Whoever replaces a region replaces all that lies in it.
            for shared in description.buffers_of(buffer.region) {
                let buffer = &description.buffers[shared];
                if !buffer.is_able_to_update {
                    let (direction, index) = (buffer.direction, buffer.index);
                    return Err(CommitFault::NotUpdatable { direction, index });
                }
            }
            place(description, *at, *piece)?;
        }
        let mut fills = self.fills.clone();
        let mut changed: Vec<u32> = Vec::new();
        for (at, piece, keep) in pieces {
            changed.push(description.buffers[at].region);
            put(&mut fills, description, at, piece, keep);
        }
        changed.sort_unstable();
        changed.dedup();
        let preview = Self { fills, phase: Phase::Open, executing: false };
        let unset = preview.unset(description, |_| true);
        if !unset.is_empty() {
            return Err(CommitFault::Incomplete { unset });
        }
        let chosen = preview.chosen().into_iter().filter(|chosen| changed.contains(&chosen.region));
        let update = Update { chosen: chosen.collect(), fills: preview.fills };
        self.phase = Phase::Updating(id);
        Ok((id, update))
    }

    /// The update is done, or was refused: then all stays as it was.
    pub(super) fn end_update(&mut self, done: Option<Update<B>>) {
        if let Phase::Updating(id) = self.phase {
            self.phase = Phase::Committed(id);
            if let Some(update) = done {
                self.fills = update.fills;
            }
        }
    }
}

/// An update that is under way.
#[derive(Debug, Clone)]
pub(super) struct Update<B> {
    /// The regions that change.
    pub(super) chosen: Vec<Chosen<B>>,
    /// What will be set.
    fills: Vec<Fill<B>>,
}

fn choose<B: Clone>(region: u32, fill: &Fill<B>) -> Option<Chosen<B>> {
    let (keep, offset, len) = match fill {
        Fill::Empty => return None,
        Fill::Whole(piece, keep) => (keep, piece.offset, piece.len),
        Fill::Views(views) => {
            let (piece, keep) = views.values().next()?;
            (keep, 0, piece.root_len)
        }
    };
    Some(Chosen { region, keep: keep.clone(), offset, len })
}

/// That a piece can be set for a buffer.
fn place(description: &Description, at: usize, piece: Piece) -> Result<(), CommitFault> {
    let buffer = &description.buffers[at];
    let region = &description.regions[buffer.region as usize];
    if piece.len == region.size {
        return Ok(());
    }
    let shares = buffer.size < region.size;
    if !shares || piece.len != buffer.size {
        let expected = if shares { buffer.size } else { region.size };
        return Err(CommitFault::Size { len: piece.len, expected });
    }
    if piece.root_len != region.size || piece.offset != buffer.offset {
        let (offset, expected, size) = (piece.offset, buffer.offset, region.size);
        return Err(CommitFault::Placement { offset, expected, size });
    }
    Ok(())
}

/// Puts a piece that was judged in its place. A view of another buffer starts the region anew.
fn put<B>(fills: &mut [Fill<B>], description: &Description, at: usize, piece: Piece, keep: B) {
    let buffer = &description.buffers[at];
    let fill = &mut fills[buffer.region as usize];
    if piece.len == description.regions[buffer.region as usize].size {
        *fill = Fill::Whole(piece, keep);
        return;
    }
    match fill {
        Fill::Views(views) if views.values().any(|(other, _)| other.root == piece.root) => {
            views.insert(at, (piece, keep));
        }
        fill => *fill = Fill::Views(BTreeMap::from([(at, (piece, keep))])),
    }
}

/// What tests of the whole client ask, too.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::commit::{BufferInfo, RegionInfo};
    use crate::error::Direction;
    use crate::tensor::DType;

    /// An input and an output by themselves; two inputs that share a region; a region without buffers.
    fn description() -> Description {
        let bytes =
            |label, direction, len: usize| BufferInfo::new(label, direction, DType::Uint8, [len]);
        let description = Description::new()
            .with_own_region(bytes("in", Direction::In, 8).updatable())
            .with_own_region(bytes("out", Direction::Out, 4))
            .with_region(RegionInfo::new(16))
            .with_buffer(bytes("low", Direction::In, 4).index(1).region(2, 0).updatable())
            .with_buffer(bytes("high", Direction::In, 8).index(2).region(2, 8).updatable())
            .with_region(RegionInfo::new(2));
        description.check().unwrap();
        description
    }

    fn whole(root: u64, len: u64) -> Piece {
        Piece { root, root_len: len, offset: 0, len }
    }

    fn view(root: u64, root_len: u64, offset: u64, len: u64) -> Piece {
        Piece { root, root_len, offset, len }
    }

    fn there(_: &u64) -> bool {
        true
    }

    fn complete() -> Session<u64> {
        let (d, mut session) = (description(), Session::new(&description()));
        session.set(&d, 0, whole(1, 8), 1).unwrap();
        session.set(&d, 1, whole(2, 4), 2).unwrap();
        session.set(&d, 2, view(3, 16, 0, 4), 3).unwrap();
        session.set(&d, 3, view(3, 16, 8, 8), 3).unwrap();
        session.set_region(&d, 3, whole(4, 2), 4).unwrap();
        session
    }

    #[test]
    fn sizes_and_places_must_be_exact() {
        let (d, mut session) = (description(), Session::<u64>::new(&description()));
        for len in [0, 1, 7, 9, u64::MAX] {
            let size = CommitFault::Size { len, expected: 8 };
            assert_eq!(session.set(&d, 0, whole(1, len), 1), Err(size));
        }
        // A view as long as its tensor, in the wrong place or of the wrong buffer.
        for (root_len, offset) in [(16, 4), (16, 12), (17, 0), (4, 0)] {
            let placement = CommitFault::Placement { offset, expected: 0, size: 16 };
            assert_eq!(session.set(&d, 2, view(1, root_len, offset, 4), 1), Err(placement));
        }
        assert_eq!(
            session.set_region(&d, 2, whole(1, 8), 1),
            Err(CommitFault::Size { len: 8, expected: 16 })
        );
        assert_eq!(session.state(&d, there), SessionState::Empty);
    }

    #[test]
    fn everything_that_is_unset_is_listed() {
        let (d, session) = (description(), complete());
        assert!(session.unset(&d, there).is_empty());
        let gone = session.unset(&d, |keep| *keep != 3);
        let input = |index, released| Unset::Buffer { direction: Direction::In, index, released };
        assert_eq!(gone, [input(1, true), input(2, true)]);
        let empty = Session::<u64>::new(&d).unset(&d, there);
        let output = Unset::Buffer { direction: Direction::Out, index: 0, released: false };
        let region = Unset::Region { index: 3, released: false };
        assert_eq!(empty, [input(0, false), input(1, false), input(2, false), output, region]);
    }

    #[test]
    fn a_view_of_another_buffer_starts_a_shared_region_anew() {
        let (d, mut session) = (description(), complete());
        session.set(&d, 2, view(9, 16, 0, 4), 9).unwrap();
        let missing = Unset::Buffer { direction: Direction::In, index: 2, released: false };
        assert_eq!(session.unset(&d, there), [missing]);
        session.set(&d, 3, view(9, 16, 8, 8), 9).unwrap();
        let chosen = session.start_commit(&d, there).unwrap();
        assert_eq!(chosen[2], Chosen { region: 2, keep: 9, offset: 0, len: 16 });
        // Or one buffer for all of it, given for any of its tensors.
        let mut session = complete();
        session.set(&d, 3, view(7, 64, 32, 16), 7).unwrap();
        let chosen = session.start_commit(&d, there).unwrap();
        assert_eq!(chosen[2], Chosen { region: 2, keep: 7, offset: 32, len: 16 });
    }

    #[test]
    fn set_all_stores_all_or_nothing() {
        let (d, mut session) = (description(), Session::<u64>::new(&description()));
        let mut pieces =
            vec![(whole(1, 8), 1), (whole(3, 16), 3), (whole(3, 16), 3), (whole(2, 5), 2)];
        let size = CommitFault::Size { len: 5, expected: 4 };
        assert_eq!(session.set_all(&d, pieces.clone()), Err(size));
        assert_eq!(session.state(&d, there), SessionState::Empty);
        pieces[3] = (whole(2, 4), 2);
        session.set_all(&d, pieces.clone()).unwrap();
        pieces.pop();
        assert_eq!(session.set_all(&d, pieces), Err(CommitFault::Count { count: 3, expected: 4 }));
        assert_eq!(session.unset(&d, there), [Unset::Region { index: 3, released: false }]);
    }

    #[test]
    fn an_update_names_what_may_be_updated_and_changes_it_when_it_is_done() {
        let (d, mut session) = (description(), complete());
        session.start_commit(&d, there).unwrap();
        session.end_commit(Some(5));
        let fixed = CommitFault::NotUpdatable { direction: Direction::Out, index: 0 };
        assert_eq!(session.start_update(&d, vec![(1, whole(2, 4), 2)]).unwrap_err(), fixed);
        let (id, update) = session.start_update(&d, vec![(0, whole(8, 8), 8)]).unwrap();
        assert_eq!((id, update.chosen.len(), update.chosen[0].keep), (5, 1, 8));
        session.end_update(None);
        assert_eq!(session.chosen()[0].keep, 1);
        let (_, update) = session.start_update(&d, vec![(0, whole(8, 8), 8)]).unwrap();
        session.end_update(Some(update));
        assert_eq!((session.chosen()[0].keep, session.id()), (8, Some(5)));
        // Half of a shared region would leave the other half without memory.
        let half = session.start_update(&d, vec![(2, view(9, 16, 0, 4), 9)]).unwrap_err();
        assert!(matches!(half, CommitFault::Incomplete { .. }), "{half}");
        assert_eq!(session.state(&d, there), SessionState::Committed);
    }

    /// The states again, as plainly as can be, to compare with.
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Model {
        set: bool,
        id: Option<u64>,
        under_way: Option<Act>,
        executing: bool,
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Act {
        Commit,
        Update,
        Release,
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Set,
        Commit,
        Execute,
        Release,
        Update,
        Done,
        Refused,
        Executed,
    }

    impl Model {
        /// Whether the step succeeds.
        fn step(&mut self, step: Step) -> bool {
            use Step::{Commit, Done, Execute, Executed, Refused, Release, Set, Update};
            let idle = self.under_way.is_none();
            let committed = self.id.is_some() && idle;
            match step {
                Set if idle && self.id.is_none() => self.set = true,
                Commit if idle && self.id.is_none() && self.set => {
                    self.under_way = Some(Act::Commit)
                }
                Execute if committed && !self.executing => self.executing = true,
                Release if committed => self.under_way = Some(Act::Release),
                Update if committed && !self.executing => self.under_way = Some(Act::Update),
                Done | Refused if !idle => {
                    self.id = match (self.under_way, step) {
                        (Some(Act::Commit), Done) => Some(77),
                        (Some(Act::Release), Done) => None,
                        _ => self.id,
                    };
                    self.under_way = None;
                }
                Executed => self.executing = false,
                _ => return false,
            }
            true
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        use Step::{Commit, Done, Execute, Executed, Refused, Release, Set, Update};
        prop_oneof![
            Just(Set),
            Just(Commit),
            Just(Execute),
            Just(Release),
            Just(Update),
            Just(Done),
            Just(Refused),
            Just(Executed)
        ]
    }

    proptest! {
        #[test]
        fn any_sequence_of_acts_is_answered_as_the_model_answers(
            steps in proptest::collection::vec(step(), 0..60),
        ) {
            let d = description();
            let mut model = Model { set: false, id: None, under_way: None, executing: false };
            let (mut session, mut updating) = (Session::<u64>::new(&d), None);
            for step in steps {
                let before = model;
                let expected = model.step(step);
                let pieces = vec![(whole(1, 8), 1), (whole(3, 16), 3), (whole(3, 16), 3), (whole(2, 4), 2)];
                let answer = match step {
                    Step::Set => session
                        .set_all(&d, pieces)
                        .and_then(|()| session.set_region(&d, 3, whole(4, 2), 4)),
                    Step::Commit => session.start_commit(&d, there).map(|_| ()),
                    Step::Execute => session.start_execution().map(|id| assert_eq!(id, 77)),
                    Step::Release => session.start_release().map(|id| assert_eq!(id, 77)),
                    Step::Update => session
                        .start_update(&d, vec![(0, whole(1, 8), 1)])
                        .map(|(_, update)| updating = Some(update)),
                    Step::Done | Step::Refused => {
                        let done = matches!(step, Step::Done);
                        match before.under_way {
                            Some(Act::Commit) => session.end_commit(done.then_some(77)),
                            Some(Act::Update) => session.end_update(updating.take().filter(|_| done)),
                            Some(Act::Release) => session.end_release((!done).then_some(77)),
                            None => {}
                        }
                        if before.under_way.is_some() { Ok(()) } else { Err(CommitFault::Busy) }
                    }
                    Step::Executed => {
                        session.end_execution();
                        Ok(())
                    }
                };
                prop_assert_eq!(answer.is_ok(), expected, "{:?} in {:?}: {:?}", step, before, answer);
                let state = match (model.under_way, model.id, model.executing) {
                    (Some(Act::Commit), ..) => SessionState::Committing,
                    (Some(Act::Update), ..) => SessionState::Updating,
                    (Some(Act::Release), ..) => SessionState::Releasing,
                    (None, Some(_), true) => SessionState::Executing,
                    (None, Some(_), false) => SessionState::Committed,
                    (None, None, _) if model.set => SessionState::Complete,
                    (None, None, _) => SessionState::Empty,
                };
                prop_assert_eq!(session.state(&d, there), state);
            }
        }
    }
}
