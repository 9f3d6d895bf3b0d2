//! A file of a filesystem whose server answers nothing: `tests/hostile/hanging.py`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};

/// The file, open. The drop ends the server, and with it every call that hangs.
#[derive(Debug)]
pub struct HangingFile {
    server: Child,
    /// Left open to the end of the process.
    file: ManuallyDrop<File>,
}

impl HangingFile {
    /// Opens one. `None`, said aloud, where this machine cannot.
    pub fn open() -> Option<Self> {
        let place = std::env::temp_dir().join(super::unique_name());
        File::create(&place).unwrap();
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/hanging.py")).arg(&place);
        let Ok(mut server) = command.stdout(Stdio::piped()).spawn() else {
            eprintln!("skipped: there is no python3");
            return None;
        };
        let mut said = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said.trim() != "ready" {
            eprintln!("skipped: no file can hang here: {}", said.trim());
            let _ = server.wait();
            let _ = std::fs::remove_file(&place);
            return None;
        }
        let seen = format!("/proc/{}/root{}", server.id(), place.display());
        let file = File::options().read(true).write(true).open(seen).unwrap();
        let _ = std::fs::remove_file(&place);
        Some(Self { server, file: ManuallyDrop::new(file) })
    }
}

impl AsFd for HangingFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for HangingFile {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}
