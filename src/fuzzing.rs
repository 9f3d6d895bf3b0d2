//! What fuzz targets reach of the inside. In no build but that of `cargo fuzz`.
//!
//! The ring's ends, parking and the pool are driven as they ship, over words that the input makes up
//! and changes while they are looked at. Whatever the input says: nothing panics, everything ends, and
//! what is handed out lies where it may. The targets say how an input is read.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Atomic};

use crate::pool::{
    Block, Borrower, BorrowerId, Holder, Loan, LoanLimit, Pool, PoolOptions, Prepared, Promise,
    Ready, SharedBlock,
};
use crate::ring::{BatchSlot, Consumer, Header, Kind, Producer, largest_payload};
use crate::shm::{Backing, OwnRing, OwnWords, PeerRing, PeerWords};
use crate::sync::Ordering;
use crate::wake::{Attention, Sleeper, Waker};

pub use crate::commit::fuzzing::{client_state, message};
pub use crate::link::fuzzing::packet;

/// An input that is read from its start on. Behind its end it is zero.
#[derive(Debug)]
struct Script<'a> {
    rest: Cell<&'a [u8]>,
}

impl<'a> Script<'a> {
    fn new(input: &'a [u8]) -> Self {
        Self { rest: Cell::new(input) }
    }

    fn is_over(&self) -> bool {
        self.rest.get().is_empty()
    }

    fn byte(&self) -> u8 {
        let Some((first, rest)) = self.rest.get().split_first() else { return 0 };
        self.rest.set(rest);
        *first
    }

    fn below(&self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    fn word(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}

/// Where the data section starts, in bytes, and its length.
const DATA: usize = 64;
const CAPACITY: usize = 1024;
/// Words in front of it, in bytes.
const POSITION: usize = 0;
const STATE: usize = 8;
const BELL: usize = 16;

/// Words of a peer that writes while they are read.
#[derive(Debug)]
struct Theirs<'a> {
    words: RefCell<Vec<u64>>,
    script: &'a Script<'a>,
}

impl Theirs<'_> {
    fn change(&self) {
        let mut words = self.words.borrow_mut();
        let at =
            (usize::from(self.script.byte()) | usize::from(self.script.byte()) << 8) % words.len();
        words[at] = self.script.word();
    }
}

impl PeerRing for &Theirs<'_> {
    fn load(&self, position: u64) -> u64 {
        PeerWords::load(self, DATA + position as usize % CAPACITY)
    }
}

impl<'a> PeerWords for &'a Theirs<'_> {
    type Ring = Self;

    fn ring(&self, start: usize, len: u64) -> Self {
        assert_eq!((start, len), (DATA, CAPACITY as u64));
        self
    }

    fn load(&self, offset: usize) -> u64 {
        if self.script.byte() & 7 == 7 {
            self.change();
        }
        // Behind the ring lies its mirror.
        let offset = if offset < DATA + CAPACITY { offset } else { offset - CAPACITY };
        self.words.borrow()[offset / 8]
    }
}

/// Words of ours: nothing is stored elsewhere.
#[derive(Debug, Default)]
struct Ours {
    position: Cell<u64>,
}

impl OwnRing for &Ours {
    fn store(&self, position: u64, value: u64, order: Ordering) {
        OwnWords::store(self, DATA + position as usize % CAPACITY, value, order);
    }
}

impl OwnWords for &Ours {
    type Ring = Self;

    fn ring(&self, start: usize, len: u64) -> Self {
        assert_eq!((start, len), (DATA, CAPACITY as u64));
        self
    }

    fn store(&self, offset: usize, value: u64, _: Ordering) {
        assert!(offset.is_multiple_of(8) && offset < DATA + CAPACITY);
        if offset == POSITION {
            self.position.set(value);
        }
    }

    fn add(&self, offset: usize, _: u64) {
        assert_eq!(offset, BELL);
    }
}

