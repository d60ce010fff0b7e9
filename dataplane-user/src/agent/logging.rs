//! What of the log can be asked and changed while the agent runs.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::ErrorCounter;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::{
    enforce::ChangedBy,
    report::{Adjusted, ErrorKind, Failure},
};

/// What a directive without a target may be.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What is logged, and how much was lost.
#[derive(Clone, Debug)]
pub struct Logging {
    lost: ErrorCounter,
    filter: reload::Handle<EnvFilter, Registry>,
    started: String,
    changed: Arc<watch::Sender<Option<ChangedBy>>>,
}

impl Logging {
    /// By this filter as it is now.
    pub fn new(lost: ErrorCounter, filter: reload::Handle<EnvFilter, Registry>) -> Self {
        let started = text(&filter);
        Self { lost, filter, started, changed: Arc::new(watch::Sender::new(None)) }
    }

    /// How many lines were lost, since nobody read those before.
    pub(super) fn lost(&self) -> usize {
        self.lost.dropped_lines()
    }

    /// What is logged, and who changed it.
    pub(super) fn row(&self) -> Adjusted<String> {
        let changed = self.changed.borrow().clone();
        Adjusted { started: self.started.clone(), set: text(&self.filter), changed }
    }

    /// From now on this is logged. What is so already is no change. `tell`: said of a change before it is made, since afterwards it may not be logged any more.
    pub(super) fn set(&self, level: &str, by: ChangedBy, tell: impl FnOnce()) -> Result<(), Failure> {
        let filter = filter(level).map_err(|why| Failure::new(ErrorKind::Invalid, why))?;
        let before = text(&self.filter);
        if filter.to_string() != before {
            tell();
        }
        self.filter.reload(filter).map_err(Failure::failed)?;
        // What libraries log by another crate is dropped there already, by the level that held when this one began.
        log::set_max_level(LevelFilter::current().to_string().parse().unwrap_or(log::LevelFilter::Trace));
        if text(&self.filter) != before {
            self.changed.send_replace(Some(by));
        }
        Ok(())
    }
}

fn text(filter: &reload::Handle<EnvFilter, Registry>) -> String {
    // Fails only where nobody logs any more.
    filter.with_current(ToString::to_string).unwrap_or_default()
}

/// A word alone would be taken for the name of a part of the agent, of which all is logged, and of others nothing.
fn filter(level: &str) -> Result<EnvFilter, String> {
    let expected = "expected error, warn, info, debug, trace or off, or directives as in RUST_LOG (info,nodefence::agent=debug)";
    let is_level = |part: &str| LEVELS.contains(&part.trim().to_ascii_lowercase().as_str());
    if let Some(part) = level.split(',').find(|part| !part.contains('=') && !is_level(part)) {
        return Err(format!("log level `{part}`: {expected}"));
    }
    EnvFilter::builder().parse(level).map_err(|error| format!("log level `{level}`: {error}; {expected}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use jiff::Timestamp;
    use tracing_appender::non_blocking::NonBlocking;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

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
