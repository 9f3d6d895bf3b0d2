//! The calls on a link's socket.
//!
//! 1. EINTR, short reads, truncation and close-on-exec end here.
//! 2. No call waits, except those that say so.
//! 3. Receiving uses `recvmsg` of libc. rustix does not return pid 0, which credentials of a process outside of this
//!    pid namespace have, and would lose the descriptor of a `SCM_PIDFD`.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrAny,
    SocketAddrUnix, SocketFlags, SocketType, UCred,
};

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::handshake::packet::MOST;
use crate::handshake::peer::Credentials;
use crate::handshake::untrusted::UntrustedFds;

/// `SO_PASSPIDFD` and `SCM_PIDFD` of `unix(7)`, Linux 6.5.
const SO_PASSPIDFD: libc::c_int = 76;
const SCM_PIDFD: libc::c_int = 4;

/// Words of a buffer for credentials, a pidfd and [`MOST`] descriptors, each behind a header of 16 bytes. It has room
/// for all that a packet can carry: the kernel closes the rest on the receiving thread, and a `close` can block
/// ([`UntrustedFds`]).
const CONTROL: usize = (16 + 16 + 16 + 8 + 16 + 4 * MOST).div_ceil(8);

/// Words of a buffer for credentials alone, behind their header.
const SENDER: usize = (16usize + 12).div_ceil(8);

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Returns a new socket.
pub(crate) fn open() -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
        .map_err(|errno| Error::os("socket", errno))
}

pub(crate) fn bind_and_listen(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    rustix::net::bind(socket, address)?;
    rustix::net::listen(socket, 4096)
}

pub(crate) fn connect(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::net::connect(socket, address))
}

/// Connects, and waits until `deadline` for a place in the listener's queue. The kernel wakes one of those that wait for each
/// peer that the listener accepts.
///
/// # Errors
///
/// `EAGAIN`: the deadline has passed.
pub(crate) fn connect_until(
    socket: &OwnedFd,
    address: &SocketAddrUnix,
    deadline: Instant,
) -> Result<(), Errno> {
    rustix::io::ioctl_fionbio(socket, false)?;
    let connected = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break Err(Errno::AGAIN);
        }
        // Zero would wait without an end.
        let left = left.max(Duration::from_millis(1));
        rustix::net::sockopt::set_socket_timeout(socket, Timeout::Send, Some(left))?;
        match rustix::net::connect(socket, address) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            done => break done,
        }
    };
    rustix::io::ioctl_fionbio(socket, true)?;
    connected
}

/// Returns the next pending connection, or `None` if there is none.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    loop {
        match rustix::net::accept_with(listener, FLAGS) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            // The peer went away after it connected.
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(Error::os("accept4", errno)),
        }
    }
}

/// Returns the address of a listening socket, or of a socket that one has accepted, as in `sun_path`; empty if it has none.
pub(crate) fn own_name(socket: &OwnedFd) -> Vec<u8> {
    name_of(rustix::net::getsockname(socket).ok())
}

/// Returns the address that a socket has connected to, as [`own_name`] does.
pub(crate) fn peer_name(socket: &OwnedFd) -> Vec<u8> {
    name_of(rustix::net::getpeername(socket).ok().flatten())
}

fn name_of(name: Option<SocketAddrAny>) -> Vec<u8> {
    let Some(name) = name.and_then(|name| SocketAddrUnix::try_from(name).ok()) else {
        return Vec::new();
    };
    match name.abstract_name() {
        Some(name) => [&[0], name].concat(),
        None => name.path_bytes().unwrap_or_default().to_vec(),
    }
}

/// Sets up a socket that other code opened for a link.
///
/// # Errors
///
/// [`ErrorKind::NotSeqpacket`]: the descriptor is no `SOCK_SEQPACKET` Unix socket, or does not listen as `listening` says.
pub(crate) fn adopt(socket: &OwnedFd, listening: bool) -> Result<()> {
    let fits = rustix::net::sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && rustix::net::sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
        && rustix::net::sockopt::socket_acceptconn(socket) == Ok(listening);
    if !fits {
        return Err(ErrorKind::NotSeqpacket.into());
    }
    rustix::io::ioctl_fionbio(socket, true).map_err(|errno| Error::os("FIONBIO", errno))?;
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| Error::os("F_SETFD", errno))
}

