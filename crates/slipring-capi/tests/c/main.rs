//! Programs in C, compiled here against the library that cargo has built: they pass as they are and under the
//! sanitizers, and exchange messages with Rust.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use rustix::process::{Pid, Signal, kill_process_group};
use slipring::{Address, Context, Options, Tensor, TensorSet};

/// The longest that a program may take, beside load and under valgrind.
const HANG: Duration = Duration::from_secs(100);

/// The compilers, of which the first must be there.
const COMPILERS: [&str; 2] = ["gcc", "clang"];

const SANITIZED: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the library, which cargo builds beside this program.
fn libraries() -> PathBuf {
    let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(folder.join("libslipring_capi.so").exists(), "no library in {}", folder.display());
    folder
}

fn is_there(tool: &str) -> bool {
    let found =
        Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("skipped: there is no {tool}");
    }
    found.is_ok()
}

/// A program, removed on drop.
struct Program(PathBuf);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Program {
    /// Compiles a program without a warning.
    fn compile(compiler: &str, source: &Path, flags: &[&str]) -> Self {
        let libraries = libraries();
        let name = format!(
            "{compiler}-{}-{}-{:?}",
            source.file_stem().unwrap().display(),
            flags.len(),
            thread::current().id()
        );
        let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut command = Command::new(compiler);
        command.args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-g",
            "-O1",
            "-pthread",
        ]);
        command.args(flags).arg("-I").arg(folder().join("include")).arg(source);
        command.arg("-o").arg(&binary).arg("-L").arg(&libraries).arg("-lslipring_capi");
        command.arg(format!("-Wl,-rpath,{}", libraries.display()));
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {said}", source.display());
        Self(binary)
    }

    fn run(&self) -> Output {
        finish(self.0.to_str().unwrap(), start(&mut Command::new(&self.0)))
    }
}

fn start(command: &mut Command) -> Child {
    // Cargo's has the folder of an older library before that of this one.
    command.env_remove("LD_LIBRARY_PATH");
    // A group of its own, so that nothing that it forks outlives it.
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a program, which succeeds, and for all that have its outputs. Kills those that hang.
fn finish(name: &str, child: Child) -> Output {
    end_within(HANG, name, child)
}

fn end_within(patience: Duration, name: &str, child: Child) -> Output {
    let group = Pid::from_child(&child);
    let (say, is_done) = mpsc::channel();
    thread::spawn(move || say.send(child.wait_with_output()));
    let in_time = is_done.recv_timeout(patience);
    let hangs = in_time.is_err();
    if hangs {
        eprintln!("{}", stacks(group));
        kill_process_group(group, Signal::KILL).unwrap();
    }
    let done = in_time.unwrap_or_else(|_| is_done.recv_timeout(HANG).unwrap()).unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!hangs, "{name} hangs: {said}");
    assert!(done.status.success(), "{name}: {}: {said}", done.status);
    done
}

/// Where each thread of a process group is: what the kernel says, and gdb where it is there.
fn stacks(group: Pid) -> String {
    let mut told = String::new();
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    for process in processes {
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        if after_name.split_whitespace().nth(2) != Some(&group.as_raw_pid().to_string()) {
            continue;
        }
        let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        for task in tasks.map(|task| task.path()) {
            for file in ["stat", "wchan", "syscall"] {
                let text = fs::read_to_string(task.join(file)).unwrap_or_default();
                told += &format!("{}: {}\n", task.join(file).display(), text.trim_end());
            }
        }
        let gdb = ["-batch", "-ex", "thread apply all backtrace", "-p"];
        let pid = process.file_name().unwrap();
        if let Ok(said) = Command::new("gdb").args(gdb).arg(pid).output() {
            told += &String::from_utf8_lossy(&said.stdout);
        }
    }
    told
}

#[test]
#[should_panic(expected = "the shell hangs: first")]
fn what_a_program_leaves_behind_ends_the_wait() {
    // The shell ends, and what it has forked keeps its outputs.
    let child = start(Command::new("sh").args(["-c", "echo first >&2; sleep 1000 & exit 0"]));
    end_within(Duration::from_millis(500), "the shell", child);
}

/// Runs a test program as it is and under the sanitizers, by each compiler that is there.
fn passes(name: &str) {
    let source = folder().join("tests/c").join(name).with_extension("c");
    for compiler in COMPILERS.iter().filter(|compiler| is_there(compiler)) {
        Program::compile(compiler, &source, &[]).run();
        Program::compile(compiler, &source, &SANITIZED).run();
    }
}

