//! The walk through `SECURITY.md`'s table of resources: a hostile process uses up its share of each row and gets what the
//! row says, an honest process beside it connects and works within a second, and what the server held comes back.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::support::census::{Census, descriptors};
use crate::support::other::{Other, as_user, run_here, say};
use crate::support::{HANG, raw, soon, unique_name, wait_until};
use slipring::options::{PeerPolicy, Resource};
use slipring::{
    Connection, Context, DType, Error, ErrorKind, Link, Listener, Options, Reactor, Shape,
};

const TEST: &str = "a_hostile_peer_uses_up_each_row_of_the_table_and_an_honest_one_works";

/// The user of a hostile process that is not of the server's user.
const STRANGER: u32 = 4242;

/// How long an honest client may take to connect and be served, at the best of [`TRIES`].
const PROMPT: Duration = Duration::from_secs(1);

/// A machine with other work stops processes for seconds. A server that is held up stays so.
const TRIES: usize = 10;

/// Returns what all peers of the server may make it hold.
fn limit(resource: Resource) -> u64 {
    match resource {
        Resource::Descriptors | Resource::Mappings => 64,
        Resource::MappedBytes => 64 << 20,
        Resource::Memory => 16 << 20,
        other => panic!("the row {other:?} has no test"),
    }
}

/// The name of a tensor that the server keeps.
const KEPT: &str = "kept";

fn row(name: &str) -> Resource {
    Resource::ALL.into_iter().find(|row| row.name() == name).unwrap()
}

#[test]
fn a_hostile_peer_uses_up_each_row_of_the_table_and_an_honest_one_works() {
    run_here(TEST, |role| match role.split('|').collect::<Vec<_>>()[..] {
        ["server", resource, user] => serve(row(resource), user),
        ["hostile", resource, name, "own"] => attack(row(resource), name),
        ["hostile", resource, name, _] => as_user(STRANGER, || attack(row(resource), name)),
        ["honest", name] => work(name),
        ref other => panic!("{other:?}"),
    });
    let mut users = vec!["own"];
    if rustix::process::geteuid().is_root() {
        users.push("other");
    } else {
        eprintln!("SKIPPED: peers of another user need root");
    }
    // Those of GPUs need a driver.
    let gpus = [Resource::GpuMappings, Resource::GpuMappedBytes];
    for resource in Resource::ALL.into_iter().filter(|row| !gpus.contains(row)) {
        for user in &users {
            let role = format!("server|{}|{user}", resource.name());
            Other::spawn(TEST, &role).succeeds();
        }
    }
}

/// The server's side of a row.
struct Server {
    reactor: Reactor,
    context: Context,
    /// The listener whose peers the test itself serves.
    listener: Listener,
    /// What the server holds beside the honest process's old link alone.
    idle: Census,
    ends: Receiver<ErrorKind>,
}

fn serve(resource: Resource, user: &str) {
    let before = Census::take();
    {
        let options = Options::new()
            .process_limit(resource, limit(resource))
            .backlog_limit(1 << 30)
            .peer_policy(PeerPolicy::Anyone)
            .half_open_limit(1000)
            .handshake_timeout(HANG)
            .release_grace(Duration::from_millis(100));
        let context = Context::with_options(options).unwrap();
        let (name, direct) = (unique_name(), unique_name());
        let (note, ends) = channel();
        let reactor = Reactor::spawn(&context).unwrap();
        let serving = reactor.clone();
        let accept = move |accepted: Result<Connection, Error>| {
            if let Ok(link) = accepted.and_then(|connection| serving.adopt(connection)) {
                echo(&link, note.clone());
            }
            ControlFlow::Continue(())
        };
        reactor.accept_with(context.listen(&name).unwrap(), accept).unwrap();
        let listener = context.listen(&direct).unwrap();
        let mut honest = Other::spawn(TEST, &format!("honest|{name}"));
        honest.expect("works");
        let names = format!("{name},{direct}");
        let mut hostile =
            Other::spawn(TEST, &format!("hostile|{}|{names}|{user}", resource.name()));
        let idle = Census::take();
        let mut server = Server { reactor, context, listener, idle, ends };
        // The second time shows that what the first one held came back.
        let [first, second] = [(); 2].map(|()| match resource {
            Resource::Memory => server.memory(&mut hostile, &mut honest),
            _ => server.memory_maps(resource, &mut hostile, &mut honest),
        });
        assert!(first.abs_diff(second) <= 2, "{resource:?}: {first}, then {second}");
        hostile.tell("end");
        hostile.succeeds();
        honest.tell("end");
        honest.succeeds();
        server.reactor.shutdown();
    }
    before.comes_back();
}