/// Asks the kernel for the credentials of each packet's sender.
pub(crate) fn receive_credentials(socket: &OwnedFd) -> Result<()> {
    rustix::net::sockopt::set_socket_passcred(socket, true)
        .map_err(|errno| Error::os("SO_PASSCRED", errno))?;
    set_pass_pidfd(socket, 1);
    Ok(())
}

fn set_pass_pidfd(socket: &OwnedFd, on: libc::c_int) {
    // SAFETY: the option's value is the `int` pointed to. Kernels before 6.5 refuse it, and the
    // pidfd is then opened by pid.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSPIDFD,
            (&raw const on).cast(),
            mem::size_of_val(&on) as libc::socklen_t,
        )
    };
}

/// Returns the process that made the other end of a connected socket. Another process may hold that end now.
pub(crate) fn maker(socket: &OwnedFd) -> Result<Credentials> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option's value is a `ucred`, and `len` says how long it is.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if done != 0 {
        return Err(Error::os("SO_PEERCRED", io::Error::last_os_error()));
    }
    // SAFETY: zero is a valid `ucred`, and the kernel wrote nothing else.
    Ok(credentials_of(unsafe { credentials.assume_init() }))
}

fn credentials_of(credentials: libc::ucred) -> Credentials {
    let pid = u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0);
    Credentials { pid, uid: credentials.uid, gid: credentials.gid }
}