/// Both ends of a ring, and both of a sleep, towards a peer that writes what the input says.
pub fn ring(input: &[u8]) {
    let script = Script::new(input);
    let start = [0, (1 << 32) - CAPACITY as u64, 0u64.wrapping_sub(CAPACITY as u64)];
    let start = start[script.below(start.len())];
    let theirs = Theirs { words: RefCell::new(vec![0; (DATA + CAPACITY) / 8]), script: &script };
    theirs.words.borrow_mut()[POSITION] = start;
    let (reading, writing) = (Ours::default(), Ours::default());
    reading.position.set(start);
    let capacity = CAPACITY as u64;
    let mut consumer = Consumer::new(&reading, &theirs, DATA, POSITION, capacity, start);
    let mut producer = Producer::new(&writing, &theirs, DATA, POSITION, capacity, start);
    let (mut sleeper, mut waker) = (Sleeper::new(STATE, BELL), Waker::new(STATE, BELL));
    let (mut read, mut written) = (true, true);
    while !script.is_over() && (read || written) {
        match script.below(8) {
            0 => theirs.change(),
            1..=3 if read => read = receive(&mut consumer, &reading),
            4 if read => drop(consumer.publish()),
            5 if written => written = send(&mut producer, &script),
            6 if written => written = send_batch(&mut producer, &script),
            _ => {
                sleeper.park(&&writing, &&theirs);
                let look = waker.look(&&writing, &&theirs);
                assert!(!matches!(look, Ok(Some(Attention::Wake))) || waker.bell() == BELL);
            }
        }
    }
}

/// Reads a record. False: the peer is at fault.
fn receive(consumer: &mut Consumer<&Ours, &Theirs<'_>>, own: &Ours) -> bool {
    let before = consumer.next_header();
    assert!((DATA..DATA + CAPACITY).contains(&before) && before.is_multiple_of(8));
    consumer.touch();
    let word = consumer.word();
    let record = match consumer.plain(word, largest_payload(CAPACITY as u64)) {
        Some(record) => {
            assert_eq!(Header::from_word(word), Ok(record.header), "judged alike");
            Some(record)
        }
        None => match consumer.peek() {
            Ok(record) => record,
            Err(_) => return false,
        },
    };
    let Some(record) = record else { return true };
    let len = record.header.len();
    assert!(len <= largest_payload(CAPACITY as u64));
    // It may run into the mirror, which is as long as the ring.
    assert!(record.offset > before && record.offset + len as usize <= DATA + 2 * CAPACITY);
    assert_eq!(Header::from_word(record.header.to_word()), Ok(record.header));
    let told = own.position.get();
    consumer.release(record.header);
    assert!(own.position.get().wrapping_sub(told) <= CAPACITY as u64, "never back");
    true
}

/// The header of a record that the user asks for.
fn wanted(script: &Script<'_>) -> Header {
    let len = (u32::from(script.byte()) | u32::from(script.byte()) << 8) % CAPACITY as u32;
    Header::new([Kind::Message, Kind::Request, Kind::Trigger][script.below(3)], len)
}

/// Writes a record if there is room. False: the peer is at fault.
fn send(producer: &mut Producer<&Ours, &Theirs<'_>>, script: &Script<'_>) -> bool {
    let header = wanted(script);
    let len = header.len() as u32;
    let is_plain = header.kind() == Kind::Message;
    if let Some(room) = is_plain.then(|| producer.plain_room(len)).flatten() {
        assert_eq!(room.offset, producer.place(header));
        assert!(room.offset + header.len() as usize <= 2 * CAPACITY);
        producer.publish_plain(header, room.next);
        assert_eq!(producer.written(), room.next);
    }
    let Ok(room) = producer.reserve(header) else { return false };
    if let Ok(offset) = room {
        assert!(offset + header.len() as usize <= 2 * CAPACITY);
        producer.publish(header);
    }
    let Ok(read) = producer.read() else { return false };
    assert!(producer.written().wrapping_sub(read) <= CAPACITY as u64, "never past the reader");
    true
}

