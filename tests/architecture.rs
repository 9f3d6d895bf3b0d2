//! What the source promises of itself: who imports whom, where `unsafe` may stand and that each is
//! explained, how long a file may be, that the README's code is code that runs, that the pages name what exists, and that
//! what `SECURITY.md` bounds has a test.
//!
//! It reads text, not syntax: comments and the insides of literals are blanked out first.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use slipring::options::Resource;

/// Who may import whom: each module may import the ones before it that its line names. `lib.rs` may import all of them.
const IMPORTS: [(&str, &[&str]); 23] = [
    ("error", &[]),
    ("sync", &[]),
    ("patience", &["error"]),
    ("shm", &["error", "sync"]),
    ("status", &["error", "sync", "shm"]),
    ("metrics", &["status"]),
    ("account", &["error", "shm"]),
    ("ring", &["error", "sync", "shm"]),
    ("wake", &["error", "sync", "shm", "ring"]),
    ("pool", &["error", "sync", "shm", "status", "ring"]),
    ("region", &["error", "shm"]),
    ("handshake", &["error", "shm", "ring"]),
    (
        "link",
        &["error", "account", "sync", "patience", "shm", "status", "pool", "wake", "handshake"],
    ),
    (
        "channel",
        &[
            "error",
            "account",
            "sync",
            "patience",
            "shm",
            "status",
            "ring",
            "wake",
            "pool",
            "handshake",
            "link",
        ],
    ),
    (
        "transport",
        &[
            "error",
            "account",
            "patience",
            "shm",
            "status",
            "pool",
            "wake",
            "handshake",
            "link",
            "channel",
        ],
    ),
    (
        "tensor",
        &[
            "error",
            "sync",
            "patience",
            "shm",
            "pool",
            "region",
            "handshake",
            "channel",
            "transport",
        ],
    ),
    (
        "broadcast",
        &[
            "error",
            "account",
            "sync",
            "patience",
            "shm",
            "status",
            "ring",
            "wake",
            "pool",
            "handshake",
            "link",
            "channel",
            "transport",
            "tensor",
        ],
    ),
    (
        "reactor",
        &[
            "error",
            "account",
            "sync",
            "patience",
            "shm",
            "wake",
            "handshake",
            "link",
            "channel",
            "transport",
            "tensor",
            "broadcast",
        ],
    ),
    (
        "adapters",
        &[
            "error",
            "patience",
            "shm",
            "wake",
            "handshake",
            "link",
            "channel",
            "transport",
            "tensor",
            "broadcast",
        ],
    ),
    (
        "commit",
        &[
            "error",
            "patience",
            "account",
            "shm",
            "region",
            "handshake",
            "link",
            "channel",
            "transport",
            "tensor",
            "reactor",
        ],
    ),
    ("cuda", &["error", "shm", "region", "handshake", "channel", "transport", "tensor"]),
    (
        "bounds",
        &[
            "patience",
            "shm",
            "pool",
            "region",
            "handshake",
            "link",
            "channel",
            "transport",
            "tensor",
            "broadcast",
            "reactor",
            "commit",
        ],
    ),
    (
        "fuzzing", // of `cargo fuzz` alone
        &["error", "sync", "shm", "ring", "wake", "pool", "link", "channel", "transport", "commit"],
    ),
];

/// The most files that import each other in a circle. They are of one folder.
const CIRCLE: usize = 3;

/// Fields that other files of their folder see. The number may only fall.
const SHARED_FIELDS: usize = 42;

