//! The way by which requests turn the agent off and on: to [`super::super::run`], which owns the agent's life.

use tokio::sync::{mpsc, oneshot, watch};

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
    /// The settings say something else than before.
    Settings,
}

impl Turns {
    /// Both ends. `settings`: whether the settings in the API server turn the agent off.
    pub(in crate::agent) fn new(settings: watch::Receiver<bool>) -> (Switch, Self) {
        let (sender, turns) = mpsc::channel(REQUESTS);
        (Switch(sender), Self { turns, settings })
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

    /// Waits for news of an agent that is off.
    pub(in crate::agent) async fn news(&mut self) -> News {
        loop {
            tokio::select! {
                changed = self.settings.changed(), if self.settings.has_changed().is_ok() => {
                    if changed.is_ok() {
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
