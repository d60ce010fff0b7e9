//! The off state without a kernel: nothing here takes anything back, since that would concern this machine.

use std::thread;

use tempfile::TempDir;
use tokio::sync::watch;
use tracing_appender::non_blocking::NonBlocking;
use tracing_subscriber::{EnvFilter, reload};

use super::*;
use crate::{
    agent::{
        logging::Logging,
        settings::{AuditSettings, InterfaceChoice, Settings},
        threads::Crew,
    },
    drain::GuardKind,
    enforce::{Auto, Share},
    plan::{Answer, Mode},
    proxy::ProxyChoice,
    report::{Client, OffStatus, OrOff, Request, Server},
};

fn settings(run_dir: &Path) -> Settings {
    let (_layer, filter) = reload::Layer::new(EnvFilter::new("info"));
    let (writer, _worker) = NonBlocking::new(std::io::sink());
    Settings {
        allow_empty: false,
        interfaces: InterfaceChoice::default(),
        node: None,
        mode: Mode::Enforce,
        auto: Auto::Off,
        auto_limit: Share::default(),
        max_view_age: None,
        force: false,
        answer: Answer::Refuse,
        proxy: ProxyChoice::None,
        conntrack_zone: 0,
        guard: GuardKind::Child,
        audit: AuditSettings::default(),
        compare_every: Duration::from_secs(600),
        view_store_every: Duration::from_secs(60),
        http: None,
        shares: false,
        rescue_per_second: 0,
        options: crate::dataplane::Options::default(),
        run_dir: run_dir.to_owned(),
        socket: run_dir.join("agent.sock"),
        pod_uid: None,
        vacant: Duration::from_secs(10),
        take_over: false,
        log: Logging::new(writer.error_counter(), filter),
    }
}

async fn ended(runs: thread::JoinHandle<anyhow::Result<Ended>>) -> anyhow::Result<Ended> {
    tokio::task::spawn_blocking(move || runs.join().unwrap()).await.unwrap()
}

/// An agent that is off, for as long as it stays so.
struct World {
    folder: TempDir,
    says: watch::Sender<bool>,
    runs: thread::JoinHandle<anyhow::Result<Ended>>,
}

impl World {
    fn new(by_settings: bool) -> Self {
        Self::with(by_settings, Duration::ZERO)
    }

    /// The same, with this time over which agents spread their starts.
    fn with(by_settings: bool, spread: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Arc::new(settings(folder.path()));
        let (says, off) = watch::channel(by_settings);
        let (switch, turns) = Turns::new(off, spread);
        let row = match by_settings {
            true => standing(folder.path(), &turns).unwrap(),
            false => {
                let off = Off::now("root".to_owned(), "why".to_owned());
                OffFile::new(folder.path()).write(&off).unwrap();
                let row = standing(folder.path(), &turns).unwrap();
                assert_eq!(row, OffRow::of_file(off));
                row
            }
        };
        let lock = Lock::take(folder.path(), "").unwrap();
        let server = Server::bind(settings.socket.clone()).unwrap();
        let agent = OffAgent::begin(House::new(Crew::default(), settings, lock, server), turns, switch, row);
        let here = tokio::runtime::Handle::current();
        let runs =
            thread::spawn(move || here.block_on(async { agent.run(&mut Signals::new().unwrap()).await }));
        Self { folder, says, runs }
    }

