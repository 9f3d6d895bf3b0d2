//! Buffers in dmabufs. `/dev/udmabuf` makes one of a memfd, where the kernel has it (`CONFIG_UDMABUF`).

use std::os::unix::fs::FileExt;

use slipring::commit::{Buffer, CommitFault, Direction, SessionState};
use slipring::{Error, ErrorKind};

use crate::support::dmabuf::{PAGE, dmabuf};
use crate::support::service::Stage;

fn fault<T: std::fmt::Debug>(answer: Result<T, Error>) -> CommitFault {
    match answer.unwrap_err().kind() {
        ErrorKind::Commit(fault) => fault.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dmabuf_is_imported_at_an_offset_and_executed() {
    let Some((dmabuf, memory)) = dmabuf() else { return };
    let stage = Stage::new();
    let model = stage.client().load(b"echo").unwrap();
    let session = model.session(0).unwrap();
    let x = Buffer::import_at(&dmabuf, 8, PAGE + 5).unwrap();
    let y = Buffer::import_at(&dmabuf, 8, 2 * PAGE - 3).unwrap();
    assert_eq!((x.len(), x.offset()), (8, PAGE + 5));
    session.set_all(&[&x, &y]).unwrap();
    session.commit().unwrap();
    // The server keeps the descriptor of each region, since it announces each access to the driver.
    assert_eq!(stage.server.stats().descriptors, 2);
    for round in 1..50u8 {
        x.write_at(0, &[round; 8]).unwrap();
        session.execute().unwrap();
        assert_eq!(y.to_vec().unwrap(), [round + 1; 8]);
        let mut there = [0; 8];
        memory.read_at(&mut there, 2 * PAGE - 3).unwrap();
        assert_eq!(there, [round + 1; 8]);
    }
    // The client may close its own descriptor.
    drop(dmabuf);
    memory.write_at(&[70; 8], PAGE + 5).unwrap();
    session.execute().unwrap();
    assert_eq!(y.to_vec().unwrap(), [71; 8]);
    session.release().unwrap();
    assert_eq!((stage.server.stats().descriptors, stage.server.stats().mappings), (0, 0));
}

#[test]
fn a_dmabuf_is_as_long_as_lseek_says() {
    let Some((dmabuf, _memory)) = dmabuf() else { return };
    let size = 4 * PAGE;
    for (len, offset) in [(8, size - 7), (size + 1, 0), (1, size), (8, u64::MAX - 3)] {
        let range = fault(Buffer::import_at(&dmabuf, len, offset));
        assert!(matches!(range, CommitFault::Range { .. }), "{range}");
    }
    let stage = Stage::new();
    let model = stage.client().load(b"echo").unwrap();
    let session = model.session(0).unwrap();
    let y = Buffer::alloc(8).unwrap();
    // The server checks a wrapped dmabuf.
    let beyond = Buffer::wrap(&dmabuf, 8, size - 7).unwrap();
    session.set_all(&[&beyond, &y]).unwrap();
    let range = CommitFault::Range { region: Some(0), offset: size - 7, len: 8, size };
    assert_eq!(fault(session.commit()), range);
    assert_eq!(session.state().unwrap(), SessionState::Complete);
    let stats = stage.server.stats();
    assert_eq!((stats.commits, stats.mappings, stats.descriptors), (0, 0, 0));
    let last = Buffer::wrap(&dmabuf, 8, size - 8).unwrap();
    session.set(Direction::In, 0, &last).unwrap();
    session.commit().unwrap();
    session.execute().unwrap();
    assert_eq!(y.to_vec().unwrap(), [1; 8]);
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn each_access_to_a_dmabuf_is_announced_and_ended() {
    use crate::support::trace::{Call, Plan, enter, run, watch_me};
    let test = "each_access_to_a_dmabuf_is_announced_and_ended";
    crate::support::other::run_here(test, |_| {
        let Some((dmabuf, _memory)) = dmabuf() else { return };
        watch_me();
        let stage = Stage::new();
        let model = stage.client().load(b"echo").unwrap();
        let session = model.session(0).unwrap();
        let (x, y) =
            (Buffer::import(&dmabuf, 8).unwrap(), Buffer::import_at(&dmabuf, 8, PAGE).unwrap());
        session.set_all(&[&x, &y]).unwrap();
        session.commit().unwrap();
        enter(1);
        session.execute().unwrap();
        x.write_at(0, &[1; 8]).unwrap();
        enter(0);
    });
    if dmabuf().is_none() {
        return;
    }
    let Some(outcome) = run(test, "", Plan::Watch) else { return };
    assert_eq!((outcome.code, outcome.signal), (Some(0), None));
    /// `DMA_BUF_IOCTL_SYNC` of `linux/dma-buf.h`.
    const SYNC: libc::Ioctl = libc::_IOW::<u64>(b'b' as u32, 0);
    let of = |call: &&Call| call.number == libc::SYS_ioctl && call.arguments[1] == SYNC;
    // The service reads the input and writes the output, and the client writes: each access has a start and an end.
    let announced = outcome.calls.iter().filter(of).count();
    assert!(announced >= 6 && announced.is_multiple_of(2), "{announced}");
}