/// The files that may hold `unsafe`, with their `tests.rs`. A new name here is a design decision.
const UNSAFE: [&str; 53] = [
    "crates/slipring-capi/src/batch.rs",           // pointers of C
    "crates/slipring-capi/src/calls.rs",           // pointers of C
    "crates/slipring-capi/src/connection.rs",      // pointers of C
    "crates/slipring-capi/src/context.rs", // pointers of C, and descriptors that C gives away
    "crates/slipring-capi/src/dlpack.rs",  // pointers of C, and structures of other libraries
    "crates/slipring-capi/src/half.rs",    // what one thread uses at a time, as the header demands
    "crates/slipring-capi/src/handle.rs",  // what C has a pointer to
    "crates/slipring-capi/src/last_error.rs", // names of symbols
    "crates/slipring-capi/src/listener.rs", // pointers of C
    "crates/slipring-capi/src/messages.rs", // pointers of C
    "crates/slipring-capi/src/options.rs", // pointers of C
    "crates/slipring-capi/src/pointers.rs", // bytes and texts of C, and where answers go
    "crates/slipring-capi/src/publisher.rs", // pointers of C, and what a reservation borrows
    "crates/slipring-capi/src/reactor.rs", // pointers and callbacks of C
    "crates/slipring-capi/src/subscriber.rs", // pointers of C, and what a sample borrows
    "crates/slipring-capi/src/tensor.rs",  // pointers of C
    "crates/slipring-capi/src/tensor_messages.rs", // pointers of C
    "crates/slipring-capi/src/tensor_set.rs", // pointers of C
    "crates/slipring-python/src/buffer.rs", // the buffer protocol of the interpreter
    "crates/slipring-python/src/context.rs", // descriptors that Python gives away, and the promise that a peer is trusted
    "crates/slipring-python/src/detached.rs", // a call of the interpreter that its stable interface lacks
    "crates/slipring-python/src/dlpack.rs",   // capsules of tensors, and the structures in them
    "crates/slipring-python/src/gpu.rs", // what other libraries promise of their tensors and streams
    "crates/slipring-python/src/message.rs", // the type of `__getbuffer__`
    "crates/slipring-python/src/tensor.rs", // the types of `__getbuffer__` and `__releasebuffer__`
    "src/adapters/tokio/shared.rs",      // descriptors that a runtime watches
    "src/cuda/adopted.rs",               // a promise about memory of another library
    "src/cuda/device.rs",                // calls of the driver: devices and contexts
    "src/cuda/event.rs",                 // calls of the driver: events
    "src/cuda/mapped.rs",                // calls of the driver: virtual memory
    "src/cuda/library.rs",               // the driver's library and its symbols
    "src/cuda/memory.rs",                // calls of the driver: memory and copies
    "src/cuda/page.rs",                  // calls of the driver: a page of the host, and its words
    "src/cuda/pinned.rs",                // calls of the driver: memory of the host
    "src/cuda/stream.rs",                // calls of the driver: streams
    "src/region/dmabuf.rs",              // the ioctl that announces an access to a dmabuf
    "src/region/guard.rs", // the handler of SIGBUS, and whom it passes the signal on to
    "src/shm/bytes.rs",    // views of a peer's bytes
    "src/shm/copy.rs",     // the one bulk copy out of a peer's memory
    "src/shm/fork.rs",     // the page that a forked child finds wiped
    "src/shm/frozen.rs",   // slices of memory that is sealed against writing
    "src/shm/mapping.rs",  // mappings, and who may form `&mut [u8]` over which
    "src/tensor/connection.rs", // the promise that a peer is trusted
    "src/tensor/dlpack/tensor.rs", // loans that another library reads as if they stood still
    "src/tensor/view.rs",  // slices of what a trusted peer has lent
    "src/tensor/dlpack/abi.rs", // the type of a deleter
    "src/tensor/dlpack/export.rs", // what another library gets by its address and frees
    "src/tensor/dlpack/import.rs", // what another library says lies at its addresses
    "src/tensor/dlpack/judged.rs", // structures of other libraries
    "src/tensor/dlpack/on_gpu.rs", // structures of other libraries, whose memory nobody reads
    "src/tensor/dlpack/unversioned.rs", // structures of other libraries, and their deleter
    "src/handshake/exits.rs", // descriptor tables of a thread's own
    "src/handshake/socket.rs", // control messages of a socket
];

/// The longest file, in lines of code: no comments, no blanks, no `#[cfg(test)]` modules.
const LONGEST: usize = 600;

/// Files that may be longer: up to how many lines, and why.
const LONGER: [(&str, usize, &str); 1] = [(
    "crates/slipring-triton/src/grpc/generated/inference.rs",
    1600,
    "made from proto/inference.proto",
)];

/// A source file: as it is, and with comments and the insides of literals blanked out.
struct Source {
    /// From the repository's root on.
    path: String,
    text: String,
    code: String,
}

