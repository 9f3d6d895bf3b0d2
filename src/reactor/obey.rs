//! The loop does what handles have asked for.

use crate::error::{ErrorKind, Result, contain};
use crate::reactor::commands::Command;
use crate::reactor::event_loop::EventLoop;
use crate::reactor::link::Link;
use crate::reactor::served::{Mode, Served};

impl EventLoop {
    /// Does what handles have asked for.
    pub(super) fn obey(&mut self) -> Result<usize> {
        let commands = self.shared.take();
        let count = commands.len();
        for command in commands {
            if self.stopped {
                command.refuse(&ErrorKind::ReactorStopped);
                continue;
            }
            match command {
                Command::Adopt(adopted) => {
                    let place = self.links.insert(Served::new(*adopted));
                    self.serve(place);
                }
                Command::Accept(accepting) => self.doors.push(*accepting),
                Command::OnMessage(link, callback) => {
                    link.changed();
                    self.with(&link, |served| served.on_message(callback));
                }
                Command::OnTensors(link, callback) => {
                    link.changed();
                    self.with(&link, |served| served.on_tensors(callback));
                }
                Command::OnClosed(link, callback) => match self.links.find(&link) {
                    Some(served) => served.on_closed(callback),
                    None => drop(link.guard(|| callback(&link, link.ended()))),
                },
                Command::Read(link, callback) => {
                    if self.links.find(&link).is_some() {
                        self.with(&link, |served| served.read(callback));
                    } else {
                        link.guard(|| callback(&link, link.nothing_to_read()));
                    }
                }
                Command::Call(link, request, callback) => {
                    let mut called = None;
                    if self.links.find(&link).is_some() {
                        self.with(&link, |served| called = served.call(request, callback));
                    } else {
                        called = link.guard(|| callback(&link, Err(link.over())));
                    }
                    if called.is_none() {
                        self.end_panicked(&link);
                    }
                }
                Command::Written(link, callback, result) => {
                    if link.guard(|| callback(&link, result)).is_none() {
                        self.end_panicked(&link);
                    }
                }
                Command::Closed(link, callback, result) => {
                    link.guard(|| callback(&link, result));
                }
                Command::Look(link) => {
                    if let Some(place) = self.links.place(link.key()) {
                        self.look(place);
                    }
                }
                Command::Flush(link) => self.start_flushing(&link),
                Command::Close(link) => self.close(&link),
                Command::Abort(link, error) => {
                    if let Some(place) = self.links.place(link.key()) {
                        self.end(place, error.map_or(Ok(()), Err), Some(ErrorKind::LinkClosed));
                    }
                }
                Command::Run(work) => {
                    // Whoever defers work looks after its panics; the links have no part in it.
                    contain(work);
                }
                Command::Nudge => {}
                Command::Shutdown => {
                    self.stopped = true;
                    self.end_all();
                }
            }
        }
        if self.stopped {
            self.refuse_all();
        }
        Ok(count)
    }

    /// Closes every link and listener.
    pub(super) fn end_all(&mut self) {
        self.doors.close(&self.shared);
        for place in 0..self.links.places() {
            self.end(place, Ok(()), Some(ErrorKind::ReactorStopped));
        }
    }

    /// From now on everything that is asked for is refused.
    pub(super) fn refuse_all(&mut self) {
        for command in self.shared.stop() {
            command.refuse(&ErrorKind::ReactorStopped);
        }
    }

    /// Changes what a link wants, and serves what waited for it.
    fn with(&mut self, link: &Link, change: impl FnOnce(&mut Served)) {
        let Some(place) = self.links.place(link.key()) else { return };
        let Some(served) = self.links.get(place) else { return };
        change(served);
        if served.mode == Mode::Stalled {
            served.mode = Mode::Hot;
            self.serve(place);
        }
    }

    fn start_flushing(&mut self, link: &Link) {
        let Some(place) = self.links.place(link.key()) else { return };
        if let Some(served) = self.links.get(place)
            && !served.flushing
        {
            served.flushing = true;
            self.flushing.push(place);
        }
    }

    fn close(&mut self, link: &Link) {
        if let Some(place) = self.links.place(link.key())
            && link.outgoing().close()
        {
            self.end(place, Ok(()), Some(ErrorKind::LinkClosed));
        }
    }

    fn end_panicked(&mut self, link: &Link) {
        if let Some(place) = self.links.place(link.key()) {
            self.end(place, Err(ErrorKind::CallbackPanicked.into()), None);
        }
    }
}
