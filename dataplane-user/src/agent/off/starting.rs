//! The end of a start before the agent runs.

use crate::{agent::signals::Signals, off::OffFile};

/// Why a start ends where somebody turns the agent off meanwhile: a command that finds no socket writes the file itself.
pub(in crate::agent) const TURNED_OFF: &str = "`nodefence off`";

/// All that ends a start.
pub(in crate::agent) struct Ends<'a> {
    signals: &'a mut Signals,
    off: OffFile,
}

impl<'a> Ends<'a> {
    pub(in crate::agent) const fn new(signals: &'a mut Signals, off: OffFile) -> Self {
        Self { signals, off }
    }

    /// Waits until the start is to end. Returns why.
    pub(in crate::agent) async fn come(&mut self) -> &'static str {
        tokio::select! {
            biased;
            why = self.signals.come() => why,
            () = self.off.appears() => TURNED_OFF,
        }
    }

    /// Waits for a signal alone.
    pub(in crate::agent) async fn signal(&mut self) -> &'static str {
        self.signals.come().await
    }

    /// Why the start is to end, where it is to end already.
    pub(in crate::agent) async fn came(&mut self) -> Option<&'static str> {
        match self.signals.came().await {
            Some(why) => Some(why),
            None => self.off.is_there().then_some(TURNED_OFF),
        }
    }
}
