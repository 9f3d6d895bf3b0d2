//! Subscribers work on a tokio runtime and inside a mio loop.

use std::io;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use mio::{Events, Interest, Poll, Token};
use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::error::TryRecvError;
use slipring::tokio::AsyncSubscriber;
use slipring::{Context, ErrorKind};
use tokio::time::timeout;

use crate::support::{HANG, unique_name};

/// Whatever hangs fails.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(HANG, future).await.expect("it hangs")
}

#[tokio::test]
async fn every_message_reaches_every_task() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let options = PublishOptions::new().slots(16).stall_after(HANG);
    let mut publisher = context.publish(&name, options).unwrap();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let options = SubscribeOptions::every().reconnect(false);
        let mut subscriber = AsyncSubscriber::subscribe(&context, &name, options).await.unwrap();
        tasks.push(tokio::spawn(async move {
            let mut numbers = 0..5000u32;
            while let Some(sample) = in_time(subscriber.recv()).await.unwrap() {
                assert_eq!(sample.missed(), 0);
                let number = numbers.next().expect("no more than were sent");
                assert_eq!(sample.to_vec().unwrap()[..4], number.to_le_bytes());
            }
            assert_eq!(numbers.next(), None);
        }));
    }
    let sending = std::thread::spawn(move || {
        for number in 0..5000u32 {
            let mut message = number.to_le_bytes().to_vec();
            message.resize(if number % 50 == 0 { 1000 } else { 4 }, 0);
            publisher.send(&message).unwrap();
            if number % 1000 == 0 {
                // Long enough for the tasks to fall asleep.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    for task in tasks {
        in_time(task).await.unwrap();
    }
    sending.join().unwrap();
}

#[tokio::test]
async fn a_task_waits_for_the_first_publisher_and_for_the_next_one() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let met = AsyncSubscriber::subscribe(&context, &name, SubscribeOptions::every()).await;
    assert!(matches!(met.unwrap_err().kind(), ErrorKind::NobodyListens { .. }));
    let options = SubscribeOptions::every().wait_for_publisher(HANG);
    let subscribing = tokio::spawn({
        let (context, name) = (context.clone(), name.clone());
        async move { AsyncSubscriber::subscribe(&context, &name, options).await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    let history = PublishOptions::new().history(1);
    let mut publisher = context.publish(&name, history.clone()).unwrap();
    let mut subscriber = in_time(subscribing).await.unwrap().unwrap();
    publisher.send(b"first").unwrap();
    let first = in_time(subscriber.recv()).await.unwrap().unwrap();
    assert_eq!((first.to_vec().unwrap(), first.restarted()), (b"first".to_vec(), false));
    drop(publisher);
    // The runtime has one thread, which no look for a publisher holds up.
    let waiting = timeout(Duration::from_millis(50), subscriber.recv()).await;
    assert!(waiting.is_err());
    assert!(subscriber.get_ref().publisher().is_none());
    let mut publisher = context.publish(&name, history).unwrap();
    publisher.send(b"second").unwrap();
    let second = in_time(subscriber.recv()).await.unwrap().unwrap();
    assert_eq!((second.to_vec().unwrap(), second.restarted()), (b"second".to_vec(), true));
}

#[tokio::test]
async fn samples_make_a_stream_and_outlive_it() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut publisher = context.publish(&name, PublishOptions::default()).unwrap();
    let options = SubscribeOptions::every().reconnect(false);
    let mut subscriber = AsyncSubscriber::subscribe(&context, &name, options).await.unwrap();
    publisher.send(b"short").unwrap();
    publisher.send(&[7; 5000]).unwrap();
    let mut tensor = publisher.alloc::<u8>([3]).unwrap();
    tensor.fill(9);
    publisher.send_tensor(tensor).unwrap();
    let samples =
        stream::poll_fn(move |context| subscriber.poll_recv(context).map(Result::transpose));
    let ended = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(publisher);
    });
    let samples: Vec<_> = in_time(samples.collect::<Vec<_>>()).await;
    ended.join().unwrap();
    let [short, long, tensor] = <[_; 3]>::try_from(samples).unwrap().map(Result::unwrap);
    assert_eq!(short.to_vec().unwrap(), b"short");
    // Another thread may have them.
    let rest = std::thread::spawn(move || (long.to_vec(), tensor.into_tensor()));
    let (long, tensor) = rest.join().unwrap();
    assert_eq!(long.unwrap(), [7; 5000]);
    assert_eq!(tensor.unwrap().to_vec::<u8>().unwrap(), [9; 3]);
}

#[tokio::test]
async fn an_evicted_task_is_told() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut publisher = context.publish(&name, PublishOptions::default()).unwrap();
    let options = SubscribeOptions::latest();
    let mut subscriber = AsyncSubscriber::subscribe(&context, &name, options).await.unwrap();
    let task = tokio::spawn(async move { in_time(subscriber.recv()).await.map(drop) });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let id = publisher.subscribers()[0].id();
    assert!(publisher.evict(id));
    let error = in_time(task).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Evicted { .. }), "{error}");
}

#[test]
fn a_mio_loop_receives_from_many_publishers() {
    const TOPICS: usize = 3;
    const MESSAGES: u32 = 500;
    let context = Context::new().unwrap();
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    let mut open = Vec::new();
    let mut sending = Vec::new();
    for index in 0..TOPICS {
        let name = unique_name();
        let mut publisher = context.publish(&name, PublishOptions::default()).unwrap();
        let options = SubscribeOptions::every().reconnect(false);
        let mut subscriber = context.subscribe(&name, options).unwrap();
        poll.registry().register(&mut subscriber, Token(index), Interest::READABLE).unwrap();
        open.push((subscriber, 0u32));
        sending.push(std::thread::spawn(move || {
            for number in 0..MESSAGES {
                publisher.send(&number.to_le_bytes()).unwrap();
                std::thread::sleep(Duration::from_micros(u64::from(number % 3) * 100));
            }
        }));
    }
    let (mut ended, mut look) = (0, vec![0, 1, 2]);
    while ended < TOPICS {
        for index in look.drain(..) {
            let (subscriber, due) = &mut open[index];
            loop {
                match subscriber.try_recv() {
                    Ok(Some(sample)) => {
                        assert_eq!(sample.to_vec().unwrap(), due.to_le_bytes());
                        *due += 1;
                    }
                    Ok(None) => {
                        assert_eq!(*due, MESSAGES);
                        poll.registry().deregister(subscriber).unwrap();
                        ended += 1;
                        break;
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Failed(error)) => panic!("{error}"),
                }
            }
        }
        if ended < TOPICS {
            poll.poll(&mut events, Some(HANG)).unwrap();
            assert!(!events.is_empty(), "nobody woke it");
            look.extend(events.iter().map(|event| event.token().0));
        }
    }
    sending.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn mio_refuses_a_subscriber_whose_descriptor_changes() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let _publisher = context.publish(&name, PublishOptions::default()).unwrap();
    let mut subscriber = context.subscribe(&name, SubscribeOptions::latest()).unwrap();
    let poll = Poll::new().unwrap();
    let registered = poll.registry().register(&mut subscriber, Token(0), Interest::READABLE);
    assert_eq!(registered.unwrap_err().kind(), io::ErrorKind::Unsupported);
}
