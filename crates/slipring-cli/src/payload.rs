//! The messages of `slipring pub`: lines, files, tensors of files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use slipring::{Shape, TensorSet};

use crate::failure::Failure;
use crate::outlet::Outlet;
use crate::{npy, safetensors};

/// The longest message of bytes: that of a link by default.
const LONGEST: u64 = 1 << 30;

/// A message to be sent.
#[derive(Debug)]
pub(crate) enum Payload {
    Bytes(Vec<u8>),
    /// The tensors of a file.
    Tensors(TensorFile),
}

/// A file of tensors.
#[derive(Debug)]
pub(crate) enum TensorFile {
    Npy(PathBuf),
    Safetensors(PathBuf),
}

/// The source of messages.
#[derive(Debug)]
pub(crate) struct Source {
    files: Vec<PathBuf>,
    /// A file is one message, not one a line.
    is_raw: bool,
    repeats: bool,
}

impl Source {
    /// Reads these files in their order. Standard input is `-`.
    pub(crate) fn new(files: Vec<PathBuf>, is_raw: bool, repeats: bool) -> Result<Self, Failure> {
        let files = if files.is_empty() { vec!["-".into()] } else { files };
        if repeats && files.iter().any(|file| file == Path::new("-")) {
            return Err(Failure::new("standard input cannot be read anew: --repeat takes files"));
        }
        Ok(Self { files, is_raw, repeats })
    }

    /// Starts to read. A thread reads one message ahead, so that a read that waits keeps nobody from ending the command.
    pub(crate) fn start(self) -> Receiver<Result<Payload, Failure>> {
        let (to, payloads) = sync_channel(0);
        thread::spawn(move || {
            loop {
                let mut read = 0;
                for file in &self.files {
                    if let Err(failure) = self.read(file, &to, &mut read) {
                        let _ = to.send(Err(failure.of(file.display())));
                        return;
                    }
                }
                // Nothing but empty files would be read for ever.
                if !self.repeats || read == 0 {
                    return;
                }
            }
        });
        payloads
    }

    /// Reads the messages of a file, until nobody takes them any more.
    fn read(
        &self,
        path: &Path,
        to: &SyncSender<Result<Payload, Failure>>,
        read: &mut u64,
    ) -> Result<(), Failure> {
        let mut send = |payload| {
            *read += 1;
            to.send(Ok(payload)).is_ok()
        };
        let ending = path.extension().and_then(|ending| ending.to_str());
        let tensors = match ending {
            Some("npy") => Some(TensorFile::Npy(path.into())),
            Some("safetensors") => Some(TensorFile::Safetensors(path.into())),
            _ => None,
        };
        if let Some(tensors) = tensors.filter(|_| !self.is_raw) {
            send(Payload::Tensors(tensors));
            return Ok(());
        }
        let file: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path)?)
        };
        let mut file = BufReader::new(file);
        loop {
            let mut bytes = Vec::new();
            let mut rest = file.by_ref().take(LONGEST + 1);
            if self.is_raw {
                rest.read_to_end(&mut bytes)?;
            } else if rest.read_until(b'\n', &mut bytes)? == 0 {
                return Ok(());
            }
            if bytes.len() as u64 > LONGEST {
                return Err(Failure::new(format!("a message of more than {LONGEST} bytes")));
            }
            if !self.is_raw && bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            if !send(Payload::Bytes(bytes)) || self.is_raw {
                return Ok(());
            }
        }
    }
}

impl TensorFile {
    /// Reads the tensors into memory of the publisher.
    pub(crate) fn load(&self, outlet: &mut Outlet) -> Result<TensorSet, Failure> {
        let (Self::Npy(path) | Self::Safetensors(path)) = self;
        self.read(path, outlet).map_err(|failure| failure.of(path.display()))
    }

    fn read(&self, path: &Path, outlet: &mut Outlet) -> Result<TensorSet, Failure> {
        let mut file = BufReader::new(File::open(path)?);
        let mut set = TensorSet::new();
        let entries = match self {
            Self::Npy(_) => {
                let (dtype, shape) = npy::read_head(&mut file)?;
                vec![safetensors::Entry { name: String::new(), dtype, shape }]
            }
            Self::Safetensors(_) => safetensors::read_head(&mut file)?,
        };
        for entry in entries {
            let shape = Shape::new(&entry.shape)?;
            let mut tensor = outlet.alloc(entry.dtype, shape, 0)?;
            file.read_exact(&mut tensor)?;
            let tensor = tensor.share()?;
            if entry.name.is_empty() {
                set.push(tensor);
            } else {
                set.insert(&entry.name, tensor)?;
            }
        }
        Ok(set)
    }
}
