//! The agent while it is off: nothing of it is attached, nothing is cut, and IPVS is as kube-proxy alone would have it. The process stays: it
//! has the lock and serves the socket. It ends the off state by starting anew, as another process would.

mod answers;
mod by_settings;
mod house;
mod starting;
mod switch;
mod undo;

use std::{io, path::Path, sync::Arc, time::Duration};

use futures::FutureExt as _;
use jiff::Timestamp;
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

use super::{
    beat::Beat,
    ending::{ADVICE, Ended, Reason, WIND_UP, lost},
    lock::Lock,
    notify::Notifier,
    signals::Signals,
};
use crate::{
    dataplane::DetachReport,
    flags::monotonic_ns,
    off::{Off, OffFile, Owner},
    report::{ErrorKind, Failure, OffKind, OffReport, OffRow, OnReport},
};
use answers::{OffRequests, flags};
pub(super) use by_settings::{follow, in_time, kept};
pub(super) use house::{House, Stand};
pub(super) use starting::Ends;
use switch::{News, Turn};
pub(super) use switch::{Switch, Turns, Why};
use undo::{Undone, undo};

/// How often the state says that it is alive.
const LIVES: Duration = Duration::from_secs(1);
/// How long the first try to take all back may take before a command is answered without its outcome.
const TAKEN_BACK: Duration = Duration::from_secs(30);
/// How long the file may take to be written or removed: the disk may hang.
const DISK: Duration = Duration::from_secs(5);
/// How long to wait until the answer to `on` is on its way.
const HEARD: Duration = Duration::from_secs(1);

/// An agent that is off.
pub(super) struct OffAgent {
    house: House,
    turns: Turns,
    row: watch::Sender<OffRow>,
    /// What was taken back, once it was tried.
    undone: watch::Receiver<Undone>,
    /// For the task that takes back.
    undoes: Option<watch::Sender<Undone>>,
    beat: Arc<Beat>,
    notifier: Option<Notifier>,
}

