//! Aligned columns.

use super::style::{Role, Style};
use crate::text::plain;

/// Between two columns.
const GAP: usize = 3;

/// Rows of cells; a cell is text and its role.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<(String, Role)>>,
    indent: usize,
}

impl Table {
    /// A table with a heading, `indent` columns from the left.
    pub fn with_heading(indent: usize, heading: &[&str]) -> Self {
        let heading = heading.iter().map(|text| ((*text).to_owned(), Role::Heading)).collect();
        Self { rows: vec![heading], indent }
    }

    /// A table without one: names and values.
    pub fn bare(indent: usize) -> Self {
        Self { rows: Vec::new(), indent }
    }

    /// Adds a row. Text is made [`plain`] here.
    pub fn row(&mut self, cells: impl IntoIterator<Item = (String, Role)>) {
        self.rows.push(cells.into_iter().map(|(text, role)| (plain(&text), role)).collect());
    }

    /// Adds a name and its value.
    pub fn pair(&mut self, name: &str, value: impl Into<String>) {
        self.row([(name.to_owned(), Role::Faint), (value.into(), Role::Plain)]);
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn render(&self, style: Style) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.0.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            // Nothing but spaces may not end a line: it would wrap on a narrow terminal.
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
    fn columns_line_up_and_lines_end_without_spaces() {
        let mut table = Table::with_heading(2, &["ID", "STATE", "LABELS"]);
        table.row([("web-1".into(), Role::Plain), ("running".into(), Role::Good), ("ä=ö".into(), Role::Plain)]);
        table.row([("x".into(), Role::Plain), ("wiping".into(), Role::Plain), (String::new(), Role::Plain)]);
        assert_eq!(
            table.render(Style::PLAIN),
            "  ID      STATE     LABELS\n  web-1   running   ä=ö\n  x       wiping\n"
        );
        // Colour takes no room.
        let coloured = table.render(Style::COLOURED);
        let stripped = coloured.replace("\u{1b}[32m", "").replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert_eq!(stripped, table.render(Style::PLAIN));
    }
}