#[test]
fn messages_arrive() {
    passes("messages");
}

#[test]
fn tensors_arrive_in_sets_and_alone() {
    passes("tensors");
}

#[test]
fn other_libraries_give_and_take_tensors() {
    passes("dlpack");
}

#[test]
fn calls_are_answered_in_any_order() {
    passes("calls");
}

#[test]
fn topics_have_one_writer_and_many_readers() {
    passes("topics");
}

#[test]
fn a_reactor_calls_back() {
    passes("reactor");
}

#[test]
fn misuse_is_told() {
    passes("misuse");
}

#[test]
fn a_killed_peer_is_named_and_a_forked_child_is_told() {
    passes("processes");
}

#[test]
fn valgrind_finds_nothing() {
    if !is_there("valgrind") {
        return;
    }
    for name in ["misuse.c", "dlpack.c"] {
        let source = folder().join("tests/c").join(name);
        let program = Program::compile(COMPILERS[0], &source, &[]);
        let mut command = Command::new("valgrind");
        command.args([
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]);
        finish("valgrind", start(command.arg(&program.0)));
    }
}

fn sizes() -> Vec<usize> {
    let header = fs::read_to_string(folder().join("tests/c/check.h")).unwrap();
    let (_, list) = header.split_once("SIZES[] = {").unwrap();
    let sizes = list.split_once('}').unwrap().0.split(',');
    sizes
        .map(|size| if size.contains("<<") { 1 << 20 } else { size.trim().parse().unwrap() })
        .collect()
}

#[test]
fn rust_and_c_exchange_messages_of_all_sizes() {
    let program = Program::compile(COMPILERS[0], &folder().join("tests/c/peer.c"), &SANITIZED);
    let context = Context::with_options(Options::new().handshake_timeout(HANG)).unwrap();

    // Rust asks.
    let address = Address::fresh().to_string();
    let echo = start(Command::new(&program.0).args(["echo", &address]));
    let mut link = context.connect_retry(&*address, Instant::now() + HANG).unwrap();
    assert_eq!(link.peer().pid(), Some(echo.id()));
    for size in sizes() {
        let message: Vec<u8> = (0..size).map(|at| at as u8).collect();
        link.send(&message).unwrap();
        assert!(link.recv().unwrap().unwrap() == message, "{size} bytes came back");
    }
    link.close().unwrap();
    finish("peer echo", echo);

    // C asks.
    let address = Address::fresh();
    let mut listener = context.listen(&address).unwrap();
    let ask = start(Command::new(&program.0).args(["ask", &address.to_string()]));
    let mut link = listener.accept_deadline(Instant::now() + HANG).unwrap();
    let mut seen = Vec::new();
    while let Some(message) = link.recv().unwrap() {
        seen.push(message.len());
        link.send(&message).unwrap();
    }
    assert_eq!(seen, sizes());
    finish("peer ask", ask);

    // C forwards what a hostile peer has named.
    let address = Address::fresh();
    let mut listener = context.listen(&address).unwrap();
    let forward = start(Command::new(&program.0).args(["forward", &address.to_string()]));
    let mut link = listener.accept_deadline(Instant::now() + HANG).unwrap();
    let mut sent = TensorSet::new();
    for name in ["a\0x", "a\0y"] {
        sent.insert(name, Tensor::from_slice([1], &[name.len() as u64]).unwrap()).unwrap();
    }
    link.sender().send_tensors(&sent).unwrap();
    let back = link.receiver().recv_tensors().unwrap().unwrap();
    assert_eq!(back.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a\0x", "a\0y"]);
    finish("peer forward", forward);
}

#[test]
fn the_page_shows_a_program_that_prints_what_it_says() {
    let source = folder().join("examples/first.c");
    let page = fs::read_to_string(folder().join("../../docs/c.md")).unwrap();
    let (_, shown) = page.split_once("```c\n").unwrap();
    assert_eq!(shown.split_once("```").unwrap().0, fs::read_to_string(&source).unwrap());
    let done = Program::compile(COMPILERS[0], &source, &SANITIZED).run();
    assert_eq!(String::from_utf8(done.stdout).unwrap(), "answer: HELLO\n");
    assert!(page.contains("prints `answer: HELLO`"));
}

#[test]
fn the_examples_measure() {
    let in_c = Program::compile(COMPILERS[0], &folder().join("examples/ping_pong.c"), &[]);
    let in_cpp = in_cpp(&folder().join("examples/ping_pong.cpp"), &["-std=c++17"]);
    for program in [in_c, in_cpp] {
        let done = finish("ping_pong", start(Command::new(&program.0).arg("1000")));
        let said = String::from_utf8(done.stdout).unwrap();
        assert!(said.lines().count() == 2 && said.contains("there and back: "), "{said}");
    }
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let header = fs::read_to_string(folder().join("include/slipring.h")).unwrap();
    let lines = header.lines().filter(|line| !line.trim_start().starts_with(['/', '*']));
    let names: Vec<String> = lines
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("slipring_"))
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 30, "{names:?}");
    let declared = BTreeSet::from_iter(names.clone());
    assert_eq!(declared.len(), names.len(), "each once: {names:?}");
    let library = libraries().join("libslipring_capi.so");
    let symbols = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect();
    assert_eq!(exported, declared);
    // Programs that were compiled against this version need each of them: the list may only grow.
    let listed = fs::read_to_string(folder().join("tests/c/symbols.txt")).unwrap();
    assert_eq!(
        exported.iter().map(String::as_str).collect::<Vec<_>>(),
        listed.lines().collect::<Vec<_>>()
    );
}

