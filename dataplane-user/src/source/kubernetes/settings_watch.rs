//! The watch of the settings. It goes on while the agent is off, since the settings turn agents off and on.

use anyhow::Context as _;
use kube::{Api, runtime::watcher};
use tokio::{
    sync::{mpsc, watch},
    time::{Duration, MissedTickBehavior, interval},
};

use super::{
    client::{ApiServer, config, watching_client},
    date::ServerClock,
    follow::follow,
    news::{Heard, Kind, Told, WAITING, Watch},
    pace::Pace,
    settings::{Settings, SettingsChange},
    wire,
};
use crate::crds::SETTINGS_NAME;

/// How often is looked whether the API server was heard.
const LOOK: Duration = Duration::from_secs(1);
/// How many messages are taken together.
const TOGETHER: usize = 64;

/// What is known of the settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SettingsNow {
    /// The settings.
    pub(super) settings: Settings,
    /// The watch has failed, and was not heard since.
    pub(super) has_failed: bool,
    /// Why they cannot be watched now.
    pub(super) away: Option<String>,
}

impl SettingsNow {
    /// Whether the settings were read, or are not to be had now.
    pub(crate) const fn is_known(&self) -> bool {
        self.settings.are_listed() || self.has_failed
    }

    /// Whether the settings turn the agent off. `None` where nothing could be read that says so or otherwise.
    pub(crate) fn off(&self) -> Option<bool> {
        self.settings.off()
    }
}

/// The receivers' end of the watch.
#[derive(Clone, Debug)]
pub(crate) struct SettingsEnd {
    /// What is known now.
    pub(crate) now: watch::Receiver<SettingsNow>,
    /// The API server's clock, by its answers to this watch.
    pub(super) clock: ServerClock,
}

/// Reads how the API server is reached. Returns the end from which the settings come, and the work that fills it: it goes on for ever.
///
/// # Errors
/// Where the configuration cannot be read. The API server need not answer.
pub(super) async fn watch_settings(
    server: &ApiServer,
    pace: Pace,
) -> anyhow::Result<(SettingsEnd, impl Future<Output = ()> + Send + 'static)> {
    let config = config(server).await?;
    let heard = Heard::default();
    let clock = ServerClock::default();
    let client = watching_client(&config, &heard, &clock, pace).with_context(|| server.origin())?;
    let settings: Api<wire::Settings> = Api::all(client);
    let the_one = watcher::Config::default().fields(&format!("metadata.name={SETTINGS_NAME}"));
    let (to, told) = mpsc::channel(WAITING);
    let (says, now) = watch::channel(SettingsNow::default());
    let owner =
        SettingsWatch { settings: Settings::default(), watch: Watch::new(Kind::Settings, heard), says };
    let work = async move {
        tokio::join!(owner.carry(told), follow(Kind::Settings, settings, (the_one, pace), to));
    };
    Ok((SettingsEnd { now, clock }, work))
}

/// The owner of what is known of the settings.
struct SettingsWatch {
    settings: Settings,
    watch: Watch,
    says: watch::Sender<SettingsNow>,
}

impl SettingsWatch {
    /// Takes what the watch tells, for ever.
    async fn carry(mut self, mut told: mpsc::Receiver<(Kind, Told<SettingsChange>)>) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut taken = Vec::new();
        loop {
            tokio::select! {
                count = told.recv_many(&mut taken, TOGETHER) => if count == 0 { return },
                _ = look.tick() => self.watch.look(),
            }
            for (_, told) in taken.drain(..) {
                let changes = self.watch.take(told, SettingsChange::All(Vec::new()));
                self.settings.take(changes);
            }
            self.say();
        }
    }

    /// Tells what changed.
    fn say(&self) {
        let now = SettingsNow {
            settings: self.settings.clone(),
            has_failed: self.watch.has_failed(),
            away: self.watch.away(),
        };
        self.says.send_if_modified(|before| {
            let is_other = *before != now;
            *before = now;
            is_other
        });
    }
}
