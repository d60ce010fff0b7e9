//! The parts of the agent that stay while it is turned off: the lock, the socket, the HTTP port, and the tasks that serve them.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::answers::OffRequests;
use crate::{
    agent::{http, lock::Lock, serve::Requests, settings::Settings, threads::Crew},
    http::{Facts, Snapshot},
    report::{Handler, Peer, Reply, Request, Server},
};

/// Who answers requests now.
#[derive(Clone)]
pub(in crate::agent) enum Stand {
    /// The agent runs.
    Runs(Arc<Requests>),
    /// The agent is off, or is being turned off.
    Off(Arc<OffRequests>),
}

/// The parts of the agent that stay while it is turned off.
pub(in crate::agent) struct House {
    pub(in crate::agent) crew: Crew,
    pub(in crate::agent) settings: Arc<Settings>,
    pub(in crate::agent) lock: Lock,
    pub(in crate::agent) server: Arc<Server>,
    stand: Option<watch::Sender<Stand>>,
    /// Told once the answer to `on` is on its way.
    pub(in crate::agent) heard: Arc<Notify>,
    /// Cancelled once another agent takes over.
    pub(in crate::agent) handed_over: CancellationToken,
}

impl House {
    pub(in crate::agent) fn new(crew: Crew, settings: Arc<Settings>, lock: Lock, server: Server) -> Self {
        Self {
            crew,
            settings,
            lock,
            server: Arc::new(server),
            stand: None,
            heard: Arc::default(),
            handed_over: CancellationToken::new(),
        }
    }

    /// Has these answer requests from now on. Connections stay.
    pub(in crate::agent) fn serve(&mut self, stand: Stand) {
        match &self.stand {
            Some(before) => drop(before.send_replace(stand)),
            None => {
                let (sender, now) = watch::channel(stand);
                self.stand = Some(sender);
                let front = Front { now, heard: Arc::clone(&self.heard) };
                if let Some(address) = self.settings.http {
                    http::start(address, front.clone(), &self.settings.run_dir, &self.crew);
                }
                self.crew.task("api", serve(Arc::clone(&self.server), front, self.crew.clone()));
            }
        }
    }
}

/// Serves until the agent ends. A request that panics ends the agent, as each panic does: the agent's state may be half changed. Bytes
/// that are no request are answered, and panic nowhere.
async fn serve(server: Arc<Server>, front: Front, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    let serving = server.serve(Arc::new(front), |talk| crew.errand("api", talk));
    tokio::select! {
        () = stop.cancelled() => {}
        () = serving => {}
    }
    Ok(())
}

/// Hands each request to whoever answers now.
#[derive(Clone)]
struct Front {
    now: watch::Receiver<Stand>,
    heard: Arc<Notify>,
}

impl Front {
    fn stand(&self) -> Stand {
        self.now.borrow().clone()
    }
}

impl Handler for Front {
    async fn handle(&self, request: Request, peer: Peer) -> Reply {
        match self.stand() {
            Stand::Runs(requests) => requests.handle(request, peer).await,
            Stand::Off(requests) => requests.handle(request, peer).await,
        }
    }

    fn handed_over(&self, heard: bool) {
        match self.stand() {
            Stand::Runs(requests) => requests.handed_over(heard),
            Stand::Off(requests) => requests.handed_over(heard),
        }
    }

    fn turned_on(&self) {
        if let Stand::Off(_) = self.stand() {
            self.heard.notify_one();
        }
    }
}

/// Over HTTP.
impl Facts for Front {
    fn hangs(&self) -> Option<String> {
        match self.stand() {
            Stand::Runs(requests) => requests.hangs(),
            Stand::Off(requests) => requests.hangs(),
        }
    }

    async fn read(&self) -> Result<Snapshot, String> {
        match self.stand() {
            Stand::Runs(requests) => requests.snapshot().await,
            Stand::Off(requests) => requests.snapshot().await,
        }
    }
}
