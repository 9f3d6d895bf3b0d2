//! The roles that a process of these tests plays. Each says `ready`, and then stays until it is killed.

use std::env;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::{Connection, Context, Options};

/// As [`crate::actor::Actor`] starts it.
#[test]
#[ignore = "a role of the other tests"]
fn play() {
    let (Ok(role), Ok(argument)) = (env::var("LOOK_ROLE"), env::var("LOOK_ARGUMENT")) else {
        return;
    };
    // The other side may be killed first.
    if let Err(error) = play_role(&role, &argument) {
        println!("{role} {argument}: {error:#}");
    }
}

fn play_role(role: &str, name: &str) -> slipring::Result<()> {
    let context = Context::new()?;
    match role {
        "flood" => {
            let mut link = listen(&context, name)?;
            loop {
                link.sender().send_deadline(&[7; 200], far())?;
            }
        }
        "read-one-and-stop" => {
            let mut link = connect(&context, name)?;
            link.recv()?;
            ready_and_stop();
        }
        "lend" => {
            let context = Context::with_options(Options::new().loan_limit(16, 1 << 30))?;
            let mut link = listen(&context, name)?;
            loop {
                let tensor = context.alloc::<u8>([1 << 16])?;
                link.sender().send_tensor_deadline(tensor, far())?;
            }
        }
        "keep" => {
            let mut link = connect(&context, name)?;
            let mut kept = Vec::new();
            while let Some(tensor) = link.receiver().recv_tensor_deadline(far()).ok().flatten() {
                kept.push(tensor);
                ready();
            }
        }
        "wait-for-next" => {
            let (own, next) = name.split_once(':').unwrap_or((name, name));
            let mut listener = context.listen(own)?;
            ready();
            let accepted = std::thread::spawn(move || listener.accept());
            let mut towards = context.connect_retry(next, far())?;
            let _from = accepted.join().expect("no panic")?;
            towards.recv()?;
        }
        "publish" => {
            let options = PublishOptions::new().every(true).stall_after(Duration::from_secs(600));
            let mut publisher = context.publish(name, options)?;
            ready();
            loop {
                publisher.send(b"message")?;
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        "subscribe-one-and-stop" => {
            let mut subscriber = context.subscribe(name, SubscribeOptions::every())?;
            subscriber.recv()?;
            ready_and_stop();
        }
        "echo" => {
            let mut link = listen(&context, name)?;
            while let Some(message) = link.recv()? {
                link.send(&message)?;
            }
        }
        "ask" => {
            let mut link = connect(&context, name)?;
            ready();
            loop {
                link.send(b"question")?;
                link.recv()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        "keep-link" => {
            let _link = listen(&context, name)?;
            stay();
        }
        "accept-all" => {
            let mut listener = context.listen(name)?;
            ready();
            loop {
                drop(listener.accept());
            }
        }
        "idle" => {
            let _link = connect(&context, name)?;
            ready();
            stay();
        }
        other => crate::liars::play(other, name),
    }
    Ok(())
}

/// Accepts one peer, after it has said that it is ready.
fn listen(context: &Context, name: &str) -> slipring::Result<Connection> {
    let mut listener = context.listen(name)?;
    ready();
    let link = listener.accept()?;
    // The listener stays: `slipring ls` shows it.
    std::mem::forget(listener);
    Ok(link)
}

fn connect(context: &Context, name: &str) -> slipring::Result<Connection> {
    context.connect_retry(name, Instant::now() + Duration::from_secs(60))
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

pub fn ready() {
    println!("ready");
}

pub fn stay() {
    loop {
        std::thread::sleep(Duration::from_secs(600));
    }
}

fn ready_and_stop() {
    ready();
    kill_process(getpid(), Signal::STOP).expect("a process may stop itself");
    stay();
}
