//! Processes that imitate a status page.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use slipring::status::{NAME, ROW_BYTES, owner};
use slipring::{Address, Context};

use crate::actor::{Actor, fresh_name};
use crate::roles::{ready, stay};
use crate::{slipring, slipring_tells};

/// Plays a liar.
pub fn play(role: &str, argument: &str) {
    let mut page: File = memfd_create(NAME, MemfdFlags::CLOEXEC).expect("a memfd").into();
    match role {
        "liar-noise" => {
            page.write_all(&head()).expect("written");
            let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
            for _ in 0..100_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                page.write_all(&state.to_ne_bytes()).expect("written");
            }
        }
        "liar-huge" => {
            page.write_all(&head()).expect("written");
            ftruncate(&page, 1 << 40).expect("a sparse file");
        }
        "liar-unmapped" => {
            page.write_all(&copy_of(argument.parse().expect("a pid"))).expect("written");
            page.write_all_at(&head(), 0).expect("written");
            ready();
            stay();
        }
        "liar-many" => {
            for _ in 0..100 {
                std::mem::forget(memfd_create(NAME, MemfdFlags::CLOEXEC).expect("a memfd"));
            }
        }
        "liar-imitates" => {
            page.write_all(&copy_of(argument.parse().expect("a pid"))).expect("written");
            page.write_all_at(&head(), 0).expect("written");
        }
        other => panic!("no role {other}"),
    }
    // A page counts only where its process has mapped it for writing.
    let (protection, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: fresh addresses, which nobody reads.
    let mapped = unsafe { mmap(std::ptr::null_mut(), 4096, protection, shared, &page, 0) };
    mapped.expect("mapped");
    ready();
    stay();
}

/// Returns an honest head of this process, which keeps no page.
fn head() -> Vec<u8> {
    let context = Context::new().expect("a context");
    let _listener = context.listen(Address::fresh()).expect("a listener");
    let pid = std::process::id();
    let mut pages = pages_of(pid).filter(|page| owner(page) == Some(pid));
    let mut page = pages.next().expect("a page");
    page.truncate(ROW_BYTES);
    page
}

/// Returns the page of another process.
fn copy_of(pid: u32) -> Vec<u8> {
    pages_of(pid).next().expect("a page")
}

/// Returns what lies in the files of a process with the name of a page.
fn pages_of(pid: u32) -> impl Iterator<Item = Vec<u8>> {
    let name = format!("/memfd:{NAME} (deleted)");
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("the same user").flatten();
    let is_page = move |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.to_str() == Some(name.as_str()))
    };
    let pages = files.map(|file| file.path()).filter(is_page);
    pages.map(|page| fs::read(page).expect("readable"))
}

#[test]
fn who_copies_the_page_of_another_process_is_marked() {
    let name = fresh_name("imitated");
    let server = Actor::start("keep-link", &name);
    let client = Actor::start("idle", &name);
    slipring_tells(&["ls", &name], &["accepted 1".into()]);
    let liar = Actor::start("liar-imitates", &server.pid().to_string());
    let text = slipring_tells(&["ls", &name], &["not true".into()]);
    let is_of = |line: &str, pid: u32| line.contains(&format!(" {pid} "));
    let (mut links, mut lies) = (0, 0);
    for line in text.lines().filter(|line| line.contains(&name)) {
        if is_of(line, liar.pid()) {
            assert!(line.contains("(not true"), "{text}");
            lies += 1;
        } else if line.starts_with("link") {
            assert!(is_of(line, server.pid()) && is_of(line, client.pid()), "{text}");
            assert!(!line.contains("not true") && !line.contains("unconfirmed"), "{text}");
            links += 1;
        }
    }
    assert_eq!((links, lies), (1, 2), "{text}");
    let why = slipring(&["why", &name]).0;
    assert!(!why.contains(&format!("(pid {}) waits", liar.pid())), "{why}");
}

#[test]
fn a_page_that_its_process_has_not_mapped_counts_for_nothing() {
    let name = fresh_name("planted");
    let server = Actor::start("accept-all", &name);
    slipring_tells(&["ls", &name], std::slice::from_ref(&name));
    let liar = Actor::start("liar-unmapped", &server.pid().to_string());
    let text = slipring(&["ls", &name]).0;
    assert!(!text.contains(&format!(" {} ", liar.pid())), "{text}");
    assert_eq!(slipring(&["why", &liar.pid().to_string()]).1, 3);
}

#[test]
fn noise_and_size_disturb_no_look() {
    let actors = ["liar-noise", "liar-huge", "liar-many"].map(|role| Actor::start(role, ""));
    let name = fresh_name("beside-noise");
    let _server = Actor::start("accept-all", &name);
    let text = slipring_tells(&["ls", &name], std::slice::from_ref(&name));
    assert!(text.contains("listener"), "{text}");
    for actor in &actors {
        let (text, code) = slipring(&["why", &actor.pid().to_string()]);
        assert!([0, 3].contains(&code), "{text}");
    }
    assert_eq!(slipring(&["ls", "--json"]).1, 0);
}
