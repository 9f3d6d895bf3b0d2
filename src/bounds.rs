//! What a peer can make a process hold, beside the resources that accounts count.
//!
//! `SECURITY.md` has the table. `slipring-bench write` makes it from [`bounds`], whose numbers are those of the code.

use std::time::Duration;

use crate::broadcast::{PublishOptions, UNRECEIVED};
use crate::channel::inbox::rare::{TOKENS, TURN};
use crate::channel::sender::attachments::ATTACHMENTS;
use crate::channel::{announced, attachment, backlog, calls};
use crate::handshake::layout::LONGEST_RING;
use crate::handshake::{closers, exits};
use crate::link::{control_socket, share, watcher};
use crate::patience::TASK_TURN;
use crate::pool::LoanLimit;
use crate::reactor::{QUANTUM, SHARE, TENSOR};
use crate::region::{registry, table};
use crate::shm::LARGE;
use crate::tensor::{TENSORS, WORDS};
use crate::transport::{LINK_DESCRIPTORS, Options, allowance};

/// The soft limit on descriptors (`RLIMIT_NOFILE`) for which the table gives defaults: that of most systems.
const NOFILE: u64 = 1024;

/// A row of the table.
#[derive(Debug)]
pub struct Bound {
    /// What a peer can make the process hold.
    pub resource: String,
    /// What bounds it.
    pub bound: String,
    /// The bound with default options.
    pub default: String,
    /// What uses the row up while an honest client goes on: `siege NAME` of `tests/attacks/matrix.rs`, `attack NAME` of
    /// `tests/hostile`, or the path of a test, `FILE::NAME`.
    pub tests: &'static [&'static str],
}

