//! The subjects that send tensors, and the floor of a first allocation.

use slipring::{Context, Options, Tensor};

use super::subjects::{Ends, gone};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, Turn, Turns};
use crate::memory::Mapping;
use crate::payload;

/// A tensor handed over and back. No process touches its bytes: each side sends the same tensor each time.
pub struct Handed {
    ends: Ends,
    tensor: Tensor,
}

impl Handed {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let context = Context::new()?;
        let tensor = context.alloc::<u8>([setup.bytes])?.share()?;
        Ok(Box::new(Turns(Handed { ends: Ends::of(setup, &context)?, tensor })))
    }
}

impl Turn for Handed {
    fn send(&mut self) -> Outcome<()> {
        Ok(self.ends.link.send_tensor(&self.tensor)?)
    }

    fn receive(&mut self) -> Outcome<()> {
        let tensor = self.ends.link.recv_tensor()?.ok_or_else(gone)?;
        if tensor.shape() == self.tensor.shape() { Ok(()) } else { Err("another shape".into()) }
    }
}

/// A fresh tensor each time, which is allocated, sent, received and dropped. It is filled and summed, or untouched.
pub struct Fresh {
    ends: Ends,
    context: Context,
    bytes: usize,
    filled: bool,
}

impl Fresh {
    pub fn filled(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, true)
    }

    pub fn untouched(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, false)
    }

    fn open(setup: &Setup, filled: bool) -> Outcome<Box<dyn Exchange>> {
        let context = Context::new()?;
        let ends = Ends::of(setup, &context)?;
        Ok(Box::new(Turns(Fresh { ends, context, bytes: setup.bytes, filled })))
    }
}

impl Turn for Fresh {
    fn send(&mut self) -> Outcome<()> {
        let mut tensor = self.context.alloc::<u8>([self.bytes])?;
        let seed = self.ends.next_out();
        if self.filled {
            payload::fill(&mut tensor, seed);
        }
        Ok(self.ends.link.send_tensor(tensor)?)
    }

    fn receive(&mut self) -> Outcome<()> {
        let (number, seed) = self.ends.next_in();
        let tensor = self.ends.link.recv_tensor()?.ok_or_else(gone)?;
        if !self.filled {
            return Ok(());
        }
        payload::check(
            payload::sum_in_place(tensor.bytes()?),
            payload::expected(self.bytes, seed),
            number,
        )
    }
}

/// The first allocation of a context. The follower does nothing.
pub struct Cold {
    bytes: usize,
    leads: bool,
}

impl Cold {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Cold { bytes: setup.bytes, leads: setup.role == Role::Leader }))
    }
}

impl Exchange for Cold {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let context = Context::with_options(Options::new())?;
            let tensor = context.alloc::<u8>([self.bytes])?;
            if !self.leads || tensor.len() != self.bytes {
                return Err("the leader allocates".into());
            }
        }
        Ok(())
    }

    fn follow(&mut self, _count: u64) -> Outcome<()> {
        Ok(())
    }
}

/// The floor of [`Cold`]: shared memory of the same length, mapped with every page present, and unmapped.
pub struct Populate {
    bytes: usize,
}

impl Populate {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Populate { bytes: setup.bytes }))
    }
}

impl Exchange for Populate {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            Mapping::populate(self.bytes)?;
        }
        Ok(())
    }

    fn follow(&mut self, _count: u64) -> Outcome<()> {
        Ok(())
    }
}