/// Serves a link: sends back each message, keeps the tensors named [`KEPT`] until the link ends, and notes why it failed.
fn echo(link: &Link, note: Sender<ErrorKind>) {
    let (keep, kept) = channel();
    link.on_message(|link, message| link.write(message.to_vec()));
    link.on_tensors(move |link, tensors| {
        link.write(b"taken".to_vec());
        if tensors.get(KEPT).is_some() {
            let _ = keep.send(tensors);
        }
    });
    link.on_closed(move |_, result| {
        drop(kept);
        if let Err(error) = result {
            let _ = note.send(error.kind().clone());
        }
    });
}

impl Server {
    /// Takes the next end of a link by its account of this resource.
    fn ends_by(&self, resource: Resource) {
        let deadline = soon();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let end = self.ends.recv_timeout(left).expect("no link ended by its account");
            if let ErrorKind::AccountFull { resource: named, account: "peer" | "user", .. } = end {
                return assert_eq!(named, resource.name());
            }
        }
    }

    /// The hostile process lets go of its links. Waits until the server holds no more than before them.
    fn gets_all_back(&self, hostile: &mut Other) {
        hostile.tell("nothing");
        hostile.expect("held");
        // The honest process's old link may hold a little more than at its start.
        self.idle.comes_back_with(2);
    }

    /// Descriptors, mappings, mapped bytes. Returns how many links the hostile process got.
    fn memory_maps(&mut self, resource: Resource, hostile: &mut Other, honest: &mut Other) -> u64 {
        hostile.tell("links");
        let links: u64 = hostile.hear().parse().unwrap();
        // The control section of a link is less than half a ring here.
        let each = if resource == Resource::MappedBytes { 1 << 20 } else { 2 };
        let half = limit(resource) / 2;
        assert!(links * each <= half, "{resource:?}: {links} links hold more than the peer's half");
        assert!(links * each > half - 4 * each, "{resource:?}: {links} links are no half");
        is_served(honest);
        self.gets_all_back(hostile);
        hostile.tell("segments");
        let segments: u64 = hostile.hear().parse().unwrap();
        assert!(segments > 4, "{resource:?}: {segments} segments");
        self.ends_by(resource);
        is_served(honest);
        if resource == Resource::Descriptors {
            let before = descriptors();
            hostile.tell("silence");
            hostile.expect("silent");
            is_served(honest);
            // All peers that are not admitted have an eighth. A peer that is being judged, and the side of the next link, have
            // descriptors, too.
            for _ in 0..100 {
                let silent = descriptors().saturating_sub(before) as u64;
                assert!(silent <= limit(resource) / 8 + 4, "{silent} silent peers are kept");
                std::thread::sleep(Duration::from_millis(1));
            }
            is_served(honest);
        }
        self.gets_all_back(hostile);
        links
    }

    /// Memory. Returns the bytes of messages that were set aside.
    fn memory(&mut self, hostile: &mut Other, honest: &mut Other) -> u64 {
        let is_full = |error: &Error| {
            let ErrorKind::AccountFull { resource: "memory", account: "peer", used, .. } =
                error.kind()
            else {
                panic!("{error}")
            };
            *used
        };
        // Messages that come before the response of a call.
        hostile.tell("messages");
        let mut link = self.listener.accept_deadline(soon()).unwrap();
        let error = link.call(b"?").unwrap_err();
        let used = is_full(&error);
        let half = limit(Resource::Memory) / 2;
        assert!(used <= half && used > half - (2 << 20), "{used} bytes are set aside");
        is_served(honest);
        // A long message, which the reactor copies in slices, finds no room beside them.
        hostile.tell("long");
        let read = self.listener.accept_deadline(soon()).unwrap();
        let read = self.reactor.adopt(read).unwrap();
        let (answer, answered) = channel();
        read.read_with(move |_, message| {
            let _ = answer.send(message);
        });
        is_full(&answered.recv_timeout(HANG).unwrap().unwrap_err());
        // Those of the call are not lost, and room comes with each. The read had the error for the first long one.
        for round in 0..32u8 {
            let message = link.receiver().recv_deadline(soon()).unwrap().unwrap();
            assert!(message.len() == 1 << 20 && message[0] == round);
        }
        let (answer, answered) = channel();
        read.read_with(move |_, message| {
            let _ = answer.send(message);
        });
        let message = answered.recv_timeout(HANG).unwrap().unwrap().unwrap();
        assert_eq!(message, vec![2; 2 << 20]);
        drop((link, read));
        // Writes for a peer that does not read.
        hostile.tell("writes");
        self.ends_by(Resource::Memory);
        is_served(honest);
        hostile.expect("ended");
        self.context.trim();
        used
    }
}

