//! README's two programs run as they stand there, each in a fresh crate, and print what README says.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, process};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A started program. Dropping kills it, so that a failed test leaves none behind.
struct Program(Option<Child>);

impl Program {
    fn start(binary: &Path) -> Self {
        let child = Command::new(binary).stdout(Stdio::piped()).spawn();
        Self(Some(child.unwrap_or_else(|error| panic!("{}: {error}", binary.display()))))
    }

    /// Returns what the program has printed when it has ended well.
    fn printed(mut self) -> String {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the blocks of a language in a page.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(word) = line.strip_prefix("```") else { continue };
        let block: String = lines
            .by_ref()
            .take_while(|line| *line != "```")
            .map(|line| format!("{line}\n"))
            .collect();
        if word == language {
            blocks.push(block);
        }
    }
    blocks
}

fn cargo(folder: &Path, arguments: &[&str]) {
    // Outside of the workspace, whose settings a fresh crate does not have. The built dependencies stay for the next run.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../readme");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(folder).args(arguments).arg("--offline").arg("--quiet");
    let done = command.env("CARGO_TARGET_DIR", target).status().unwrap();
    assert!(done.success(), "cargo {arguments:?}: {done}");
}

/// Makes a crate as README does, with a program of README. Returns the program's binary.
fn build(folder: &Path, name: &str, program: &str) -> PathBuf {
    let root = env!("CARGO_MANIFEST_DIR");
    cargo(folder, &["new", "--vcs", "none", name]);
    let fresh = folder.join(name);
    cargo(&fresh, &["add", "slipring", "--path", root]);
    fs::write(fresh.join("src/main.rs"), program).unwrap();
    // The versions of the workspace, which are at hand.
    fs::copy(Path::new(root).join("Cargo.lock"), fresh.join("Cargo.lock")).unwrap();
    cargo(&fresh, &["build"]);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../readme/debug").join(name)
}

#[test]
fn the_programs_of_the_readme_print_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    for name in ["model", "camera"] {
        let line =
            format!("cargo new {name} && (cd {name} && cargo add slipring --path ../slipring)");
        assert!(readme.contains(&line), "{line}");
    }
    let programs = blocks(&readme, "rust");
    let [model, camera] = &programs[..] else { panic!("README shows {} programs", programs.len()) };
    assert!(readme.contains("The camera prints `sent`"));
    let said = blocks(&readme, "text").into_iter().find(|block| block.starts_with("message: "));

    let folder = Folder(env::temp_dir().join(format!("slipring-readme-{}", process::id())));
    fs::create_dir_all(&folder.0).unwrap();
    let model = build(&folder.0, "model", model);
    let camera = build(&folder.0, "camera", camera);
    let model = Program::start(&model);
    assert_eq!(Program::start(&camera).printed(), "sent\n");
    assert_eq!(Some(model.printed()), said);
}

#[test]
fn the_readme_has_fewer_than_700_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let words = readme.split_whitespace();
    let count = words.filter(|word| word.contains(char::is_alphanumeric)).count();
    assert!(count < 700, "README.md has {count} words");
}
