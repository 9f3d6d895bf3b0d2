//! The events that a `tracing` subscriber gets: a death, a refusal and a long wait aloud, an orderly course in a whisper.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::support::other::{Other, say, wait_for_death};
use crate::support::{soon, unique_name, wait_until};
use slipring::options::PeerPolicy;
use slipring::{Context, Options};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// The events of this process so far, a line each.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Writes each event of the library as a line.
struct Log;

/// The line of one event.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("slipring")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn tells(parts: &[&str]) -> bool {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().any(|line| parts.iter().all(|part| line.contains(part)))
}

fn must_tell(parts: &[&str]) {
    wait_until(&format!("an event with {parts:?}"), || tells(parts));
}

/// In a process of its own, for a log of its own.
#[test]
fn deaths_refusals_and_stalls_are_told_with_the_peers_name() {
    let test = "log::deaths_refusals_and_stalls_are_told_with_the_peers_name";
    let mut other = Other::start(test, "log", |role| match role.strip_prefix("peer ") {
        Some(name) => {
            let _link = Context::new().unwrap().connect_retry(name, soon()).unwrap();
            say("connected");
            wait_for_death();
        }
        None => {
            tracing::subscriber::set_global_default(Log).unwrap();
            a_death_is_told(test);
            an_orderly_close_is_told_in_a_whisper();
            a_refusal_is_told();
            a_stall_is_told();
            a_growth_is_told();
            say("done");
        }
    });
    other.expect("done");
    other.succeeds();
}

fn a_death_is_told(test: &str) {
    let name = unique_name();
    let context = Context::new().unwrap();
    let mut listener = context.listen(&*name).unwrap();
    let mut victim = Other::spawn(test, &format!("peer {name}"));
    let _link = listener.accept_deadline(soon()).unwrap();
    victim.expect("connected");
    let peer = format!("process {} (", victim.pid());
    must_tell(&["DEBUG", "a link is made", &peer]);
    victim.kill();
    must_tell(&["WARN", "the peer has died", &peer]);
}

fn an_orderly_close_is_told_in_a_whisper() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut listener = context.listen(&*name).unwrap();
    let client = thread::spawn(move || Context::new().unwrap().connect(&*name).unwrap().close());
    let _link = listener.accept_deadline(soon()).unwrap();
    client.join().unwrap().unwrap();
    must_tell(&["DEBUG", "the peer has closed the link"]);
}

fn a_refusal_is_told() {
    let nobody = PeerPolicy::Custom(std::sync::Arc::new(|_| false));
    let context = Context::with_options(Options::new().peer_policy(nobody)).unwrap();
    let name = unique_name();
    let mut listener = context.listen(&*name).unwrap();
    let client = thread::spawn(move || Context::new().unwrap().connect(&*name).map(drop));
    wait_until("a refusal", || {
        assert!(listener.try_accept().unwrap().is_none());
        listener.stats().refused > 0
    });
    client.join().unwrap().unwrap_err();
    must_tell(&["WARN", "a peer was refused"]);
}

fn a_stall_is_told() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut listener = context.listen(&*name).unwrap();
    let client = thread::spawn(move || Context::new().unwrap().connect(&*name).unwrap());
    let mut link = listener.accept_deadline(soon()).unwrap();
    let mut client = client.join().unwrap();
    while link.sender().try_send(&[7; 1000]).is_ok() {}
    let reader = thread::spawn(move || {
        thread::sleep(Duration::from_millis(1200));
        client.receiver().recv_deadline(soon()).unwrap();
        while client.receiver().try_recv().is_ok() {}
        client
    });
    link.sender().send_deadline(&[7; 1000], soon()).unwrap();
    must_tell(&["WARN", "a send has waited", "Room"]);
    reader.join().unwrap();
}

fn a_growth_is_told() {
    let _image = Context::new().unwrap().alloc::<u8>([3 << 20]).unwrap();
    must_tell(&["DEBUG", "the pool grows", "blocks=", "block_bytes="]);
}
