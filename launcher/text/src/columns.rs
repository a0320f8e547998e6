//! Plain-text tables with aligned columns.

/// Formats rows as a table with aligned columns; the first row is the header. Leaves out columns that have
/// nothing below their header, and trailing spaces.
pub fn lay_out(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let cell = |row: &'_ Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
    let width = |column: usize| {
        let known = rows.iter().skip(1).any(|row| !cell(row, column).is_empty());
        let longest = rows.iter().map(|row| cell(row, column).chars().count()).max();
        longest.filter(|_| known)
    };
    let columns: Vec<(usize, usize)> =
        (0..count).filter_map(|column| Some((column, width(column)?))).collect();
    let line = |row: &Vec<String>| {
        let cells = columns.iter().map(|&(column, width)| format!("{:<width$}", cell(row, column)));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

/// Converts the texts of cells to a row for [`lay_out`].
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_without_anything_in_them_are_left_out() {
        let rows = [row(["a", "none", "long"]), row(["xyz", "", "1"]), row(["", "", ""])];
        assert_eq!(lay_out(&rows), "a    long\nxyz  1\n\n");
        assert_eq!(lay_out(&[]), "");
    }
}
