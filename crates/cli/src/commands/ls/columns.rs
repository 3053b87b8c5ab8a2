//! Names side by side, down the columns, as many columns as fit.

use crate::failure::Res;
use crate::output::Out;
use std::io::Write;
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

pub(super) fn show(cells: &[Cell], out: &mut Out) -> Res {
    if cells.is_empty() {
        return Ok(());
    }
    let fits = |rows: usize| {
        let widths = layout(cells, rows);
        widths.iter().sum::<usize>() + GAP * (widths.len() - 1) <= out.width
    };
    // Few rows first, but no more columns than could ever fit: a large directory is laid out in few
    // tries.
    let fewest = cells.len().div_ceil((out.width / (1 + GAP)).max(1)).max(1);
    let rows = (fewest..cells.len()).find(|rows| fits(*rows)).unwrap_or(cells.len());
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
