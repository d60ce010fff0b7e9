//! Lines for people. Pure.

use crate::cli::output::printable;

/// Lines as they may stand on a terminal. Reasons and names come from objects that others write: none of them makes a line of its own.
pub(super) fn lines(lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().map(|line| printable(&line)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_objects_say_makes_no_line() {
        let found = lines(["disk\nproblem".to_owned(), "\u{1b}[2J".to_owned()]);
        assert_eq!(found, "disk\\nproblem\n\\u{1b}[2J");
    }
}
