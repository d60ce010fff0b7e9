//! The parts of an agent that runs, and how they end: with the agent, or because it is turned off.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    builder::Builds,
    drain::Draining,
    ending::{Ended, WIND_UP},
    inbox::Inbox,
    notify::Notifier,
    off::{self, House, OffAgent, Switch, Turns, Why},
    rescue::Rescue,
    signals::Signals,
    store::Store,
    threads::Crew,
    verdicts::Verdicts,
};
use crate::{
    enforce::{ChangedBy, Input},
    ledger::Ledger,
    off::Owner,
    plan::Mode,
    report::OffRow,
};

/// How long verdicts may take to be taken back before the agent goes on to turn itself off. The programs are removed in any case.
const TAKEN_BACK: Duration = Duration::from_secs(5);
/// How long the count of drained destinations may take, which the answer has: a disk that hangs does not hold the verdicts up.
const COUNTED: Duration = Duration::from_millis(200);
/// How long tasks may take to end in order where the agent is turned off: none may attach once all is removed.
const WIND_UP_OFF: Duration = Duration::from_secs(10);

/// The parts of an agent that runs.
pub(super) struct Phase {
    pub(super) crew: Crew,
    pub(super) verdicts: Verdicts,
    pub(super) store: Store,
    pub(super) builds: Arc<Builds>,
    pub(super) draining: Draining,
    pub(super) rescuing: Rescue,
    pub(super) notifier: Option<Notifier>,
}

impl Phase {
    /// Ends all of them.
    pub(super) async fn end(self) {
        // A service manager counts the time of the end from now on.
        self.end_within(WIND_UP, drop).await;
    }

    async fn end_within(self, patience: Duration, notifier: impl FnOnce(Option<Notifier>)) {
        let Self { crew, verdicts, store, builds, draining, rescuing, notifier: tells } = self;
        crew.end();
        notifier(tells);
        builds.end();
        drop(draining);
        drop(rescuing);
        // This comes before the lock is given up: whoever takes over has the verdicts' whole lifetime to do so.
        drop(verdicts);
        store.end(WIND_UP);
        crew.wind_up(patience).await;
    }

    /// Turns the agent off, and stays off until the agent is told to end or is turned on.
    pub(super) async fn off(
        self,
        house: House,
        turns: Turns,
        switch: Switch,
        why: Why,
        signals: &mut Signals,
    ) -> anyhow::Result<Ended> {
        let (off, answer) = match why {
            Why::Request(off, answer) => (Some(off), Some(answer)),
            Why::Settings => (None, None),
        };
        let row = match &off {
            Some(off) => OffRow::of_file(off.clone()),
            None => OffRow::of_settings(jiff::Timestamp::now()),
        };
        tracing::info!(event = "turned-off", by = row.by, reason = row.reason, "the agent is turned off");
        // The ledger is read first: the drain restores, and empties it, once the verdicts are gone.
        let run_dir = house.settings.run_dir.clone();
        let read = house
            .crew
            .blocking("off", move || Ledger::read(&run_dir).map_or(0, |loaded| loaded.entries.len()));
        let drained = timeout(COUNTED, read).await.ok().and_then(Result::ok).unwrap_or(0);
        let saved = async {
            match &off {
                Some(off) => off::save(&house, off).await,
                None => None,
            }
        };
        // No disk holds the verdicts up.
        let (saved, ()) = tokio::join!(saved, observe(&self.verdicts.inbox, &row));
        let mut agent = OffAgent::begin(house, turns, switch, row);
        agent.notify()?;
        self.end_within(WIND_UP_OFF, |notifier| notifier.map(Notifier::leave).unwrap_or_default()).await;
        agent.undo(Owner::Agent).await;
        if let Some(answer) = answer {
            agent.answer(answer, drained, saved.into_iter().collect()).await;
        }
        agent.run(signals).await
    }
}

/// Takes all verdicts back, as far as they can be written.
async fn observe(verdicts: &Inbox, row: &OffRow) {
    let at = row.since.unwrap_or_else(jiff::Timestamp::now);
    verdicts.tell(Input::Mode(Mode::Observe, ChangedBy { by: row.by.clone(), at }));
    let _late = timeout(TAKEN_BACK, verdicts.settled()).await.is_err();
}