impl Source {
    /// Every file of the library and of the crates beside it.
    fn library() -> Vec<Self> {
        let crates = fs::read_dir(root().join("crates")).unwrap();
        let folders = crates.map(|folder| folder.unwrap().path().join("src"));
        let mut found = Self::all("src");
        found.extend(folders.flat_map(|folder| Self::all(folder.to_str().unwrap())));
        found
    }

    /// Every file in `folder` that ends in `.rs`.
    fn all(folder: &str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut folders = vec![root().join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    found.push(Self::read(&path));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        assert!(!found.is_empty(), "{folder} has no source");
        found
    }

    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let path = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        Self { path, code: code(&text), text }
    }

    /// The module of `src` that this file belongs to; `lib` for the root.
    fn module(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap();
        inside.split('/').next().unwrap().trim_end_matches(".rs")
    }

    /// Where byte `at` is, for people.
    fn place(&self, at: usize) -> String {
        format!("{}:{}", self.path, self.code[..at].matches('\n').count() + 1)
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `text` with blanks for comments and for what stands in literals. Bytes keep their places.
fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blanked = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_string(rest) {
            let close = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            rest[start..].find(&close).map_or(rest.len(), |end| start + end + close.len())
        } else if first == '"' {
            string(rest)
        } else if first == '\'' {
            character(rest)
        } else {
            0
        };
        let taken = if blanked == 0 { first.len_utf8() } else { blanked };
        for char in rest[..taken].chars() {
            match char {
                '\n' => out.push('\n'),
                other if blanked == 0 => out.push(other),
                other => out.extend(std::iter::repeat_n(' ', other.len_utf8())),
            }
        }
        rest = &rest[taken..];
    }
    out
}

/// The number of hashes, if a raw string starts here.
fn raw_string(text: &str) -> Option<usize> {
    let hashed = text.strip_prefix('r')?;
    let hashes = hashed.len() - hashed.trim_start_matches('#').len();
    hashed[hashes..].starts_with('"').then_some(hashes)
}

/// The length of the string that starts here.
fn string(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, char)| {
        let found = *char == '"' && !escaped;
        escaped = *char == '\\' && !escaped;
        found
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The length of the character that starts here; 0 if it is a lifetime.
fn character(text: &str) -> usize {
    let inside = &text[1..];
    let Some(escape) = inside.strip_prefix('\\') else {
        let first = inside.chars().next().map_or(0, char::len_utf8);
        return if inside[first..].starts_with('\'') { first + 2 } else { 0 };
    };
    // The escaped character may be a quote itself.
    escape[1..].find('\'').map_or(text.len(), |end| end + 4)
}

/// Where `word` stands in `code` as a whole word.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |char: char| char.is_alphanumeric() || char == '_';
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        !code[..*at].ends_with(part) && !code[at + word.len()..].starts_with(part)
    })
}

fn report(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

/// The names that follow a path's start: one, or those of a group.
fn names(after: &str) -> Vec<&str> {
    let Some(group) = after.strip_prefix('{') else { return vec![name(after)] };
    let mut depth = 0;
    let mut names = vec![name(group.trim_start())];
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(group[at + 1..].trim_start())),
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn name(text: &str) -> &str {
    text.split(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap_or("")
}

/// What `lib.rs` re-exports, and from which module: `crate::Name` imports that module.
fn exports() -> Vec<(String, String)> {
    let lib = Source::read(&root().join("src/lib.rs"));
    let mut exports = Vec::new();
    for (at, start) in lib.code.match_indices("pub use ") {
        let path = &lib.code[at + start.len()..];
        let path = path.strip_prefix("crate::").unwrap_or(path);
        let (module, after) = path.split_once("::").unwrap();
        exports.extend(names(after).into_iter().map(|name| (name.to_owned(), module.to_owned())));
    }
    exports
}

#[test]
fn a_module_imports_only_what_the_table_allows() {
    let exports = exports();
    let mut wrong = Vec::new();
    for source in Source::all("src").iter().filter(|source| source.module() != "lib") {
        let module = source.module();
        let Some((_, allowed)) = IMPORTS.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("{}: module {module} is not in the table", source.path));
            continue;
        };
        // A path in a macro is one of the macro's caller.
        let crates = source.code.match_indices("crate::");
        let crates = crates.filter(|(at, _)| !source.code[..*at].ends_with('$'));
        let crates = crates.map(|(at, path)| (at, path.len(), true));
        // `super` leads out of a module, too.
        let supers = source.code.match_indices("super::").map(|(at, path)| (at, path.len(), false));
        for (at, len, absolute) in crates.chain(supers) {
            for name in names(&source.code[at + len..]) {
                let known = IMPORTS.iter().any(|(module, _)| *module == name);
                let exported = exports.iter().find(|(export, _)| export == name);
                let target = match exported {
                    Some((_, module)) if absolute => module,
                    _ if absolute || known => name,
                    _ => continue,
                };
                if target != module && !allowed.contains(&target) {
                    let place = source.place(at);
                    wrong.push(format!("{place}: {module} imports {target} ({name})"));
                }
            }
        }
    }
    report("imports that DESIGN's table does not allow", &wrong);
}

