//! The way by which requests turn the agent off and on: to [`super::super::run`], which owns the agent's life.

use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use crate::{
    agent::inbox::NoAnswer,
    off::Off,
    report::{Failure, OffReport, OnReport},
};

/// How many requests wait at most.
const REQUESTS: usize = 32;

/// A request to turn the agent off or on.
pub(in crate::agent) enum Turn {
    Off(Off, oneshot::Sender<Result<OffReport, Failure>>),
    /// The user, in words.
    On(String, oneshot::Sender<Result<OnReport, Failure>>),
}

/// The end by which requests come.
#[derive(Clone)]
pub(in crate::agent) struct Switch(mpsc::Sender<Turn>);

impl Switch {
    /// Turns the agent off. Returns once all is taken back.
    pub(in crate::agent) async fn off(&self, off: Off) -> Result<OffReport, Failure> {
        self.ask(|answer| Turn::Off(off, answer)).await
    }

    /// Turns the agent on. Returns before the agent starts anew.
    pub(in crate::agent) async fn on(&self, by: String) -> Result<OnReport, Failure> {
        self.ask(|answer| Turn::On(by, answer)).await
    }

    async fn ask<T>(
        &self,
        turn: impl FnOnce(oneshot::Sender<Result<T, Failure>>) -> Turn,
    ) -> Result<T, Failure> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send(turn(answer)).map_err(|_full| Failure::failed(NoAnswer::Full))?;
        answered.await.unwrap_or_else(|_| Err(Failure::failed(NoAnswer::Ended)))
    }
}

/// The end at which requests to turn the agent off and on arrive, and the word of the settings in the API server.
pub(in crate::agent) struct Turns {
    turns: mpsc::Receiver<Turn>,
    settings: watch::Receiver<bool>,
    /// Over how long agents spread their starts that the settings turn on at the same time.
    spread: Duration,
    /// When the settings turn this agent on.
    due: Option<Instant>,
}

/// Why an agent that runs is turned off.
pub(in crate::agent) enum Why {
    /// By a request, which is answered once all is taken back.
    Request(Off, oneshot::Sender<Result<OffReport, Failure>>),
    /// By the settings in the API server.
    Settings,
}

/// A message to an agent that is off.
pub(in crate::agent) enum News {
    /// A request.
    Turn(Turn),
    /// The settings turn the agent off no more, and its moment to start has come.
    Settings,
}

impl Turns {
    /// Both ends. `settings`: whether the settings in the API server turn the agent off. `spread`: over how long agents spread their starts that these turn on
    /// at the same time.
    pub(in crate::agent) fn new(settings: watch::Receiver<bool>, spread: Duration) -> (Switch, Self) {
        let (sender, turns) = mpsc::channel(REQUESTS);
        (Switch(sender), Self { turns, settings, spread, due: None })
    }

    /// Whether the settings in the API server turn the agent off, from now on.
    pub(in crate::agent) fn settings(&self) -> watch::Receiver<bool> {
        self.settings.clone()
    }

    /// Whether the settings in the API server turn the agent off now.
    pub(in crate::agent) fn by_settings(&self) -> bool {
        *self.settings.borrow()
    }

    /// Waits until the agent that runs is to be turned off. Requests to turn it on are answered meanwhile: it is on.
    pub(in crate::agent) async fn off(&mut self) -> Why {
        loop {
            tokio::select! {
                said = self.settings.wait_for(|off| *off), if self.settings.has_changed().is_ok() || *self.settings.borrow() => {
                    if said.is_ok() {
                        return Why::Settings;
                    }
                }
                turn = self.turns.recv() => match turn {
                    Some(Turn::Off(off, answer)) => return Why::Request(off, answer),
                    Some(Turn::On(_, answer)) => {
                        let _gone = answer.send(Ok(OnReport {
                            was: None,
                            still: None,
                            pid: Some(std::process::id()),
                            runs: true,
                            file: None,
                            warnings: Vec::new(),
                        }));
                    }
                    // The other end is as old as the agent.
                    None => std::future::pending().await,
                },
            }
        }
    }

    /// Waits for news of an agent that is off. That the settings turn it on is told at a random moment of the spread, unless they turn it off again before.
    pub(in crate::agent) async fn news(&mut self) -> News {
        loop {
            let due = self.due;
            tokio::select! {
                changed = self.settings.changed(), if self.settings.has_changed().is_ok() => {
                    if changed.is_ok() {
                        let wait = rand::random_range(Duration::ZERO..=self.spread);
                        self.due = (!self.by_settings()).then(|| Instant::now() + wait);
                    }
                }
                () = comes(due), if due.is_some() => {
                    self.due = None;
                    // They may have changed in the same instant.
                    if !self.by_settings() {
                        return News::Settings;
                    }
                }
                turn = self.turns.recv() => match turn {
                    Some(turn) => return News::Turn(turn),
                    None => std::future::pending().await,
                },
            }
        }
    }
}

/// Returns at this moment.
async fn comes(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
