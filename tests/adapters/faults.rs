//! A system call of the library fails while a tokio runtime serves the links, as in `chaos/faults_lives.rs`. The runtime
//! exists before the calls begin to fail.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::cell::RefCell;

use libc::{EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM};
use slipring::tokio::{AsyncConnection, AsyncListener};
use slipring::{Address, Context, Options, Tensor};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::support::faulty::*;
use crate::support::trace::{Call, Meant};
use crate::support::{other, trim};

/// Places of each call that are tried where not all are.
const PLACES: usize = 8;

/// Both sides as tasks of one runtime.
async fn exchange(context: &Context) -> Ended {
    let address = Address::fresh();
    let mut listener = AsyncListener::new(context.listen(&address)?)?;
    let connecting = {
        let (context, address) = (context.clone(), address.clone());
        tokio::spawn(async move { AsyncConnection::connect(&context, address).await })
    };
    let serving = tokio::spawn(async move {
        let mut far = listener.accept().await?;
        while let Some(message) = far.recv().await? {
            if message.is_empty() {
                break;
            }
            far.send(&message).await?;
        }
        let Some(tensor) = far.recv_tensor().await? else { return Ok(()) };
        far.send_tensor(&tensor).await?;
        if let Some(request) = far.recv_request().await? {
            far.respond(request.id, &request.body).await?;
        }
        Ok::<(), slipring::Error>(())
    });
    let used = async {
        let mut near = connecting.await??;
        for len in [48, 20_000, 600_000] {
            near.send(&vec![7; len]).await?;
            let back = near.recv().await?.ok_or("an end instead of an echo")?;
            assert_eq!(back, vec![7; len]);
        }
        near.send(&[]).await?;
        near.send_tensor(&Tensor::from_slice([5000], &[8u32; 5000])?).await?;
        let back = near.recv_tensor().await?.ok_or("an end instead of a tensor")?;
        assert_eq!(back.to_vec::<u32>()?, [8; 5000]);
        assert_eq!(near.call(&[9; 30_000]).await?, [9; 30_000]);
        Ok::<(), Box<dyn std::error::Error>>(())
    }
    .await;
    if used.is_err() {
        // A listener to which nobody comes waits on.
        serving.abort();
    }
    match serving.await {
        Ok(served) => served?,
        Err(gone) => assert!(gone.is_cancelled(), "{gone}"),
    }
    used
}

/// In the other process.
fn life(_: &str) {
    // Each thread for blocking work ends soon after its work. By default tokio keeps an idle one for 10 s.
    let runtime: Runtime = Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(PATIENCE / 40)
        .build()
        .unwrap();
    let options = Options::new().handshake_timeout(PATIENCE).send_timeout(PATIENCE);
    let context = Context::with_options(options).unwrap();
    let runtime = RefCell::new(runtime);
    disturbed(true, || {
        let ended = runtime.borrow_mut().block_on(async {
            timeout(PATIENCE + PATIENCE / 2, exchange(&context)).await.expect("a task hangs")
        });
        trim(&context);
        ended
    })
}

fn fails(test: &str, meant: Meant, errors: &[i32], how: How) {
    other::run_here(test, life);
    assert!(sweep((test, "tokio"), (meant, errors), how, PLACES) > 0, "no such call is made");
}

macro_rules! on_a_runtime {
    ($($test:ident: $meant:expr, $errors:expr, $how:expr;)*) => {$(
        #[test]
        fn $test() {
            fails(stringify!($test), $meant, &$errors, $how);
        }
    )*};
}

fn is_of_a_socket(call: &Call) -> bool {
    [libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_accept4, libc::SYS_epoll_ctl]
        .contains(&call.number)
}

on_a_runtime! {
    descriptors_may_be_refused: needs_a_descriptor, [EMFILE, ENFILE], once;
    memory_may_be_refused: needs_memory, [ENOMEM], once;
    calls_on_sockets_may_fail: is_of_a_socket, [ENOMEM, ENOBUFS], once;
    descriptors_may_be_refused_for_long: needs_a_descriptor, [EMFILE, ENFILE], from_then_on;
    memory_may_be_refused_for_long: needs_memory, [ENOMEM], from_then_on;
    waits_may_be_interrupted: is_wait, [EINTR], once;
}