#[test]
fn the_library_needs_libc_alone() {
    if !is_there("readelf") {
        return;
    }
    let library = libraries().join("libslipring_capi.so");
    let done = finish("readelf", start(Command::new("readelf").args(["-d", "-W"]).arg(library)));
    let said = String::from_utf8(done.stdout).unwrap();
    let needed: Vec<_> = said.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(!needed.is_empty(), "{said}");
    assert!(
        needed.iter().all(|line| line.contains("[libc.") || line.contains("[ld-linux")),
        "{said}"
    );
}

/// Compiles a program in C++ without a warning.
fn in_cpp(source: &Path, flags: &[&str]) -> Program {
    let folder = folder().join("include");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{}-{}",
        source.file_stem().unwrap().display(),
        flags.join("")
    ));
    let mut command = Command::new("g++");
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-O1", "-pthread"]).args(flags);
    command.arg("-I").arg(folder).arg(source).arg("-o").arg(&binary);
    command.arg("-L").arg(libraries()).arg("-lslipring_capi");
    command.arg(format!("-Wl,-rpath,{}", libraries().display()));
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", source.display());
    Program(binary)
}

#[test]
fn cpp_has_owners_results_and_views() {
    let source = folder().join("tests/c/cpp.cpp");
    in_cpp(&source, &["-std=c++20"]).run();
    in_cpp(&source, &["-std=c++17", "-fno-exceptions", "-fno-rtti"]).run();
    in_cpp(&source, &["-std=c++17", SANITIZED[0], SANITIZED[1]]).run();
}

/// Clang, or the one inside of `ziglang` from PyPI, which links no sanitizer and is slow to link C++.
fn clang(language: &str) -> Option<Command> {
    let by_itself = if language == "c" { "clang" } else { "clang++" };
    if Command::new(by_itself).arg("--version").output().is_ok() {
        return Some(Command::new(by_itself));
    }
    is_there("python-zig").then(|| {
        let mut command = Command::new("python-zig");
        command.arg(if language == "c" { "cc" } else { "c++" });
        command
    })
}

