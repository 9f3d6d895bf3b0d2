//! The drawings: latency by size with the floors, throughput by size, and how far single round trips are
//! apart. Near and far stand beside each other, and are never in one picture.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;

use crate::Outcome;
use slipring_bench::results::Figure;
use slipring_bench::units::{size, time};

use crate::Results;
use crate::table::ENOUGH;

const PANEL: (u32, u32) = (620, 520);
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub fn draw(results: &Results, folder: &Path) -> Outcome<()> {
    std::fs::create_dir_all(folder)?;
    let latency = |figure: &Figure| figure.p50_ns;
    let bytes = |figure: &Figure| figure.rate().map(|rate| rate * figure.bytes as f64);
    let gigabytes = |rate: f64| format!("{} MB/s", rate / 1e6);
    for (name, measure, title) in [
        ("latency-filled", "trip-filled", "Round trip, filled and summed"),
        ("latency-copied", "trip-copied", "Round trip, copied in and out"),
        ("latency-untouched", "trip-untouched", "Round trip, zero touch"),
    ] {
        let curves = Curves { measure, title, value: &latency, label: &time };
        curves.draw(results, &folder.join(format!("{name}.svg")))?;
    }
    let curves = Curves {
        measure: "stream",
        title: "One way, filled and summed",
        value: &bytes,
        label: &gigabytes,
    };
    curves.draw(results, &folder.join("throughput.svg"))?;
    for (name, measure, bytes, title) in [
        ("tails", "trip-copied", 64, "Round trips of 64 B, copied: median, p99, p99.9"),
        ("tails-wake", "wake", 8, "Wake-ups, both sides asleep: median, p99, p99.9"),
        ("tails-connect", "connect", 8, "Connect and first echo: median, p99, p99.9"),
    ] {
        spread(results, measure, bytes, title, &folder.join(format!("{name}.svg")))?;
    }
    Ok(())
}

/// The states in which there are enough figures of a measure, of a size where one is given.
fn states(results: &Results, measure: &str, bytes: Option<usize>) -> Vec<&'static str> {
    let seen = |state: &&str| {
        results.figures.iter().any(|figure| {
            let size = bytes.is_none_or(|bytes| figure.bytes == bytes);
            size && figure.is(measure, figure.bytes, state) && figure.slices >= ENOUGH
        })
    };
    ["near", "far"].into_iter().filter(seen).collect()
}

/// A panel for each state, under a title that says where and when.
fn panels<'a>(
    results: &Results,
    title: &str,
    path: &'a Path,
    states: &[&str],
) -> Outcome<Vec<Area<'a>>> {
    let size = (PANEL.0 * states.len() as u32, PANEL.1 + 60);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let facts: Vec<&str> = ["machine: ", "system: ", "date: "]
        .iter()
        .filter_map(|key| results.facts.iter().find_map(|fact| fact.strip_prefix(key)))
        .collect();
    let root = root.titled(title, (FONT, 18))?;
    let root = root.titled(&facts.join("; "), (FONT, 11))?;
    Ok(root.split_evenly((1, states.len())))
}

/// A value by size, a line for each system.
struct Curves<'a> {
    measure: &'a str,
    title: &'a str,
    value: &'a dyn Fn(&Figure) -> Option<f64>,
    label: &'a dyn Fn(f64) -> String,
}

