//! Unit tests of `commit::client::state`.

use proptest::prelude::*;

use super::*;
use crate::commit::{BufferInfo, RegionInfo};
use crate::error::{Direction, Slot};
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

fn exists(_: &u64) -> bool {
    true
}

fn complete() -> SessionMachine<u64> {
    let (d, mut session) = (description(), SessionMachine::new(&description()));
    session.set(&d, 0, whole(1, 8), 1).unwrap();
    session.set(&d, 1, whole(2, 4), 2).unwrap();
    session.set(&d, 2, view(3, 16, 0, 4), 3).unwrap();
    session.set(&d, 3, view(3, 16, 8, 8), 3).unwrap();
    session.set_region(&d, 3, whole(4, 2), 4).unwrap();
    session
}

#[test]
fn sizes_and_offsets_must_be_exact() {
    let (d, mut session) = (description(), SessionMachine::<u64>::new(&description()));
    for len in [0, 1, 7, 9, u64::MAX] {
        let size = CommitFault::Size { slot: d.buffers[0].slot(), len, expected: 8 };
        assert_eq!(session.set(&d, 0, whole(1, len), 1), Err(size));
    }
    // A view of the tensor's length, at a wrong offset or of a buffer of a wrong length.
    for (root_len, offset) in [(16, 4), (16, 12), (17, 0), (4, 0)] {
        let slot = d.buffers[2].slot();
        let placement = CommitFault::Placement { slot, offset, expected: 0, size: 16 };
        assert_eq!(session.set(&d, 2, view(1, root_len, offset, 4), 1), Err(placement));
    }
    assert_eq!(
        session.set_region(&d, 2, whole(1, 8), 1),
        Err(CommitFault::Size { slot: Slot::Region { index: 2 }, len: 8, expected: 16 })
    );
    assert_eq!(session.state(&d, exists), SessionState::Empty);
}

#[test]
fn everything_that_is_unset_is_listed() {
    let (d, session) = (description(), complete());
    assert!(session.unset(&d, exists).is_empty());
    let gone = session.unset(&d, |buffer| *buffer != 3);
    let input = |index, released| Unset::Buffer { direction: Direction::In, index, released };
    assert_eq!(gone, [input(1, true), input(2, true)]);
    let empty = SessionMachine::<u64>::new(&d).unset(&d, exists);
    let output = Unset::Buffer { direction: Direction::Out, index: 0, released: false };
    let region = Unset::Region { index: 3, released: false };
    assert_eq!(empty, [input(0, false), input(1, false), input(2, false), output, region]);
}

#[test]
fn a_view_of_another_buffer_replaces_the_views_of_a_shared_region() {
    let (d, mut session) = (description(), complete());
    session.set(&d, 2, view(9, 16, 0, 4), 9).unwrap();
    let missing = Unset::Buffer { direction: Direction::In, index: 2, released: false };
    assert_eq!(session.unset(&d, exists), [missing]);
    session.set(&d, 3, view(9, 16, 8, 8), 9).unwrap();
    let chosen = session.begin_commit(&d, exists).unwrap();
    assert_eq!(chosen[2], Chosen { region: 2, buffer: 9, offset: 0, len: 16 });
    // One buffer may fill the whole region, set for any of its tensors.
    let mut session = complete();
    session.set(&d, 3, view(7, 64, 32, 16), 7).unwrap();
    let chosen = session.begin_commit(&d, exists).unwrap();
    assert_eq!(chosen[2], Chosen { region: 2, buffer: 7, offset: 32, len: 16 });
}

#[test]
fn set_all_stores_all_or_nothing() {
    let (d, mut session) = (description(), SessionMachine::<u64>::new(&description()));
    let mut pieces = vec![(whole(1, 8), 1), (whole(3, 16), 3), (whole(3, 16), 3), (whole(2, 5), 2)];
    let size = CommitFault::Size { slot: d.buffers[1].slot(), len: 5, expected: 4 };
    assert_eq!(session.set_all(&d, pieces.clone()), Err(size));
    assert_eq!(session.state(&d, exists), SessionState::Empty);
    pieces[3] = (whole(2, 4), 2);
    session.set_all(&d, pieces.clone()).unwrap();
    pieces.pop();
    assert_eq!(session.set_all(&d, pieces), Err(CommitFault::Count { count: 3, expected: 4 }));
    assert_eq!(session.unset(&d, exists), [Unset::Region { index: 3, released: false }]);
}

