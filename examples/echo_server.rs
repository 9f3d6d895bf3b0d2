//! Sends every message and tensor back to whoever sent it: any number of clients, a thread each.
//!
//! ```text
//! cargo run --release --example echo_server -- parrot             # in one terminal
//! cargo run --release --example echo_server -- parrot hello you   # in others: a client
//! ```
//!
//! Expect a line from the server for each client that comes (pid, uid) and for how it left: in
//! order, dead, or broken. None of it touches the server or another client.

use std::error::Error;
use std::io::{Write, stdout};
use std::process::ExitCode;

use slipring::message::MessageKind;
use slipring::{Connection, Context, Listener, Result};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let done = match (words.next(), words.collect::<Vec<_>>()) {
        (None, _) => Err("usage: echo_server NAME [TEXT...]".into()),
        (Some(name), texts) if texts.is_empty() => serve(&name),
        (Some(name), texts) => say(&name, &texts),
    };
    match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("echo_server: {error:#}"),
    }
    ExitCode::FAILURE
}

fn serve(name: &str) -> Result<(), Box<dyn Error>> {
    let mut listener = Context::new()?.listen(name)?;
    writeln!(stdout(), "listening on {name}")?;
    loop {
        // What fails here fails one client, for want of a descriptor, memory or a thread.
        if let Err(error) = admit(&mut listener) {
            eprintln!("echo_server: {error:#}");
        }
    }
}

fn admit(listener: &mut Listener) -> Result<(), Box<dyn Error>> {
    let link = listener.accept()?;
    let pid = link.peer().pid().unwrap_or(0); // 0: in another pid namespace
    let who = format!("pid {pid}, uid {}", link.peer().uid());
    writeln!(stdout(), "{who}: came")?;
    std::thread::Builder::new().spawn(move || {
        let end = echo(link).map_or_else(|error| format!("{error:#}"), |()| "left in order".into());
        // Where nobody reads this, the clients are served all the same.
        let _ = writeln!(stdout(), "{who}: {end}");
    })?;
    Ok(())
}

fn echo(mut link: Connection) -> Result<()> {
    while let Some(received) = link.receiver().peek()? {
        if received.kind() == MessageKind::Tensors {
            let tensors = received.into_tensors()?;
            link.sender().send_tensors(&tensors)?;
        } else {
            let message = received.bytes().to_vec();
            received.release()?;
            link.send(&message)?;
        }
    }
    link.close()
}

fn say(name: &str, texts: &[String]) -> Result<(), Box<dyn Error>> {
    let mut link = Context::new()?.connect(name)?;
    for text in texts {
        link.send(text.as_bytes())?;
        let echo = link.recv()?.ok_or("the server closed the connection")?;
        writeln!(stdout(), "{}", String::from_utf8_lossy(&echo))?;
    }
    Ok(link.close()?)
}
