//! Round trips. Every message is another one in all of its words, and what comes is checked by the sum of all of them, also
//! where it is copied: nobody gains by copies of which a part is never read.

use super::Treatment;
use super::link::{Count, End};
use crate::Outcome;
use crate::exchange::{Exchange, Setup, Turn, Turns};
use crate::payload;

pub struct Trips<E> {
    end: E,
    treatment: Treatment,
    count: Count,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl<E: End + 'static> Trips<E> {
    pub fn over(end: E, treatment: Treatment, setup: &Setup) -> Box<dyn Exchange> {
        Box::new(Turns(Trips::new(end, treatment, setup)))
    }

    pub fn new(end: E, treatment: Treatment, setup: &Setup) -> Trips<E> {
        let (outgoing, incoming) = (vec![1; setup.bytes], vec![0; setup.bytes]);
        Trips { end, treatment, count: Count::new(setup), outgoing, incoming }
    }
}

impl<E: End> Turn for Trips<E> {
    fn send(&mut self) -> Outcome<()> {
        let seed = self.count.next_out();
        match self.treatment {
            Treatment::Filled => self.end.fill(&mut self.outgoing, seed),
            Treatment::Copied => {
                payload::fill(&mut self.outgoing, seed);
                self.end.send(&self.outgoing)
            }
            Treatment::Untouched => self.end.hand(self.outgoing.len()),
        }
    }

    fn receive(&mut self) -> Outcome<()> {
        let (number, seed) = self.count.next_in();
        let len = self.incoming.len();
        match self.treatment {
            Treatment::Filled => {
                let got = self.end.sum(&mut self.incoming)?;
                payload::check(got, payload::expected(len, seed), number)
            }
            Treatment::Copied => {
                self.end.receive(&mut self.incoming)?;
                payload::check(payload::sum(&self.incoming), payload::expected(len, seed), number)
            }
            Treatment::Untouched => self.end.take(len),
        }
    }
}
