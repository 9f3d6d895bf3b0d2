//! The routes.

use std::borrow::Cow;

use crate::refusal::SharedMemoryKind;

/// The target of a path, whatever the method.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route<'a> {
    Server,
    Live,
    Ready,
    Index,
    /// A load or an unload of a model.
    Control {
        name: Cow<'a, str>,
        load: bool,
    },
    /// An operation on a repository that the path names.
    NamedRepository,
    AllStatistics,
    Model {
        name: Cow<'a, str>,
        version: Option<&'a str>,
        about: About,
    },
    Memory {
        memory: SharedMemoryKind,
        name: Cow<'a, str>,
        operation: Operation,
    },
}

/// The part of a model that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    Metadata,
    Ready,
    Config,
    Statistics,
    Infer,
}

/// An operation on regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Status,
    Register,
    Unregister,
}

impl Route<'_> {
    /// Returns whether the route takes GET; the others take POST.
    pub(super) fn is_read(&self) -> bool {
        match self {
            Self::Index | Self::Control { .. } | Self::NamedRepository => false,
            Self::Model { about, .. } => *about != About::Infer,
            Self::Memory { operation, .. } => *operation == Operation::Status,
            _ => true,
        }
    }
}

/// Returns the target of a path.
pub(super) fn route(path: &str) -> Option<Route<'_>> {
    let rest = path.strip_prefix("/v2")?;
    if rest.is_empty() {
        return Some(Route::Server);
    }
    let (first, rest) = cut(rest.strip_prefix('/')?);
    match (first, rest) {
        ("health", Some("live")) => Some(Route::Live),
        ("health", Some("ready")) => Some(Route::Ready),
        ("repository", Some(rest)) => repository(rest),
        ("models", Some("stats")) => Some(Route::AllStatistics),
        ("models", Some(rest)) => model(rest),
        ("systemsharedmemory", Some(rest)) => memory(SharedMemoryKind::System, rest),
        ("cudasharedmemory", Some(rest)) => memory(SharedMemoryKind::Cuda, rest),
        _ => None,
    }
}

/// Returns the extension of the protocol to which a path belongs, if the front does not serve it.
pub(super) fn unserved(path: &str) -> Option<&'static str> {
    match path.strip_prefix("/v2/")? {
        "logging" => Some("logging"),
        "trace/setting" => Some("trace"),
        rest => match rest.strip_prefix("models/")?.split_once('/')?.1 {
            about if about.ends_with("trace/setting") => Some("trace"),
            about if about.ends_with("generate") || about.ends_with("generate_stream") => {
                Some("generate")
            }
            _ => None,
        },
    }
}

/// Splits off the first segment.
fn cut(path: &str) -> (&str, Option<&str>) {
    match path.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    }
}

fn model(path: &str) -> Option<Route<'_>> {
    let (name, mut rest) = cut(path);
    let name = decode(name).filter(|name| !name.is_empty())?;
    let mut version = None;
    if let Some(versioned) = rest.and_then(|rest| rest.strip_prefix("versions/")) {
        let (number, behind) = cut(versioned);
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number || number.parse::<u64>().is_err() {
            return None;
        }
        version = Some(number);
        rest = behind;
    }
    let about = match rest {
        None => About::Metadata,
        Some("ready") => About::Ready,
        Some("config") => About::Config,
        Some("stats") => About::Statistics,
        Some("infer") => About::Infer,
        Some(_) => return None,
    };
    Some(Route::Model { name, version, about })
}

fn repository(path: &str) -> Option<Route<'_>> {
    if path == "index" {
        return Some(Route::Index);
    }
    if let Some((name, load)) = control(path) {
        return Some(Route::Control { name, load });
    }
    let (repository, rest) = path.split_once('/')?;
    let is_named = !repository.is_empty() && (rest == "index" || control(rest).is_some());
    is_named.then_some(Route::NamedRepository)
}

/// Returns the name of a model, and whether the path loads it or else unloads it.
fn control(path: &str) -> Option<(Cow<'_, str>, bool)> {
    let (name, operation) = path.strip_prefix("models/")?.split_once('/')?;
    let load = operation == "load";
    let name = decode(name).filter(|name| !name.is_empty())?;
    (load || operation == "unload").then_some((name, load))
}

fn memory(memory: SharedMemoryKind, path: &str) -> Option<Route<'_>> {
    let (name, operation) = match path.strip_prefix("region/") {
        // An empty name reaches the handler, which refuses it.
        Some(named) => {
            let (name, operation) = named.split_once('/')?;
            (decode(name)?, operation)
        }
        None => ("".into(), path),
    };
    let operation = match operation {
        "status" => Operation::Status,
        "register" => Operation::Register,
        "unregister" => Operation::Unregister,
        _ => return None,
    };
    Some(Route::Memory { memory, name, operation })
}

