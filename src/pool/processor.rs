//! What the pool's footprint depends on of this machine's processor.

use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;

/// Returns whether the processor's cores are in groups, each of which has a last-level cache of its own, as AMD's have. Cores of
/// other processors share one: a line that left the peer's own cache is there.
pub(crate) fn has_grouped_caches() -> bool {
    static GROUPED: OnceLock<bool> = OnceLock::new();
    *GROUPED.get_or_init(|| {
        let mut start = [0; 256];
        let len = File::open("/proc/cpuinfo").and_then(|mut file| file.read(&mut start));
        len.is_ok_and(|len| is_grouped(&String::from_utf8_lossy(&start[..len])))
    })
}

/// Returns whether this start of `/proc/cpuinfo` names a maker of such processors.
fn is_grouped(cpuinfo: &str) -> bool {
    let maker = cpuinfo.lines().find_map(|line| line.strip_prefix("vendor_id"));
    maker.is_some_and(|maker| maker.contains("AuthenticAMD") || maker.contains("HygonGenuine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amd_groups_cores_and_others_do_not() {
        let of = |maker: &str| format!("processor\t: 0\nvendor_id\t: {maker}\ncpu family\t: 25\n");
        assert!(is_grouped(&of("AuthenticAMD")) && is_grouped(&of("HygonGenuine")));
        assert!(
            !is_grouped(&of("GenuineIntel")) && !is_grouped("processor\t: 0\nBogoMIPS\t: 100\n")
        );
        assert!(!is_grouped("") && !is_grouped("vendor_id"));
    }
}
