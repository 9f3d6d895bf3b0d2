//! A tensor on a GPU goes from one process to another, and nobody copies it.
//!
//! ```text
//! cargo run --release --features cuda --example cuda_pair -- recv gpu           # in one terminal
//! cargo run --release --features cuda --example cuda_pair -- send gpu 1024 3    # in another: MiB, how often
//! cargo run --release --features cuda --example cuda_pair -- send gpu 1024 3 fd # or, to another container
//! ```
//!
//! The sender fills `[n]` f32 by its stream and sends it while that still runs; the receiver's stream waits for it on the
//! GPU, and only then it is read back to check every bit. Expect a line a tensor: its size,
//! how long it was on its way (sent → opened, the GPU's work not included), and that its bits are right.

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slipring::Context;
use slipring::cuda::{Device, Export, PoolOptions};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What the sender's stream writes: each tensor another byte.
fn pattern(round: u8) -> u8 {
    round.wrapping_mul(31).wrapping_add(1)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["recv", name] => recv(name),
        ["send", name] => send(name, 1024, 3, Export::IpcHandle),
        ["send", name, mib, times, ref how @ ..] => match (mib.parse(), times.parse(), how) {
            (Ok(mib), Ok(times), []) => send(name, mib, times, Export::IpcHandle),
            (Ok(mib), Ok(times), ["fd"]) => send(name, mib, times, Export::FileDescriptor),
            _ => Err("MIB and TIMES are numbers, and fd may follow".into()),
        },
        _ => Err("usage: cuda_pair recv NAME | send NAME [MIB TIMES [fd]]".into()),
    };
    done.map_or_else(
        |error| {
            eprintln!("cuda_pair: {error:#}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn send(name: &str, mib: usize, times: u8, export: Export) -> Outcome<()> {
    let device = Device::new(0)?;
    let pool = device.pool_with(PoolOptions::new().export(export))?;
    let stream = device.stream()?;
    let mut link = Context::new()?.connect(name)?;
    println!("{device:?}, {export:?}, {:?}", pool.order());
    for round in 0..times {
        let mut draft = pool.alloc::<f32>([mib << 18], &stream)?;
        draft.fill(pattern(round))?;
        let tensor = draft.share()?;
        // Set apart from the tensor, as any message may be.
        link.send(&now().as_nanos().to_le_bytes())?;
        link.send_tensor(tensor)?;
        link.recv()?.ok_or("the receiver has closed")?;
    }
    Ok(link.close()?)
}

fn recv(name: &str) -> Outcome<()> {
    let device = Device::new(0)?;
    let stream = device.stream()?;
    let mut listener = Context::new()?.listen(name)?;
    let mut link = listener.accept()?;
    for round in 0u8.. {
        let Some(sent) = link.recv()? else { break };
        let Some(tensor) = link.recv_tensor()? else { break };
        let view = device.open(&tensor, &stream)?;
        let sent = u128::from_le_bytes(sent[..].try_into()?);
        let micros = now().as_nanos().saturating_sub(sent) as f64 / 1e3;
        let copy = view.to_host()?;
        let right = copy.as_bytes()?.iter().all(|byte| *byte == pattern(round));
        let (mib, verdict) = (view.byte_len() >> 20, if right { "bit by bit" } else { "WRONG" });
        println!("{mib} MiB in {micros:.1} us, {verdict}");
        drop(view);
        drop(tensor);
        link.send(b"seen")?;
        if !right {
            return Err("the bits are wrong".into());
        }
    }
    Ok(())
}
