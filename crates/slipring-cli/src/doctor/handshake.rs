//! A handshake with the listener on an address: one connection, which costs a listener what any costs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use slipring::options::PeerPolicy;
use slipring::{Address, Context, Error, ErrorKind, Options};

use crate::doctor::finding::Finding;
use crate::doctor::sockets::Here;
use crate::doctor::{sandbox, sockets};
use crate::failure::Failure;
use crate::process::Process;
use crate::quantity::Nanos;

/// The most namespaces that a finding names.
const NAMED: usize = 3;

const ABOUT: &str = "handshake";

/// Connects to an address. Returns what came of it, and the exit code that says so.
pub(super) fn probe(address: &Address, timeout: Duration) -> (Finding, u8) {
    let seen = Arc::new(Mutex::new(None));
    let noted = seen.clone();
    // The default policy, which also notes whose socket it is.
    let policy = PeerPolicy::Custom(Arc::new(move |peer| {
        if let Ok(mut noted) = noted.lock() {
            *noted = Some((peer.pid(), peer.uid()));
        }
        peer.uid() == geteuid().as_raw() && !sandbox::is_overflow()
    }));
    let options = Options::new().peer_policy(policy).handshake_timeout(timeout);
    let start = Instant::now();
    let connected = Context::with_options(options)
        .and_then(|context| context.connect_deadline(address, start + timeout));
    let time = Nanos(start.elapsed().as_nanos() as f64);
    let seen = seen.lock().ok().and_then(|seen| *seen);
    let listener = seen.map(|(pid, uid)| Process::look(pid, uid));
    let who = listener.as_ref().map_or("somebody".to_owned(), describe);
    match connected {
        Ok(_) => {
            let fact = format!("{who} answers on {address} and takes links, after {time}");
            (Finding::ok(ABOUT, fact), 0)
        }
        Err(error) => match error.kind() {
            ErrorKind::WrongService { publishes: true } => {
                let fact = format!("{who} publishes on {address} and answered after {time}");
                (Finding::ok(ABOUT, fact), 0)
            }
            _ => {
                let (fact, remedy) = explain(&error, address, listener.as_ref(), &who);
                (Finding::problem(ABOUT, fact, remedy), Failure::from(error).code())
            }
        },
    }
}

fn describe(process: &Process) -> String {
    format!("{process} of user {}", process.uid())
}

/// Returns what went wrong, and the remedy.
fn explain(
    error: &Error,
    address: &Address,
    listener: Option<&Process>,
    who: &str,
) -> (String, String) {
    let own = geteuid().as_raw();
    let known = |fact: String, remedy: &str| (fact, remedy.to_owned());
    match error.kind() {
        ErrorKind::NobodyListens { .. } => nobody(address),
        ErrorKind::NotAdmittedByPeer => known(
            format!("{who} does not admit this process, of user {own}"),
            "run both as one user, or admit this one there (Options::peer_policy)",
        ),
        ErrorKind::PeerNotAdmitted { .. } => known(
            format!("this process, of user {own}, does not admit {who}"),
            "run both as one user, or admit that one (Options::peer_policy)",
        ),
        ErrorKind::TimedOut { .. } => match listener {
            None => full(address),
            Some(process) => {
                let state = process.state().unwrap_or("does not answer");
                known(
                    format!("{who} has the address and does not answer; it {state}"),
                    "look what it waits for: it accepts nobody, or is no slipring",
                )
            }
        },
        ErrorKind::NoCommonVersion { .. } => {
            known(format!("{who}: {error:#}"), "use one version of slipring on both sides")
        }
        ErrorKind::Fault(_) => known(
            format!("{who} does not speak slipring's protocol: {error:#}"),
            "use another address, or a slipring there",
        ),
        ErrorKind::PeerClosed | ErrorKind::PeerDied => known(
            format!("{who} closed the connection instead of answering"),
            "it is no slipring, has just ended, or has as many half-open peers as it may",
        ),
        _ if os_code(error) == Some(rustix::io::Errno::PROTOTYPE.raw_os_error()) => {
            let owner = sockets::here(address).and_then(|here| match here {
                Here::Seqpacket(owner) | Here::Other(owner) => owner,
            });
            other_type(address, owner)
        }
        _ if os_code(error) == Some(rustix::io::Errno::ACCESS.raw_os_error()) => known(
            format!("this process, of user {own}, may not connect to {address}"),
            "give it the permission to write the socket's file and to search its folders",
        ),
        _ => (format!("{who}: {error:#}"), "see the other findings".into()),
    }
}

/// Returns what the kernel said, if it refused a call.
fn os_code(error: &Error) -> Option<i32> {
    let source = std::error::Error::source(error)?;
    source.downcast_ref::<std::io::Error>()?.raw_os_error()
}

/// Returns what to say where the kernel waits for a place in the listener's queue.
fn full(address: &Address) -> (String, String) {
    let owner = match sockets::here(address) {
        Some(Here::Seqpacket(Some(owner))) => {
            let state = owner.state().map_or(String::new(), |state| format!("; it {state}"));
            format!(" of {owner} is full: it accepts nobody{state}")
        }
        _ => " is full: its listener accepts nobody".into(),
    };
    let remedy = "look what the listener waits for, or restart it";
    (format!("the queue on {address}{owner}"), remedy.into())
}

fn other_type(address: &Address, owner: Option<Process>) -> (String, String) {
    let owner = owner.map_or("somebody".to_owned(), |owner| owner.to_string());
    (
        format!("{owner} has a socket of another type on {address}: no slipring listens there"),
        "use another address".into(),
    )
}

fn nobody(address: &Address) -> (String, String) {
    let fact = format!("nobody listens on {address}");
    if let Some(path) = address.as_path() {
        return match path.symlink_metadata() {
            Ok(_) => (
                format!("{fact}: the file is there, and its listener is gone"),
                "start the listener, which takes the file over".into(),
            ),
            Err(_) => (
                format!("{fact}: there is no such file"),
                "start the listener, and check that both see one folder (containers: mount it in both)"
                    .into(),
            ),
        };
    }
    if let Some(Here::Other(owner)) = sockets::here(address) {
        return other_type(address, owner);
    }
    let elsewhere = sockets::in_other_namespaces(address);
    if elsewhere.is_empty() {
        let remedy = "start the listener; a container has abstract names of its own, so there a path is needed";
        return (
            format!("{fact} in this network namespace, or in one that may be seen"),
            remedy.into(),
        );
    }
    let names: Vec<String> = elsewhere.iter().take(NAMED).map(ToString::to_string).collect();
    let more = elsewhere.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let enter = elsewhere.iter().find_map(Process::pid);
    let enter = enter.map_or(String::new(), |pid| format!(" (nsenter --net=/proc/{pid}/ns/net)"));
    (
        format!(
            "{fact} in this network namespace, but {}{more} does in another one",
            names.join(", ")
        ),
        format!("run in the same one{enter}, or listen on a path that both see"),
    )
}
