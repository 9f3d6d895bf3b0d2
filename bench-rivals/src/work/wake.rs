//! Round trips of 8 bytes between two sleepers: each side idles before it sends, by which time the other
//! sleeps, as the floors `futex` and `eventfd` do. The runner takes the idling out.

use super::Treatment;
use super::link::End;
use super::trip::Trips;
use crate::Outcome;
use crate::exchange::{Exchange, Setup, Turn, Turns};
use crate::floors::futex;

pub struct Wakes<E>(Trips<E>);

impl<E: End + 'static> Wakes<E> {
    pub fn over(end: E, setup: &Setup) -> Box<dyn Exchange> {
        Box::new(Turns(Wakes(Trips::new(end, Treatment::Copied, setup))))
    }
}

impl<E: End> Turn for Wakes<E> {
    fn send(&mut self) -> Outcome<()> {
        futex::idle();
        self.0.send()
    }

    fn receive(&mut self) -> Outcome<()> {
        self.0.receive()
    }
}
