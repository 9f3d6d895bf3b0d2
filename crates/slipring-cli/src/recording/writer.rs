//! The writing side of a recording.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use slipring::broadcast::Sample;

use crate::failure::Failure;
use crate::recording::{
    CHANNEL, DATA_END, ENCODING, FOOTER, HEADER, Head, MAGIC, MESSAGE, MESSAGE_HEAD,
};
use crate::store;

/// How long records may wait in the buffer: what a kill costs.
const FLUSH: Duration = Duration::from_millis(100);

/// A recording that is being written.
#[derive(Debug)]
pub(crate) struct Writer {
    file: BufWriter<File>,
    /// Bytes of whole records.
    written: u64,
    /// The file can be cut. A pipe cannot.
    is_regular: bool,
    flushed: Instant,
}

impl Writer {
    /// Creates the file and writes a channel for each topic. It writes over no file, but into a pipe or a device.
    pub(crate) fn create(path: &Path, topics: &[String]) -> Result<Self, Failure> {
        let is_regular = path.metadata().is_ok_and(|found| found.is_file()) || !path.exists();
        let file = OpenOptions::new().write(true).create_new(is_regular).open(path)?;
        let flushed = Instant::now();
        let mut writer = Self { file: BufWriter::new(file), written: 0, is_regular, flushed };
        let mut start = MAGIC.to_vec();
        let mut content = Vec::new();
        put(&mut content, "");
        put(&mut content, concat!("slipring ", env!("CARGO_PKG_VERSION")));
        record(&mut start, HEADER, &content);
        for (channel, topic) in topics.iter().enumerate() {
            content.clear();
            content.extend((channel as u16).to_le_bytes());
            content.extend(0u16.to_le_bytes()); // no schema
            put(&mut content, topic);
            put(&mut content, ENCODING);
            content.extend(0u32.to_le_bytes()); // no metadata
            record(&mut start, CHANNEL, &content);
        }
        writer.file.write_all(&start)?;
        writer.file.flush()?;
        writer.written = start.len() as u64;
        Ok(writer)
    }

    /// Returns the bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.written
    }

    /// Writes a message. Returns whether its publisher left it as it was until it was written; else it is not in the file.
    pub(crate) fn write(
        &mut self,
        channel: u16,
        nanos: u64,
        head: &Head,
        sample: &Sample<'_>,
    ) -> Result<bool, Failure> {
        let json = serde_json::to_vec(head).map_err(|error| Failure::new(error.to_string()))?;
        let bytes = match head.tensors() {
            Some(tensors) => tensors.iter().map(|tensor| tensor.bytes).sum(),
            None => sample.len() as u64,
        };
        let len = MESSAGE_HEAD + 4 + json.len() as u64 + bytes;
        let mut start = vec![MESSAGE];
        start.extend(len.to_le_bytes());
        start.extend(channel.to_le_bytes());
        start.extend((head.sequence() as u32).to_le_bytes());
        start.extend(nanos.to_le_bytes());
        start.extend(nanos.to_le_bytes());
        start.extend((json.len() as u32).to_le_bytes());
        start.extend(json);
        let start_len = start.len() as u64;
        let body = self.file.write_all(&start).map_err(Failure::from);
        let body = body.and_then(|()| {
            if head.tensors().is_none() {
                store::copy(sample.bytes()?, &mut self.file)?;
                sample.bytes()?; // the publisher has not written over what was copied
            }
            sample.tensors().try_for_each(|(_, tensor)| store::copy_tensor(tensor, &mut self.file))
        });
        match body {
            Ok(()) => {
                self.written += start_len + bytes;
                Ok(true)
            }
            Err(_) if is_revoked(sample) => self.cut().map(|()| false),
            Err(failure) => {
                // What was begun is of no use. The first failure is what counts.
                let _ = self.cut();
                Err(failure)
            }
        }
    }

    /// Takes the record that was begun out of the file.
    fn cut(&mut self) -> Result<(), Failure> {
        if !self.is_regular {
            return Err(Failure::new(
                "a message was lost while it went into a pipe, which has a part of it",
            ));
        }
        self.file.flush()?;
        self.file.get_mut().set_len(self.written)?;
        self.file.get_mut().seek(std::io::SeekFrom::Start(self.written))?;
        Ok(())
    }

    /// Hands what was written to the system, if some of it has waited for long.
    pub(crate) fn flush_in_time(&mut self) -> Result<(), Failure> {
        if self.flushed.elapsed() >= FLUSH {
            self.file.flush()?;
            self.flushed = Instant::now();
        }
        Ok(())
    }

    /// Removes the file, in which there is nothing.
    pub(crate) fn discard(&self, path: &Path) -> Result<(), Failure> {
        if self.is_regular { Ok(fs::remove_file(path)?) } else { Ok(()) }
    }

    /// Writes the end.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        let mut end = Vec::new();
        record(&mut end, DATA_END, &0u32.to_le_bytes()); // no checksum
        record(&mut end, FOOTER, &[0; 8 + 8 + 4]); // no summary
        end.extend(MAGIC);
        self.file.write_all(&end)?;
        self.file.flush()?;
        self.written += end.len() as u64;
        Ok(())
    }
}

/// Returns whether a message can be read no more: its publisher has taken it back.
fn is_revoked(sample: &Sample<'_>) -> bool {
    sample.bytes().is_err() || sample.tensors().any(|(_, tensor)| tensor.bytes().is_err())
}

fn record(to: &mut Vec<u8>, opcode: u8, content: &[u8]) {
    to.push(opcode);
    to.extend((content.len() as u64).to_le_bytes());
    to.extend(content);
}

fn put(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u32).to_le_bytes());
    to.extend(text.bytes());
}
