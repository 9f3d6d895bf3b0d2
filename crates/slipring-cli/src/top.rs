//! `slipring top`: what passes through links and topics, live.

mod flow;
mod rates;
mod screen;

use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::failure::Failure;
use crate::look::Scene;
use crate::output::Output;
use crate::quantity;
use crate::top::rates::{Rates, Sort};
use crate::top::screen::View;

/// The arguments of `slipring top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Show only flows whose address or command has this text
    filter: Option<String>,
    /// The time between two looks
    #[arg(long, default_value = "1", value_parser = quantity::duration)]
    interval: Duration,
    /// End after so many looks; 0: never
    #[arg(long, default_value_t = 0)]
    count: u64,
    /// What comes first
    #[arg(long, value_enum, default_value_t = Sort::Messages)]
    sort: Sort,
}

impl Top {
    /// Shows rates until the user ends it: on the screen of a terminal, otherwise table by table.
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let is_screen = std::io::stdout().is_terminal() && !output.is_json();
        if is_screen { self.on_screen() } else { self.in_lines(output) }
    }

    fn in_lines(self, output: Output) -> Result<(), Failure> {
        let (mut rates, mut looks) = (Rates::new(Scene::look()?), 0);
        loop {
            thread::sleep(self.interval);
            rates.take(Scene::look()?);
            output.show(&rates.table(self.sort, self.filter.as_deref().unwrap_or("")))?;
            looks += 1;
            if looks == self.count {
                return Ok(());
            }
        }
    }

    fn on_screen(self) -> Result<(), Failure> {
        let mut rates = Rates::new(Scene::look()?);
        let mut view = View::new(self.sort, self.filter.clone().unwrap_or_default());
        let mut terminal = ratatui::try_init()?;
        let ended = self.show(&mut terminal, &mut rates, &mut view);
        ratatui::restore();
        ended
    }

    fn show(
        &self,
        terminal: &mut ratatui::DefaultTerminal,
        rates: &mut Rates,
        view: &mut View,
    ) -> Result<(), Failure> {
        let (mut looks, mut next) = (0, Instant::now() + self.interval);
        loop {
            let table = rates.table(view.sort(), view.filter());
            terminal.draw(|frame| view.draw(frame, &table))?;
            while event::poll(next.saturating_duration_since(Instant::now()))? {
                let Event::Key(key) = event::read()? else { break };
                let is_interrupt =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if is_interrupt {
                    return Ok(());
                }
                if key.kind == KeyEventKind::Press && view.press(key.code) {
                    return Ok(());
                }
                let table = rates.table(view.sort(), view.filter());
                terminal.draw(|frame| view.draw(frame, &table))?;
            }
            if Instant::now() < next {
                // The window has another size.
                continue;
            }
            next = Instant::now() + self.interval;
            if !view.is_frozen() {
                rates.take(Scene::look()?);
            }
            looks += 1;
            if looks == self.count {
                return Ok(());
            }
        }
    }
}