#[test]
fn clang_compiles_what_gcc_does() {
    let folders = [folder().join("tests/c"), folder().join("examples")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut compiled = 0;
    let object = Program(Path::new(env!("CARGO_TARGET_TMPDIR")).join("clang.o"));
    for source in files.map(|file| file.unwrap().path()) {
        let (language, standards) = match source.extension().and_then(OsStr::to_str) {
            Some("c") => ("c", &["-std=c11"][..]),
            Some("cpp") => ("c++", &["-std=c++17", "-std=c++20"][..]),
            _ => continue,
        };
        for standard in standards {
            let Some(mut command) = clang(language) else { return };
            command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", standard, "-c"]);
            command.arg("-I").arg(folder().join("include")).arg(&source).arg("-o").arg(&object.0);
            finish(&format!("clang {standard} {}", source.display()), start(&mut command));
            compiled += 1;
        }
    }
    assert!(compiled > 12, "{compiled} files");
}

#[test]
fn the_page_of_cpp_shows_a_program_that_prints_what_it_says() {
    let source = folder().join("examples/first.cpp");
    let page = fs::read_to_string(folder().join("../../docs/cpp.md")).unwrap();
    let (_, shown) = page.split_once("```cpp\n").unwrap();
    assert_eq!(shown.split_once("```").unwrap().0, fs::read_to_string(&source).unwrap());
    let done = in_cpp(&source, &["-std=c++17"]).run();
    assert_eq!(String::from_utf8(done.stdout).unwrap(), "answer: HELLO\n");
    assert!(page.contains("prints `answer: HELLO`"));
}

#[test]
fn a_camera_has_viewers_that_come_and_die() {
    let program = Program::compile(COMPILERS[0], &folder().join("examples/camera.c"), &[]);
    let in_cpp = in_cpp(&folder().join("examples/camera.cpp"), &["-std=c++17"]);
    let name = Address::fresh().to_string();
    // It ends by itself after some 100 s, whatever its viewers do.
    let mut camera = start(Command::new(&program.0).args(["publish", &name, "6000"]));
    let mut lost = start(Command::new(&program.0).args(["view", &name]));
    let viewer = start(Command::new(&program.0).args(["view", &name, "30"]));
    let said = String::from_utf8(finish("view", viewer).stdout).unwrap();
    assert!(said.ends_with("done, 30 frames of 1080 x 1920 x 3\n"), "{said}");
    // It has seen frames when it says something.
    BufReader::new(lost.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    lost.kill().unwrap();
    lost.wait().unwrap();
    let viewer = start(Command::new(&in_cpp.0).args(["view", &name, "30"]));
    let said = String::from_utf8(finish("view in C++", viewer).stdout).unwrap();
    assert!(said.ends_with("done, 30 frames of 1080 x 1920 x 3\n"), "{said}");
    let mut missing = vec!["has come", "has left", "has died"];
    let mut said = BufReader::new(camera.stdout.take().unwrap()).lines();
    while !missing.is_empty() {
        let line =
            said.next().unwrap_or_else(|| panic!("the camera has not said {missing:?}")).unwrap();
        missing.retain(|word| !line.contains(word));
    }
    // Its successor is in C++.
    camera.kill().unwrap();
    camera.wait().unwrap();
    let mut camera = start(Command::new(&in_cpp.0).args(["publish", &name, "6000"]));
    finish("view", start(Command::new(&program.0).args(["view", &name, "30"])));
    camera.kill().unwrap();
    camera.wait().unwrap();
}

#[test]
fn the_job_of_a_worker_that_dies_goes_to_another() {
    let in_c = Program::compile(COMPILERS[0], &folder().join("examples/workers.c"), &SANITIZED);
    let flags = ["-std=c++17", SANITIZED[0], SANITIZED[1]];
    let in_cpp = in_cpp(&folder().join("examples/workers.cpp"), &flags);
    for program in [in_c, in_cpp] {
        let done = finish("workers", start(Command::new(&program.0).args(["4", "500"])));
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(said.ends_with("done: 500 jobs, 1 worker died\n"), "{said}");
    }
}

/// A folder, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn cmake_finds_what_is_installed() {
    let versions =
        fs::read_to_string(folder().join("cmake/slipring-config-version.cmake")).unwrap();
    assert!(versions.contains(&format!("PACKAGE_VERSION \"{}\"", env!("CARGO_PKG_VERSION"))));
    if !is_there("cmake") {
        return;
    }
    let prefix = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed here"));
    let copy = |from: PathBuf, to: &str| {
        let to = prefix.0.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    for (from, to) in
        [("libslipring_capi.so", "libslipring.so"), ("libslipring_capi.a", "libslipring.a")]
    {
        copy(libraries().join(from), &format!("lib/{to}"));
    }
    for header in ["slipring.h", "slipring.hpp"] {
        copy(folder().join("include").join(header), &format!("include/{header}"));
    }
    for file in ["slipring-config.cmake", "slipring-config-version.cmake"] {
        copy(folder().join("cmake").join(file), &format!("share/slipring/cmake/{file}"));
    }
    let build = prefix.0.join("build");
    let mut command = Command::new("cmake");
    command.arg("-S").arg(folder().join("tests/cmake")).arg("-B").arg(&build);
    command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.0.display()));
    command.arg(format!("-DEXAMPLES={}", folder().join("examples").display()));
    finish("cmake", start(&mut command));
    finish("cmake --build", start(Command::new("cmake").arg("--build").arg(&build)));
    for program in ["in_c", "in_cpp", "in_c_static"] {
        let done = finish(program, start(&mut Command::new(build.join(program))));
        assert_eq!(String::from_utf8(done.stdout).unwrap(), "answer: HELLO\n", "{program}");
    }
}
