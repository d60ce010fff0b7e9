//! The end of a start before the agent runs.

use tokio::sync::watch;

use crate::{agent::signals::Signals, off::OffFile};

/// Why a start ends where somebody turns the agent off meanwhile: a command that finds no socket writes the file itself.
pub(in crate::agent) const TURNED_OFF: &str = "`nodefence off`";

/// Why a start ends where the settings in the API server turn the agent off meanwhile.
pub(in crate::agent) const OFF_BY_SETTINGS: &str = "the settings in the API server";

/// All that ends a start.
pub(in crate::agent) struct Ends<'a> {
    signals: &'a mut Signals,
    off: OffFile,
    /// Whether the settings turn the agent off, once they are followed.
    settings: Option<watch::Receiver<bool>>,
}

impl<'a> Ends<'a> {
    pub(in crate::agent) const fn new(signals: &'a mut Signals, off: OffFile) -> Self {
        Self { signals, off, settings: None }
    }

    /// The start ends from now on, too, where the settings turn the agent off.
    pub(in crate::agent) fn follow(&mut self, settings: watch::Receiver<bool>) {
        self.settings = Some(settings);
    }

    /// Waits until the start is to end. Returns why.
    pub(in crate::agent) async fn come(&mut self) -> &'static str {
        tokio::select! {
            biased;
            why = self.signals.come() => why,
            () = self.off.appears() => TURNED_OFF,
            () = says_off(self.settings.as_mut()) => OFF_BY_SETTINGS,
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
            None if self.off.is_there() => Some(TURNED_OFF),
            None => self.settings.as_ref().is_some_and(|off| *off.borrow()).then_some(OFF_BY_SETTINGS),
        }
    }
}

/// Returns once the settings turn the agent off.
async fn says_off(settings: Option<&mut watch::Receiver<bool>>) {
    if let Some(settings) = settings
        && settings.wait_for(|off| *off).await.is_ok()
    {
        return;
    }
    // Nobody follows them.
    std::future::pending().await
}
