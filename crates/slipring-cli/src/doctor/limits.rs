//! Limits of this process and of the system.

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::doctor::finding::Finding;
use crate::quantity::Len;

/// Descriptors that serve a few hundred links.
const FEW_DESCRIPTORS: u64 = 1024;

/// A default link has a segment of 24 KiB and a ring of 1 MiB, and a segment of the pool about 1 MiB.
const LEAST_FILE: u64 = 1 << 20;

/// The kernel's default of `vm.max_map_count`. A link takes four, or eight once its rings were full.
const MAPPINGS: u64 = 65530;

/// Looks at limits.
pub(super) fn findings() -> Vec<Finding> {
    vec![descriptors(), file_size(), locked(), mappings(), memfd_noexec(), ptrace(), huge_pages()]
}

/// Returns the number in a file of `/proc/sys`.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    let hard = limit.maximum.map_or("unlimited".to_owned(), |hard| hard.to_string());
    let fact =
        format!("this process may open {soft} descriptors, at most {hard}; a link takes two");
    if soft > FEW_DESCRIPTORS {
        return Finding::ok("descriptors", fact);
    }
    Finding::note(
        "descriptors",
        fact,
        format!("ulimit -n {hard}, or Context::raise_descriptor_limit"),
    )
}

fn file_size() -> Finding {
    match getrlimit(Resource::Fsize).current {
        None => Finding::ok("file size", "no limit (RLIMIT_FSIZE), which shared memory counts for"),
        Some(limit) => {
            let fact = format!("shared memory of at most {limit} bytes (RLIMIT_FSIZE)");
            let remedy = "ulimit -f unlimited";
            if limit < LEAST_FILE {
                Finding::problem("file size", fact, remedy)
            } else {
                Finding::note("file size", fact, remedy)
            }
        }
    }
}

fn locked() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let limit = limit.map_or("no limit".to_owned(), |limit| Len(limit as f64).to_string());
    Finding::ok("locked memory", format!("{limit} (RLIMIT_MEMLOCK); slipring locks none"))
}

fn mappings() -> Finding {
    let Some(count) = number("/proc/sys/vm/max_map_count") else {
        return Finding::note("mappings", "vm.max_map_count cannot be read", "mount /proc");
    };
    let fact = format!("vm.max_map_count is {count}; a link takes four");
    if count >= MAPPINGS {
        return Finding::ok("mappings", fact);
    }
    Finding::note("mappings", fact, format!("sysctl vm.max_map_count={MAPPINGS} is the default"))
}

fn memfd_noexec() -> Finding {
    match number("/proc/sys/vm/memfd_noexec") {
        Some(2) => Finding::ok(
            "memfd_noexec",
            "vm.memfd_noexec is 2; slipring's memfds are never executable",
        ),
        Some(value) => Finding::ok("memfd_noexec", format!("vm.memfd_noexec is {value}")),
        None => Finding::ok("memfd_noexec", "this kernel has no vm.memfd_noexec"),
    }
}

fn ptrace() -> Finding {
    let scope = number("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.map_or("absent".to_owned(), |scope| scope.to_string());
    Finding::ok(
        "ptrace",
        format!(
            "kernel.yama.ptrace_scope is {scope}; it restricts debuggers, not what slipring reads in /proc"
        ),
    )
}

fn huge_pages() -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let modes = fs::read_to_string(path).unwrap_or_default();
    let mode =
        modes.split_once('[').and_then(|(_, mode)| mode.split_once(']')).map(|(mode, _)| mode);
    match mode {
        Some(mode @ ("always" | "within_size" | "advise" | "force")) => {
            Finding::ok("huge pages", format!("shared memory has them: {mode}"))
        }
        _ => Finding::ok("huge pages", "shared memory has none; Options::huge_pages does nothing"),
    }
}
