//! Tables that fit the terminal.

use crate::error::Error;
use crate::output::{Out, Style};
use crate::text;

/// Rows of numbers with a name at the end.
#[derive(Debug)]
pub(crate) struct Table {
    /// The headings, with each column's priority for being left out if there is no room: the
    /// highest goes first.
    columns: Vec<(String, u8)>,
    rows: Vec<Vec<String>>,
    /// Lines below a row, by its number from 1.
    notes: Vec<(usize, String)>,
}

/// Before lines below a row.
const INDENT: &str = "    ";

/// Characters of the last column that are kept before another column is left out.
const LEAST: usize = 24;

impl Table {
    /// Makes a table without rows. Numbers are right-aligned; the last column is a text.
    pub(crate) fn new(columns: &[(&str, u8)]) -> Self {
        let column = |&(heading, way): &(&str, u8)| (heading.to_owned(), way);
        Self {
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Adds a line below the last row.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push((self.rows.len(), text));
    }

    /// Writes all rows.
    pub(crate) fn write(&self, out: &mut Out) -> Result<(), Error> {
        let mut lines = self.lines(out.width).into_iter();
        if let Some(heading) = lines.next() {
            out.line(Style::Bold.paint(heading))?;
        }
        lines.try_for_each(|line| out.line(line))
    }

    /// Returns the heading and all rows, as far as they fit in this number of columns.
    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<String> {
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let headings = [&self.columns[column].0];
            let widths = cells.chain(headings).map(|cell| text::width(cell));
            widths.max().unwrap_or(0)
        };
        let last = self.columns.len() - 1;
        let widths: Vec<usize> = (0..last).map(width_of).collect();
        let mut shown: Vec<usize> = (0..last).collect();
        let used = |shown: &[usize]| {
            shown
                .iter()
                .map(|&column| widths[column] + 2)
                .sum::<usize>()
        };
        let mut room = usize::MAX;
        if let Some(width) = width {
            while used(&shown) + LEAST > width && shown.len() > 1 {
                let gives_way = |&&column: &&usize| self.columns[column].1;
                let Some(&goes) = shown.iter().max_by_key(gives_way) else {
                    break;
                };
                shown.retain(|&column| column != goes);
            }
            if used(&shown) + 4 > width {
                shown.clear();
            }
            room = width.saturating_sub(used(&shown)).max(1);
        }
        let line = |cells: &dyn Fn(usize) -> String| {
            let mut line = String::new();
            for &column in &shown {
                let width = widths[column];
                line.push_str(&format!("{:>width$}  ", cells(column)));
            }
            line.push_str(&text::cut(&cells(last), room));
            line.truncate(line.trim_end().len());
            line
        };
        let mut lines = vec![line(&|column| self.columns[column].0.clone())];
        let mut notes = self.notes.iter().peekable();
        for (number, row) in (1..).zip(&self.rows) {
            let cell = |column: usize| row.get(column).cloned().unwrap_or_default();
            lines.push(line(&cell));
            while let Some((_, note)) = notes.next_if(|(row, _)| *row <= number) {
                let note = format!("{INDENT}{note}");
                lines.push(text::cut(&note, width.unwrap_or(usize::MAX)).into_owned());
            }
        }
        lines
    }
}
