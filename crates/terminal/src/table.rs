//! Tables in plain text, without characters that disturb a pipe or `awk`.

/// A table under construction.
#[derive(Debug, Default)]
pub struct Table {
    header: Vec<String>,
    words: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table. Columns whose name begins with `<` have words, and are aligned left. The
    /// other columns have numbers.
    pub fn new(columns: &[&str]) -> Table {
        Table {
            header: columns
                .iter()
                .map(|c| c.trim_start_matches('<').to_string())
                .collect(),
            words: columns.iter().map(|c| c.starts_with('<')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells stay empty.
    pub fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.header.len(), String::new());
        self.rows.push(cells);
    }

    /// Returns the table as lines, each ended by a newline.
    pub fn render(&self) -> String {
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .chain([self.header[column].chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let mut out = String::new();
        let mut line = |cells: &[String]| {
            let mut text = String::new();
            for (column, cell) in cells.iter().enumerate() {
                if column > 0 {
                    text.push_str("  ");
                }
                let pad = " ".repeat(widths[column] - cell.chars().count());
                if self.words[column] {
                    text.push_str(cell);
                    text.push_str(&pad);
                } else {
                    text.push_str(&pad);
                    text.push_str(cell);
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line(&self.header);
        line(&widths.iter().map(|w| "-".repeat(*w)).collect::<Vec<_>>());
        for row in &self.rows {
            line(row);
        }
        out
    }
}

/// Returns lines of `name value`, with the values aligned.
pub fn facts(pairs: &[(&str, String)]) -> String {
    let width = pairs
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    pairs
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned() {
        let mut table = Table::new(&["<name", "qps"]);
        table.row(vec!["a".into(), "12".into()]);
        table.row(vec!["longer".into(), "12345".into()]);
        table.row(vec!["µ".into()]);
        assert_eq!(
            table.render(),
            "name      qps\n------  -----\na          12\nlonger  12345\nµ\n"
        );
    }

    #[test]
    fn facts_line_up() {
        assert_eq!(
            facts(&[("a", "1".into()), ("abc", "2".into())]),
            "a    1\nabc  2\n"
        );
    }
}
