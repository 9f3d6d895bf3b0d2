//! One sender, four receivers, one of which stops. The others go on, and an abort gives its memory back.
//!
//! ```text
//! cargo run --release --example fan_out
//! ```
//!
//! The receivers are processes, started by this program. The first one stops itself by SIGSTOP after 5 frames. It keeps
//! what its link may hold: a quarter of the sender's pool. Then its link alone is full, and each frame goes to the other
//! three. A read of memory that the sender has taken back is an error.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};
use slipring::error::TrySendError;
use slipring::{Connection, Context, Options};

const RECEIVERS: u32 = 4;
const FRAMES: u32 = 100;
const FRAME: [usize; 2] = [256, 1024]; // 256 KiB

fn receive(address: &str, stops: bool) -> slipring::Result<()> {
    let soon = Instant::now() + Duration::from_secs(10);
    let mut link = Context::new()?.connect_retry(address, soon)?;
    let mut count = 0;
    while let Some(frame) = link.recv_tensor()? {
        count += 1;
        if stops && count == 5 {
            println!("receiver {}: stops with frame {count}", getpid());
            let _ = kill_process(getpid(), Signal::STOP);
        }
        if let Err(error) = frame.for_each_chunk::<u8>(|_| {}) {
            println!("receiver {}: {error}", getpid());
            return Ok(());
        }
    }
    println!("receiver {}: {count} frames", getpid());
    Ok(())
}

fn send(address: &str, children: &mut Vec<Child>) -> slipring::Result<()> {
    // After the last frame each receiver has 10 s to read what it has.
    let options = Options::new().pool_quota(16 << 20).release_grace(Duration::from_secs(10));
    let context = Context::with_options(options)?;
    let mut listener = context.listen(address)?;
    let program = std::env::current_exe().expect("this program has a path");
    for number in 0..RECEIVERS {
        let mut receiver = Command::new(&program);
        receiver.args([address, if number == 0 { "stops" } else { "reads" }]);
        children.push(receiver.spawn().expect("it starts"));
    }
    let accept = |_| listener.accept_deadline(Instant::now() + Duration::from_secs(10));
    let mut links = (0..RECEIVERS).map(accept).collect::<slipring::Result<Vec<Connection>>>()?;
    for number in 0..FRAMES {
        let mut frame = context.alloc::<u8>(FRAME)?;
        frame.fill(number as u8);
        let frame = frame.share()?; // one block, for all receivers
        let mut slow = Vec::new();
        for (at, link) in links.iter_mut().enumerate() {
            match link.sender().try_send_tensor(&frame) {
                Ok(()) => {}
                Err(TrySendError::Full { .. }) => slow.push(at),
                Err(TrySendError::Failed(error)) => return Err(error),
            }
        }
        for at in slow.into_iter().rev() {
            let soon = Instant::now() + Duration::from_secs(1);
            if let Err(late) = links[at].sender().send_tensor_deadline(&frame, soon) {
                println!("sender: {late:#}");
                println!("sender: aborts {}", links[at].peer());
                links.remove(at).abort();
                println!("sender: {} bytes of the pool are free again", context.trim());
            }
        }
    }
    println!("sender: {FRAMES} frames to {} receivers", links.len());
    links.into_iter().try_for_each(Connection::close)
}

fn main() -> slipring::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [address, role] = &arguments[..] {
        return receive(address, role == "stops");
    }
    let mut children = Vec::new();
    let sent = send(&format!("@fan-out-{}", std::process::id()), &mut children);
    for child in &mut children {
        let _ = kill_process(Pid::from_child(child), Signal::CONT); // one of them is stopped
        let _ = child.wait();
    }
    sent
}
