//! Both sides on a single-threaded tokio runtime: slipring's async connection, and tokio's Unix socket as its floor.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use slipring::Context;
use slipring::tokio::{AsyncConnection, AsyncListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload::{self, FROM_FOLLOWER, FROM_LEADER};

/// A runtime, and one end of a link or a socket on it.
struct Async<L> {
    runtime: Runtime,
    link: L,
    number: u64,
}

fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Returns the message with this number.
fn word(number: u64, salt: u64) -> [u8; 8] {
    payload::seed(number, salt).to_ne_bytes()
}

fn check(message: &[u8], number: u64, salt: u64) -> Outcome<()> {
    payload::check(payload::sum(message), payload::seed(number, salt), number)
}

/// Opens a side over slipring.
pub fn slipring(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    let runtime = runtime()?;
    let context = Context::new()?;
    let link = runtime.block_on(async {
        match setup.role {
            Role::Follower => {
                let mut listener = AsyncListener::new(context.listen(setup.name)?)?;
                setup.meet()?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(listener.accept().await?)
            }
            Role::Leader => {
                setup.meet()?;
                Ok(AsyncConnection::connect(&context, setup.name).await?)
            }
        }
    })?;
    Ok(Box::new(Async { runtime, link, number: 0 }))
}

impl Exchange for Async<AsyncConnection> {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        let Self { runtime, link, number } = self;
        runtime.block_on(async {
            for _ in 0..count {
                link.send(&word(*number, FROM_LEADER)).await?;
                let answer = link.recv().await?.ok_or("the peer has closed")?;
                check(&answer, *number, FROM_FOLLOWER)?;
                *number += 1;
            }
            Ok(())
        })
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let Self { runtime, link, number } = self;
        runtime.block_on(async {
            for _ in 0..count {
                let message = link.recv().await?.ok_or("the peer has closed")?;
                check(&message, *number, FROM_LEADER)?;
                link.send(&word(*number, FROM_FOLLOWER)).await?;
                *number += 1;
            }
            Ok(())
        })
    }
}

/// Opens a side over tokio's socket.
pub fn socket(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    let runtime = runtime()?;
    let address = SocketAddr::from_abstract_name(setup.name)?;
    let link = match setup.role {
        Role::Follower => {
            let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
            setup.meet()?;
            listener.set_nonblocking(true)?;
            runtime.block_on(async { UnixListener::from_std(listener)?.accept().await })?.0
        }
        Role::Leader => {
            setup.meet()?;
            let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
            stream.set_nonblocking(true)?;
            let _entered = runtime.enter();
            UnixStream::from_std(stream)?
        }
    };
    Ok(Box::new(Async { runtime, link, number: 0 }))
}

impl Exchange for Async<UnixStream> {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        let Self { runtime, link, number } = self;
        runtime.block_on(async {
            let mut answer = [0; 8];
            for _ in 0..count {
                link.write_all(&word(*number, FROM_LEADER)).await?;
                link.read_exact(&mut answer).await?;
                check(&answer, *number, FROM_FOLLOWER)?;
                *number += 1;
            }
            Ok(())
        })
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let Self { runtime, link, number } = self;
        runtime.block_on(async {
            let mut message = [0; 8];
            for _ in 0..count {
                link.read_exact(&mut message).await?;
                check(&message, *number, FROM_LEADER)?;
                link.write_all(&word(*number, FROM_FOLLOWER)).await?;
                *number += 1;
            }
            Ok(())
        })
    }
}
