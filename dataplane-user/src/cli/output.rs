use std::io::{self, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::args::Format;

/// Prints a result: as columns by `table`, or as it is.
///
/// # Errors
/// Where standard output does not take it. A reader that went away (`| head`) is no error.
pub(super) fn print<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let text = match format {
        Format::Table => table(value),
        Format::Json => serde_json::to_string_pretty(value)?,
        Format::Yaml => serde_saphyr::to_string(value)?,
    };
    let mut out = io::stdout().lock();
    let done = out.write_all(text.trim_end().as_bytes()).and_then(|()| out.write_all(b"\n"));
    match done.and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => Ok(done?),
    }
}

/// Columns as kubectl prints them: a head in capitals, no lines, two spaces between.
pub(super) fn columns<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// What is not there.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Whole seconds, as in `1m 30s`.
pub(super) fn seconds(seconds: u64) -> String {
    humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string()
}

/// Whether standard output is a terminal that wants colours (<https://no-color.org>).
pub(super) fn colours() -> bool {
    use std::io::IsTerminal as _;
    io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