/// Returns the rows of the table.
pub fn bounds() -> Vec<Bound> {
    let options = Options::default();
    let (hello, channel, pool) = (options.hello(false, None), options.channel(), options.pool());
    let side = hello.control_len + hello.ring_capacity;
    let account = |what: &str| format!("{what}, on its peer's account");
    let descriptors = |part: u64| (format!("`RLIMIT_NOFILE` / {part}"), NOFILE / part);
    let (waiting_links, links_default) = descriptors(watcher::SHARE / LINK_DESCRIPTORS);
    let (in_flight, in_flight_default) = descriptors(exits::IN_FLIGHT);
    let (waiting, waiting_default) = descriptors(closers::WAITING);
    let (write_limit, backlog_limit) = (channel.write_limit as u64, channel.backlog_limit as u64);
    let grace = channel.release_grace.unwrap_or_default();
    let mut rows = Rows(Vec::new());
    rows.add(
        "memory of a link, this side",
        "`ring_capacity`, `loan_slots`",
        format!("{}, and {} once its ring was full", bytes(side), bytes(hello.second_ring)),
        KEEPS,
    );
    rows.add(
        "memory kept ready for the next link",
        "as of a link, once a context",
        bytes(side),
        &["attack storm"],
    );
    rows.add(
        "a peer's two rings, mapped here",
        "what it announced",
        format!("at most {} each, on its account", bytes(LONGEST_RING)),
        &[
            "siege large-hellos",
            "tests/transport/second_ring.rs::a_peer_that_lies_about_its_second_ring_ends_its_link",
            "tests/transport/second_ring.rs::second_rings_count_for_their_peers",
        ],
    );
    rows.add("this context's pool", "`pool_quota`", bytes(pool.quota), KEEPS);
    rows.add(
        "blocks lent over one link",
        "`loan_limit`, the peer's `loan_slots`",
        format!(
            "at most {}, {} of `pool_quota` together",
            LoanLimit::MOST,
            part(pool.quota / pool.loans.bytes)
        ),
        &["siege miser"],
    );
    rows.add(
        "loans after a link's end",
        "`release_grace`",
        format!("{}, or the end of the peer's process", time(grace)),
        &["siege zombies"],
    );
    rows.add(
        "descriptors of links that wait for that",
        format!("{waiting_links}, {LINK_DESCRIPTORS} each; one more, and the oldest goes of the process with most, of the user with most"),
        links_default,
        &["tests/transport/revocation.rs::a_process_that_keeps_many_loans_ends_no_grace_of_another_process"],
    );
    rows.add(
        "a peer's pool, mapped here",
        format!("`peer_pool_limit`, {} segments", control_socket::SEGMENTS),
        bytes(hello.pool_limit),
        &[
            "attack flood-segments",
            "tests/transport/lies.rs::too_many_bytes_of_a_peers_pool_end_the_link",
        ],
    );
    rows.add(
        "tensors of a message",
        "fixed",
        format!("{TENSORS}, {ATTACHMENTS} of them in pools"),
        &["attack tensors-endless"],
    );
    rows.add(
        "different words that order a message's tensors on GPUs",
        "fixed",
        format!("{WORDS}; a stream that reads them waits for each"),
        &["tests/cuda/errors.rs::a_message_of_too_many_words_ends_the_link_and_is_not_sent"],
    );
    rows.add(
        "description of a message's tensors",
        "fixed",
        format!(
            "{}, or {} in the pool",
            bytes(attachment::LONGEST),
            bytes(attachment::DESCRIPTION)
        ),
        &[
            "tests/tensor/lies.rs::a_description_is_bounded_however_large_the_ring_is",
            "tests/tensor/lies.rs::a_description_in_the_pool_that_lies_ends_the_link",
        ],
    );
    rows.add(
        "a message, in the ring or the pool",
        "`max_message`",
        bytes(hello.max_message),
        &["siege messages-of-1-gib"],
    );
    rows.add("packets read at a time", "fixed", control_socket::PACKETS, &["siege wakes"]);
    rows.add(
        "time for packets and the memory that they announce, in a shared thread",
        "fixed",
        format!(
            "{} for a peer process, after {}; {} for all",
            part(share::PART as u64),
            time(Duration::from_nanos(share::MOST as u64)),
            part(share::ALL as u64)
        ),
        &[
            "siege segment-pairs",
            "tests/reactor/shares.rs::all_links_of_a_peer_process_have_one_share_of_a_loop_s_time",
        ],
    );
    rows.add(
        "messages of one link in a turn of a reactor",
        "fixed",
        format!(
            "{SHARE}, or {}; a tensor of a set counts {}",
            bytes(QUANTUM as u64),
            bytes(TENSOR as u64)
        ),
        &["siege endless-messages"],
    );
    rows.add(
        "steps of a task before others run, under tokio",
        "fixed",
        TASK_TURN,
        &["tests/adapters/shares.rs::tiny_messages_without_end_leave_a_runtime_to_its_other_tasks"],
    );
    rows.add(
        "stray triggers in a row",
        "fixed",
        format!("{TOKENS}, at most {TURN} at a time"),
        &["attack flood-tokens"],
    );
    rows.add(
        "messages of a publisher's pool that a subscriber holds",
        "`PublishOptions::hold_limit`",
        PublishOptions::default().topic().hold_limit,
        &["tests/broadcast/hostile.rs::holds_that_are_never_given_back_cost_no_more_than_the_limit"],
    );
    rows.add(
        "their bytes",
        "`PublishOptions::hold_bytes`, and one message",
        "as the number of messages allows",
        &["tests/broadcast/hostile.rs::holds_of_too_many_bytes_end_their_subscriber_or_hold_nothing"],
    );
    rows.add(
        "packets that wait for a subscriber of a publisher",
        "fixed",
        format!("{UNRECEIVED}, and those of one message or of the history"),
        &["tests/broadcast/shortage.rs::a_subscriber_that_reads_no_packets_collects_few_descriptors"],
    );
    #[cfg(feature = "commit")]
    rows.add(
        "requests of a `commit` client that wait, beside executions",
        "fixed",
        crate::commit::REQUESTS,
        &["tests/commit/hostile.rs::more_requests_than_may_wait_are_refused_one_by_one"],
    );
    #[cfg(feature = "commit")]
    rows.add(
        "long requests of a `commit` client that wait",
        "fixed",
        format!("{}, or one", bytes(crate::commit::REQUEST_BYTES as u64)),
        &["tests/commit/hostile.rs::long_requests_that_wait_are_bounded_in_bytes"],
    );
    rows.add(
        "memory that a thread unmaps itself",
        "fixed",
        format!("{}; more on a thread of its own", bytes(LARGE as u64)),
        &["siege last-references"],
    );
    rows.add(
        "records read after a peer's end",
        "the peer's rings",
        format!("at most {} each, on its account", bytes(LONGEST_RING)),
        &["siege dead-full-ring", "siege endless-after-end"],
    );
    rows.add(
        "packets sent before a record announces them",
        "fixed",
        announced::UNANNOUNCED,
        &["tests/transport/regressions.rs::a_peer_that_never_reads_its_packets_has_few_unannounced_ones"],
    );
    rows.add(
        "messages set aside, of a link",
        format!("`backlog_limit`; an attached tensor counts {}", bytes(backlog::PINNED as u64)),
        account(&format!("{}, or one message", bytes(backlog_limit))),
        &[
            "tests/tensor/lies.rs::a_flood_of_unwanted_attachments_is_set_aside_up_to_a_limit_and_given_back",
            "tests/reactor/tensors.rs::sets_that_are_set_aside_take_about_the_memory_that_they_count",
        ],
    );
    rows.add(
        "writes of a reactor that wait, of a link",
        "`write_limit`, or one write",
        format!(
            "{}, with blocks of the pool; private memory on its peer's account",
            bytes(write_limit)
        ),
        KEEPS,
    );
    rows.add(
        "requests in flight, and remembered ids of abandoned ones",
        "fixed",
        format!("{} of each", calls::LIMIT),
        &[
            "tests/transport/limits.rs::a_peer_that_answers_nothing_has_4096_requests_and_another_is_asked",
            "src/channel/calls/tests.rs::the_oldest_abandoned_requests_are_forgotten_and_may_be_answered_once_each",
        ],
    );
    rows.add(
        "half-open peers of a listener",
        "`half_open_limit`; one more, and the oldest of the user with most goes",
        format!(
            "{}, each with a descriptor on the account of peers that are not admitted yet",
            options.most_half_open()
        ),
        &["siege silent-peers"],
    );
    rows.add(
        format!(
            "segments of more than {} that one user's peers bring to a listener",
            bytes(allowance::FREE)
        ),
        "fixed",
        format!("{0}, and {0} a second", bytes(allowance::BYTES)),
        &["siege large-hellos"],
    );
    rows.add(
        "threads that close files of peers",
        "fixed; half of those left for each user",
        closers::THREADS,
        &[
            "siege silent-files",
            "src/handshake/closers/tests.rs::a_user_who_blocks_its_threads_leaves_others_theirs",
        ],
    );
    rows.add(
        "threads whose exit closes sockets and memory of peers",
        "fixed",
        exits::EXITING,
        &["src/handshake/exits/tests.rs::threads_that_do_not_end_are_waited_for_and_others_close_meanwhile"],
    );
    rows.add(
        "descriptors in flight to these",
        in_flight,
        in_flight_default,
        &["src/handshake/exits/tests.rs::descriptors_in_flight_leave_the_user_most_of_its_own"],
    );
    rows.add(
        "descriptors of peers that wait for a thread",
        format!("{waiting}; half of those left for each user"),
        waiting_default,
        &["tests/transport/slow_descriptors.rs::a_user_of_files_that_hang_cannot_use_up_the_descriptors"],
    );
    rows.add("regions of a registry", "`Registry::with_limits`", registry::REGIONS, REGISTRY);
    rows.add(
        "bytes of all its regions",
        "`Registry::with_limits`",
        bytes(registry::BYTES),
        REGISTRY,
    );
    rows.add(
        "guarded mappings",
        "fixed",
        table::ENTRIES,
        &["tests/region/guard.rs::more_mappings_than_can_be_guarded_are_refused_and_all_places_are_reused"],
    );
    rows.add(
        "time for a Hello",
        "`handshake_timeout`",
        time(options.hello_time()),
        &["siege one-silent-peer"],
    );
    rows.add("time for room or a response", "`send_timeout`", time(channel.send_timeout), KEEPS);
    rows.0
}

