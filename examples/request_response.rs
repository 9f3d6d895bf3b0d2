//! Requests and their responses: several in flight, answered in any order, each with a deadline.
//!
//! ```text
//! cargo run --release --example request_response -- serve clerk
//! cargo run --release --example request_response -- call clerk 300 hello 50 2000
//! ```
//!
//! The server answers a text in capitals, and a number after that many milliseconds. Expect the
//! client to show what takes less than half a second in the order asked, although the server
//! answers `hello` first, and `2000` as a request that nobody waits for any more (exit code 1).

use std::error::Error;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use slipring::message::Request;
use slipring::{Connection, Context, Listener};

const DEADLINE: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", name] => serve(name),
        ["call", name, ref texts @ ..] => call(name, texts),
        _ => Err("usage: request_response serve NAME | call NAME TEXT...".into()),
    };
    match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("request_response: {error:#}"),
    }
    ExitCode::FAILURE
}

fn serve(name: &str) -> Result<(), Box<dyn Error>> {
    let mut listener = Context::new()?.listen(name)?;
    writeln!(stdout(), "listening on {name}")?;
    loop {
        // What fails here fails one client, for want of a descriptor, memory or a thread.
        if let Err(error) = admit(&mut listener) {
            eprintln!("request_response: {error:#}");
        }
    }
}

fn admit(listener: &mut Listener) -> Result<(), Box<dyn Error>> {
    let link = listener.accept()?;
    thread::Builder::new().spawn(move || {
        if let Err(error) = answer(link) {
            eprintln!("request_response: {error:#}");
        }
    })?;
    Ok(())
}

/// Answers the requests of one client, a thread each: whoever is ready first responds first.
fn answer(link: Connection) -> Result<(), Box<dyn Error>> {
    let (sender, mut receiver) = link.split();
    let sender = Mutex::new(sender);
    thread::scope(|scope| {
        while let Some(Request { id, body, .. }) = receiver.recv_request()? {
            let sender = &sender;
            thread::Builder::new().spawn_scoped(scope, move || {
                let text = String::from_utf8_lossy(&body).to_uppercase();
                thread::sleep(Duration::from_millis(text.parse::<u16>().unwrap_or(0).into()));
                let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
                // A client that is gone waits for nothing.
                let _ = sender.respond(id, text.as_bytes());
            })?;
        }
        Ok(())
    })
}

fn call(name: &str, texts: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut link = Context::new()?.connect(name)?;
    let start = Instant::now();
    let asked: slipring::Result<Vec<_>> =
        texts.iter().map(|text| link.submit(text.as_bytes())).collect();
    let mut unanswered = 0;
    for (text, request) in texts.iter().zip(asked?) {
        match link.wait_deadline(request, start + DEADLINE) {
            Ok(answer) => {
                let (answer, after) = (String::from_utf8_lossy(&answer), start.elapsed());
                writeln!(stdout(), "{text}: {answer} after {after:.1?}")?;
            }
            Err(error) if error.is_timeout() => {
                unanswered += 1;
                writeln!(stdout(), "{text}: no answer within {DEADLINE:?}")?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    link.close()?;
    if unanswered > 0 { Err(format!("{unanswered} unanswered").into()) } else { Ok(()) }
}
