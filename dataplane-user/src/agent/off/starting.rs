//! The end of a start before the agent runs.

use tokio::sync::watch;

use crate::{
    agent::{ending::Reason, signals::Signals},
    off::OffFile,
};

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
    pub(in crate::agent) async fn come(&mut self) -> Reason {
        tokio::select! {
            biased;
            name = self.signals.come() => Reason::Signal(name),
            () = self.off.appears() => Reason::TurnedOff,
            () = says_off(self.settings.as_mut()) => Reason::OffBySettings,
        }
    }

    /// Waits for a signal alone.
    pub(in crate::agent) async fn signal(&mut self) -> Reason {
        Reason::Signal(self.signals.come().await)
    }

    /// Why the start is to end, where it is to end already.
    pub(in crate::agent) async fn came(&mut self) -> Option<Reason> {
        match self.signals.came().await {
            Some(name) => Some(Reason::Signal(name)),
            None if self.off.is_there() => Some(Reason::TurnedOff),
            None => self.settings.as_ref().is_some_and(|off| *off.borrow()).then_some(Reason::OffBySettings),
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
