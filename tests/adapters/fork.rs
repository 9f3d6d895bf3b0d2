//! A forked child drops the runtime that it inherited, and the parent's descriptors stay watched.

use crate::support::HANG;
use crate::support::other::{Other, fork};
use slipring::tokio::{AsyncConnection, AsyncListener};
use slipring::{Address, Context};
use tokio::time::timeout;

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(HANG, future).await.expect("it hangs")
}

#[test]
fn a_child_that_drops_what_it_inherited_stops_no_watch_of_its_parent() {
    let test = "a_child_that_drops_what_it_inherited_stops_no_watch_of_its_parent";
    let mut other = Other::start(test, "", |_| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        runtime.block_on(async {
            let context = Context::new().unwrap();
            let address = Address::fresh();
            let mut listener = AsyncListener::new(context.listen(&address).unwrap()).unwrap();
            let connecting = tokio::spawn({
                let (context, address) = (context.clone(), address.clone());
                async move { AsyncConnection::connect(&context, address).await }
            });
            let mut far = in_time(listener.accept()).await.unwrap();
            let mut near = connecting.await.unwrap().unwrap();

            let mut kept = Some((listener, near, far));
            assert_eq!(fork(|| drop(kept.take())), 0);
            (listener, near, far) = kept.take().unwrap();

            // Each side sleeps on its descriptor before anything comes.
            let echo = tokio::spawn(async move {
                let message = far.recv().await.unwrap().unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                far.send(&message).await.unwrap();
                far
            });
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            in_time(near.send(b"still watched")).await.unwrap();
            assert_eq!(in_time(near.recv()).await.unwrap().unwrap(), b"still watched");
            let accepting = tokio::spawn(async move { listener.accept().await });
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            let _other = in_time(AsyncConnection::connect(&context, address)).await.unwrap();
            in_time(accepting).await.unwrap().unwrap();
            drop(in_time(echo).await.unwrap());
        });
    });
    other.succeeds();
}