impl OffAgent {
    /// Answers requests from now on. What the agent did is yet to be taken back.
    pub(super) fn begin(mut house: House, turns: Turns, switch: Switch, row: OffRow) -> Self {
        let (row, now) = watch::channel(row);
        let (undoes, undone) = watch::channel(Undone::default());
        let beat = Arc::new(Beat::new(monotonic_ns()));
        let requests = OffRequests {
            row: now,
            undone: undone.clone(),
            settings: Arc::clone(&house.settings),
            by_settings: turns.settings(),
            crew: house.crew.clone(),
            switch,
            beat: Arc::clone(&beat),
            started: Timestamp::now(),
            handed_over: house.handed_over.clone(),
        };
        house.serve(Stand::Off(Arc::new(requests)));
        let lives = Arc::clone(&beat);
        let stop = house.crew.stop();
        house.crew.task("off", async move {
            loop {
                lives.live(monotonic_ns());
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = sleep(LIVES) => {}
                }
            }
        });
        Self { house, turns, row, undone, undoes: Some(undoes), beat, notifier: None }
    }

    /// Tells a service manager from now on that the agent is off.
    ///
    /// # Errors
    /// Where the kernel has no room for the thread.
    pub(super) fn notify(&mut self) -> io::Result<()> {
        let text = format!("{}; nothing is cut", self.row.borrow().text());
        self.notifier = Notifier::of_off(text, Arc::clone(&self.beat), &self.house.crew)?;
        Ok(())
    }

    /// Begins to take back all that agents did. Returns once that was tried.
    pub(super) async fn undo(&mut self, owner: Owner) {
        if let Some(told) = self.undoes.take() {
            let crew = self.house.crew.clone();
            self.house.crew.task("off", undo(Arc::clone(&self.house.settings), owner, told, crew));
        }
        let _late = timeout(TAKEN_BACK, self.undone.wait_for(|undone| undone.tries > 0)).await.is_err();
        let row = self.row.borrow().clone();
        let Undone { taken_back, .. } = *self.undone.borrow();
        tracing::info!(event = "is-off", by = row.by, taken_back, "the agent is {}", row.text());
    }

    /// Answers the request that turned the agent off. `drained`: how many destinations the agent had drained from IPVS.
    pub(super) async fn answer(
        &self,
        answer: oneshot::Sender<Result<OffReport, Failure>>,
        drained: usize,
        mut warnings: Vec<String>,
    ) {
        let Undone { tries, problems, removed, restored, .. } = self.undone.borrow().clone();
        if tries == 0 {
            warnings.push("what the agent did is still being taken back; see `nodefence status`".to_owned());
        }
        let restored = if problems.is_empty() { restored.max(drained) } else { restored };
        warnings.extend(problems);
        let report = OffReport { removed, restored, warnings, ..self.report(false).await };
        // The requester may have gone.
        let _gone = answer.send(Ok(report));
    }

    async fn report(&self, was_off: bool) -> OffReport {
        let House { settings, crew, .. } = &self.house;
        // A row that is read must not be held while the disk is waited for.
        let off = self.row.borrow().clone();
        OffReport {
            was_off,
            off,
            pid: Some(std::process::id()),
            removed: DetachReport::default(),
            restored: 0,
            flags: flags(settings, crew).await,
            warnings: Vec::new(),
        }
    }

    /// Stays off until the agent is told to end, or is turned on.
    pub(super) async fn run(mut self, signals: &mut Signals) -> anyhow::Result<Ended> {
        let ended = loop {
            let House { settings, server, lock, handed_over, crew, .. } = &mut self.house;
            tokio::select! {
                biased;
                why = signals.come() => break Ok((Ended::Over, why)),
                () = handed_over.cancelled() => break Ok((Ended::HandedOver, Reason::TakenOver.text())),
                () = lost(server, lock, &settings.run_dir) => break Err(self.write_down().await),
                fallen = crew.falls() => break Err(fallen.into()),
                news = self.turns.news() => match news {
                    News::Turn(Turn::Off(off, answer)) => {
                        let report = self.again(off).await;
                        let _gone = answer.send(report);
                    }
                    News::Turn(Turn::On(by, answer)) => {
                        if self.on(by, answer).await {
                            break Ok((Ended::Anew, "`nodefence on`"));
                        }
                    }
                    News::Settings => {
                        let by_settings = self.row.borrow().kind == OffKind::Settings;
                        if by_settings && !self.turns.by_settings() {
                            turned_on(&self.row.borrow().by);
                            break Ok((Ended::Anew, "the settings in the API server"));
                        }
                    }
                },
            }
        };
        self.end(ended).await
    }

    async fn end(mut self, ended: anyhow::Result<(Ended, &'static str)>) -> anyhow::Result<Ended> {
        let House { crew, server, lock, .. } = self.house;
        crew.end();
        match (self.notifier.take(), &ended) {
            (Some(notifier), Ok((Ended::Anew, _))) => notifier.leave(),
            (notifier, _) => drop(notifier),
        }
        crew.wind_up(WIND_UP).await;
        // The socket goes before the lock: whoever has the lock may take what lies there for stale.
        server.remove();
        drop(lock);
        match ended {
            Ok((Ended::Anew, why)) => {
                tracing::info!(event = "starts-anew", why, "the agent starts anew, as the same process");
                Ok(Ended::Anew)
            }
            Ok((ended, why)) => {
                tracing::info!(event = "ended-off", why, "the agent ends; it was off");
                Ok(ended)
            }
            Err(error) => {
                tracing::error!(event = "ended-by-error", %error, "the agent ends; it was off");
                Err(error)
            }
        }
    }

    /// The agent is told once more to be off.
    async fn again(&mut self, off: Off) -> Result<OffReport, Failure> {
        if self.row.borrow().kind == OffKind::Node {
            let warnings = self.undone.borrow().problems.clone();
            return Ok(OffReport { warnings, ..self.report(true).await });
        }
        // From now on the agent stays off whatever the settings say.
        let warnings = self.save(&off).await.into_iter().collect();
        told(&off);
        self.row.send_replace(OffRow::of_file(off));
        Ok(OffReport { warnings, ..self.report(false).await })
    }

    /// Writes the file. Returns what the operator should know where that failed.
    async fn save(&self, off: &Off) -> Option<String> {
        save(&self.house, off).await
    }

    /// Turns the agent on. Returns whether it is to start anew.
    async fn on(&mut self, by: String, answer: oneshot::Sender<Result<OnReport, Failure>>) -> bool {
        let was = self.row.borrow().clone();
        let file = OffFile::new(&self.house.settings.run_dir);
        // Where the settings turn it off no more, it need not wait for its moment.
        if was.kind == OffKind::Settings && self.turns.by_settings() {
            let message = format!("the agent is {}; {}", was.text(), was.end());
            let _gone = answer.send(Err(Failure::new(ErrorKind::Refused, message)));
            return false;
        }
        let path = file.path().to_owned();
        let removal = self.house.crew.blocking("off", move || file.remove());
        let removed = match timeout(DISK, removal).await {
            Ok(Ok(removed)) => removed.map_err(Failure::failed),
            Ok(Err(fallen)) => Err(Failure::failed(fallen)),
            Err(_) => Err(Failure::failed(format_args!("{}: {HANGS}", path.display()))),
        };
        let was_there = match removed {
            Ok(was_there) => was_there,
            Err(failure) => {
                let _gone = answer.send(Err(failure));
                return false;
            }
        };
        turned_on(&by);
        let still = self.turns.by_settings().then(|| by_settings::row(&self.house.settings.run_dir));
        let report = OnReport {
            was: Some(was),
            still: still.clone(),
            pid: Some(std::process::id()),
            runs: false,
            file: was_there.then_some(path),
            warnings: Vec::new(),
        };
        // An answer to an earlier request may have been heard since.
        let _earlier = self.house.heard.notified().now_or_never();
        // Whoever asks once the answer came is to find the new row.
        let stays = still.is_some();
        if let Some(still) = still {
            self.row.send_replace(still);
        }
        let _gone = answer.send(Ok(report));
        if stays {
            return false;
        }
        let _late = timeout(HEARD, self.house.heard.notified()).await.is_err();
        true
    }

    /// Somebody removed the run folder or the socket: nobody can turn the agent on any more. The next agent must know that it is off. Returns
    /// why the agent ends.
    async fn write_down(&mut self) -> anyhow::Error {
        let settings = Arc::clone(&self.house.settings);
        let run_dir = &settings.run_dir;
        if !self.house.lock.is_in(run_dir) {
            match Lock::take(run_dir, ADVICE) {
                Ok(again) => self.house.lock = again,
                Err(error) => {
                    return anyhow::Error::new(error)
                        .context("the run folder is gone, and cannot be made anew");
                }
            }
        }
        let OffRow { kind, by, since, reason, .. } = self.row.borrow().clone();
        if kind == OffKind::Node && !OffFile::new(run_dir).is_there() {
            let _told_in_vain = self.save(&Off { by, since, reason, problem: None }).await;
        }
        anyhow::anyhow!("the socket {} was removed, or all of its folder", settings.socket.display())
    }
}

