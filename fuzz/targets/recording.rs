//! A recording of topics, as the command replays it: read to its end, or to what cannot be.
#![no_main]
#![allow(dead_code, unused_imports)]

// The command is no library.
#[path = "../../crates/slipring-cli/src/failure.rs"]
mod failure;
#[path = "../../crates/slipring-cli/src/npy.rs"]
mod npy;
#[path = "../../crates/slipring-cli/src/recording/mod.rs"]
mod recording;
#[path = "../../crates/slipring-cli/src/safetensors.rs"]
mod safetensors;
#[path = "../../crates/slipring-cli/src/stamp.rs"]
mod stamp;
#[path = "../../crates/slipring-cli/src/store.rs"]
mod store;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use recording::{Event, Reader};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("recording", flags).unwrap());
    file.write_all(bytes).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let Ok(mut reader) = Reader::open(&path) else { return };
    for _ in 0..2 {
        while let Ok(event) = reader.next() {
            assert!(reader.record_start() <= bytes.len() as u64);
            match event {
                Event::Message { bytes: told, head, .. } => {
                    let _ = head.metadata();
                    let mut body = vec![0; told.min(256) as usize];
                    if !reader.read_body(&mut body).unwrap() {
                        break;
                    }
                }
                Event::Channel { .. } | Event::Other => {}
                Event::End | Event::Cut => break,
            }
        }
        reader.rewind().unwrap();
    }
});
