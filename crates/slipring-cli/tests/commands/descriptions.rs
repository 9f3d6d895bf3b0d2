//! `completions`, `man` and `--help`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::run;

const COMMANDS: [&str; 13] = [
    "ls",
    "why",
    "echo",
    "ping",
    "bench",
    "pub",
    "sub",
    "hz",
    "record",
    "replay",
    "doctor",
    "completions",
    "man",
];

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = run(["completions", shell]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let script = done.lines.join("\n");
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        if shell == "bash" {
            let mut bash =
                Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash");
            bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            assert!(bash.wait().unwrap().success(), "bash cannot read it");
        }
    }
}

#[test]
fn every_command_has_a_page_and_help() {
    let program = run(["man"]).lines.join("\n");
    assert!(program.contains(".TH slipring 1"), "{program}");
    for command in COMMANDS {
        assert!(program.contains(&format!("slipring\\-{command}(1)")), "{command}: {program}");
        let page = run(["man", command]).lines.join("\n");
        assert!(page.contains(&format!(".TH slipring-{command} 1")), "{page}");
        let help = run([command, "--help"]);
        assert_eq!(help.code, Some(0), "{help:?}");
        assert!(help.lines.iter().any(|line| line.starts_with("Usage: slipring ")), "{help:?}");
        for line in help.lines.iter().filter(|line| line.trim_start().starts_with("--")) {
            assert!(line.trim().contains("  "), "no words for {line}");
        }
    }
    assert_eq!(run(["man", "nothing"]).code, Some(1));
    assert_eq!(run(["nothing"]).code, Some(2));
}