const HANGS: &str = "the disk has not answered";

/// Writes the file that keeps the agent off. Returns what the operator should know where that failed.
pub(super) async fn save(house: &House, off: &Off) -> Option<String> {
    let file = OffFile::new(&house.settings.run_dir);
    let written = off.clone();
    let writing = house.crew.blocking("off", move || file.write(&written));
    let problem = match timeout(DISK, writing).await {
        Ok(Ok(Ok(()))) => return None,
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(fallen)) => fallen.to_string(),
        Err(_) => {
            format!("cannot write {}: {HANGS}", OffFile::new(&house.settings.run_dir).path().display())
        }
    };
    tracing::error!(event = "off-not-saved", problem, "a restart of the agent turns it on again");
    Some(format!("{problem}; a restart of the agent turns it on again"))
}

/// The row of an agent that is off from its start, if it is.
pub(super) fn standing(run_dir: &Path, turns: &Turns) -> Option<OffRow> {
    let file = OffFile::new(run_dir).read();
    if let Some(problem) = file.as_ref().and_then(|off| off.problem.as_ref()) {
        tracing::warn!(event = "off-file-damaged", problem, "the agent is off, and nobody knows by whom");
    }
    let by_settings = || turns.by_settings().then(|| by_settings::row(run_dir));
    file.map(OffRow::of_file).or_else(by_settings)
}

/// Logs who turns the agent off.
pub(super) fn told(off: &Off) {
    tracing::info!(event = "turned-off", by = off.by, reason = off.reason, "the agent is turned off");
}

fn turned_on(by: &str) {
    tracing::info!(event = "turned-on", by, "the agent is turned on");
}

#[cfg(test)]
mod tests;