/// The files of `src` that each file imports: through `crate::` paths, past what `mod.rs` files export again. Tests at the
/// end of a file do not count.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let sources: BTreeMap<String, String> = Source::all("src")
        .into_iter()
        .map(|source| {
            let end = source.code.find("#[cfg(test)]\nmod tests").unwrap_or(source.code.len());
            (source.path, source.code[..end].to_owned())
        })
        .collect();
    let mut imports = BTreeMap::new();
    for (path, code) in &sources {
        let mut found = BTreeSet::new();
        for (at, _) in code.match_indices("crate::") {
            for segments in paths(&code[at + "crate::".len()..]) {
                found.extend(file_of(&segments, &sources));
            }
        }
        found.remove(path);
        imports.insert(path.clone(), found);
    }
    imports
}

/// The paths that start here: one, or one for each member of a group at their end.
fn paths(text: &str) -> Vec<Vec<&str>> {
    let (mut segments, mut rest) = (Vec::new(), text);
    loop {
        if rest.starts_with('{') {
            let members = names(rest).into_iter();
            return members.map(|name| [segments.clone(), vec![name]].concat()).collect();
        }
        let segment = name(rest);
        segments.push(segment);
        match rest[segment.len()..].strip_prefix("::") {
            Some(after) if !segment.is_empty() => rest = after,
            _ => return vec![segments],
        }
    }
}

/// The file that a path leads to.
fn file_of(segments: &[&str], sources: &BTreeMap<String, String>) -> Option<String> {
    (1..=segments.len()).rev().find_map(|len| {
        let stem = format!("src/{}", segments[..len].join("/"));
        let (file, folder) = (format!("{stem}.rs"), format!("{stem}/mod.rs"));
        if sources.contains_key(&file) {
            return Some(file);
        }
        let exports = sources.get(&folder)?;
        let exported = segments.get(len).and_then(|wanted| {
            exports.match_indices("use ").find_map(|(at, start)| {
                let path = paths(&exports[at + start.len()..])
                    .into_iter()
                    .find(|path| path.last() == Some(wanted))?;
                let inside = [&segments[..len], &path[..]].concat();
                file_of(&inside, sources).filter(|found| *found != folder)
            })
        });
        exported.or(Some(folder))
    })
}