/// Writes up to eight records at once. False: the peer is at fault.
fn send_batch(producer: &mut Producer<&Ours, &Theirs<'_>>, script: &Script<'_>) -> bool {
    let mut batch = BatchSlot::default();
    producer.start(&mut batch);
    for _ in 0..script.below(9) {
        let header = wanted(script);
        let Ok(room) = producer.push(&mut batch, header) else { return false };
        assert!(room.is_err() || room.is_ok_and(|at| at + header.len() as usize <= 2 * CAPACITY));
    }
    if batch.count() > 0 {
        producer.publish_batch(&mut batch);
    }
    true
}

/// Slots of a borrower.
const SLOTS: usize = 4;

/// A borrower that writes what the input says into the array of its returns.
struct Liar(Vec<AtomicU64>);

impl Borrower for Liar {
    fn holder(&self) -> Holder {
        Holder { uid: 0, pid: None }
    }

    fn returned(&self, slot: u32) -> u64 {
        self.0[slot as usize].load(Atomic::Relaxed)
    }
}

/// What stands in the way of a block's being handed out again.
struct HeldBlock {
    place: (u32, u64),
    /// A borrower's loan; `None`: it is ours.
    loan: Option<(usize, Loan)>,
}

/// Whom we lend to, and what the pool has promised and laid ready for that.
struct Client {
    liar: Arc<Liar>,
    id: BorrowerId,
    promise: Option<Promise>,
    ready: Ready,
    prepared: Option<Prepared>,
}

/// A pool, who holds what of it as the input made it, and blocks of ours.
struct Lending {
    pool: Pool,
    borrowers: Vec<Client>,
    holders: Vec<HeldBlock>,
    blocks: Vec<Block>,
    shared: Vec<SharedBlock>,
}

impl Lending {
    fn new() -> Self {
        let backing = Backing::default();
        let options = PoolOptions {
            quota: 96 << 10,
            footprint: 16 << 10,
            far_footprint: 32 << 10,
            loans: LoanLimit::NONE,
            backing,
        };
        let mut lending = Self {
            pool: Pool::new(options),
            borrowers: Vec::new(),
            holders: Vec::new(),
            blocks: Vec::new(),
            shared: Vec::new(),
        };
        (0..2).for_each(|_| lending.open());
        lending
    }

    fn open(&mut self) {
        let liar = Arc::new(Liar((0..SLOTS).map(|_| AtomicU64::new(0)).collect()));
        let id = self.pool.open(liar.clone(), SLOTS as u32);
        let ready = self.pool.ready(id).expect("it was just opened");
        self.borrowers.push(Client { liar, id, promise: None, ready, prepared: None });
    }

    /// A new block: nobody may hold it.
    fn take(&mut self, block: Block) {
        let Some(place) = block.place() else { panic!("a new block is not lent") };
        assert!(self.holders.iter().all(|holder| holder.place != place), "{place:?} is held");
        self.holders.push(HeldBlock { place, loan: None });
        self.blocks.push(block);
    }

    /// One use of ours less.
    fn forget(&mut self, place: (u32, u64)) {
        let ours = |holder: &HeldBlock| holder.place == place && holder.loan.is_none();
        let at = self.holders.iter().position(ours);
        self.holders.swap_remove(at.expect("what we hold is noted"));
    }

    fn note(&mut self, borrower: usize, loan: Loan) {
        // A generation that was guessed has come back already.
        if self.borrowers[borrower].liar.returned(loan.slot) != loan.generation {
            let place = (loan.segment, loan.offset);
            self.holders.push(HeldBlock { place, loan: Some((borrower, loan)) });
        }
    }

