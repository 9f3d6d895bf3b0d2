//! Where a receiving half finds what its peer lends from: the segments of its last loans, without a lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Fault, Result};
use crate::ring::{Header, Record};
use crate::transport::arrivals::PoolSegment;
use crate::transport::inbox::{Head, Inbox};
use crate::transport::link::Session;
use crate::transport::pooled::{self, Pooled};

/// So many segments are at hand: blocks of 1 MiB have one each, and a far footprint has 32 of them.
const AT_HAND: usize = 32;

/// A segment of a peer's pool, and the link over which it lends: what all loans from it share.
#[derive(Debug)]
pub(super) struct Lender {
    pub(super) session: Arc<Session>,
    pub(super) segment: Arc<PoolSegment>,
}

/// The lenders of the last loans.
#[derive(Debug, Default)]
pub(super) struct Lenders {
    /// By the low bits of their segments' numbers, which count up. Empty before the first loan.
    known: Vec<Option<(u32, Arc<Lender>)>>,
    /// How many segments had been retired when these were found.
    retires: u32,
}

impl Lenders {
    /// The lender with this segment, if it is at hand, retired or not.
    #[inline(always)]
    pub(super) fn at_hand(&self, number: u32) -> Option<&Arc<Lender>> {
        match self.known.get(number as usize % AT_HAND)? {
            Some((known, lender)) if *known == number => Some(lender),
            _ => None,
        }
    }

    /// The lender with this segment, if that is at hand and no segment was retired since.
    #[inline(always)]
    pub(super) fn current(&self, session: &Session, number: u32) -> Option<&Arc<Lender>> {
        let retires = session.link.retires.load(Ordering::Relaxed);
        self.at_hand(number).filter(|_| retires == self.retires)
    }

    /// The lender with this segment.
    #[inline(always)]
    pub(super) fn find(&mut self, session: &Arc<Session>, number: u32) -> Result<&Arc<Lender>> {
        if self.current(session, number).is_none() {
            self.look_up(session, number)?;
        }
        Ok(self.at_hand(number).expect("just looked up"))
    }

    /// Lets go of all if any segment was retired: it may be one of these.
    pub(super) fn let_go(&mut self, retires: u32) {
        if retires != self.retires {
            self.known.clear();
            self.retires = retires;
        }
    }

    #[cold]
    fn look_up(&mut self, session: &Arc<Session>, number: u32) -> Result<()> {
        let link = &session.link;
        let mut arrivals = link.arrivals();
        let segment = arrivals.segment(&link.socket, number);
        // What is retired from here on is found out next time.
        let retires = link.retires.load(Ordering::Relaxed);
        drop(arrivals);
        self.let_go(retires);
        let lender = Lender { session: session.clone(), segment: segment? };
        self.known.resize(AT_HAND, None);
        self.known[number as usize % AT_HAND] = Some((number, Arc::new(lender)));
        Ok(())
    }
}

impl Inbox {
    /// Looks for a message in the pool, in a segment that is at hand, at the ring's position. False: nothing was done,
    /// and [`rare_head`](Self::rare_head) says what there is.
    #[inline(never)]
    pub(super) fn find_pooled(&mut self) -> bool {
        let header = Header::POOLED_MESSAGE;
        let record = Record { header, offset: self.consumer.payload(header) };
        let Ok(descriptor) = self.descriptor(record, 0) else { return false };
        let lender = self.lenders.current(&self.session, descriptor.segment);
        let is_found =
            lender.is_some_and(|lender| descriptor.range_in(lender.segment.len() as u64).is_ok());
        if is_found {
            self.lent = Some(descriptor);
        }
        is_found
    }

    /// The message that is on loan.
    #[inline(always)]
    pub(super) fn pooled_head(&self, Record { header, offset }: Record) -> Head {
        // Taken from where it stays: what a result carries is put together in memory.
        Head { header, offset, len: self.lent.as_ref().map_or(0, |lent| lent.len as usize) }
    }

    /// A private copy of the descriptor behind `envelope` bytes of a record's payload, judged without its segment.
    #[inline(always)]
    pub(super) fn descriptor(&self, record: Record, envelope: usize) -> Result<Pooled, Fault> {
        let terms = &self.link.terms;
        let words = self.link.peer.bytes(record.offset + envelope, pooled::LEN).words();
        let words = words.ok_or(Fault::RecordHeader { header: record.header.to_word() })?;
        let descriptor = Pooled::of_words(words);
        descriptor.judge(terms.max_message, terms.own.loan_slots)?;
        Ok(descriptor)
    }

    /// Borrows a range of the peer's pool.
    #[inline(always)]
    pub(super) fn borrow(&mut self, descriptor: Pooled) -> Result<()> {
        let lender = self.lenders.find(&self.session, descriptor.segment)?;
        descriptor.range_in(lender.segment.len() as u64)?;
        self.lent = Some(descriptor);
        Ok(())
    }

    /// A record names one segment only.
    #[inline(always)]
    pub(super) fn open_window_for(&mut self, segment: u32) {
        if self.lenders.current(&self.session, segment).is_none() {
            self.link.arrivals().open_window();
        }
    }
}
