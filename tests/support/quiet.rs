//! Threads that may make no system call.

#![allow(unsafe_code)]

/// From here on every system call of this thread but `write` and its exit kills the process.
pub fn only_writes() {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the call is the first word of `seccomp_data`.
        step(load, 0, 0, 0),
        step(equals, 2, 0, libc::SYS_write as u32),
        step(equals, 1, 0, libc::SYS_exit as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
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