/// Decodes the percent signs of a segment. `None`: the result is not UTF-8.
fn decode(segment: &str) -> Option<Cow<'_, str>> {
    if !segment.contains('%') {
        return Some(segment.into());
    }
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let bytes = segment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let (high, low) = (digit(bytes.get(at + 1))?, digit(bytes.get(at + 2))?);
            out.push((high * 16 + low) as u8);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_has_its_path() {
        let named = |name: &'static str, version, about| {
            Some(Route::Model { name: name.into(), version, about })
        };
        let memory = |memory, name: &'static str, operation| {
            Some(Route::Memory { memory, name: name.into(), operation })
        };
        for (path, expected) in [
            ("/v2", Some(Route::Server)),
            ("/v2/health/live", Some(Route::Live)),
            ("/v2/health/ready", Some(Route::Ready)),
            ("/v2/models/stats", Some(Route::AllStatistics)),
            ("/v2/repository/index", Some(Route::Index)),
            (
                "/v2/repository/models/a%2Fb/load",
                Some(Route::Control { name: "a/b".into(), load: true }),
            ),
            (
                "/v2/repository/models/index/unload",
                Some(Route::Control { name: "index".into(), load: false }),
            ),
            ("/v2/repository/R/models/M/load", Some(Route::NamedRepository)),
            ("/v2/repository/R/index", Some(Route::NamedRepository)),
            ("/v2/models/M", named("M", None, About::Metadata)),
            ("/v2/models/M/ready", named("M", None, About::Ready)),
            ("/v2/models/a%2Fb/config", named("a/b", None, About::Config)),
            ("/v2/models/M/versions/3", named("M", Some("3"), About::Metadata)),
            ("/v2/models/M/versions/18446744073709551616", None),
            ("/v2/models/M/versions/+3", None),
            ("/v2/models/M/versions/3/infer", named("M", Some("3"), About::Infer)),
            ("/v2/models/M/stats", named("M", None, About::Statistics)),
            (
                "/v2/systemsharedmemory/status",
                memory(SharedMemoryKind::System, "", Operation::Status),
            ),
            (
                "/v2/cudasharedmemory/unregister",
                memory(SharedMemoryKind::Cuda, "", Operation::Unregister),
            ),
            (
                "/v2/systemsharedmemory/region/a%20%C3%A4/register",
                memory(SharedMemoryKind::System, "a ä", Operation::Register),
            ),
            (
                "/v2/systemsharedmemory/region//status",
                memory(SharedMemoryKind::System, "", Operation::Status),
            ),
        ] {
            assert_eq!(route(path), expected, "{path}");
        }
    }

    #[test]
    fn extensions_that_are_not_served_are_known() {
        for (path, expected) in [
            ("/v2/logging", Some("logging")),
            ("/v2/trace/setting", Some("trace")),
            ("/v2/models/M/trace/setting", Some("trace")),
            ("/v2/models/M/versions/1/generate_stream", Some("generate")),
            ("/v2/models/M/infer", None),
            ("/v2/models/generate", None),
        ] {
            assert_eq!(unserved(path), expected, "{path}");
        }
    }

    #[test]
    fn anything_else_has_none() {
        for path in [
            "",
            "/",
            "/v2/",
            "/v1",
            "/v22",
            "/v2/health",
            "/v2/health/live/",
            "/v2/models",
            "/v2/models/",
            "/v2/models//infer",
            "/v2/models/M/",
            "/v2/models/M/versions",
            "/v2/models/M/versions/",
            "/v2/models/M/versions/x",
            "/v2/models/M/versions/-1/infer",
            "/v2/models/M/infer/",
            "/v2/models/M/infer/x",
            "/v2/models/%/infer",
            "/v2/models/%ff/infer",
            "/v2/systemsharedmemory",
            "/v2/systemsharedmemory/region",
            "/v2/systemsharedmemory/region/a",
            "/v2/systemsharedmemory/region/a/b/status",
            "/v2/systemsharedmemory/region/%0/status",
            "/v2/models/M/generate",
            "/v2/repository",
            "/v2/repository/models",
            "/v2/repository/models/M",
            "/v2/repository/models//load",
            "/v2/repository/models/M/load/",
            "/v2/repository/models/M/reload",
            "/v2/repository/models/%ff/load",
            "/v2/repository//index",
            "/v2/repository/R/models/M",
        ] {
            assert_eq!(route(path), None, "{path}");
        }
    }
}
