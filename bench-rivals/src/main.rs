//! slipring beside what else carries messages on one machine. README.md says how it measures.
//!
//! ```text
//! cargo run --release                                # the table, and target/rivals.csv
//! cargo run --release -- --quick
//! cargo run --release -- --only slipring,iceoryx2 --measure trip-filled,stream --sizes 64 --minutes 2
//! cargo run --release -- --list
//! cargo run --release -- join a.csv b.csv --out c.csv # one file of several runs
//! cargo run --release -- plot target/rivals.csv docs # drawings
//! cargo run --release -- robots                      # a robot's pipeline, and target/robots.csv
//! ```
//!
//! Expect about 15 minutes, and two CPUs that have nothing else to do.

mod bars;
mod harness;
mod plot;
mod robots;
mod rows;
mod systems;
mod table;
mod work;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

// What `ping_pong` measures with.
use slipring_bench::results::Figure;
use slipring_bench::{
    Outcome, distance, exchange, floors, loops, memory, payload, peer, reactors, runner,
};
use slipring_bench::{machine, units};

use harness::{Group, Harness};
use systems::Kind;
use work::Work;

/// The results of this program.
type Results = slipring_bench::results::Results<Figure>;

struct Options {
    only: Option<Vec<String>>,
    measures: Option<Vec<String>>,
    sizes: Option<Vec<usize>>,
    minutes: Option<f64>,
    cpus: (usize, usize),
    out: Option<PathBuf>,
    quick: bool,
    list: bool,
    /// `plot FILE FOLDER`, and other words.
    words: Vec<String>,
    /// Only what is measured beside so many busy loops.
    busy: Option<Vec<usize>>,
    /// Hidden: this is the peer, or a busy loop, of the process with this id.
    follow: Option<u32>,
    /// Hidden: the loop's number.
    busy_loop: Option<usize>,
}

/// What all groups of a run take together, opening and closing not included.
const WHOLE: f64 = 13.0 * 60.0;
/// The same of those that a quick run does.
const QUICK: f64 = 2.0;
/// What `robots` takes, in minutes: six rounds.
const ROBOTS: f64 = 2.6;

fn main() -> ExitCode {
    match options().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-rivals: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Outcome<()> {
    if let (Some(parent), Some(number)) = (options.follow, options.busy_loop) {
        return loops::run(parent, number, options.cpus);
    }
    if let Some(parent) = options.follow {
        return peer::follow(&rows::Rivals, parent, options.cpus.1);
    }
    match options.words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["plot", results, folder] => {
            return plot::draw(&Results::read(results.as_ref())?, folder.as_ref());
        }
        ["table", results] => {
            return show(&Results::read(results.as_ref())?);
        }
        ["join", ref parts @ ..] if !parts.is_empty() => {
            let out = options.out.unwrap_or_else(|| "target/rivals.csv".into());
            return joined(parts)?.write(&out);
        }
        ["robots"] => {
            let out = options.out.unwrap_or_else(|| "target/robots.csv".into());
            let minutes = options.minutes.unwrap_or(ROBOTS);
            return robots::measure(minutes, options.only.as_deref(), &out);
        }
        // Hidden: a process of the pipeline.
        ["node", system, node, robot] => return robots::node(system, node, robot),
        _ => {
            return Err(
                "beside options there are: plot FILE FOLDER, table FILE, join FILE..., and robots"
                    .into(),
            );
        }
    }
    let groups = chosen(&options)?;
    if options.list {
        return list_groups(&groups);
    }
    let results = measure(&options, &groups)?;
    let out = options.out.unwrap_or_else(|| "target/rivals.csv".into());
    results.write(&out)?;
    show(&results)?;
    writeln!(std::io::stdout(), "\n{} has every figure", out.display())?;
    Ok(())
}

fn measure(options: &Options, groups: &[Group]) -> Outcome<Results> {
    let mut results = Results { facts: machine::facts(), figures: Vec::new() };
    let whole = match (options.minutes, options.quick) {
        (Some(minutes), _) => minutes * 60.0,
        (None, true) => QUICK,
        (None, false) => WHOLE,
    };
    let weights: f64 = groups.iter().map(Group::weight).sum();
    let least = if options.quick { 1 } else { 5 };
    work::QUICK.store(options.quick, Ordering::Relaxed);
    let mut harness = Harness::start(options.cpus)?;
    for (number, group) in groups.iter().enumerate() {
        let share = (whole * group.weight() / weights.max(1.0)).min(60.0);
        let name = group.work.name();
        eprintln!(
            "{}/{}: {name}, {}, beside {} loops, {share:.1} s",
            number + 1,
            groups.len(),
            units::size(group.bytes),
            group.busy
        );
        harness.beside(group.busy)?;
        results.figures.extend(if group.work == Work::Footprint {
            harness.footprint(&group.indices)?
        } else {
            harness.measure(&group.indices, group.bytes, Duration::from_secs_f64(share), least)?
        });
    }
    let tally = harness.quit()?;
    let [close, near, far] = tally.probes;
    results.facts.push(format!(
        "brackets: {close} close, {near} near, {far} far; the CPUs moved {} times; {} of {} slices dropped",
        tally.moves, tally.dropped, tally.pairs
    ));
    Ok(results)
}

