//! Recordings that are cut off, or lie.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::{Address, Context, Tensor, TensorSet, meta};

use crate::failure::Failure;
use crate::recording::{Event, Head, Reader, Writer};

/// A file of a test, which is removed at its end.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        Self(std::env::temp_dir().join(Address::fresh().to_string()))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Records a message of each kind. Returns the file, and where each record of a message ends.
fn recorded(path: &Path) -> (Vec<u8>, Vec<usize>) {
    let (context, address) = (Context::new().unwrap(), Address::fresh());
    let mut camera = context.publish(&address, PublishOptions::new()).unwrap();
    let mut viewer = context.subscribe(&address, SubscribeOptions::every()).unwrap();
    camera.send(b"tick").unwrap();
    camera.send_with(&[7; 300], &meta! { "frame" => 7, "eye" => "left" }.unwrap()).unwrap();
    let mut set = TensorSet::new();
    set.insert("a", Tensor::from_slice([2], &[1u8, 2]).unwrap()).unwrap();
    set.push(Tensor::from_slice([0], &[0f32; 0]).unwrap());
    camera.send_tensors(&set).unwrap();
    let mut writer = Writer::create(path, &["@a".into(), "@b".into()]).unwrap();
    let mut ends = Vec::new();
    for time in 0..3 {
        let sample = viewer.recv().unwrap().unwrap();
        let head = Head::of(&sample, 0);
        assert!(writer.write(1, time, &head, &sample).unwrap());
        ends.push(writer.len() as usize);
    }
    writer.finish().unwrap();
    let file = fs::read(path).unwrap();
    assert_eq!(file.len() as u64, writer.len());
    (file, ends)
}

/// Reads a recording to its end. Returns the messages that are whole, and whether there is an end.
fn read(path: &Path) -> Result<(usize, bool), Failure> {
    let mut reader = Reader::open(path)?;
    let mut messages = 0;
    loop {
        match reader.next()? {
            Event::Channel { .. } => {}
            Event::Message { bytes, head, .. } => {
                head.metadata()?;
                // A file that lies has fewer bytes than it tells.
                let mut body = vec![0; bytes.min(4096) as usize];
                if !reader.read_body(&mut body)? {
                    return Ok((messages, false));
                }
                messages += 1;
            }
            Event::End => return Ok((messages, true)),
            Event::Other => {}
            Event::Cut => return Ok((messages, false)),
        }
    }
}

#[test]
fn a_recording_that_is_cut_anywhere_is_read_up_to_there() {
    let file = Temporary::new();
    let (bytes, ends) = recorded(&file.0);
    let data_end = ends[2] + 1 + 8;
    let cut = OpenOptions::new().write(true).open(&file.0).unwrap();
    for len in (super::MAGIC.len()..=bytes.len()).rev() {
        cut.set_len(len as u64).unwrap();
        let whole = ends.iter().filter(|end| **end <= len).count();
        assert_eq!(read(&file.0).unwrap(), (whole, len >= data_end), "{len} bytes");
    }
}

#[test]
fn a_recording_that_lies_ends_in_an_error_at_worst() {
    let file = Temporary::new();
    let (bytes, _) = recorded(&file.0);
    let liar = OpenOptions::new().write(true).open(&file.0).unwrap();
    let mut failures = 0;
    for (at, byte) in bytes.iter().enumerate() {
        for lie in [0, 0xff, byte ^ 1] {
            liar.write_all_at(&[lie], at as u64).unwrap();
            failures += usize::from(read(&file.0).is_err());
        }
        liar.write_all_at(&[*byte], at as u64).unwrap();
    }
    assert!(failures > 0);
}

#[test]
fn tensors_that_do_not_fill_their_record_are_refused() {
    let file = Temporary::new();
    let (bytes, _) = recorded(&file.0);
    let text = b"\"shape\":[2],\"bytes\":2";
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    let mut lies = bytes;
    lies[at + text.len() - 1] = b'9';
    fs::write(&file.0, &lies).unwrap();
    let failure = read(&file.0).unwrap_err().to_string();
    assert!(failure.contains("have other than the 2 bytes of its record"), "{failure}");
}

#[test]
fn chunks_of_other_writers_are_read_unless_they_are_compressed() {
    let file = Temporary::new();
    let (bytes, ends) = recorded(&file.0);
    let first = ends[0] - (1 + 8 + 22 + 4 + br#"{"sequence":1,"missed":0}"#.len() + 4);
    for (compression, expected) in [("", Ok((3, true))), ("zstd", Err(()))] {
        let records = &bytes[first..ends[2]];
        let mut content = [0; 28].to_vec();
        content.extend((compression.len() as u32).to_le_bytes());
        content.extend(compression.bytes());
        content.extend((records.len() as u64).to_le_bytes());
        content.extend(records);
        let mut chunked = bytes[..first].to_vec();
        chunked.push(super::CHUNK);
        chunked.extend((content.len() as u64).to_le_bytes());
        chunked.extend(content);
        chunked.extend(&bytes[ends[2]..]);
        fs::write(&file.0, &chunked).unwrap();
        assert_eq!(read(&file.0).map_err(|_| ()), expected);
    }
}
