//! The parameters of a load.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::json::Node;
use crate::refusal::Refusal;

/// The name of the parameter that overrides the configuration.
const CONFIG: &str = "config";

/// The start of the name of a parameter with a file.
const FILE: &str = "file:";

/// The most files of a load.
const MAX_FILES: usize = 1024;

/// The longest path of a file in bytes, and the longest name of a model. Both fit into a path of Linux (`PATH_MAX` 4,096,
/// `NAME_MAX` 255).
const MAX_PATH: usize = 1024;
const MAX_NAME: usize = 255;

/// What a client gives with a load: a configuration and files, in place of those of the repository.
///
/// # Examples
///
/// ```
/// let parameters = slipring_triton::LoadParameters::new().with_config(r#"{"max_batch_size": 8}"#);
/// assert_eq!(parameters.config(), Some(r#"{"max_batch_size": 8}"#));
/// assert_eq!(parameters.files().count(), 0);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadParameters {
    config: Option<String>,
    files: BTreeMap<String, Bytes>,
}

/// The kinds of a parameter of a load.
pub(crate) enum LoadParameter<'a> {
    Config,
    /// A file and its path.
    File(&'a str),
}

impl LoadParameters {
    /// Returns no parameters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the configuration, a JSON object as in Triton's `ModelConfig`.
    pub fn with_config(mut self, config: impl Into<String>) -> Self {
        self.config = Some(config.into());
        self
    }

    /// Adds a file. Its path starts in the model's folder: `1/model.onnx`.
    pub fn with_file(mut self, path: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        self.files.insert(path.into(), bytes.into());
        self
    }

    /// Returns the configuration: the text of a JSON object.
    pub fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    /// Returns the files by their paths. A path is relative, and no part of it is empty, `.` or `..`.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.files.iter().map(|(path, bytes)| (&**path, bytes))
    }

    pub(crate) fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Returns the bytes of all parameters.
    pub(crate) fn byte_len(&self) -> u64 {
        let files = self.files.iter().map(|(path, bytes)| (path.len() + bytes.len()) as u64);
        files.sum::<u64>() + self.config.as_ref().map_or(0, |config| config.len() as u64)
    }

    /// Checks what a client has given with the load of a model.
    pub(crate) fn check(&self, takes_files: bool) -> Result<(), Refusal> {
        if let Some(config) = &self.config {
            let parsed = Node::document(config.as_bytes());
            let parsed = parsed.map_err(|refusal| Refusal::config_override(refusal.text()))?;
            if !parsed.is_object() {
                return Err(Refusal::config_override("it is no JSON object"));
            }
        }
        if self.files.is_empty() {
            return Ok(());
        }
        if !takes_files {
            return Err(Refusal::no_files());
        }
        if self.config.is_none() {
            return Err(Refusal::files_without_config());
        }
        if self.files.len() > MAX_FILES {
            return Err(Refusal::too_many_files(MAX_FILES));
        }
        match self.files.keys().find(|path| !is_path(path)) {
            Some(path) => Err(Refusal::file_path(path)),
            None => Ok(()),
        }
    }
}

impl<'a> LoadParameter<'a> {
    /// Returns the kind of a parameter by its name.
    pub(crate) fn named(name: &'a str) -> Result<Self, Refusal> {
        match name.strip_prefix(FILE) {
            Some(path) => Ok(Self::File(path)),
            None if name == CONFIG => Ok(Self::Config),
            None => Err(Refusal::load_parameter(name)),
        }
    }
}

/// Checks the name of a model that a client wants to load.
pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.len() > MAX_NAME {
        return Err(Refusal::model_name_long(name.len(), MAX_NAME));
    }
    if is_part(name) && !name.contains('/') { Ok(()) } else { Err(Refusal::model_name(name)) }
}

/// Returns whether a path stays inside of the folder in which it starts.
fn is_path(path: &str) -> bool {
    path.len() <= MAX_PATH && path.split('/').all(is_part)
}

fn is_part(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.contains(|letter: char| letter.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(parameters: &LoadParameters) -> String {
        parameters.check(true).unwrap_err().text().to_owned()
    }

    #[test]
    fn a_file_stays_in_the_folder_of_its_model() {
        let files = |path: &str| LoadParameters::new().with_config("{}").with_file(path, "a");
        for path in ["1/model", "labels.txt", "1/a/b/..c", "ä"] {
            assert_eq!(files(path).check(true), Ok(()), "{path}");
        }
        let long = "a/".repeat(MAX_PATH);
        for path in ["", "/", "/etc", "1//a", "../a", "1/../../a", ".", "1/", "a\0", "a\n", &long] {
            assert!(text(&files(path)).starts_with("invalid path of a file: "), "{path}");
        }
    }

    #[test]
    fn files_have_a_configuration_and_a_limit() {
        let one = LoadParameters::new().with_file("a", "");
        assert_eq!(text(&one), "'config' must be given together with 'file:' parameters");
        assert!(one.check(false).unwrap_err().text().contains("takes no files"));
        let files = |count| {
            let none = LoadParameters::new().with_config("{}");
            (0..count).fold(none, |all, number| all.with_file(format!("{number}"), ""))
        };
        assert_eq!(files(MAX_FILES).check(true), Ok(()));
        assert_eq!(text(&files(MAX_FILES + 1)), "more than 1024 files");
        assert_eq!(files(10).with_file("b", "12").byte_len(), 10 + 1 + 2 + 2);
    }

    #[test]
    fn a_configuration_is_a_json_object() {
        let config = |config: &str| LoadParameters::new().with_config(config);
        assert_eq!(config(r#"{"name":"a"}"#).check(false), Ok(()));
        for wrong in ["", "[]", "7", "{", "{}x"] {
            assert!(text(&config(wrong)).starts_with("Invalid config override: "), "{wrong}");
        }
    }

    #[test]
    fn a_name_of_a_model_is_a_name_of_a_folder() {
        for name in ["a", "a b", "ä", "..a", &"a".repeat(MAX_NAME)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "a/b", "/a", "a\0", &"a".repeat(MAX_NAME + 1)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
