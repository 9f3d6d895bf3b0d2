//! Threads that may make no system call, or not all of them.

#![allow(unsafe_code)]

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUALS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;

/// A step of a filter: it skips `jt` steps where it is true, and `jf` where it is not.
fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// From here on every system call of this thread but `write` and its exit kills the process.
pub fn only_writes() {
    let mut filter = [
        // The number of the call is the first word of `seccomp_data`.
        step(LOAD, 0, 0, 0),
        step(EQUALS, 2, 0, libc::SYS_write as u32),
        step(EQUALS, 1, 0, libc::SYS_exit as u32),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    bind(&mut filter);
}

/// From here on the kernel gives this thread, and threads that it starts, no descriptor of a process, as before Linux 5.3.
pub fn without_pidfds() {
    let refuse = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut filter = [
        step(LOAD, 0, 0, 0),
        step(EQUALS, 0, 1, libc::SYS_pidfd_open as u32),
        step(ANSWER, 0, 0, refuse(libc::ENOSYS)),
        step(EQUALS, 0, 3, libc::SYS_setsockopt as u32),
        // The lower half of the third argument: SO_PASSPIDFD.
        step(LOAD, 0, 0, 32),
        step(EQUALS, 0, 1, 76),
        step(ANSWER, 0, 0, refuse(libc::ENOPROTOOPT)),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    bind(&mut filter);
}

/// From here on this thread starts no other one.
pub fn without_threads() {
    let mut filter = [
        step(LOAD, 0, 0, 0),
        step(EQUALS, 1, 0, libc::SYS_clone3 as u32),
        step(EQUALS, 0, 1, libc::SYS_clone as u32),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    bind(&mut filter);
}

/// Binds the thread to a filter of its system calls.
fn bind(filter: &mut [libc::sock_filter]) {
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    // SAFETY: no pointer is passed.
    let bound = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(bound, 0);
    // SAFETY: the program and its steps outlive the call.
    let filtered =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(filtered, 0);
}

/// Ends this thread by nothing but the call for it, after it has said so into `told`.
pub fn end(told: &std::io::PipeWriter) -> ! {
    std::io::Write::write_all(&mut &*told, b"q").unwrap();
    // SAFETY: ends this thread alone, and nothing that others need.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!()
}
