//! Unit tests of `handshake::owned_socket`.

use rustix::net::SocketAddrUnix;

use super::*;

fn address(name: &str) -> SocketAddrUnix {
    let name = format!("slipring-test-{}-{name}", std::process::id());
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

/// Returns a listening socket, and a peer that waits in its queue.
fn awaited(name: &str) -> (OwnedFd, OwnedFd) {
    let (near, far) = (socket::open().unwrap(), socket::open().unwrap());
    socket::bind_and_listen(&near, &address(name)).unwrap();
    socket::connect(&far, &address(name)).unwrap();
    (near, far)
}

#[test]
fn the_peers_of_an_inherited_socket_wait_for_another_process() {
    let (near, far) = awaited("inherited");
    let others = near.try_clone().unwrap();
    drop(ListeningSocket::new(near, false));
    assert_eq!(socket::peek(&far, &mut [0; 1]), None, "the peer was hung up on");
    assert!(socket::accept(others.as_fd()).unwrap().is_some());
    // Others may join its queue.
    let more = socket::open().unwrap();
    socket::connect(&more, &address("inherited")).unwrap();
}

#[test]
fn the_peers_of_a_socket_of_this_process_are_hung_up_on_and_its_address_is_free() {
    let (near, far) = awaited("own");
    let others = near.try_clone().unwrap();
    drop(ListeningSocket::new(near, true));
    assert_eq!(socket::peek(&far, &mut [0; 1]), Some(0));
    drop(others);
    drop(awaited("own"));
}
