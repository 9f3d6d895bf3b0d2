//! Unit tests of `cuda::waits`.

use super::*;

const LONG: Duration = Duration::from_secs(3600);

struct Word {
    place: Place,
}

impl Wait for Word {
    fn ask(self: Arc<Self>) {}
}

impl Drop for Word {
    fn drop(&mut self) {
        self.place.leave();
    }
}

fn waits_for(head_start: Duration) -> Waits {
    Waits { core: Arc::new(WaitsCore { head_start, ..WaitsCore::default() }) }
}

fn begin(waits: &Waits) -> Option<Freeing> {
    waits.begin_freeing(&mut None)
}

fn add(waits: &Waits) -> Arc<Word> {
    waits.add(|place| Word { place })
}

#[test]
fn no_free_begins_before_a_word_that_waited_for_one_is_added_and_open() {
    for _ in 0..100 {
        let waits = waits_for(LONG);
        let freeing = begin(&waits).expect("no word is awaited");
        let word = std::thread::scope(|threads| {
            let adder = threads.spawn(|| add(&waits));
            while waits.table().adding == 0 {
                std::thread::yield_now();
            }
            assert!(waits.table().awaited.is_empty(), "it waits for the free");
            drop(freeing);
            // The adder may sleep still, or have its word in the table.
            assert!(begin(&waits).is_none());
            adder.join().unwrap()
        });
        assert!(begin(&waits).is_none());
        word.place.open();
        assert!(begin(&waits).is_some());
    }
}

#[test]
fn a_word_that_waits_to_be_added_holds_up_a_free_that_waits_no_longer_for_later_words() {
    let waits = waits_for(LONG);
    let mut refused = Some(Refused { since: Instant::now() - 2 * PATIENCE, before: 0 });
    waits.table().adding = 1;
    assert!(waits.begin_freeing(&mut refused).is_none());
    waits.table().adding = 0;
    let _word = add(&waits);
    assert!(begin(&waits).is_none());
    assert!(waits.begin_freeing(&mut refused).is_some());
}

#[test]
fn a_free_that_had_its_head_start_holds_up_no_word() {
    let waits = waits_for(Duration::ZERO);
    let _freeing = begin(&waits).expect("no word is awaited");
    drop(add(&waits));
    assert_eq!(waits.table().adding, 0);
}

#[test]
fn a_head_start_counts_from_the_beginning_of_the_free() {
    let (start, step) = (Instant::now(), HEAD_START / 4);
    let mut table = Table::default();
    assert_eq!(table.left_of(HEAD_START, start), None, "nothing is freed");
    for begun in [start, start + 3 * step] {
        table.freeing_since = Some(begun);
        let left = |after| table.left_of(HEAD_START, begun + after);
        assert_eq!(left(Duration::ZERO), Some(HEAD_START));
        assert_eq!(left(3 * step), Some(step));
        assert_eq!(left(4 * step), None);
        assert_eq!(left(LONG), None);
    }
}
