//! Hands flags and settings of the API server to the Enforcer, past the views: one flag reaches the maps at once.

use std::sync::Arc;

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Duration, MissedTickBehavior, interval},
};

use super::{
    date::ServerClock,
    flags::{FlagChange, Flags},
    machines::Machines,
    news::{Heard, Kind, Told, Watch},
    settings::SettingsTold,
    settings_watch::SettingsNow,
};
use crate::{enforce::Input, flags::now};

/// How often is looked whether the API server was heard.
const LOOK: Duration = Duration::from_secs(1);
/// How many messages are taken together.
const TOGETHER: usize = 64;

/// Takes what the Enforcer is to be told. Never blocks.
pub(crate) type Tell = Box<dyn Fn(Input) + Send>;

/// What the API server says of flags and settings, for `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrdersRow {
    /// The settings say that nothing is to be attached to the kernel.
    pub(crate) off: bool,
    /// Why the newest settings cannot be read.
    pub(crate) problem: Option<String>,
    /// Why flags or settings cannot be watched now.
    pub(crate) away: Option<String>,
    /// All that there is was told, or is not to be had now. A start waits a moment for this.
    pub(crate) is_known: bool,
    /// NodeFlags that mean nothing since they cannot be read, and why.
    pub(crate) ignored: Vec<(Arc<str>, String)>,
    /// NodeFlags whose machine is gone, or was never there, and why.
    pub(crate) without_machine: Vec<(Arc<str>, String)>,
}

/// The receivers' end.
pub(crate) struct OrdersEnd {
    /// Where all is to be told; until this is sent, nothing is told.
    pub(crate) begins: oneshot::Sender<Tell>,
    pub(crate) row: watch::Receiver<OrdersRow>,
}

/// The owner of what is known of flags and settings.
pub(super) struct Orders {
    clock: ServerClock,
    machines: watch::Receiver<Machines>,
    flags: Flags,
    /// What is known of the settings, whose watch goes on while the agent is off.
    settings: watch::Receiver<SettingsNow>,
    settings_told: SettingsTold,
    of_flags: Watch,
    row: watch::Sender<OrdersRow>,
    tell: Option<Tell>,
}

impl Orders {
    /// `of_flags`: when the API server was heard on the watch of flags.
    pub(super) fn new(
        clock: ServerClock,
        machines: watch::Receiver<Machines>,
        of_flags: Heard,
        settings: watch::Receiver<SettingsNow>,
    ) -> (Self, watch::Receiver<OrdersRow>) {
        let (row, told) = watch::channel(OrdersRow::default());
        let this = Self {
            clock,
            machines,
            flags: Flags::default(),
            settings,
            settings_told: SettingsTold::default(),
            of_flags: Watch::new(Kind::Flags, of_flags),
            row,
            tell: None,
        };
        (this, told)
    }

    /// Takes what the watches tell, for ever.
    pub(super) async fn carry(
        mut self,
        mut flags: mpsc::Receiver<(Kind, Told<FlagChange>)>,
        mut begins: oneshot::Receiver<Tell>,
    ) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut clock = self.clock.changes();
        let mut of_flags = Vec::new();
        loop {
            tokio::select! {
                count = flags.recv_many(&mut of_flags, TOGETHER) => if count == 0 { return },
                // The watch of the settings ends with the agent.
                changed = self.settings.changed() => if changed.is_err() { return },
                // The member's end is told by the owner of views, who lives as long as this task.
                changed = self.machines.changed() => if changed.is_err() { return },
                _changed = clock.changed() => {}
                begun = &mut begins, if self.tell.is_none() => match begun {
                    Ok(tell) => self.tell = Some(tell),
                    // The start has failed, and the agent ends.
                    Err(_) => return,
                },
                _ = look.tick() => self.of_flags.look(),
            }
            for (_, told) in of_flags.drain(..) {
                let changes = self.of_flags.take(told, FlagChange::All(Vec::new()));
                changes.into_iter().for_each(|change| self.flags.take(change));
            }
            self.say();
        }
    }

    /// The flags that mean nothing, since they cannot be read, or else since their machine is not there.
    fn ignored(&self, is_unreadable: bool) -> Vec<(Arc<str>, String)> {
        let those = self.flags.ignored().filter(|(_, why)| why.is_unreadable() == is_unreadable);
        those.map(|(name, why)| (Arc::clone(name), why.to_string())).collect()
    }

    /// Tells what changed.
    fn say(&mut self) {
        let now = now();
        let clock = self.clock.read(now);
        let SettingsNow { settings, has_failed, away } = self.settings.borrow_and_update().clone();
        if let Some(tell) = &self.tell {
            // Settings first: a flag that comes with them is carried out as they say.
            self.settings_told.news(&settings, clock).into_iter().for_each(tell);
            let inputs = self.flags.news(&self.machines.borrow_and_update(), clock, now);
            inputs.into_iter().for_each(tell);
        }
        for (name, why) in self.flags.newly_ignored() {
            if why.is_unreadable() {
                tracing::warn!(event = "flag-ignored", flag = &*name, problem = %why, "a NodeFlag means nothing here");
            } else {
                tracing::info!(
                    event = "flag-without-machine",
                    flag = &*name,
                    why = %why,
                    "a NodeFlag means nothing: its machine is not there"
                );
            }
        }
        let row = OrdersRow {
            off: settings.off() == Some(true),
            is_known: (self.settings_told.is_told() || has_failed)
                && (self.flags.is_told() || self.of_flags.has_failed()),
            problem: settings.problem().map(str::to_owned),
            away: self.of_flags.away().or(away),
            ignored: self.ignored(true),
            without_machine: self.ignored(false),
        };
        self.row.send_if_modified(|before| {
            let is_other = *before != row;
            *before = row;
            is_other
        });
    }
}
