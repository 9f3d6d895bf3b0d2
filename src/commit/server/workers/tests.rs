//! Unit tests of `commit::server::workers`.

use std::sync::Arc;
use std::sync::mpsc;

use super::*;

#[test]
fn clients_take_turns_and_a_stop_drains_the_queue() {
    let (pool, (told, heard)) = (WorkerPool::default(), mpsc::channel());
    for (client, job) in [(1, 'a'), (1, 'b'), (1, 'c'), (2, 'd'), (3, 'e'), (2, 'f')] {
        let told = told.clone();
        pool.push(client, move || told.send(job).unwrap());
    }
    pool.stop();
    pool.run();
    drop(told);
    assert_eq!(heard.iter().collect::<String>(), "adebfc");
    assert!(pool.queue().jobs.is_empty());
}

#[test]
fn a_job_that_waits_for_another_one_gets_a_thread_of_its_own() {
    let pool = Arc::new(WorkerPool::default());
    let threads = [pool.clone(), pool.clone()];
    let threads = threads.map(|pool| std::thread::spawn(move || pool.run()));
    let (go, going) = mpsc::channel::<()>();
    let (told, heard) = mpsc::channel();
    pool.push(1, move || told.send(going.recv().is_ok()).unwrap());
    pool.push(1, move || go.send(()).unwrap());
    assert_eq!(heard.recv(), Ok(true));
    pool.stop();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
