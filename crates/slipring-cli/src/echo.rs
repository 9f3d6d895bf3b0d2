//! `slipring echo`: a listener that sends each message back.

use std::thread;

use clap::Args;
use slipring::{Connection, Context, Result};

use crate::failure::Failure;

/// The arguments of `slipring echo`.
#[derive(Debug, Args)]
pub(crate) struct Echo {
    /// The address to listen on: a name, or any address of slipring
    address: String,
}

impl Echo {
    /// Serves until the listener fails.
    pub(crate) fn run(self) -> std::result::Result<(), Failure> {
        let mut listener = Context::new()?.listen(self.address.as_str())?;
        loop {
            let link = listener.accept()?;
            thread::spawn(move || {
                let peer = link.peer().to_string();
                if let Err(error) = echo(link) {
                    eprintln!("{peer}: {error:#}");
                }
            });
        }
    }
}

/// Sends each message of a peer back, until it closes the link.
fn echo(mut link: Connection) -> Result<()> {
    while let Some(message) = link.recv()? {
        let message = message.to_vec();
        link.send(&message)?;
    }
    Ok(())
}
