//! Lines for people. Pure.

use std::collections::BTreeMap;

use crate::cli::output::printable;

/// How many nodes a line names.
const NAMED: usize = 5;

/// Lines as they may stand on a terminal. Reasons and names come from objects that others write: none of them makes a line of its own.
pub(super) fn lines(lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().map(|line| printable(&line)).collect::<Vec<_>>().join("\n")
}

/// The first few of these names.
pub(super) fn named(names: &[String]) -> String {
    let first = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// How many there are of each value.
pub(super) fn counts(counts: &BTreeMap<String, usize>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    counts.iter().map(|(value, number)| format!("{number} {value}")).collect::<Vec<_>>().join(", ")
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