/// The figures of several files, of measures that were measured one after the other on one machine. The facts are those of
/// the first one, and each file's brackets.
fn joined(parts: &[&str]) -> Outcome<Results> {
    let mut all: Option<Results> = None;
    for part in parts {
        let results = Results::read(part.as_ref())?;
        let Some(all) = &mut all else {
            all = Some(results);
            continue;
        };
        let fact = |results: &Results, name: &str| {
            results.facts.iter().find(|fact| fact.starts_with(name)).cloned()
        };
        for name in ["machine: ", "system: ", "commit: "] {
            if fact(all, name) != fact(&results, name) {
                return Err(format!("{part}: another {name}than in {}", parts[0]).into());
            }
        }
        all.facts.extend(fact(&results, "brackets: "));
        all.figures.extend(results.figures);
    }
    all.ok_or_else(|| "nothing to join".into())
}

fn show(results: &Results) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    for fact in &results.facts {
        writeln!(out, "{fact}")?;
    }
    table::print(&mut out, &results.figures)?;
    bars::print(&mut out, &results.figures)
}

fn chosen(options: &Options) -> Outcome<Vec<Group>> {
    // A comma stands between names.
    let plain = |name: &str| name.replace(',', "");
    let names: Vec<String> = systems::ALL.iter().map(|system| plain(system.name())).collect();
    let measures: Vec<String> = work::ALL.iter().map(|work| plain(work.name())).collect();
    for (asked, known) in [(&options.only, &names), (&options.measures, &measures)] {
        if let Some(name) = asked.iter().flatten().find(|name| !known.contains(name)) {
            return Err(format!("no {name:?}, there are: {}", known.join("; ")).into());
        }
    }
    let among = |asked: &Option<Vec<String>>, name: &str| {
        asked.as_ref().is_none_or(|asked| asked.contains(&plain(name)))
    };
    let mut groups = Group::all(|row, bytes| {
        // Floors go with whatever is measured.
        let system = row.system.kind() == Kind::Floor || among(&options.only, row.system.name());
        let sizes = options.sizes.as_ref().is_none_or(|sizes| sizes.contains(&bytes));
        let quick = !options.quick || is_quick(row.work, bytes);
        system && among(&options.measures, row.work.name()) && sizes && quick
    });
    groups.extend(Group::busy(&groups));
    groups.retain(|group| options.busy.as_ref().is_none_or(|busy| busy.contains(&group.busy)));
    if groups.is_empty() { Err("nothing is left to measure".into()) } else { Ok(groups) }
}

/// Whether a quick run does it: every measure, at few sizes and with few links.
fn is_quick(work: Work, bytes: usize) -> bool {
    match work {
        Work::Trip(_) => [64, 64 << 10].contains(&bytes),
        Work::Stream(_) => bytes == 64,
        Work::FanOut => false,
        Work::Reactor(links) => links <= 16,
        _ => true,
    }
}

fn list_groups(groups: &[Group]) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    for group in groups {
        let names: Vec<&str> =
            group.indices.iter().map(|index| rows::row(*index).system.name()).collect();
        let (work, size) = (group.work.name(), units::size(group.bytes));
        let beside = match group.busy {
            0 => String::new(),
            busy => format!(" beside {busy} busy loops"),
        };
        writeln!(out, "{work}, {size}{beside}: {}", names.join("; "))?;
    }
    Ok(())
}

fn options() -> Outcome<Options> {
    use lexopt::prelude::{Long, Value, ValueExt};
    let mut options = Options {
        only: None,
        measures: None,
        sizes: None,
        minutes: None,
        cpus: (0, 1),
        out: None,
        quick: false,
        list: false,
        words: Vec::new(),
        busy: None,
        follow: None,
        busy_loop: None,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("only") => options.only = Some(list(&parser.value()?.string()?)?),
            Long("measure") => options.measures = Some(list(&parser.value()?.string()?)?),
            Long("sizes") => options.sizes = Some(list(&parser.value()?.string()?)?),
            Long("minutes") => options.minutes = Some(parser.value()?.parse()?),
            Long("out") => options.out = Some(parser.value()?.into()),
            Long("quick") => options.quick = true,
            Long("list") => options.list = true,
            Long("cpus") => match list(&parser.value()?.string()?)?[..] {
                [leader, follower] if leader != follower => options.cpus = (leader, follower),
                _ => return Err("--cpus takes two different CPUs, as 0,1".into()),
            },
            Long("busy") => options.busy = Some(list(&parser.value()?.string()?)?),
            Long("loop") => options.busy_loop = Some(parser.value()?.parse()?),
            Long("follow") => options.follow = Some(parser.value()?.parse()?),
            Value(word) => options.words.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(options)
}

fn list<T: FromStr<Err: Error + Send + Sync + 'static>>(text: &str) -> Outcome<Vec<T>> {
    text.split(',').map(|part| Ok(part.trim().parse()?)).collect()
}
