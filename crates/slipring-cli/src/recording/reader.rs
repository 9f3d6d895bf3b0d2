//! The reading side of a recording. It believes no length that a file tells, and holds a record's head at most.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use crate::failure::Failure;
use crate::recording::{
    CHANNEL, CHUNK, DATA_END, ENCODING, FOOTER, Head, MAGIC, MESSAGE, MESSAGE_HEAD,
};

/// The longest channel, and the longest head of a message: names, shapes and metadata have at most 1 MiB, and JSON may take six
/// bytes for one.
const LONGEST: u64 = 8 << 20;

/// The longest part of a record that is read to be passed over.
const SHORT: u64 = 64 << 10;

/// A recording that is being read.
#[derive(Debug)]
pub(crate) struct Reader {
    file: BufReader<File>,
    /// Channels whose messages are encoded as here. The data of all others are bytes.
    known: Vec<u16>,
    /// Where the record starts that is being read.
    record_start: u64,
    position: u64,
    /// Bytes of the present message that were not read.
    body: u64,
}

/// The next thing in a recording.
#[derive(Debug)]
pub(crate) enum Event {
    /// A topic.
    Channel { channel: u16, topic: String },
    /// A message, whose bytes or tensors the caller reads next.
    Message { channel: u16, nanos: u64, head: Head, bytes: u64 },
    /// A record of another kind.
    Other,
    /// The end.
    End,
    /// The file ends within a record, or before the end was written.
    Cut,
}