#[test]
fn no_files_import_each_other_in_a_large_circle() {
    let imports = imports();
    let reach = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(imports[file].iter().filter(|file| seen.insert((*file).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|file| (file, reach(file))).collect();
    let circles: BTreeSet<Vec<&String>> = imports
        .keys()
        .map(|file| {
            let back =
                |other: &&String| reached[file].contains(*other) && reached[*other].contains(file);
            imports.keys().filter(back).collect()
        })
        .collect();
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > 500, "imports were found");
    let mut wrong = Vec::new();
    for circle in circles.iter().filter(|circle| circle.len() > 1) {
        // `inbox.rs` and `inbox/` are one object.
        let folder = |file: &str| Path::new(file).parent().unwrap().to_str().unwrap().to_owned();
        let first = folder(circle[0]);
        let is_one_folder = circle.iter().all(|file| folder(file).starts_with(&first));
        if circle.len() > CIRCLE || !is_one_folder {
            wrong.push(format!("{circle:?}, at most {CIRCLE} files of one folder"));
        }
    }
    report("circles of imports", &wrong);
}

#[test]
fn fields_are_private() {
    let count: usize = Source::library()
        .iter()
        .flat_map(|source| {
            source.code.lines().map(str::trim).map(str::to_owned).collect::<Vec<_>>()
        })
        .filter(|line| {
            let field = line.strip_prefix("pub(super) ").unwrap_or_default();
            let name = name(field);
            !name.is_empty() && field[name.len()..].starts_with(':')
        })
        .count();
    assert!(count <= SHARED_FIELDS, "{count} fields are pub(super), at most {SHARED_FIELDS}");
    assert!(count == SHARED_FIELDS, "only {count} fields are pub(super): write that number");
}

#[test]
fn unsafe_stands_only_in_the_listed_files() {
    let mut found = BTreeSet::new();
    let mut wrong = Vec::new();
    // The bench measures floors that it makes by hand, and nothing depends on it.
    let is_listed = |source: &Source| !source.path.starts_with("crates/slipring-bench/");
    for source in Source::library().into_iter().filter(is_listed) {
        let marks = ["unsafe", "unsafe_code"];
        for at in marks.iter().flat_map(|mark| words(&source.code, mark)) {
            // The unit tests of `copy.rs` are `copy/tests.rs`.
            let path = source.path.replace("/tests.rs", ".rs");
            found.insert(path.clone());
            if !UNSAFE.contains(&path.as_str()) {
                wrong.push(source.place(at));
            }
        }
    }
    report("unsafe in a file that is not listed", &wrong);
    let unused: Vec<String> =
        UNSAFE.iter().filter(|path| !found.contains(**path)).map(|path| (*path).into()).collect();
    report("listed as unsafe, and has none", &unused);
}

#[test]
fn each_unsafe_is_explained_directly_above() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for source in Source::library() {
        let lines: Vec<&str> = source.text.lines().collect();
        for at in words(&source.code, "unsafe") {
            seen += 1;
            let line = source.code[..at].matches('\n').count();
            let function = source.code[at..].starts_with("unsafe fn");
            let promise = if function { "# Safety" } else { "SAFETY: " };
            if !comment_above(&lines, line).contains(promise) {
                wrong.push(format!("{}:{}: no {promise:?} above", source.path, line + 1));
            }
        }
    }
    report("unsafe without its reason", &wrong);
    assert!(seen > 0, "no unsafe was found at all");
}

/// The comment above the statement or item whose line this is, attributes between them passed over.
fn comment_above(lines: &[&str], line: usize) -> String {
    let above = || lines[..line].iter().rev().map(|line| line.trim());
    let between = above().take_while(|line| line.starts_with("#[") || line.ends_with(" =")).count();
    let comment: Vec<&str> =
        above().skip(between).take_while(|line| line.starts_with("//")).collect();
    comment.into_iter().rev().collect::<Vec<_>>().join("\n")
}

#[test]
fn files_are_short() {
    let mut wrong = Vec::new();
    for source in Source::library() {
        let count = code_lines(&source.code);
        let excuse = LONGER.iter().find(|(path, ..)| *path == source.path);
        let most = excuse.map_or(LONGEST, |(_, most, _)| *most);
        if count > most {
            wrong.push(format!("{}: {count} lines of code, at most {most}", source.path));
        } else if excuse.is_some() && count <= LONGEST {
            wrong.push(format!("{}: {count} lines need no excuse", source.path));
        }
    }
    report("long files", &wrong);
}

/// Lines with code on them, modules for tests left out.
fn code_lines(code: &str) -> usize {
    let mut count = 0;
    let mut lines = code.lines();
    let mut tests = false;
    while let Some(line) = lines.next() {
        let line = line.trim();
        if tests && line.starts_with("mod ") && line.ends_with('{') {
            // rustfmt closes what starts at a line's start at a line's start.
            lines.by_ref().find(|line| *line == "}");
            count -= 1;
        } else if !line.is_empty() {
            count += 1;
        }
        tests = line.starts_with("#[cfg(") && line.contains("test");
    }
    count
}

