//! Unit tests of `handshake::exchange`.

use super::*;

#[test]
fn a_sender_that_has_ended_is_not_taken_for_the_process_that_has_its_pid_now() {
    let own = Some(std::process::id());
    for errno in [Errno::INVAL, Errno::SRCH, Errno::NOENT] {
        let error = sender_of(Some(Err(errno)), own).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::PeerDied);
    }
    let error = sender_of(Some(Err(Errno::MFILE)), own).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { .. }));
    // Without a descriptor from the kernel, the pid names the process.
    assert!(sender_of(None, own).unwrap().is_some());
    assert!(sender_of(None, None).unwrap().is_none());
}
