//! The screen of `slipring top`.

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Grid};

use crate::top::rates::{HEADS, Sort, Table};

/// The column of wake-ups, which narrow screens do without.
const WAKES: usize = 7;

/// The narrowest screen with all columns.
const WIDE: u16 = 110;

/// The wishes of the user.
#[derive(Debug)]
pub(crate) struct View {
    sort: Sort,
    filter: String,
    is_frozen: bool,
    /// The user types the filter.
    is_typing: bool,
    /// Flows above the first one that is shown.
    above: usize,
}

impl View {
    pub(crate) fn new(sort: Sort, filter: String) -> Self {
        Self { sort, filter, is_frozen: false, is_typing: false, above: 0 }
    }

    pub(crate) fn sort(&self) -> Sort {
        self.sort
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Obeys a key. Returns whether it ends the command.
    pub(crate) fn press(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Enter | KeyCode::Esc if self.is_typing => self.is_typing = false,
            KeyCode::Backspace if self.is_typing => drop(self.filter.pop()),
            KeyCode::Char(c) if self.is_typing => self.filter.push(c),
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => (self.is_typing, self.filter) = (true, String::new()),
            KeyCode::Char(' ') => self.is_frozen = !self.is_frozen,
            KeyCode::Down => self.above += 1,
            KeyCode::Up => self.above = self.above.saturating_sub(1),
            _ => {}
        }
        false
    }

    /// Draws a table.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>, table: &Table) {
        let [top, middle, bottom] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
                .areas(frame.area());
        self.above = self.above.min(table.flows.len().saturating_sub(1));
        frame.render_widget(Paragraph::new(self.title(table)), top);
        frame.render_widget(Paragraph::new(self.help()), bottom);
        let is_wide = middle.width >= WIDE;
        let columns: Vec<usize> = (0..HEADS.len()).filter(|at| is_wide || *at != WAKES).collect();
        let head = Row::new(columns.iter().map(|at| HEADS[*at]));
        let rows = table.flows.iter().skip(self.above).map(|rate| {
            let cells = rate.columns();
            Row::new(columns.iter().map(|at| Cell::from(cells[*at].clone())))
        });
        let widths: Vec<Constraint> = columns
            .iter()
            .map(|at| match (at, is_wide) {
                (0, true) => Constraint::Fill(2),
                (0, false) => Constraint::Length(13),
                (1 | 2, true) => Constraint::Fill(1),
                (1 | 2, false) => Constraint::Length(12),
                (4, _) => Constraint::Length(8),
                (8, true) => Constraint::Fill(2),
                (8, false) => Constraint::Fill(1),
                _ => Constraint::Length(6),
            })
            .collect();
        let grid = Grid::new(rows, widths)
            .header(head.style(Style::new().add_modifier(Modifier::REVERSED)));
        frame.render_widget(grid, middle);
    }

    fn title(&self, table: &Table) -> String {
        let sort = match self.sort {
            Sort::Messages => "messages/s",
            Sort::Bytes => "bytes/s",
            Sort::Queue => "queue",
            Sort::Address => "address",
        };
        let filter = match self.filter.as_str() {
            "" if !self.is_typing => String::new(),
            filter => format!(", with \"{filter}\""),
        };
        let frozen = if self.is_frozen { ", frozen" } else { "" };
        format!("slipring top: {} flows by {sort}{filter}{frozen}", table.flows.len())
    }

    fn help(&self) -> &'static str {
        if self.is_typing {
            "type a part of an address or command, Enter ends"
        } else {
            "q quit  s sort  / filter  space freeze  arrows scroll"
        }
    }
}