    async fn ask<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        request: Request,
    ) -> Result<T, String> {
        let socket = self.folder.path().join("agent.sock");
        let asked = tokio::task::spawn_blocking(move || {
            Client::connect(&socket).and_then(|mut client| client.ask(&request))
        });
        asked.await.unwrap().map_err(|error| error.to_string())
    }

    async fn status(&self) -> Box<OffStatus> {
        match self.ask::<OrOff<bool>>(Request::Status).await.unwrap() {
            OrOff::Off(status) => status,
            OrOff::Runs(_) => panic!("it runs"),
        }
    }

    async fn on(&self) -> Result<OnReport, String> {
        self.ask(Request::On { sudo_user: None }).await
    }

    async fn starts_anew(self) {
        let Self { folder, says: _says, runs } = self;
        assert_eq!(ended(runs).await.unwrap(), Ended::Anew);
        assert!(!folder.path().join("agent.sock").exists());
        Lock::take(folder.path(), "").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_turns_it_off_until_a_command_turns_it_on_whatever_the_settings_say() {
    let world = World::new(false);
    let status = world.status().await;
    assert_eq!(
        (status.off.kind, status.off.reason.as_str(), status.taken_back),
        (OffKind::Node, "why", false)
    );
    world.says.send(true).unwrap();
    world.says.send(false).unwrap();
    assert_eq!(world.status().await, status);
    let again: OffReport = world.ask(Request::Off { reason: "x".to_owned(), sudo_user: None }).await.unwrap();
    assert!(again.was_off && again.off == status.off, "{again:?}");
    let refused = world.ask::<bool>(Request::Nodes).await.unwrap_err();
    assert!(refused.ends_with("by root: why; `nodefence on` turns it on"), "{refused}");
    let on = world.on().await.unwrap();
    assert_eq!((on.was, on.still), (Some(status.off), None));
    assert!(!OffFile::new(world.folder.path()).is_there());
    world.starts_anew().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_turn_it_off_until_they_say_otherwise() {
    let world = World::new(true);
    assert_eq!(world.status().await.off.kind, OffKind::Settings);
    assert!(!OffFile::new(world.folder.path()).is_there());
    let refused = world.on().await.unwrap_err();
    assert!(
        refused.contains(
            "by the settings in the API server; `kubectl nodefence mode observe` turns all agents on"
        ),
        "{refused}"
    );
    world.says.send(false).unwrap();
    world.starts_anew().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_and_settings_both_must_turn_it_on() {
    let world = World::new(true);
    let off: OffReport = world.ask(Request::Off { reason: "y".to_owned(), sudo_user: None }).await.unwrap();
    assert!(!off.was_off && off.off.kind == OffKind::Node && OffFile::new(world.folder.path()).is_there());
    let status = world.status().await;
    let both = "`nodefence on` turns it on once the settings in the API server do not turn it off, too";
    assert!(status.why.ends_with(both), "{}", status.why);
    let on = world.on().await.unwrap();
    assert_eq!((on.was, on.still.map(|row| row.kind)), (Some(off.off), Some(OffKind::Settings)));
    assert_eq!(world.status().await.off.kind, OffKind::Settings);
    world.says.send(false).unwrap();
    world.starts_anew().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_nobody_watches_change_nothing() {
    let World { folder, says, runs } = World::new(true);
    drop(says);
    let (says, _off) = watch::channel(true);
    let world = World { folder, says, runs };
    assert_eq!(world.status().await.off.kind, OffKind::Settings);
    assert!(!world.runs.is_finished());
    std::fs::remove_dir_all(world.folder.path()).unwrap();
    ended(world.runs).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_word_outlives_the_run_folder() {
    let world = World::new(false);
    let status = world.status().await;
    std::fs::remove_dir_all(world.folder.path()).unwrap();
    let error = ended(world.runs).await.unwrap_err().to_string();
    assert!(error.contains("agent.sock was removed"), "{error}");
    let off = OffFile::new(world.folder.path()).read().unwrap();
    assert_eq!(OffRow::of_file(off), status.off);
}

#[tokio::test]
async fn an_agent_that_runs_is_turned_off_by_either() {
    let (says, off) = watch::channel(false);
    let (switch, mut turns) = Turns::new(off, Duration::ZERO);
    let asks = switch.clone();
    let on = tokio::spawn(async move { asks.on("root".to_owned()).await });
    let off = Off::now("root".to_owned(), "z".to_owned());
    let told = off.clone();
    // The answer would come once all is taken back.
    let asked = tokio::spawn(async move { switch.off(told).await });
    let Why::Request(wished, _answer) = turns.off().await else { panic!("by the settings") };
    assert_eq!(wished, off);
    assert!(!asked.is_finished());
    says.send(true).unwrap();
    assert!(matches!(turns.off().await, Why::Settings));
    let on = on.await.unwrap().unwrap();
    assert!(on.runs && on.was.is_none());
}

/// So long that nobody waits for it.
const SPREAD: Duration = Duration::from_secs(1_000_000);

#[tokio::test(start_paused = true)]
async fn settings_turn_agents_on_at_different_moments() {
    let mut waited = Vec::new();
    for _ in 0..10 {
        let (says, off) = watch::channel(true);
        let (_switch, mut turns) = Turns::new(off, SPREAD);
        says.send(false).unwrap();
        let begun = tokio::time::Instant::now();
        assert!(matches!(turns.news().await, News::Settings));
        waited.push(begun.elapsed());
    }
    // Timers have milliseconds.
    let within = SPREAD + Duration::from_millis(1);
    assert!(waited.iter().all(|waited| *waited <= within), "{waited:?}");
    waited.dedup();
    assert!(waited.len() > 1, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn settings_that_turn_it_off_again_end_the_wait_and_requests_come_meanwhile() {
    let (says, off) = watch::channel(true);
    let (switch, mut turns) = Turns::new(off, SPREAD);
    says.send(false).unwrap();
    assert!(turns.news().now_or_never().is_none());
    let asks = switch.clone();
    let asked = tokio::spawn(async move { asks.on("root".to_owned()).await });
    assert!(matches!(turns.news().await, News::Turn(Turn::On(..))));
    // Nobody answered.
    asked.await.unwrap().unwrap_err();
    says.send(true).unwrap();
    assert!(timeout(SPREAD * 2, turns.news()).await.is_err());
    says.send(false).unwrap();
    assert!(matches!(turns.news().await, News::Settings));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_turns_it_on_before_its_moment_once_the_settings_allow_it() {
    let world = World::with(true, SPREAD);
    world.says.send(false).unwrap();
    let status = world.status().await;
    assert!(status.why.ends_with("turn it off no more, and it is about to start"), "{}", status.why);
    assert!(!world.runs.is_finished());
    let on = world.on().await.unwrap();
    assert_eq!((on.was.map(|row| row.kind), on.still), (Some(OffKind::Settings), None));
    world.starts_anew().await;
}