impl Reader {
    /// Opens a recording.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = BufReader::new(File::open(path)?);
        let mut reader = Self { file, known: Vec::new(), record_start: 0, position: 0, body: 0 };
        reader.read_magic()?;
        Ok(reader)
    }

    /// Begins anew.
    pub(crate) fn rewind(&mut self) -> Result<(), Failure> {
        self.file.seek(SeekFrom::Start(0))?;
        (self.record_start, self.position, self.body) = (0, 0, 0);
        self.read_magic()
    }

    /// Returns where the record starts that was read last, in bytes from the file's start.
    pub(crate) fn record_start(&self) -> u64 {
        self.record_start
    }

    fn read_magic(&mut self) -> Result<(), Failure> {
        let mut magic = [0; MAGIC.len()];
        match self.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => Ok(()),
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error.into()),
            _ => Err(Failure::new("no recording: the file does not start as MCAP does")),
        }
    }

    /// Returns what comes next. It passes over what is left of a message.
    pub(crate) fn next(&mut self) -> Result<Event, Failure> {
        match self.event() {
            Err(Stop::Cut) => Ok(Event::Cut),
            Err(Stop::Failed(failure)) => {
                Err(failure.of(format_args!("in the record at byte {}", self.record_start)))
            }
            Ok(event) => Ok(event),
        }
    }

    fn event(&mut self) -> Result<Event, Stop> {
        self.skip(self.body)?;
        self.body = 0;
        loop {
            self.record_start = self.position;
            let [opcode] = self.array()?;
            let len = u64::from_le_bytes(self.array()?);
            match opcode {
                CHANNEL => return self.channel(len),
                MESSAGE => return self.message(len),
                // The records of a chunk follow its head.
                CHUNK => self.chunk()?,
                DATA_END | FOOTER => return Ok(Event::End),
                0 => return Err(Failure::new("a record of kind 0, which there is not").into()),
                _ => {
                    self.skip(len)?;
                    return Ok(Event::Other);
                }
            }
        }
    }

    fn channel(&mut self, len: u64) -> Result<Event, Stop> {
        let content = self.content(len)?;
        let mut rest = &content[..];
        let parts = (|| {
            let channel = u16::from_le_bytes(take(&mut rest, 2)?.try_into().ok()?);
            take(&mut rest, 2)?; // the schema
            let topic = String::from_utf8(text(&mut rest)?.to_vec()).ok()?;
            let encoding = text(&mut rest)?;
            Some((channel, topic, encoding == ENCODING.as_bytes()))
        })();
        let Some((channel, topic, is_known)) = parts else {
            return Err(Failure::new("a channel without a name or an encoding").into());
        };
        if is_known && !self.known.contains(&channel) {
            self.known.push(channel);
        }
        Ok(Event::Channel { channel, topic })
    }

    fn message(&mut self, len: u64) -> Result<Event, Stop> {
        let data = len.checked_sub(MESSAGE_HEAD);
        let data = data.ok_or_else(|| too_short(len, MESSAGE_HEAD))?;
        let channel = u16::from_le_bytes(self.array()?);
        self.array::<4>()?; // the sequence number, which the head has whole
        let nanos = u64::from_le_bytes(self.array()?);
        self.array::<8>()?; // the publish time, which nobody knows
        if !self.known.contains(&channel) {
            self.body = data;
            return Ok(Event::Message { channel, nanos, head: Head::default(), bytes: data });
        }
        let head_len = u64::from(u32::from_le_bytes(self.array()?));
        let bytes = data.checked_sub(4 + head_len).ok_or_else(|| too_short(data, 4 + head_len))?;
        let json = self.content(head_len)?;
        let head: Head = serde_json::from_slice(&json).map_err(|error| {
            Failure::new(format!("the head of a message cannot be read: {error}"))
        })?;
        let mut described = head.tensors().unwrap_or_default().iter();
        let described = described.try_fold(0u64, |sum, tensor| sum.checked_add(tensor.bytes));
        if head.tensors().is_some() && described != Some(bytes) {
            return Err(Failure::new(format!(
                "the tensors of a message have other than the {bytes} bytes of its record"
            ))
            .into());
        }
        self.body = bytes;
        Ok(Event::Message { channel, nanos, head, bytes })
    }

    fn chunk(&mut self) -> Result<(), Stop> {
        self.array::<{ 8 + 8 + 8 + 4 }>()?; // times, length, checksum
        let len = u32::from_le_bytes(self.array()?);
        let name = self.content(len.into())?;
        if !name.is_empty() {
            let name = String::from_utf8_lossy(&name).escape_debug().to_string();
            return Err(Failure::new(format!(
                "the recording is compressed with {name}: mcap compress --compression none writes one that is not"
            ))
            .into());
        }
        self.array::<8>()?; // bytes of the records
        Ok(())
    }

    /// Reads the next bytes of the present message. Returns whether the file has them.
    pub(crate) fn read_body(&mut self, to: &mut [u8]) -> Result<bool, Failure> {
        self.body = self.body.saturating_sub(to.len() as u64);
        match self.read_exact(to) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.body = 0;
                Ok(false)
            }
            read => read.map(|()| true).map_err(Failure::from),
        }
    }

    fn read_exact(&mut self, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(to)?;
        self.position += to.len() as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut array = [0; N];
        self.read_exact(&mut array)?;
        Ok(array)
    }

    /// Returns the next bytes, if they are few.
    fn content(&mut self, len: u64) -> Result<Vec<u8>, Stop> {
        if len > LONGEST {
            return Err(
                Failure::new(format!("{len} bytes of names, at most {LONGEST} are read")).into()
            );
        }
        let mut content = vec![0; len as usize];
        self.read_exact(&mut content)?;
        Ok(content)
    }

    fn skip(&mut self, len: u64) -> Result<(), Stop> {
        let metadata = self.file.get_ref().metadata()?;
        let left = metadata.len().saturating_sub(self.position);
        if metadata.is_file() && len > SHORT {
            // In one step, however long a hole the file has there.
            let step = i64::try_from(len.min(left)).map_err(|_| Stop::Cut)?;
            self.file.seek_relative(step)?;
            self.position += len.min(left);
            return if left < len { Err(Stop::Cut) } else { Ok(()) };
        }
        let skipped = io::copy(&mut self.file.by_ref().take(len), &mut io::sink())?;
        self.position += skipped;
        if skipped < len { Err(Stop::Cut) } else { Ok(()) }
    }
}

/// Why reading stops.
enum Stop {
    Cut,
    Failed(Failure),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Cut,
            _ => Self::Failed(error.into()),
        }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn too_short(len: u64, needed: u64) -> Failure {
    Failure::new(format!("a message of {len} bytes, its head alone takes {needed}"))
}

fn take<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(taken)
}

fn text<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u32::from_le_bytes(take(from, 4)?.try_into().ok()?);
    take(from, len as usize)
}
