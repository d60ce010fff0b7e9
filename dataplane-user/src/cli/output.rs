use std::{
    fmt::Display,
    io::{self, Write as _},
};

use super::args::Format;
use crate::report::{Document, Envelope};
use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets};

/// A document as it is printed for programs. `None` where the format is one for people.
pub(super) fn document<T: Document>(format: Format, value: &T) -> anyhow::Result<Option<String>> {
    let envelope = Envelope::new(value);
    Ok(match format {
        Format::Table | Format::Wide | Format::Name => None,
        Format::Json => Some(serde_json::to_string_pretty(&envelope)?),
        Format::Yaml => Some(serde_saphyr::to_string(&envelope)?),
    })
}

/// The error of a command that did its work but could not print the result.
pub(super) const NOT_TAKEN: &str = "what was asked for is done, but standard output does not take the result";

/// Prints a result, as columns by `table` or as one object.
///
/// # Errors
/// Where standard output cannot be written. A reader that went away (`| head`) is no error.
pub(super) fn print<T: Document>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    put(render(format, value, table)?)
}

/// A result as it is printed.
///
/// # Errors
/// Where the result cannot be written as JSON or YAML.
pub(super) fn render<T: Document>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<String> {
    let text = document(format, value)?.unwrap_or_else(|| table(value));
    let text = text.trim_end();
    // A result without rows prints nothing, not even a line feed.
    Ok(if text.is_empty() { String::new() } else { [text, "\n"].concat() })
}

/// Writes a text to standard output.
///
/// # Errors
/// As [`print`].
pub(super) fn put(text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    is_put(text).map(drop)
}

/// Writes a text to standard output. Returns whether somebody still reads.
///
/// # Errors
/// As [`print`].
pub(super) fn is_put(text: impl AsRef<[u8]>) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true).context(NOT_TAKEN),
    }
}

/// Prints a line on standard error. Where that fails the command goes on.
pub(super) fn say(line: &str) {
    let _nobody_listens = writeln!(io::stderr(), "{line}");
}

/// Prints each warning on standard error.
pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        say(&format!("warning: {warning}"));
    }
}

/// The error and its causes, as they may stand on a terminal.
pub(super) fn causes(error: &anyhow::Error) -> String {
    crate::causes::causes(error).lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Columns in kubectl's form: names in capitals, no lines, two spaces between columns.
pub(super) fn columns<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head);
    for row in rows {
        table.add_row(row.map(|cell| printable(&cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Free text as it may stand on a terminal. Characters that would move the cursor, change colours or reverse the line's direction (Unicode
/// control and bidirectional formatting characters) are shown as escapes.
pub(super) fn printable(text: &str) -> String {
    let safe = |letter: char| {
        !letter.is_control()
            && !matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match safe(c) {
            true => out.push(c),
            false => out.extend(c.escape_default()),
        }
    }
    out
}

/// A number and what it counts, as in `1 backend` and `2 backends`.
pub(super) fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if number == N::from(1) => format!("{number} {noun}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {noun}s"),
    }
}

/// The value, or a dash where there is none.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Whether standard output is a terminal on which colours are wanted (<https://no-color.org>).
pub(super) fn colours() -> bool {
    use std::io::IsTerminal as _;
    io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(count(0_usize, "backend"), "0 backends");
        assert_eq!(count(1_u32, "conntrack entry"), "1 conntrack entry");
        assert_eq!(count(2_u64, "conntrack entry"), "2 conntrack entries");
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(printable("disk \u{1b}[2Jgone\r\n\u{202e}x"), "disk \\u{1b}[2Jgone\\r\\n\\u{202e}x");
        assert_eq!(printable("Platte kaputt, größer als ½"), "Platte kaputt, größer als ½");
        let table = columns(["A", "B"], [["x\u{1b}[31m".to_owned(), "two\nlines".to_owned()]]);
        assert_eq!(table, "A            B\nx\\u{1b}[31m  two\\nlines");
        let error = anyhow::anyhow!("line 2:\nname: \u{1b}[2J").context("cannot read it");
        assert_eq!(causes(&error), "cannot read it: line 2:\nname: \\u{1b}[2J");
    }
}