#[test]
fn an_update_names_updatable_buffers_and_changes_them_when_it_ends() {
    let (d, mut session) = (description(), complete());
    session.begin_commit(&d, exists).unwrap();
    session.end_commit(Some(5));
    let fixed = CommitFault::NotUpdatable { direction: Direction::Out, index: 0 };
    assert_eq!(session.begin_update(&d, vec![(1, whole(2, 4), 2)]).unwrap_err(), fixed);
    let (id, update) = session.begin_update(&d, vec![(0, whole(8, 8), 8)]).unwrap();
    assert_eq!((id, update.changed().len(), update.changed()[0].buffer), (5, 1, 8));
    session.end_update(None);
    assert_eq!(session.fills.chosen()[0].buffer, 1);
    let (_, update) = session.begin_update(&d, vec![(0, whole(8, 8), 8)]).unwrap();
    session.end_update(Some(update));
    assert_eq!((session.fills.chosen()[0].buffer, session.id()), (8, Some(5)));
    // Half of a shared region would leave the other half without memory.
    let half = session.begin_update(&d, vec![(2, view(9, 16, 0, 4), 9)]).unwrap_err();
    assert!(matches!(half, CommitFault::Incomplete { .. }), "{half}");
    assert_eq!(session.state(&d, exists), SessionState::Committed);
}

/// A plain model of the states, to compare with.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Model {
    set: bool,
    id: Option<u64>,
    under_way: Option<Under>,
    executing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Under {
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
    /// Takes a step, and returns whether it succeeds.
    fn step(&mut self, step: Step) -> bool {
        use Step::{Commit, Done, Execute, Executed, Refused, Release, Set, Update};
        let idle = self.under_way.is_none();
        let committed = self.id.is_some() && idle;
        match step {
            Set if idle && self.id.is_none() => self.set = true,
            Commit if idle && self.id.is_none() && self.set => self.under_way = Some(Under::Commit),
            Execute if committed && !self.executing => self.executing = true,
            Release if committed => self.under_way = Some(Under::Release),
            Update if committed && !self.executing => self.under_way = Some(Under::Update),
            Done | Refused if !idle => {
                self.id = match (self.under_way, step) {
                    (Some(Under::Commit), Done) => Some(77),
                    (Some(Under::Release), Done) => None,
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
    fn any_sequence_of_requests_is_answered_as_the_model_answers(
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let d = description();
        let mut model = Model { set: false, id: None, under_way: None, executing: false };
        let (mut session, mut updating) = (SessionMachine::<u64>::new(&d), None);
        for step in steps {
            let before = model;
            let expected = model.step(step);
            let pieces = vec![(whole(1, 8), 1), (whole(3, 16), 3), (whole(3, 16), 3), (whole(2, 4), 2)];
            let answer = match step {
                Step::Set => session
                    .set_all(&d, pieces)
                    .and_then(|()| session.set_region(&d, 3, whole(4, 2), 4)),
                Step::Commit => session.begin_commit(&d, exists).map(|_| ()),
                Step::Execute => session.begin_execution().map(|id| assert_eq!(id, 77)),
                Step::Release => session.begin_release().map(|id| assert_eq!(id, 77)),
                Step::Update => session
                    .begin_update(&d, vec![(0, whole(1, 8), 1)])
                    .map(|(_, update)| updating = Some(update)),
                Step::Done | Step::Refused => {
                    let done = matches!(step, Step::Done);
                    match before.under_way {
                        Some(Under::Commit) => session.end_commit(done.then_some(77)),
                        Some(Under::Update) => session.end_update(updating.take().filter(|_| done)),
                        Some(Under::Release) => session.end_release((!done).then_some(77)),
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
                (Some(Under::Commit), ..) => SessionState::Committing,
                (Some(Under::Update), ..) => SessionState::Updating,
                (Some(Under::Release), ..) => SessionState::Releasing,
                (None, Some(_), true) => SessionState::Executing,
                (None, Some(_), false) => SessionState::Committed,
                (None, None, _) if model.set => SessionState::Complete,
                (None, None, _) => SessionState::Empty,
            };
            prop_assert_eq!(session.state(&d, exists), state);
        }
    }
}
