//! The subject that calls: a request and its response.

use slipring::Context;

use super::subjects::{Ends, gone};
use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::payload;

/// Requests whose responses return their bytes.
pub struct Called {
    ends: Ends,
    request: Vec<u8>,
}

impl Called {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::of(setup, &Context::new()?)?;
        Ok(Box::new(Called { ends, request: vec![0; setup.bytes] }))
    }
}

impl Exchange for Called {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        let Self { ends, request } = self;
        for number in 0..count {
            let seed = ends.next_out();
            payload::fill(request, seed);
            let id = ends.link.submit(request)?;
            let response = ends.link.wait(id)?;
            payload::check(
                payload::sum(&response),
                payload::expected(request.len(), seed),
                number,
            )?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let link = &mut self.ends.link;
        for _ in 0..count {
            let request = link.receiver().recv_request()?.ok_or_else(gone)?;
            link.sender().respond(request.id, &request.body)?;
        }
        Ok(())
    }
}
