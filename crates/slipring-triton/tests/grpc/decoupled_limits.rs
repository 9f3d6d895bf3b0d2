//! Decoupled models whose clients do not read, leave, or ask for too much; and the shutdown.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slipring_triton::Limits;
use tonic::Code;

use crate::decoupled_served::{
    Scripted, Stream, is_final, received, scripted, send_bytes, send_number, with_final,
};
use crate::grpc_served::{Served, identity};
use crate::http_served::ints;
use crate::support::{HANG, wait_until};

/// What a model that sends for ever has seen.
#[derive(Default)]
struct Seen {
    sent: AtomicUsize,
    is_ended: AtomicBool,
    was_cancelled: AtomicBool,
}

/// Serves a model that sends responses of `len` bytes until it cannot.
fn endless(len: usize, limits: Limits) -> (Served, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let sees = seen.clone();
    let model = Scripted::new(move |_, responses| {
        let failed = loop {
            match send_bytes(&responses, len) {
                Ok(()) => sees.sent.fetch_add(1, Ordering::Relaxed),
                Err(error) => break error,
            };
        };
        sees.was_cancelled.store(responses.is_cancelled(), Ordering::Relaxed);
        sees.is_ended.store(true, Ordering::Release);
        Err(failed)
    });
    (Served::with(|builder| builder.limits(limits).decoupled_model(model)), seen)
}