#[test]
fn the_readme_shows_code_that_is_compiled() {
    let Ok(readme) = fs::read_to_string(root().join("README.md")) else {
        return eprintln!("skipped: there is no README.md");
    };
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let docs: Vec<&str> = lib.lines().filter_map(|line| line.strip_prefix("//!")).collect();
    let docs = docs.join("\n");
    let tests = Source::all("tests");
    let tests = tests.iter().filter(|source| source.path != "tests/architecture.rs");
    let compiled: BTreeSet<&str> =
        tests.flat_map(|source| source.text.lines()).chain(rust(&docs)).map(bare).collect();
    let shown = rust(&readme);
    assert!(shown.len() > 5, "README.md shows code");
    let wrong: Vec<String> = shown
        .iter()
        .filter(|line| !compiled.contains(bare(line)))
        .map(|line| line.to_string())
        .collect();
    report("README.md shows what is neither in lib.rs's examples nor in a test", &wrong);
}

/// The lines of the blocks of Rust in a page.
fn rust(page: &str) -> Vec<&str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        match line.trim().strip_prefix("```") {
            Some(kind) => inside = !inside && (kind.starts_with("rust") || kind == "no_run"),
            None if inside => lines.push(line),
            None => {}
        }
    }
    lines
}

/// A line without indentation and trailing comment.
fn bare(line: &str) -> &str {
    line.split_once(" //").map_or(line, |(code, _)| code).trim()
}

/// Where the paths start that pages name.
const FOLDERS: [&str; 8] =
    ["src/", "tests/", "docs/", "examples/", "crates/", "benches/", "bench-rivals/", ".ci/"];

/// The pages for users: path and text.
fn pages() -> Vec<(String, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap();
    let docs = docs.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let front = ["README.md", "SECURITY.md"].map(|name| root().join(name));
    let mut pages: Vec<_> = front
        .into_iter()
        .chain(docs)
        .filter(|path| path.exists() && path.extension().is_some_and(|kind| kind == "md"))
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(), text)
        })
        .collect();
    pages.sort();
    pages
}

#[test]
fn docs_name_files_that_exist() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        let folder = root().join(&page).parent().unwrap().to_owned();
        // Programs have no links: only every second part is outside of them.
        let prose: String = text.split("```").step_by(2).collect();
        for link in
            prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|cut| cut.0)
        {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if file.contains("://") {
                continue;
            }
            let target = if file.is_empty() { root().join(&page) } else { folder.join(file) };
            if !target.exists() {
                wrong.push(format!("{page}: no file for the link {link}"));
            } else if !anchor.is_empty() {
                let text = fs::read_to_string(target).unwrap();
                if !text.lines().any(|line| line.starts_with('#') && slug(line) == anchor) {
                    wrong.push(format!("{page}: no heading for the link {link}"));
                }
            }
        }
        let is_break = |char: char| char.is_whitespace() || "`\"'()|=,#".contains(char);
        for word in text.split(is_break) {
            let path = word.trim_start_matches("./").trim_end_matches(['.', ':', ';']);
            let is_path = FOLDERS.iter().any(|folder| path.starts_with(folder));
            let is_pattern = path.contains(['*', '<', '{', '[', '…']) || path.contains("NAME");
            if is_path && !is_pattern && !root().join(path).exists() {
                wrong.push(format!("{page}: no file {path}"));
            }
        }
    }
    report("pages that name files which do not exist", &wrong);
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|char| char.is_alphanumeric() || "-_ ".contains(*char));
    kept.map(|char| if char == ' ' { '-' } else { char }).collect()
}

/// A command of a page runs something: its test binary or example exists, and its filter finds a test.
#[test]
fn docs_name_tests_that_exist() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for line in text.lines() {
            let words: Vec<&str> =
                line.split([' ', '`', '|']).filter(|word| !word.is_empty()).collect();
            for (at, word) in words.iter().enumerate() {
                let next = words.get(at + 1).copied().unwrap_or_default();
                let (sources, filter) = match *word {
                    "--test" => (binary("tests", next), words.get(at + 2)),
                    "--example" => (binary("examples", next), None),
                    "--lib" => (vec![root().join("src")], words.get(at + 1)),
                    _ => continue,
                };
                let filter = filter
                    .filter(|word| is_filter(word))
                    .map_or("", |word| word.trim_end_matches(','));
                if sources.is_empty() {
                    wrong.push(format!("{page}: {word} {next}"));
                } else if !filter
                    .split("::")
                    .all(|part| sources.iter().any(|source| has(source, part)))
                {
                    wrong.push(format!("{page}: {word} {next}: nothing is named {filter}"));
                }
            }
        }
    }
    report("pages with commands that run nothing", &wrong);
}