/// Sends one packet with at most [`MOST`] descriptors. Returns `false` if the queue is full.
pub(crate) fn send(socket: &OwnedFd, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<bool, Errno> {
    send_as(socket, packet, fds, None)
}

/// Sends as [`send`] does, with the effective user of this process. The kernel adds the real one to a packet that names none.
pub(crate) fn introduce(
    socket: &OwnedFd,
    packet: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<bool, Errno> {
    let credentials = UCred {
        pid: rustix::process::getpid(),
        uid: rustix::process::geteuid(),
        gid: rustix::process::getegid(),
    };
    send_as(socket, packet, fds, Some(credentials))
}

fn send_as(
    socket: &OwnedFd,
    packet: &[u8],
    fds: &[BorrowedFd<'_>],
    credentials: Option<UCred>,
) -> Result<bool, Errno> {
    const SPACE: usize = rustix::cmsg_space!(ScmRights(MOST), ScmCredentials(1));
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let mut fits = true;
    if let Some(credentials) = credentials {
        fits &= control.push(SendAncillaryMessage::ScmCredentials(credentials));
    }
    if !fds.is_empty() {
        fits &= control.push(SendAncillaryMessage::ScmRights(fds));
    }
    debug_assert!(fits, "the buffer was made for both");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags)
    });
    match sent {
        // SOCK_SEQPACKET sends whole packets or none.
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// One packet, with its control messages.
#[derive(Debug)]
pub(crate) struct Received<const N: usize> {
    pub(crate) bytes: [u8; N],
    pub(crate) len: usize,
    pub(crate) descriptors: UntrustedFds,
    pub(crate) credentials: Option<Credentials>,
    /// A descriptor of the sender's process, or the kernel's error.
    pub(crate) pidfd: Option<Result<OwnedFd, Errno>>,
    /// The kernel cut the packet or its control messages short.
    cut: bool,
    /// The kernel cut the control messages short.
    lacks_control: bool,
}

impl<const N: usize> Received<N> {
    /// Checks that the kernel cut neither the packet nor its control messages short.
    ///
    /// # Errors
    ///
    /// - [`Fault::Truncated`]: the kernel did.
    /// - [`ErrorKind::DescriptorLimit`]: the kernel did, because this process may open no more descriptors.
    pub(crate) fn is_whole(&self, socket: &OwnedFd) -> Result<()> {
        if !self.cut {
            return Ok(());
        }
        // The descriptors that arrived are open. This call shows whether one more can be.
        rustix::io::fcntl_dupfd_cloexec(socket, 3).map_err(|errno| Error::os("recvmsg", errno))?;
        Err(Fault::Truncated.into())
    }
}

/// The result of receiving without waiting.
#[derive(Debug)]
pub(crate) enum Incoming<const N: usize> {
    Packet(Received<N>),
    /// The queue is empty.
    Nothing,
    /// The other end is closed.
    End,
}

/// Receives one packet of up to `N` bytes without waiting.
///
/// # Errors
///
/// As [`Received::is_whole`].
pub(crate) fn receive<const N: usize>(socket: &OwnedFd) -> Result<Incoming<N>> {
    let incoming = receive_cut(socket)?;
    if let Incoming::Packet(packet) = &incoming {
        packet.is_whole(socket)?;
    }
    Ok(incoming)
}

/// Receives as [`receive`] does. The caller asks whether the packet [is whole](Received::is_whole).
pub(crate) fn receive_cut<const N: usize>(socket: &OwnedFd) -> Result<Incoming<N>> {
    receive_with::<N, CONTROL>(socket, 0)
}

/// Copies the next packet and the credentials of its sender, and leaves the packet in the queue. The kernel opens none of
/// its descriptors. The socket must [receive credentials](receive_credentials).
pub(crate) fn peek_sender<const N: usize>(socket: &OwnedFd) -> Result<Incoming<N>> {
    receive_with::<N, SENDER>(socket, libc::MSG_PEEK)
}

fn receive_with<const N: usize, const WORDS: usize>(
    socket: &OwnedFd,
    flags: libc::c_int,
) -> Result<Incoming<N>> {
    let mut received = Received {
        bytes: [0; N],
        len: 0,
        descriptors: UntrustedFds::default(),
        credentials: None,
        pidfd: None,
        cut: false,
        lacks_control: false,
    };
    let mut iov = libc::iovec { iov_base: received.bytes.as_mut_ptr().cast(), iov_len: N };
    // Aligned as control messages must be.
    let mut control = [const { MaybeUninit::<u64>::uninit() }; WORDS];
    // SAFETY: zero is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let len = loop {
        // SAFETY: `header` points to the buffers above, which live on and are not otherwise used.
        let len = unsafe {
            libc::recvmsg(
                socket.as_raw_fd(),
                &mut header,
                flags | libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT,
            )
        };
        if len >= 0 {
            break len.unsigned_abs();
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // A peer that closed with packets unread leaves ECONNRESET once. The next call returns what it sent, or the
            // end.
            Some(libc::EINTR | libc::ECONNRESET) => {}
            Some(libc::EAGAIN) => return Ok(Incoming::Nothing),
            _ => return Err(Error::os("recvmsg", error)),
        }
    };
    received.len = len;
    collect(&header, &mut received);
    if received.descriptors.len() > 0 {
        received.descriptors.charge_to(maker(socket).map_or(u32::MAX, |maker| maker.uid));
    }
    received.lacks_control = header.msg_flags & libc::MSG_CTRUNC != 0;
    received.cut = received.lacks_control || header.msg_flags & libc::MSG_TRUNC != 0;
    // An empty packet has a sender, the end has none.
    let nothing = len == 0 && received.credentials.is_none();
    Ok(if nothing { Incoming::End } else { Incoming::Packet(received) })
}

/// Copies the next packet's bytes and leaves the packet in the queue. Returns its length, or `None` if there is no
/// packet.
pub(crate) fn peek(socket: &OwnedFd, bytes: &mut [u8]) -> Option<usize> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *bytes, flags))
        .ok()
        .map(|(_, len)| len)
}

/// Returns whether the next packet of a link's socket has descriptors. The socket receives credentials, and no pidfd.
pub(crate) fn next_holds_descriptors(socket: &OwnedFd) -> bool {
    matches!(peek_sender::<1>(socket), Ok(Incoming::Packet(packet)) if packet.lacks_control)
}