/// Waits until a count has not grown for a moment.
async fn settled(count: &AtomicUsize) -> usize {
    let deadline = Instant::now() + HANG;
    let mut before = usize::MAX;
    loop {
        let now = count.load(Ordering::Relaxed);
        if now == before {
            return now;
        }
        assert!(Instant::now() < deadline, "{now} responses and more");
        before = now;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[test]
fn a_model_waits_for_a_client_that_does_not_read_and_ends_when_it_goes() {
    const LEN: usize = 64 << 10;
    let (served, seen) = endless(LEN, Limits::new());
    let mut client = served.client();
    served.run(async {
        let mut stream = Stream::open(&mut client).await;
        stream.send(scripted("", &[1]));
        // The queue, the buffer of the server, and what HTTP/2 and the sockets hold.
        let sent = settled(&seen.sent).await;
        assert!(sent * LEN < 64 << 20, "{sent} responses");
        for _ in 0..2 * sent {
            assert_eq!(stream.response().await.raw_output_contents[0].len(), LEN);
        }
        assert!(seen.sent.load(Ordering::Relaxed) > sent, "the model goes on");
        assert!(!seen.is_ended.load(Ordering::Relaxed));
        drop(stream);
        wait_until("the model notices", || seen.is_ended.load(Ordering::Acquire));
        assert!(seen.was_cancelled.load(Ordering::Relaxed));
        wait_until("the request has failed", || {
            served.front.statistics(Some("scripted"), None).unwrap()[0].counts.fail.count == 1
        });
        assert!(client.model_infer(identity(&ints(0..16))).await.is_ok());
    });
}

#[test]
fn a_model_without_a_response_to_send_hears_that_its_client_has_gone() {
    let (told, hears) = channel();
    let hears = Arc::new(Mutex::new(hears));
    let model = Scripted::new(move |_, responses| {
        let told = told.clone();
        tokio::spawn(async move {
            responses.send(responses.outputs()).await.unwrap();
            responses.cancelled().await;
            told.send(responses.is_cancelled()).unwrap();
        });
        Ok(())
    });
    let served = Served::with(|builder| builder.decoupled_model(model));
    served.run(async {
        for hangs_up in [false, true] {
            let mut client = served.client_of_its_own().await;
            let mut stream = Stream::open(&mut client).await;
            stream.send(scripted("", &[1]));
            stream.response().await;
            if hangs_up {
                drop(client);
            }
            drop(stream);
            assert!(received(&hears).await);
        }
    });
}

#[test]
fn a_client_that_takes_nothing_loses_its_stream_after_the_stall_timeout() {
    let limits = Limits::new().stall_timeout(Duration::from_millis(500));
    let (served, seen) = endless(1 << 20, limits);
    let mut client = served.client();
    served.run(async {
        let stream = Stream::open(&mut client).await;
        stream.send(scripted("", &[1]));
        tokio::task::spawn_blocking({
            let seen = seen.clone();
            move || wait_until("the stream ends", || seen.is_ended.load(Ordering::Acquire))
        })
        .await
        .unwrap();
        assert!(client.model_infer(identity(&ints(0..16))).await.is_ok(), "the connection goes on");
        drop(stream);
    });
}

#[test]
fn a_client_that_takes_nothing_keeps_an_instance_until_the_stall_timeout_and_no_longer() {
    const STALL_TIMEOUT: Duration = Duration::from_millis(500);
    let (began, begins) = channel();
    let begins = Arc::new(Mutex::new(begins));
    let model = Scripted::with(
        |metadata| metadata.instances(1),
        move |inputs, responses| match inputs.input("I")?.byte_len() {
            0 => send_number(&responses, 0),
            _ => {
                began.send(()).unwrap();
                loop {
                    send_bytes(&responses, 1 << 20)?;
                }
            }
        },
    );
    let limits = Limits::new().stall_timeout(STALL_TIMEOUT);
    let served = Served::with(|builder| builder.limits(limits).decoupled_model(model));
    served.run(async {
        let mut client = served.client_of_its_own().await;
        let stalled = Stream::open(&mut client).await;
        let sent = Instant::now();
        stalled.send(scripted("", &[1]));
        received(&begins).await;
        // The one instance is taken, so this request waits for it.
        let mut client = served.client_of_its_own().await;
        let mut other = Stream::open(&mut client).await;
        other.send(scripted("", &[]));
        other.response().await;
        assert!(sent.elapsed() >= STALL_TIMEOUT, "answered after {:?}", sent.elapsed());
        drop(stalled);
    });
}

#[test]
fn a_model_may_be_silent_for_longer_than_the_stall_timeout() {
    let model = Scripted::new(|_, responses| {
        for number in 0..3 {
            std::thread::sleep(Duration::from_millis(600));
            send_number(&responses, number)?;
        }
        Ok(())
    });
    let limits = Limits::new().stall_timeout(Duration::from_millis(200));
    let served = Served::with(|builder| builder.limits(limits).decoupled_model(model));
    let mut client = served.client();
    served.run(async {
        let stream = Stream::open(&mut client).await;
        stream.send(scripted("", &[1]));
        assert_eq!(stream.rest().await.len(), 3);
    });
}

#[test]
fn unsent_responses_are_bytes_in_flight_until_their_client_has_gone() {
    const MIB: usize = 1 << 20;
    // Less than the queue and the connection hold.
    let (served, seen) = endless(MIB, Limits::new().bytes_in_flight(6 << 20));
    let mut client = served.client();
    served.run(async {
        let mut stream = Stream::open(&mut client).await;
        stream.send(scripted("", &[1]));
        tokio::task::spawn_blocking({
            let seen = seen.clone();
            move || wait_until("the model stops", || seen.is_ended.load(Ordering::Acquire))
        })
        .await
        .unwrap();
        assert!(!seen.was_cancelled.load(Ordering::Relaxed));
        let sent = seen.sent.load(Ordering::Relaxed);
        // Each response counts twice, as a tensor and as a message. The connection has taken some of them.
        assert!(sent <= 6, "{sent} responses of 1 MiB");
        // The client receives what was sent, and the reason of the end.
        for _ in 0..sent {
            stream.response().await;
        }
        let answer = stream.next().await.unwrap().unwrap();
        assert!(answer.error_message.starts_with("too many bytes are in flight"), "{answer:?}");
        drop(stream);
        // All bytes have come back: a request of half the limit has responses again.
        let mut stream = Stream::open(&mut client).await;
        stream.send(scripted("", &vec![0; 3 << 20]));
        stream.response().await;
    });
}

#[test]
fn the_bytes_of_a_request_are_in_flight_until_its_model_drops_the_inputs() {
    let (held, holds) = channel();
    let holds = Arc::new(Mutex::new(holds));
    let model = Scripted::new(move |inputs, responses| {
        let len = inputs.input("I")?.byte_len() as u32;
        send_number(&responses, len)?;
        if len > 1 << 20 {
            held.send((inputs, responses)).unwrap();
        }
        Ok(())
    });
    let limits = Limits::new().bytes_in_flight(4 << 20);
    let served = Served::with(|builder| builder.limits(limits).decoupled_model(model));
    let mut client = served.client();
    let bytes = vec![0; 3 << 20];
    served.run(async {
        let mut first = Stream::open(&mut client).await;
        first.send(scripted("", &bytes));
        first.response().await;
        let (inputs, responses) = received(&holds).await;
        // Small requests of the same stream do not release the bytes.
        first.send(scripted("", &[1]));
        first.response().await;
        let mut second = Stream::open(&mut client).await;
        second.send(scripted("", &bytes));
        let refused = second.next().await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        drop(inputs);
        let mut third = Stream::open(&mut client).await;
        third.send(scripted("", &bytes));
        third.response().await;
        drop((responses, received(&holds).await));
    });
}

#[test]
fn a_stream_runs_256_requests_at_once_and_then_the_others() {
    let (held, holds) = channel();
    let holds = Arc::new(Mutex::new(holds));
    let model = Scripted::with(
        |metadata| metadata.instances(1000),
        move |_, responses| {
            held.send(responses).unwrap();
            Ok(())
        },
    );
    let served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    served.run(async {
        let mut stream = Stream::open(&mut client).await;
        for id in 0..300 {
            stream.send(with_final(scripted(&id.to_string(), &[1])));
        }
        let mut running = Vec::new();
        for _ in 0..256 {
            running.push(received(&holds).await);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(holds.lock().unwrap().try_recv().is_err(), "257 requests run");
        for _ in 256..300 {
            drop(running.pop());
            assert!(is_final(&stream.response().await));
            running.push(received(&holds).await);
        }
        drop(running);
        assert_eq!(stream.rest().await.len(), 256);
    });
}

#[test]
fn a_server_that_ends_lets_responses_end() {
    let (go, gone) = channel();
    let gone = Mutex::new(gone);
    let model = Scripted::new(move |_, responses| {
        send_number(&responses, 0)?;
        gone.lock().unwrap().recv_timeout(HANG).unwrap();
        (1..100).try_for_each(|number| send_number(&responses, number))
    });
    let mut served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    let mut stream = served.run(async {
        let mut stream = Stream::open(&mut client).await;
        stream.send(scripted("", &[1]));
        stream.response().await;
        stream
    });
    let reading = served.spawn(async move {
        let mut count = 1;
        loop {
            match stream.next().await {
                Ok(answer) => assert_eq!(answer.expect("a status").error_message, ""),
                Err(status) => return (count, status.code()),
            }
            count += 1;
        }
    });
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        go.send(()).unwrap();
    });
    served.end();
    later.join().unwrap();
    assert_eq!(served.run(reading).unwrap(), (100, Code::Unavailable));
}

#[test]
fn a_server_that_ends_does_not_wait_for_ever() {
    let limits = Limits::new().shutdown_timeout(Duration::from_millis(300));
    let (mut served, seen) = endless(1000, limits);
    let mut client = served.client();
    let mut stream = served.run(async {
        let mut stream = Stream::open(&mut client).await;
        stream.send(scripted("", &[1]));
        stream.response().await;
        stream
    });
    let reading = served.spawn(async move { while let Ok(Some(_)) = stream.next().await {} });
    served.end();
    wait_until("the model ends", || seen.is_ended.load(Ordering::Acquire));
    served.run(reading).unwrap();
}
