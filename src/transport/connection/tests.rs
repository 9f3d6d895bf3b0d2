//! Unit tests of `transport::connection`.

use crate::{Address, Context};

#[test]
fn debug_shows_the_peer_and_the_traffic_on_one_line() {
    let (context, address) = (Context::new().unwrap(), Address::fresh());
    let mut listener = context.listen(&address).unwrap();
    let far = std::thread::spawn(move || listener.accept().unwrap());
    let mut near = context.connect(&address).unwrap();
    let _far = far.join().unwrap();
    near.send(b"hello").unwrap();
    let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    let peer = format!("peer_pid: Some({pid}), peer_uid: {uid}");
    let shown = format!("Connection {{ {peer}, sent: 1, received: 0, .. }}");
    assert_eq!(format!("{near:?}"), shown);
}