const KEEPS: &[&str] = &[
    "tests/transport/cost.rs::a_peer_that_keeps_everything_costs_ring_and_quota_and_errors_say_what_to_do",
];
const REGISTRY: &[&str] =
    &["tests/region/registry.rs::regions_that_fill_a_registry_leave_its_leases_to_an_honest_peer"];

struct Rows(Vec<Bound>);

impl Rows {
    fn add(
        &mut self,
        resource: impl ToString,
        bound: impl ToString,
        default: impl ToString,
        tests: &'static [&'static str],
    ) {
        let [resource, bound, default] =
            [resource.to_string(), bound.to_string(), default.to_string()];
        self.0.push(Bound { resource, bound, default, tests });
    }
}

fn bytes(count: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.iter().find(|(shift, _)| count.trailing_zeros() >= *shift && count > 0);
    whole.map_or(format!("{count} B"), |(shift, unit)| format!("{} {unit}", count >> shift))
}

fn time(time: Duration) -> String {
    let millis = time.as_millis();
    if millis.is_multiple_of(1000) {
        format!("{} s", millis / 1000)
    } else {
        format!("{millis} ms")
    }
}

fn part(number: u64) -> String {
    match number {
        2 => "half".into(),
        4 => "a quarter".into(),
        other => format!("1/{other}"),
    }
}