/// Drops the packets of a socket that is shut down, up to `most` and up to one with descriptors. Returns `true` if the queue
/// is empty. An error says nothing about the queue.
pub(crate) fn drain(socket: &OwnedFd, most: usize) -> bool {
    // With this option an empty packet has credentials, which tell it from the end. Nothing else but descriptors comes with
    // a packet.
    if rustix::net::sockopt::set_socket_passcred(socket, true).is_err() {
        return false;
    }
    set_pass_pidfd(socket, 0);
    drain_link(socket, most)
}

/// As [`drain`], for the socket of a link: it receives credentials, and no pidfd.
pub(crate) fn drain_link(socket: &OwnedFd, most: usize) -> bool {
    for _ in 0..most {
        match peek_sender::<1>(socket) {
            Ok(Incoming::Packet(packet)) if !packet.lacks_control => {
                let _ = rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT);
            }
            Ok(Incoming::Nothing | Incoming::End) => return true,
            Ok(Incoming::Packet(_)) | Err(_) => return false,
        }
    }
    false
}

/// Ends the request for a descriptor of each sender's process.
pub(crate) fn stop_pidfds(socket: &OwnedFd) {
    set_pass_pidfd(socket, 0);
}

/// Moves the control messages into owned values.
fn collect<const N: usize>(header: &libc::msghdr, received: &mut Received<N>) {
    // SAFETY: `header` describes the control buffer that the kernel has just filled.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give whole headers inside of the buffer.
        let message = unsafe { next.read() };
        // SAFETY: as above; the data follows its header.
        let data = unsafe { libc::CMSG_DATA(next) };
        // SAFETY: computes the length of an empty message.
        let empty = unsafe { libc::CMSG_LEN(0) } as usize;
        let len = (message.cmsg_len as usize).saturating_sub(empty);
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for index in 0..len / size_of::<libc::c_int>() {
                    if let Ok(fd) = take_descriptor(data, index) {
                        received.descriptors.push(fd);
                    }
                }
            }
            (libc::SOL_SOCKET, SCM_PIDFD) if len >= size_of::<libc::c_int>() => {
                received.pidfd = Some(take_descriptor(data, 0));
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len >= size_of::<libc::ucred>() => {
                // SAFETY: the kernel wrote a whole `ucred` there, perhaps unaligned.
                let credentials = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                received.credentials = Some(credentials_of(credentials));
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
}

/// Returns the descriptor at `index` of a message's data, or the error number that the kernel wrote in its place.
fn take_descriptor(data: *const u8, index: usize) -> Result<OwnedFd, Errno> {
    let at = data.cast::<libc::c_int>().wrapping_add(index);
    // SAFETY: the caller has checked that the message is that long.
    let raw = unsafe { at.read_unaligned() };
    if raw < 0 {
        return Err(Errno::from_raw_os_error(raw.saturating_neg()));
    }
    // SAFETY: the kernel has just opened it for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Waits until a socket is readable or has ended. Returns `false` if the deadline passed.
pub(crate) fn wait_readable(socket: impl AsFd, deadline: Option<Instant>) -> Result<bool> {
    wait(socket, PollFlags::IN, deadline)
}

/// Waits until a socket has room for a packet or has ended. Returns `false` if the deadline passed.
pub(crate) fn wait_writable(socket: impl AsFd, deadline: Instant) -> Result<bool> {
    wait(socket, PollFlags::OUT, Some(deadline))
}

fn wait(socket: impl AsFd, events: PollFlags, deadline: Option<Instant>) -> Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut [PollFd::new(&socket, events)], timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::os("poll", errno)),
        }
    }
}

/// Returns the bytes of the packets that this side has sent and the other end has not received, as the kernel counts them.
pub(crate) fn unreceived(socket: &OwnedFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request stores an `int` at the address (SIOCOUTQ of `unix(7)`).
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { bytes.unsigned_abs() as usize } else { 0 }
}

/// Ends a socket whose peer is dead: it becomes readable, which wakes its sleepers. Packets in the queue stay readable.
pub(crate) fn end(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// Tells the peer that this side has ended the link. Errors are dropped, as the link is over.
pub(crate) fn shutdown(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
}