    fn lend(&mut self, script: &Script<'_>) {
        let borrower = script.below(self.borrowers.len());
        let client = &mut self.borrowers[borrower];
        let id = client.id;
        if script.byte() & 1 == 0 && !self.blocks.is_empty() {
            let mut block = self.blocks.swap_remove(script.below(self.blocks.len()));
            let place = block.place().expect("it is not lent");
            let loan = match client.promise.take() {
                Some(promise) => {
                    let loan = promise.loan(place);
                    (client.promise, client.prepared) =
                        self.pool.enter_and_prepare(&mut block, id, promise, || ());
                    // An account that was closed meanwhile takes none.
                    block.place().is_none().then_some(loan)
                }
                None => self.pool.lend(&mut block, id),
            };
            self.forget(place);
            // What could not be lent goes back here.
            drop(block);
            loan.into_iter().for_each(|loan| self.note(borrower, loan));
        } else if let Some(block) = self.shared.get(script.below(self.shared.len().max(1))) {
            let loan = self.pool.lend_shared(block, id);
            loan.into_iter().for_each(|loan| self.note(borrower, loan));
        }
    }

    /// A word of a borrower: a generation that is out, or whatever.
    fn give_back(&mut self, script: &Script<'_>) {
        let borrower = script.below(self.borrowers.len());
        let (slot, value) = match self.holders.get(script.below(self.holders.len().max(1))) {
            Some(HeldBlock { loan: Some((to, loan)), .. }) if script.byte() & 1 == 0 => {
                if *to != borrower {
                    return;
                }
                (loan.slot, loan.generation)
            }
            _ => (script.below(SLOTS) as u32, u64::from(script.byte())),
        };
        self.borrowers[borrower].liar.0[slot as usize].store(value, Atomic::Relaxed);
        self.holders.retain(|holder| {
            holder.loan.as_ref().is_none_or(|(to, loan)| {
                (*to, loan.slot, loan.generation) != (borrower, slot, value)
            })
        });
    }

    fn close(&mut self, borrower: usize) {
        self.pool.close(self.borrowers[borrower].id);
        self.holders.retain(|holder| holder.loan.as_ref().is_none_or(|(to, _)| *to != borrower));
    }

    fn step(&mut self, script: &Script<'_>) {
        match script.below(10) {
            0 | 1 => {
                let borrower = script.below(self.borrowers.len());
                let Client { id, ready, prepared, .. } = &mut self.borrowers[borrower];
                let len = usize::from(script.byte()) << (script.byte() & 7);
                let mut block = Block::empty();
                let is_ready = prepared.take().is_some_and(|prepared| {
                    prepared.is_for(len) && block.take_ready(ready, prepared, len)
                });
                if is_ready {
                    self.take(block);
                } else {
                    let block = self.pool.alloc_for(len, *id).expect("memory");
                    block.into_iter().for_each(|block| self.take(block));
                }
            }
            2 | 3 => self.lend(script),
            4 | 5 => self.give_back(script),
            6 if !self.blocks.is_empty() => {
                let block = self.blocks.swap_remove(script.below(self.blocks.len()));
                if script.byte() & 1 == 0 {
                    self.shared.extend(block.share());
                } else {
                    self.forget(block.place().expect("it is not lent"));
                }
            }
            6 | 7 if !self.shared.is_empty() => {
                let block = self.shared.swap_remove(script.below(self.shared.len()));
                self.forget(block.place());
            }
            8 => {
                let at = script.below(self.borrowers.len());
                let Client { id, promise, .. } = &mut self.borrowers[at];
                match promise.take() {
                    Some(promise) => self.pool.renounce(*id, promise),
                    None => *promise = self.pool.promise(*id),
                }
            }
            9 if self.borrowers.len() < 8 => {
                self.close(script.below(self.borrowers.len()));
                self.open();
            }
            _ => drop(self.pool.trim()),
        }
        for HeldBlock { place, .. } in &self.holders {
            assert!(self.pool.holds(place.0), "segment {} is in use", place.0);
        }
    }
}

/// A pool whose borrowers return whatever the input says.
pub fn loans(input: &[u8]) {
    let script = Script::new(input);
    let mut lending = Lending::new();
    while !script.is_over() {
        lending.step(&script);
    }
    lending.blocks.clear();
    lending.shared.clear();
    (0..lending.borrowers.len()).for_each(|borrower| lending.close(borrower));
    lending.pool.trim();
    assert_eq!(lending.pool.used(), 0, "everything comes back");
}