/// Returns whether a word of a command is the filter of its tests.
fn is_filter(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_lowercase())
}

/// The sources of the tests or examples with this name, here or in a crate beside.
fn binary(kind: &str, name: &str) -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let packages = crates.map(|folder| folder.unwrap().path()).chain([root()]);
    packages
        .flat_map(|package| {
            let folder = package.join(kind).join(name);
            [folder.with_extension("rs"), folder]
        })
        .filter(|path| path.is_file() || path.join("main.rs").is_file())
        .collect()
}

/// Returns whether a file, a module or a function in `source` has `part` in its name.
fn has(source: &Path, part: &str) -> bool {
    let own = source.file_stem().is_some_and(|name| name.to_str().unwrap().contains(part));
    if source.is_dir() {
        let entries = fs::read_dir(source).unwrap();
        return own || entries.into_iter().any(|entry| has(&entry.unwrap().path(), part));
    }
    let text = fs::read_to_string(source).unwrap_or_default();
    let mut names = text.split("fn ").skip(1).chain(text.split("mod ").skip(1));
    own || names.any(|rest| name(rest).contains(part))
}

#[test]
fn the_memory_model_names_every_edge() {
    let sync = Source::read(&root().join("src/sync.rs"));
    let (_, edges) = sync.code.split_once("enum Edge {").expect("src/sync.rs has Edge");
    let (edges, _) = edges.split_once('}').unwrap();
    let page = fs::read_to_string(root().join("docs/memory-model.md")).unwrap();
    let edges: Vec<&str> =
        edges.split(',').map(str::trim).filter(|edge| !edge.is_empty()).collect();
    assert!(edges.contains(&"Publish"), "{edges:?}");
    let wrong: Vec<String> = edges
        .iter()
        .filter(|edge| !page.contains(&format!("`{edge}`")))
        .map(|edge| format!("Edge::{edge}"))
        .collect();
    report("edges that docs/memory-model.md does not name", &wrong);
}

/// Each row of the tables of `SECURITY.md` is used up by a test, beside an honest client.
#[test]
fn each_row_of_security_is_used_up_by_a_test_that_exists() {
    let resources = Resource::ALL.map(|row| (row.name().to_owned(), vec![row.test()]));
    let bounds = slipring::seam::bounds().into_iter().map(|row| (row.resource, row.tests.to_vec()));
    let rows: Vec<_> = resources.into_iter().chain(bounds).collect();
    assert!(rows.len() > 30, "{} rows", rows.len());
    let mut wrong = Vec::new();
    for (row, tests) in rows {
        if tests.is_empty() {
            wrong.push(format!("{row}: no test"));
        }
        let missing = tests.iter().filter(|test| !is_tried(test));
        wrong.extend(missing.map(|test| format!("{row}: there is no {test}")));
    }
    report("rows of SECURITY.md without a test", &wrong);
}

/// Returns whether a test exists. `siege NAME` is one of `tests/attacks/matrix.rs`, `attack NAME` one of `tests/hostile`,
/// which `tests/chaos` runs. All others are `FILE::NAME`.
fn is_tried(test: &str) -> bool {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
    if let Some(name) = test.strip_prefix("siege ") {
        return read("tests/attacks/matrix.rs").contains(&format!("Attack::new({name:?})"));
    }
    if let Some(name) = test.strip_prefix("attack ") {
        let function = format!("@attack\ndef {}(stage)", name.replace('-', "_"));
        let mut files = fs::read_dir(root().join("tests/hostile")).unwrap();
        return files.any(|file| read(file.unwrap().path().to_str().unwrap()).contains(&function));
    }
    let Some((path, name)) = test.split_once("::") else { return false };
    let text = read(path);
    let function = format!("fn {name}(");
    let Some((before, _)) = text.split_once(&function) else { return false };
    before.lines().rev().take(3).any(|line| line.starts_with("#[test]"))
}
