//! The floor: an eventfd and a word of shared memory for each link and direction, and an epoll loop in each process.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::peer::Peer;
use super::run::{Latencies, record};
use crate::Outcome;
use crate::exchange::{receive_fd, send_fd};
use crate::memory::Mapping;

/// A cache line. Each word has a line to itself.
const LINE: usize = 64;

/// The sending half of a direction. All words lie in one segment, and the bells wake the other process.
pub struct Floor {
    words: Mapping,
    bells: Vec<OwnedFd>,
}

/// The receiving half of a direction.
struct Waiting {
    words: Mapping,
    bells: Vec<OwnedFd>,
    epoll: OwnedFd,
}

impl Floor {
    /// Starts the floor in the peer, and receives the echoes on a thread.
    pub fn start(peer: &Peer, links: usize, latencies: Latencies) -> Outcome<Self> {
        peer.start_floor()?;
        let socket = peer.socket.as_fd();
        let there = Self::create(socket, links)?;
        let back = Waiting::new(Self::create(socket, links)?)?;
        thread::spawn(move || back.run(|_, stamp| record(&latencies, stamp)));
        Ok(there)
    }

    fn create(socket: BorrowedFd<'_>, links: usize) -> Outcome<Self> {
        let (words, memory) = Mapping::create(links * LINE, false)?;
        send_fd(socket, 0, memory.as_fd())?;
        let mut bells = Vec::with_capacity(links);
        for _ in 0..links {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            send_fd(socket, 0, bell.as_fd())?;
            bells.push(bell);
        }
        Ok(Self { words, bells })
    }

    fn receive(socket: BorrowedFd<'_>, links: usize) -> Outcome<Self> {
        let words = Mapping::attach(&receive_fd(socket)?.1, links * LINE, true)?;
        let bells: Outcome<_> = (0..links).map(|_| Ok(receive_fd(socket)?.1)).collect();
        Ok(Self { words, bells: bells? })
    }

    /// Sends a stamp over a link.
    pub fn send(&self, link: usize, stamp: u64) -> Outcome<()> {
        // Pairs with the Acquire load in `run`; nothing else is shared.
        self.words.word(link * LINE).store(stamp, Ordering::Release);
        rustix::io::write(&self.bells[link], &1u64.to_ne_bytes())?;
        Ok(())
    }
}

impl Waiting {
    fn new(floor: Floor) -> Outcome<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (link, bell) in floor.bells.iter().enumerate() {
            // An edge-triggered bell need not be read.
            let events = EventFlags::IN | EventFlags::ET;
            epoll::add(&epoll, bell, EventData::new_u64(link as u64), events)?;
        }
        Ok(Self { words: floor.words, bells: floor.bells, epoll })
    }

    /// Passes each stamp and its link to `take`, until an error.
    fn run(self, mut take: impl FnMut(usize, u64)) -> Outcome<()> {
        let mut events = [MaybeUninit::<Event>::uninit(); 128];
        while !self.bells.is_empty() {
            let ready = match epoll::wait(&self.epoll, &mut events, None) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for event in ready.iter() {
                let link = event.data.u64() as usize;
                take(link, self.words.word(link * LINE).load(Ordering::Acquire));
            }
        }
        Ok(())
    }
}

/// Serves the peer's side: it sends each stamp back.
pub fn serve(socket: &UnixStream, links: usize) -> Outcome<()> {
    let there = Waiting::new(Floor::receive(socket.as_fd(), links)?)?;
    let back = Floor::receive(socket.as_fd(), links)?;
    thread::spawn(move || {
        there.run(|link, stamp| {
            if let Err(error) = back.send(link, stamp) {
                eprintln!("many_links, the floor: {error}");
            }
        })
    });
    Ok(())
}
