//! What slipring is held to, and whether it keeps it. All are ratios within one run and one state.

use std::io::Write;

use crate::Outcome;
use crate::systems::slipring::POLLED_NAME;
use crate::table::ENOUGH;
use slipring_bench::results::Figure;
use slipring_bench::units::size;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The figures of one state.
struct Book<'a> {
    figures: &'a [Figure],
    state: &'a str,
}

/// A value, where there are figures for it, and with whom it was compared.
type Found = Option<(f64, String)>;

impl<'a> Book<'a> {
    fn all(&self, measure: &str, bytes: usize) -> impl Iterator<Item = &'a Figure> {
        let known = move |figure: &&Figure| figure.slices >= ENOUGH && figure.p50_ns.is_some();
        let (state, measure) = (self.state.to_owned(), measure.to_owned());
        let mine = move |figure: &&Figure| figure.is(&measure, bytes, &state);
        self.figures.iter().filter(mine).filter(known)
    }

    /// The fastest of those that `which` admits.
    fn best(
        &self,
        measure: &str,
        bytes: usize,
        which: impl Fn(&Figure) -> bool,
    ) -> Option<&'a Figure> {
        let which = self.all(measure, bytes).filter(|figure| which(figure));
        which.min_by(|one, other| time(one).total_cmp(&time(other)))
    }

    /// The fastest of ours, but for those that never sleep.
    fn ours(&self, measure: &str, bytes: usize) -> Option<&'a Figure> {
        self.best(measure, bytes, |figure| figure.kind == "slipring" && !is(POLLED_NAME)(figure))
    }

    /// The time of `ours` over theirs.
    fn ratio(
        &self,
        ours: Option<&Figure>,
        measure: &str,
        bytes: usize,
        which: impl Fn(&Figure) -> bool,
    ) -> Found {
        let (ours, theirs) = (ours?, self.best(measure, bytes, which)?);
        Some((time(ours) / time(theirs), format!("{} / {}", ours.system, theirs.system)))
    }

    /// Our time over theirs.
    fn beside(&self, measure: &str, bytes: usize, which: impl Fn(&Figure) -> bool) -> Found {
        self.ratio(self.ours(measure, bytes), measure, bytes, which)
    }

    /// How flat many links are: the slowest over the fastest.
    fn flat(&self) -> Found {
        let links = || self.all("reactor", 8).filter(|figure| figure.kind == "slipring");
        let most = links().max_by(|one, other| time(one).total_cmp(&time(other)))?;
        let least = links().min_by(|one, other| time(one).total_cmp(&time(other)))?;
        let who = format!("{} / {} links, of {}", most.links, least.links, links().count());
        (links().count() > 1).then(|| (time(most) / time(least), who))
    }

    fn slowest(&self) -> Found {
        let ours = self.ours("fan-in", 64)?;
        Some((ours.beside?, "slowest sender / fair share".into()))
    }
}

fn time(figure: &Figure) -> f64 {
    figure.p50_ns.unwrap_or(f64::NAN)
}

fn is(name: &'static str) -> impl Fn(&Figure) -> bool {
    move |figure| figure.system == name
}

fn rival(figure: &Figure) -> bool {
    matches!(figure.kind.as_str(), "rival" | "kernel")
}

fn guarded(figure: &Figure) -> bool {
    rival(figure) && figure.writable == "nothing"
}

fn floor(figure: &Figure) -> bool {
    figure.kind == "floor"
}

enum Bar {
    Most(f64),
    Least(f64),
    /// Ahead of whom it is compared with.
    Ahead,
}

impl Bar {
    fn keeps(&self, value: f64) -> bool {
        match self {
            Bar::Most(most) => value <= *most,
            Bar::Least(least) => value >= *least,
            Bar::Ahead => value < 1.0,
        }
    }

    fn text(&self) -> String {
        match self {
            Bar::Most(most) => format!("≤ {most}"),
            Bar::Least(least) => format!("≥ {least}"),
            Bar::Ahead => "< 1".into(),
        }
    }
}

pub fn print(out: &mut impl Write, figures: &[Figure]) -> Outcome<()> {
    writeln!(out, "\n== bars")?;
    let (mut met, mut missed) = (0, 0);
    for state in ["near", "far"] {
        for (what, bar, found) in bars(&Book { figures, state }) {
            let Some((value, who)) = found else { continue };
            let keeps = bar.keeps(value);
            let verdict = if keeps { "met" } else { "MISSED" };
            if keeps {
                met += 1
            } else {
                missed += 1
            }
            writeln!(
                out,
                "  {verdict:<7} {state:<5} {what:<44} {value:>6.2} {:<7} {who}",
                bar.text()
            )?;
        }
    }
    writeln!(
        out,
        "  {met} met, {missed} missed; bars without figures on both sides are not shown"
    )?;
    Ok(())
}

fn bars(book: &Book) -> Vec<(String, Bar, Found)> {
    let mut bars = Vec::new();
    for bytes in [8, 64] {
        let what = |with: &str| format!("{} direct, {with}", size(bytes));
        let line = book.beside("trip-copied", bytes, is("line-ro"));
        bars.push((what("read-only bounce"), Bar::Most(1.1), line));
        let others = book.beside("trip-copied", bytes, guarded);
        bars.push((what("who does not share writable memory"), Bar::Ahead, others));
    }
    for bytes in [KIB, 8 * KIB, 64 * KIB] {
        let what = format!("{} filled and summed, every rival", size(bytes));
        bars.push((what, Bar::Ahead, book.beside("trip-filled", bytes, rival)));
    }
    for bytes in [MIB, 16 * MIB] {
        let what = format!("{} filled and summed, best floor", size(bytes));
        bars.push((what, Bar::Most(1.05), book.beside("trip-filled", bytes, floor)));
        let what = format!("{} filled and summed, polled, best floor", size(bytes));
        let polled = book.best("trip-filled", bytes, is(POLLED_NAME));
        bars.push((what, Bar::Most(1.05), book.ratio(polled, "trip-filled", bytes, floor)));
    }
    for bytes in [8, 64, KIB, 8 * KIB, 64 * KIB, MIB, 16 * MIB] {
        let what = format!("{} zero touch, every rival", size(bytes));
        bars.push((what, Bar::Ahead, book.beside("trip-untouched", bytes, rival)));
    }
    let rate = |found: Found| found.map(|(value, who)| (1.0 / value, who));
    for (measure, queue) in [("stream", "default queues"), ("stream-4m", "4 MiB queues")] {
        let what = format!("64 B stream, {queue}, every rival");
        bars.push((what, Bar::Ahead, book.beside(measure, 64, rival)));
    }
    let ring = |bytes| rate(book.beside("stream-4m", bytes, is("ring")));
    bars.push(("64 B stream, rate beside the bare ring".into(), Bar::Least(0.75), ring(64)));
    bars.push(("1 MiB stream, rate beside the bare ring".into(), Bar::Least(0.9), ring(MIB)));
    let futex = book.beside("wake", 8, is("futex"));
    bars.push(("blocking wake-up, raw futex".into(), Bar::Most(1.1), futex));
    bars.push(("reactor, 1 to 1,000 links, one hot".into(), Bar::Most(1.25), book.flat()));
    let fan_in = rate(book.beside("fan-in", 64, is("iceoryx2")));
    bars.push(("16 senders, rate beside iceoryx2".into(), Bar::Least(3.0), fan_in));
    bars.push(("16 senders, the slowest".into(), Bar::Least(0.5), book.slowest()));
    bars
}
