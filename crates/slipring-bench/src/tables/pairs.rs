//! The table of `ping_pong --pairs`.

use super::markdown::Markdown;
use super::request::Request;
use crate::Outcome;
use crate::results::{PairFigure, Results};
use crate::units::{digits, short_time};

/// Returns one row for each mode.
pub fn table(results: &Results<PairFigure>, request: &Request) -> Outcome<String> {
    let head =
        ["mode", "mean", "fastest pair", "slowest pair", "round trips/s", "ratio", "starved"];
    let mut table = Markdown::new(head);
    for figure in results.figures.iter().filter(|figure| request.admits("modes", &figure.mode)) {
        table.push(vec![
            format!("`{}`", figure.mode),
            short_time(figure.mean_ns),
            short_time(figure.fastest_ns),
            short_time(figure.slowest_ns),
            format!("{:.0}", figure.trips_per_s),
            format!("{} ×", digits(figure.ratio)),
            format!("{} of {}", figure.starved, figure.pairs * figure.rounds),
        ]);
    }
    table.lines()
}
