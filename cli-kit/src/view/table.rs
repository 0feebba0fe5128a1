//! Formats tables with aligned columns.

use super::style::{Role, Style};
use crate::text::plain;

/// Number of spaces between two columns.
const GAP: usize = 3;

/// Minimum width of a column truncated by [`Table::fit`], in characters.
const LEAST: usize = 9;

/// Rows of cells; each cell is text and its role.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<(String, Role)>>,
    indent: usize,
}

/// Method by which a column is fitted to a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The column is never shortened.
    Whole,
    /// Long cells are truncated.
    Cut,
    /// Long cells are truncated; if that is not enough, columns are dropped, the highest number first.
    Drop(u8),
}

impl Table {
    /// Creates a table with a heading, indented by `indent` columns.
    pub fn with_heading(indent: usize, heading: &[&str]) -> Self {
        let heading = heading.iter().map(|text| ((*text).to_owned(), Role::Heading)).collect();
        Self { rows: vec![heading], indent }
    }

    /// Creates a table without a heading, for names and values.
    pub fn bare(indent: usize) -> Self {
        Self { rows: Vec::new(), indent }
    }

    /// Adds a row. The text is sanitized by [`plain`].
    pub fn row(&mut self, cells: impl IntoIterator<Item = (String, Role)>) {
        self.rows.push(cells.into_iter().map(|(text, role)| (plain(&text), role)).collect());
    }

    /// Adds a name and its value.
    pub fn pair(&mut self, name: &str, value: impl Into<String>) {
        self.row([(name.to_owned(), Role::Faint), (value.into(), Role::Plain)]);
    }

    /// Fits the table to a width by truncating cells and dropping columns, as far as `fits` allows.
    pub fn fit(&mut self, width: usize, fits: &[Fit]) {
        let mut fits = fits.to_vec();
        let cut = |widths: &[usize], fits: &[Fit]| -> Vec<usize> {
            let least = |(width, fit): (&usize, &Fit)| if *fit == Fit::Whole { *width } else { (*width).min(LEAST) };
            widths.iter().zip(fits).map(least).collect()
        };
        let mut widths = self.widths();
        while self.total(&cut(&widths, &fits)) > width {
            let rank = |fit: &Fit| if let Fit::Drop(rank) = fit { Some(*rank) } else { None };
            let last = (0..widths.len()).filter_map(|at| Some((rank(fits.get(at)?)?, at))).max();
            let Some((_, at)) = last else { break };
            self.rows.iter_mut().filter(|row| at < row.len()).for_each(|row| drop(row.remove(at)));
            fits.remove(at);
            widths = self.widths();
        }
        let least = cut(&widths, &fits);
        while self.total(&widths) > width {
            let widest = (0..widths.len()).filter(|at| widths[*at] > least[*at]).max_by_key(|at| widths[*at]);
            let Some(at) = widest else { break };
            widths[at] -= 1;
        }
        for ((cell, _), width) in self.rows.iter_mut().flat_map(|row| row.iter_mut().zip(&widths)) {
            if cell.chars().count() > *width {
                *cell = cell.chars().take(width.saturating_sub(1)).chain(['…']).collect();
            }
        }
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns the width of the longest line, in characters.
    pub fn width(&self) -> usize {
        self.total(&self.widths())
    }

    /// Returns the width of each column, in characters.
    fn widths(&self) -> Vec<usize> {
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.0.chars().count()).max();
        (0..self.columns()).map(|column| width(column).unwrap_or(0)).collect()
    }

    /// Returns the width of a line with columns of these widths.
    fn total(&self, widths: &[usize]) -> usize {
        self.indent + widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
    }

    /// Returns true if the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn render(&self, style: Style) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in &self.rows {
            // No trailing spaces: they would wrap on a narrow terminal.
            let last = row.iter().rposition(|cell| !cell.0.is_empty()).map_or(0, |at| at + 1);
            let mut pending = if last > 0 { self.indent } else { 0 };
            for ((cell, role), width) in row[..last].iter().zip(&widths) {
                text.extend(std::iter::repeat_n(' ', pending));
                style.paint_onto(&mut text, *role, cell);
                pending = width - cell.chars().count() + GAP;
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_cuts_cells_and_drops_columns() {
        let table = |width| {
            let mut table = Table::with_heading(0, &["ID", "STATE", "COMMAND", "LABELS"]);
            let cells = ["a-long-id-of-a-user", "running (not ready)", "/bin/a-long-command", "a=b"];
            table.row(cells.map(|text| (text.to_owned(), Role::Plain)));
            table.fit(width, &[Fit::Whole, Fit::Cut, Fit::Drop(1), Fit::Drop(2)]);
            table.render(Style::PLAIN)
        };
        assert_eq!(
            table(80).lines().nth(1),
            Some("a-long-id-of-a-user   running (not ready)   /bin/a-long-command   a=b")
        );
        assert_eq!(table(60).lines().nth(1), Some("a-long-id-of-a-user   running (not…   /bin/a-long-…   a=b"));
        assert_eq!(table(45).lines().nth(1), Some("a-long-id-of-a-user   running (…   /bin/a-lo…"));
        assert_eq!(table(40).lines().next(), Some("ID                    STATE"));
        assert_eq!(table(1).lines().nth(1), Some("a-long-id-of-a-user   running …"));
    }

    #[test]
    fn table_columns_align_without_trailing_spaces() {
        let mut table = Table::with_heading(2, &["ID", "STATE", "LABELS"]);
        table.row([("web-1".into(), Role::Plain), ("running".into(), Role::Good), ("ä=ö".into(), Role::Plain)]);
        table.row([("x".into(), Role::Plain), ("wiping".into(), Role::Plain), (String::new(), Role::Plain)]);
        assert_eq!(
            table.render(Style::PLAIN),
            "  ID      STATE     LABELS\n  web-1   running   ä=ö\n  x       wiping\n"
        );
        // Colours have no width.
        let coloured = table.render(Style::COLOURED);
        let stripped = coloured.replace("\u{1b}[32m", "").replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert_eq!(stripped, table.render(Style::PLAIN));
    }
}
