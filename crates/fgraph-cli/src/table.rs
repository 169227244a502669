//! Tables that fit the terminal.

use crate::error::Error;
use crate::output::{Out, Style};
use crate::text::cut;

/// Rows of numbers with a name at the end.
#[derive(Debug)]
pub(crate) struct Table {
    /// The headings, and how soon a column gives way where there is no room: the highest first.
    columns: Vec<(&'static str, u8)>,
    rows: Vec<Vec<String>>,
}

/// Characters of the last column that are kept before another column gives way.
const LEAST: usize = 24;

impl Table {
    /// A table without rows. Numbers stand at the right; the last column is a text.
    pub(crate) fn new(columns: &[(&'static str, u8)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes all rows.
    pub(crate) fn write(&self, out: &mut Out) -> Result<(), Error> {
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widths = cells.map(|cell| cell.chars().count());
            widths
                .chain([self.columns[column].0.len()])
                .max()
                .unwrap_or(0)
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
        if let Some(width) = out.width {
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
            line.push_str(&cut(&cells(last), room));
            line
        };
        let heading = line(&|column| self.columns[column].0.to_owned());
        out.line(Style::Bold.paint(heading.trim_end()))?;
        for row in &self.rows {
            let cell = |column: usize| row.get(column).cloned().unwrap_or_default();
            out.line(line(&cell).trim_end())?;
        }
        Ok(())
    }
}
