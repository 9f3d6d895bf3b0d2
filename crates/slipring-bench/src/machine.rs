//! Facts about the machine and the code that figures were taken on.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the kernel, as `Linux 6.18.1`.
pub fn kernel() -> String {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let release = release.split('-').next().unwrap_or_default();
    format!("Linux {release}")
}

/// Returns the date, the machine, the system, the load before the run, and the commit of the current folder.
pub fn facts() -> Vec<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown CPU");
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let hypervisor = if cpu.contains(" hypervisor") { ", a virtual machine" } else { "" };
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc =
        rustc.map_or(String::new(), |out| String::from_utf8_lossy(&out.stdout).trim().into());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    vec![
        format!("date: {}", date()),
        format!("machine: {model}, {cores} CPUs{hypervisor}"),
        format!("system: {}, {rustc}", kernel()),
        format!("load before: {load}"),
        format!("commit: {}", commit()),
    ]
}

/// The commit of the current folder, and whether tracked files differ from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let out =
            Command::new("git").args(arguments).output().ok().filter(|out| out.status.success());
        out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=10", "HEAD"]) else {
        return "unknown".into();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit} with changes"),
    }
}

/// Returns the day in UTC, as 2026-11-22.
fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (mut days, mut year) = (since.as_secs() / 86_400, 1970);
    let leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}
