//! The log's filter, which can be read and changed while the agent runs.

use std::{ffi::OsStr, sync::Arc};

use tokio::sync::watch;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::ErrorCounter;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::{
    enforce::ChangedBy,
    report::{Adjusted, ErrorKind, Failure},
};

/// The directives that need no target.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The variable `RUST_LOG` has a value that is no filter.
#[derive(Debug, thiserror::Error)]
#[error("RUST_LOG: {0}")]
pub struct FilterError(String);

/// The log's filter, and how many lines were lost.
#[derive(Clone, Debug)]
pub struct Logging {
    lost: ErrorCounter,
    filter: reload::Handle<EnvFilter, Registry>,
    started: String,
    changed: Arc<watch::Sender<Option<ChangedBy>>>,
}

impl Logging {
    /// `filter` as it is now counts as the one that the agent started with.
    pub fn new(lost: ErrorCounter, filter: reload::Handle<EnvFilter, Registry>) -> Self {
        let started = text(&filter);
        Self { lost, filter, started, changed: Arc::new(watch::Sender::new(None)) }
    }

    /// The filter with which the log begins, by the variable `RUST_LOG`. An empty variable counts as none, as those of options do.
    ///
    /// # Errors
    /// Fails if the value is no filter.
    pub fn first_filter(variable: Option<&OsStr>) -> Result<EnvFilter, FilterError> {
        match variable.filter(|value| !value.is_empty()) {
            None => Ok(EnvFilter::new("info")),
            Some(value) => filter(&value.to_string_lossy()).map_err(FilterError),
        }
    }

    /// How many lines were lost because nobody read the lines before them.
    pub(super) fn lost(&self) -> usize {
        self.lost.dropped_lines()
    }

    /// The filter, and who changed it.
    pub(super) fn row(&self) -> Adjusted<String> {
        let changed = self.changed.borrow().clone();
        Adjusted { started: self.started.clone(), set: text(&self.filter), changed }
    }

    /// Sets the filter. A filter that holds already is no change. `tell` logs a change before it is made: the new filter may drop
    /// that line.
    pub(super) fn set(&self, level: &str, by: ChangedBy, tell: impl FnOnce()) -> Result<(), Failure> {
        let filter = filter(level).map_err(|why| Failure::new(ErrorKind::Invalid, why))?;
        let before = text(&self.filter);
        if filter.to_string() != before {
            tell();
        }
        self.filter.reload(filter).map_err(Failure::failed)?;
        // Lines that libraries log through the crate `log` would otherwise be dropped there, by the level that the agent started with.
        log::set_max_level(LevelFilter::current().to_string().parse().unwrap_or(log::LevelFilter::Trace));
        if text(&self.filter) != before {
            self.changed.send_replace(Some(by));
        }
        Ok(())
    }
}

fn text(filter: &reload::Handle<EnvFilter, Registry>) -> String {
    // This fails only where nothing is logged any more.
    filter.with_current(ToString::to_string).unwrap_or_default()
}

/// Reads a filter. A word that is no level is refused: `EnvFilter` would take it for a target, and log all of that target and
/// nothing of others.
fn filter(level: &str) -> Result<EnvFilter, String> {
    let expected =
        "expected error, warn, info, debug, trace or off, or directives as in info,nodefence::agent=debug";
    let is_level = |part: &str| LEVELS.contains(&part.to_ascii_lowercase().as_str());
    let is_directive = |part: &str| {
        let is_plain = !part.contains(|letter: char| letter.is_whitespace() || letter.is_control());
        is_plain && part.split_once('=').is_some_and(|(_, level)| !level.is_empty())
    };
    let parts: Vec<&str> = level.split(',').map(str::trim).collect();
    if let Some(part) = parts.iter().find(|part| !is_level(part) && !is_directive(part)) {
        return Err(format!("log level `{}`: {expected}", part.escape_debug()));
    }
    EnvFilter::builder()
        .parse(parts.join(","))
        .map_err(|error| format!("log level `{level}`: {error}; {expected}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use jiff::Timestamp;
    use tracing_appender::non_blocking::NonBlocking;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn an_empty_variable_counts_as_none_and_a_wrong_one_is_refused() {
        let first =
            |value: &str| Logging::first_filter(Some(OsStr::new(value))).map(|filter| filter.to_string());
        assert_eq!(Logging::first_filter(None).unwrap().to_string(), "info");
        assert_eq!(first("").unwrap(), "info");
        assert_eq!(first("warn").unwrap(), "warn");
        for wrong in ["debgu", "nodefence=loud", "info,"] {
            let text = first(wrong).unwrap_err().to_string();
            assert!(
                text.starts_with("RUST_LOG: log level `") && text.contains("expected error, warn"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_level_holds_until_the_next_and_nonsense_changes_nothing() {
        let (layer, handle) = reload::Layer::new(EnvFilter::new("info"));
        let (writer, _worker) = NonBlocking::new(std::io::sink());
        let logging = Logging::new(writer.error_counter(), handle);
        let subscriber = tracing_subscriber::registry().with(layer);
        let by = |uid: u32| ChangedBy { by: format!("user {uid}"), at: Timestamp::UNIX_EPOCH };
        let told = Cell::new(false);
        tracing::subscriber::with_default(subscriber, || {
            assert!(!tracing::enabled!(tracing::Level::DEBUG));
            let row = |set: &str, changed| Adjusted { started: "info".into(), set: set.into(), changed };
            assert_eq!(logging.row(), row("info", None));
            logging.set("info", by(1), || panic!("no change")).unwrap();
            assert_eq!(logging.row(), row("info", None), "no change");
            logging.set("debug", by(2), || told.set(true)).unwrap();
            assert!(told.get());
            assert!(tracing::enabled!(tracing::Level::DEBUG));
            assert_eq!(logging.row(), row("debug", Some(by(2))));
            for nonsense in ["debgu", "", "info,nodefence", "nodefence=loud", "info,,debug"] {
                let failure = logging.set(nonsense, by(3), || panic!("no change")).unwrap_err();
                assert_eq!(failure.kind, ErrorKind::Invalid);
                assert!(failure.message.contains("expected error, warn, info"), "{failure}");
            }
            assert_eq!(logging.row(), row("debug", Some(by(2))));
            logging.set("WARN,nodefence::agent=trace", by(4), || {}).unwrap();
            assert_eq!(logging.row(), row("nodefence::agent=trace,warn", Some(by(4))));
        });
    }
}