/// The honest process connects and is served, within a second.
fn is_served(honest: &mut Other) {
    honest.tell("work");
    honest.expect("works");
}

/// The honest process: a link from before, and a new one each time.
fn work(name: &str) {
    let context = Context::new().unwrap();
    let mut old = context.connect_retry(name, soon()).unwrap();
    serves(&context, &mut old);
    say("works");
    while hear() == "work" {
        let took = (0..TRIES).map(|_| {
            let start = Instant::now();
            serves(&context, &mut old);
            let mut new = context.connect(name).unwrap();
            serves(&context, &mut new);
            start.elapsed()
        });
        assert!(took.into_iter().any(|took| took < PROMPT), "an honest client is served late");
        say("works");
    }
}

/// Uses each kind of thing that the table counts.
fn serves(context: &Context, link: &mut Connection) {
    for round in 0..100u8 {
        let message = vec![round; if round % 10 == 0 { 100_000 } else { 64 }];
        link.send(&message).unwrap();
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), message);
    }
    send_frozen(context, link, "dropped", 4096).unwrap();
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"taken");
}

fn send_frozen(
    context: &Context,
    link: &mut Connection,
    name: &str,
    len: usize,
) -> Result<(), Error> {
    let bytes = vec![1; len];
    let set = context.freeze([(name, DType::Uint8, Shape::from([len]), &bytes[..])])?;
    link.sender().send_tensors(&set)
}

/// The next word of the server's.
fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// The hostile process does what it is told.
fn attack(resource: Resource, names: &str) {
    let (name, direct) = names.split_once(',').unwrap();
    let ring = if resource == Resource::MappedBytes { 1 << 20 } else { 1 << 16 };
    let options = Options::new().peer_policy(PeerPolicy::Anyone).pool_quota(1 << 30);
    let options = options.loan_limit(1024, 1 << 30).loan_slots(1024);
    let context = Context::with_options(options.clone()).unwrap();
    // The whole ring from the start.
    let wide = Context::with_options(options.ring_capacity(ring).inline_max(ring)).unwrap();
    let (mut links, mut silent, mut read) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let order = hear();
        // The links of the last order are held until the next one.
        links.clear();
        silent.clear();
        match &*order {
            "nothing" => say("held"),
            "links" => {
                while let Ok(link) = wide.connect(name) {
                    links.push(link);
                }
                say(&links.len().to_string());
            }
            "segments" => {
                let mut link = patiently(&context, name);
                let len = if resource == Resource::MappedBytes { 2 << 20 } else { 4096 };
                let mut sent = 0;
                while send_frozen(&context, &mut link, KEPT, len).is_ok() {
                    if link.receiver().recv_deadline(soon()).is_err() {
                        break;
                    }
                    sent += 1;
                }
                say(&sent.to_string());
            }
            "silence" => {
                silent.extend((0..2 * limit(resource)).map(|_| raw::dial(name)));
                say("silent");
            }
            "messages" => {
                let mut link = patiently(&context, direct);
                (0..32u8).for_each(|round| link.send(&vec![round; 1 << 20]).unwrap());
                // A link that ends takes back what nobody has read, after a while.
                read.push(link);
            }
            "long" => {
                let mut link = patiently(&context, direct);
                (1..=2u8).for_each(|round| link.send(&vec![round; 2 << 20]).unwrap());
                read.push(link);
            }
            "writes" => {
                read.clear();
                let mut link = patiently(&context, name);
                while link.send(&[2; 100_000]).is_ok() {}
                say("ended");
            }
            "end" => return,
            other => panic!("{other}"),
        }
    }
}

/// Connects as soon as the server has room: it ends links on its own time.
fn patiently(context: &Context, name: &str) -> Connection {
    let mut link = None;
    wait_until("a link", || {
        link = context.connect(name).ok();
        link.is_some()
    });
    link.unwrap()
}
