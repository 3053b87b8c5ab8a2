//! Names side by side, down the columns, as many columns as fit.

use crate::failure::Res;
use crate::output::Out;
use unicode_width::UnicodeWidthStr;

/// A name as it is printed, and how wide it is on the screen.
pub(super) struct Cell {
    pub(super) text: Vec<u8>,
    pub(super) width: usize,
}

/// Columns of the screen that a name takes.
pub(super) fn width(name: &[u8]) -> usize {
    String::from_utf8_lossy(name).width()
}

const GAP: usize = 2;

/// Returns the width of each column if `cells` stand in `rows` rows.
fn layout(cells: &[Cell], rows: usize) -> Vec<usize> {
    cells.chunks(rows).map(|column| column.iter().map(|c| c.width).max().unwrap_or(0)).collect()
}

/// Returns in how many rows so many names stand on a screen of `width` columns. `fits` says whether
/// a number of rows is enough, and looks at all names for that.
fn rows(names: usize, width: usize, mut fits: impl FnMut(usize) -> bool) -> usize {
    // A try for each number of columns that may fit, not for each number of rows.
    let most = (width / (1 + GAP)).clamp(1, names.max(1));
    (1..=most).rev().map(|columns| names.div_ceil(columns)).find(|rows| fits(*rows)).unwrap_or(names)
}

pub(super) fn show(cells: &[Cell], out: &mut Out) -> Res {
    if cells.is_empty() {
        return Ok(());
    }
    let rows = rows(cells.len(), out.width, |rows| {
        let widths = layout(cells, rows);
        widths.iter().sum::<usize>() + GAP * (widths.len() - 1) <= out.width
    });
    let widths = layout(cells, rows);
    for row in 0..rows {
        let mut line = Vec::new();
        let mut pad = 0;
        for (column, width) in widths.iter().enumerate() {
            let Some(cell) = cells.get(column * rows + row) else { break };
            line.resize(line.len() + pad, b' ');
            line.extend_from_slice(&cell.text);
            pad = width - cell.width + GAP;
        }
        line.push(b'\n');
        out.write_all(&line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_directory_is_laid_out_in_few_tries() {
        let mut tries = 0;
        let none_fits = |_| {
            tries += 1;
            false
        };
        assert_eq!(rows(1_000_000, 80, none_fits), 1_000_000);
        assert!(tries <= 80, "{tries}");
    }

    #[test]
    fn there_are_as_few_rows_as_fit() {
        assert_eq!(rows(10, 80, |_| true), 1);
        assert_eq!(rows(10, 80, |rows| rows >= 3), 3);
        assert_eq!(rows(10, 80, |rows| rows >= 4), 4);
        assert_eq!(rows(10, 1, |_| false), 10);
        assert_eq!(rows(1, 80, |_| false), 1);
    }
}