impl Curves<'_> {
    fn draw(&self, results: &Results, path: &Path) -> Outcome<()> {
        let states = states(results, self.measure, None);
        if states.is_empty() {
            return Ok(());
        }
        let areas = panels(results, self.title, path, &states)?;
        for (area, state) in areas.iter().zip(states) {
            let known = |figure: &&Figure| {
                figure.measure == self.measure && figure.state == state && figure.slices >= ENOUGH
            };
            self.panel(area, state, &results.figures.iter().filter(known).collect::<Vec<_>>())?;
        }
        finish(&areas)
    }

    fn panel(&self, area: &Area, state: &str, figures: &[&Figure]) -> Outcome<()> {
        let sizes: BTreeSet<usize> = figures.iter().map(|figure| figure.bytes).collect();
        let (least, most) =
            (sizes.first().copied().unwrap_or(8), sizes.last().copied().unwrap_or(64));
        let ticks: Vec<f64> = sizes.iter().map(|bytes| *bytes as f64).collect();
        // Room for the names on the right.
        let width = (most as f64 / least as f64).powf(1.75);
        let across = (least as f64 * 0.8)..(least as f64 * width.max(8.0));
        let up = range(figures.iter().filter_map(|figure| (self.value)(figure)));
        let mut chart = ChartBuilder::on(area)
            .caption(state, (FONT, 15))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(72)
            .build_cartesian_2d(across.log_scale().with_key_points(ticks), up.log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|bytes| size(*bytes as usize))
            .y_label_formatter(&|value| (self.label)(*value))
            .draw()?;
        for system in &systems(figures) {
            let mine = figures.iter().filter(|figure| figure.system == *system);
            let point = |figure: &&Figure| Some((figure.bytes as f64, (self.value)(figure)?));
            let points: Vec<(f64, f64)> = mine.clone().filter_map(point).collect();
            let Some(figure) = mine.clone().next() else { continue };
            let (style, kind) = (style(figure), figure.kind.as_str());
            let label = format!("{system} {}", figure.version.replace("Linux ", ""));
            let drawn = if kind == "floor" {
                chart.draw_series(DashedLineSeries::new(
                    points.clone(),
                    5,
                    2 + 2 * place(figure) as u32 % 7,
                    style,
                ))?
            } else {
                chart.draw_series(LineSeries::new(points.clone(), style))?
            };
            drawn
                .label(label.trim())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 2, style.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .label_font((FONT, 11))
            .border_style(TRANSPARENT)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(())
    }
}

/// Median, p99 and p99.9 of each system on one line.
fn spread(results: &Results, measure: &str, bytes: usize, title: &str, path: &Path) -> Outcome<()> {
    let states = states(results, measure, Some(bytes));
    if states.is_empty() {
        return Ok(());
    }
    let areas = panels(results, title, path, &states)?;
    for (area, state) in areas.iter().zip(states) {
        let known = |figure: &&Figure| figure.is(measure, bytes, state) && figure.slices >= ENOUGH;
        let mut figures: Vec<&Figure> = results.figures.iter().filter(known).collect();
        figures.sort_by(|one, other| {
            let median = |figure: &Figure| figure.p50_ns.unwrap_or(f64::INFINITY);
            median(other).total_cmp(&median(one))
        });
        let values = |figure: &Figure| [figure.p50_ns, figure.p99_ns, figure.p999_ns];
        let across = range(figures.iter().flat_map(|figure| values(figure)).flatten());
        let names: Vec<String> = figures.iter().map(|figure| figure.system.clone()).collect();
        let mut chart = ChartBuilder::on(area)
            .caption(state, (FONT, 15))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(130)
            .build_cartesian_2d(
                across.log_scale(),
                (0..figures.len().max(1) - 1).into_segmented(),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .y_labels(figures.len())
            .x_label_formatter(&|value| time(*value))
            .y_label_formatter(&|place| match place {
                SegmentValue::CenterOf(place) => names.get(*place).cloned().unwrap_or_default(),
                _ => String::new(),
            })
            .draw()?;
        for (place, figure) in figures.iter().enumerate() {
            let style = style(figure);
            let points: Vec<_> = values(figure)
                .iter()
                .flatten()
                .map(|value| (*value, SegmentValue::CenterOf(place)))
                .collect();
            chart.draw_series([PathElement::new(points.clone(), style)])?;
            chart.draw_series(points.into_iter().zip([5, 4, 3]).map(|(point, radius)| {
                Circle::new(point, radius, if radius == 5 { style.filled() } else { style })
            }))?;
        }
    }
    finish(&areas)
}

/// Writes the file, of which the areas are parts.
fn finish(areas: &[Area]) -> Outcome<()> {
    for area in areas.iter().take(1) {
        area.present()?;
    }
    Ok(())
}

fn systems(figures: &[&Figure]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for figure in figures {
        if !names.contains(&figure.system) {
            names.push(figure.system.clone());
        }
    }
    names
}

/// Where a system stands among all, so that it looks the same in every drawing.
fn place(figure: &Figure) -> usize {
    let known = crate::systems::ALL.iter().position(|system| system.name() == figure.system);
    known.unwrap_or(crate::systems::ALL.len())
}

/// slipring black, floors grey, everybody else in colours.
fn style(figure: &Figure) -> ShapeStyle {
    let place = place(figure);
    match figure.kind.as_str() {
        "slipring" => BLACK.mix(if place == 0 { 1.0 } else { 0.55 }).stroke_width(3),
        "floor" => RGBColor(120, 120, 120).stroke_width(1),
        _ => Palette99::pick(place).stroke_width(2),
    }
}

/// What holds all values, with some room.
fn range(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(1.0, f64::max);
    (least.min(most) * 0.7)..(most * 1.5)
}
