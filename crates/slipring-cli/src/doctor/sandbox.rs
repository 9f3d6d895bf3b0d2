//! The surroundings of this process: filters, namespaces, and the memory cgroup.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::doctor::finding::Finding;
use crate::quantity::Len;

/// The user id that stands for all users without a mapping, where `/proc` does not tell it.
const OVERFLOW: u32 = 65534;

/// The part of its memory that a cgroup may use before links and pools may soon find none.
const NEARLY_FULL: f64 = 0.9;

/// Looks at the surroundings.
pub(super) fn findings() -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    vec![seccomp(&status), users(), pids(&status), memory(), dev_shm()]
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

fn seccomp(status: &str) -> Finding {
    match field(status, "Seccomp") {
        Some("0") => Finding::ok("seccomp", "no filter"),
        Some("2") => {
            let filters = field(status, "Seccomp_filters").unwrap_or("some");
            let fact = format!("filters: {filters}");
            Finding::note(
                "seccomp",
                fact,
                "the findings above tell what they let through (docs/platforms.md lists all calls)",
            )
        }
        mode => {
            let fact = format!("mode {}", mode.unwrap_or("unknown"));
            Finding::note("seccomp", fact, "docs/platforms.md lists the calls that slipring needs")
        }
    }
}

/// Returns whether this process's user cannot be told from users that its namespace does not map.
pub(super) fn is_overflow() -> bool {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW);
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    geteuid().as_raw() == overflow && mapped(&map) != u64::from(u32::MAX)
}

/// Returns how many users a `uid_map` maps. Source: user_namespaces(7).
fn mapped(map: &str) -> u64 {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum()
}

fn users() -> Finding {
    let uid = geteuid().as_raw();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    match mapped(&map) {
        _ if is_overflow() => Finding::problem(
            "user namespace",
            format!(
                "this process's user is shown as {uid}, as all users without a mapping are, so it admits nobody by default"
            ),
            "map another number to it (user_namespaces(7)), or use PeerPolicy::Custom",
        ),
        count if count == u64::from(u32::MAX) => {
            Finding::ok("user namespace", format!("user {uid}, of a namespace that maps all users"))
        }
        count => Finding::ok(
            "user namespace",
            format!(
                "user {uid}, of a namespace that maps {count} users; it admits its own user by default"
            ),
        ),
    }
}

fn pids(status: &str) -> Finding {
    let depth = field(status, "NSpid").map_or(1, |pids| pids.split_whitespace().count());
    if depth > 1 {
        return Finding::note(
            "pid namespace",
            "this process is in a pid namespace of its own, and knows no pid of a peer outside",
            "share it (docker --pid) where commands are to name such peers",
        );
    }
    Finding::ok("pid namespace", "pids of peers are those that this process sees")
}

/// The memory cgroup of this process.
#[derive(Debug)]
struct Group {
    root: PathBuf,
    at: PathBuf,
    limit: &'static str,
    used: &'static str,
}

impl Group {
    /// Returns the group of version 1 if memory is counted there, or else the one of version 2. Source: cgroups(7).
    fn find(groups: &str) -> Option<Self> {
        let path = |line: &str, controller: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let found = parts.next()?.split(',').any(|name| name == controller);
            found.then(|| parts.next().map(|path| path.trim_start_matches('/').to_owned()))?
        };
        let found = |controller| groups.lines().find_map(|line| path(line, controller));
        let of = |root: &str, path: String, limit, used| {
            let root = PathBuf::from(root);
            Self { at: root.join(path), root, limit, used }
        };
        if let Some(path) = found("memory") {
            let files = ("memory.limit_in_bytes", "memory.usage_in_bytes");
            return Some(of("/sys/fs/cgroup/memory", path, files.0, files.1));
        }
        let path = found("")?;
        Some(of("/sys/fs/cgroup", path, "memory.max", "memory.current"))
    }

    /// Returns the tightest limit of the group and those above it, and what counts for it, in bytes.
    fn tightest(&self) -> Option<(u64, u64)> {
        let number = |at: &Path, file| {
            let text = fs::read_to_string(at.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let above = self.at.ancestors().take_while(|at| at.starts_with(&self.root));
        let limits = above.filter_map(|at| Some((number(at, self.limit)?, at)));
        // Version 1 writes the longest length in whole pages where there is no limit.
        let limits = limits.filter(|(limit, _)| *limit < i64::MAX as u64 / 2);
        let (limit, at) = limits.min_by_key(|(limit, _)| *limit)?;
        Some((limit, number(at, self.used)?))
    }
}

fn memory() -> Finding {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = Group::find(&groups);
    let Some(group) = group.filter(|group| group.root.exists()) else {
        let fact = "no cgroup tells how much memory this process may use";
        return Finding::note("memory", fact, "see free -m; shared memory counts as Shmem");
    };
    let Some((limit, used)) = group.tightest() else {
        return Finding::ok("memory", "the cgroup has no limit");
    };
    let (used, limit) = (used as f64, limit as f64);
    let fact = format!("the cgroup uses {} of {}, rings and pools included", Len(used), Len(limit));
    if used > limit * NEARLY_FULL {
        return Finding::note("memory", fact, "raise its limit, or lower Options::pool_quota");
    }
    Finding::ok("memory", fact)
}

fn dev_shm() -> Finding {
    Finding::ok(
        "/dev/shm",
        "not needed: memory comes from memfds, whatever the size of /dev/shm is",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_all_users_is_told_from_others() {
        assert_eq!(mapped("         0          0 4294967295\n"), u64::from(u32::MAX));
        assert_eq!(mapped("0 1000 1\n1 100000 65536\n"), 65537);
        assert_eq!(mapped(""), 0);
    }

    #[test]
    fn the_memory_group_is_found_in_both_versions() {
        let at = |groups| Group::find(groups).map(|group| group.at.display().to_string());
        let both = "4:cpu,memory:/a/b\n0::/\n";
        assert_eq!(at(both).as_deref(), Some("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(at("0::/user.slice\n").as_deref(), Some("/sys/fs/cgroup/user.slice"));
        assert_eq!(at("1:name=systemd:/\n"), None);
    }
}
