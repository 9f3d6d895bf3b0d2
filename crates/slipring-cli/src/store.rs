//! Messages of a topic as files of a folder.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use slipring::broadcast::Sample;
use slipring::message::{Bytes, Value};
use slipring::{DType, Tensor};

use crate::failure::Failure;
use crate::npy;
use crate::safetensors::{self, Entry};
use crate::stamp::Stamp;

/// How much of a message is copied at a time.
const CHUNK: usize = 1 << 20;

/// A folder that gets a file for each message.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    kept: u64,
}

impl Store {
    /// Opens a folder, and makes it if it is not there.
    pub(crate) fn open(folder: &PathBuf) -> Result<Self, Failure> {
        let made = fs::create_dir_all(folder);
        made.map_err(|error| Failure::from(error).of(folder.display()))?;
        Ok(Self { folder: folder.clone(), kept: 0 })
    }

    /// Stores a message. Returns the names of the files.
    pub(crate) fn keep(&mut self, sample: &Sample<'_>) -> Result<Vec<String>, Failure> {
        self.kept += 1;
        let stem = format!("{:08}", self.kept);
        let tensors: Vec<(&str, &Tensor)> = sample.tensors().collect();
        if tensors.is_empty() {
            let path = self.folder.join(stem + ".bin");
            return Ok(vec![store(&path, |file| {
                copy(sample.bytes()?, file)?;
                sample.bytes()?; // the publisher has not written over what was copied
                Ok(())
            })?]);
        }
        if let [(_, tensor)] = tensors[..]
            && let Some(head) = npy::head(tensor.dtype(), tensor.shape().dims())
        {
            let path = self.folder.join(stem + ".npy");
            return Ok(vec![store(&path, |file| {
                file.write_all(&head)?;
                copy_tensor(tensor, file)
            })?]);
        }
        let (entries, is_numeric) = entries(&tensors);
        if is_numeric && let Some(head) = safetensors::head(&entries, metadata(sample)) {
            let path = self.folder.join(stem + ".safetensors");
            return Ok(vec![store(&path, |file| {
                file.write_all(&head)?;
                tensors.iter().try_for_each(|(_, tensor)| copy_tensor(tensor, file))
            })?]);
        }
        // No common format has strings of any length: they are stored as they travel.
        let each = tensors.iter().enumerate().map(|(place, (_, tensor))| {
            let head = npy::head(tensor.dtype(), tensor.shape().dims());
            let ending = if head.is_some() { "npy" } else { "bytes" };
            store(&self.folder.join(format!("{stem}-{place}.{ending}")), |file| {
                file.write_all(&head.unwrap_or_default())?;
                copy_tensor(tensor, file)
            })
        });
        each.collect()
    }
}

/// Returns the tensors as a file describes them, under names of their own, and whether all have elements of one length.
fn entries(tensors: &[(&str, &Tensor)]) -> (Vec<Entry>, bool) {
    let mut entries: Vec<Entry> = Vec::new();
    for (place, (name, tensor)) in tensors.iter().enumerate() {
        let mut name = if name.is_empty() { place.to_string() } else { (*name).to_owned() };
        while tensors.iter().any(|(other, _)| *other == name) && tensors[place].0 != name {
            name.push('_');
        }
        entries.push(Entry { name, dtype: tensor.dtype(), shape: tensor.shape().dims().to_vec() });
    }
    (entries, tensors.iter().all(|(_, tensor)| tensor.dtype() != DType::Bytes))
}

/// Returns the metadata of a message as strings.
fn metadata(sample: &Sample<'_>) -> BTreeMap<String, String> {
    let text = |value: Value<'_>| match value {
        Value::Integer(integer) => integer.to_string(),
        Value::Float(float) => float.to_string(),
        Value::String(text) => text.to_owned(),
        Value::Time(time) => Stamp(time).to_string(),
        Value::Bool(truth) => truth.to_string(),
        other => format!("{other:?}"),
    };
    sample.metadata().iter().map(|(name, value)| (name.to_owned(), text(value))).collect()
}

/// Writes a new file, and removes it if that fails. Returns its name.
fn store(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let file = file.map_err(|error| Failure::from(error).of(path.display()))?;
    let mut file = BufWriter::new(file);
    let written = write(&mut file).and_then(|()| Ok(file.flush()?));
    if let Err(failure) = written {
        fs::remove_file(path)?;
        return Err(failure.of(path.display()));
    }
    Ok(path.display().to_string())
}

/// Writes the bytes of a tensor.
pub(crate) fn copy_tensor(tensor: &Tensor, to: &mut impl Write) -> Result<(), Failure> {
    copy(tensor.bytes()?, to)?;
    tensor.bytes()?; // the publisher has not taken back what was copied
    Ok(())
}

/// Writes bytes that their writer may still change, by way of private copies.
pub(crate) fn copy(bytes: Bytes<'_>, to: &mut impl Write) -> Result<(), Failure> {
    let mut chunk = vec![0; bytes.len().min(CHUNK)];
    let mut offset = 0;
    while offset < bytes.len() {
        let len = chunk.len().min(bytes.len() - offset);
        bytes.slice(offset, len).copy_to(&mut chunk[..len]);
        to.write_all(&chunk[..len])?;
        offset += len;
    }
    Ok(())
}
