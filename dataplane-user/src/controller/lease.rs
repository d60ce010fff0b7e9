//! The Lease: of several controllers the one that holds it works.

use std::{future::pending, time::Duration};

use futures::future::{Either, select};
use kube::Client;
use kube_lease_manager::{LeaseCreateMode, LeaseManager, LeaseManagerError, LeaseParams};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::clock::Answers;
use crate::causes::causes;

/// The name of the Lease.
const NAME: &str = "nodefence-controller";
/// How long another controller waits after the last renewal before it takes the Lease over.
const DURATION: Duration = Duration::from_secs(15);
/// How long before that the holder renews it: after 4 s. A request fails after [`super::client::PATIENCE`], so two may fail.
const GRACE: Duration = Duration::from_secs(11);
/// For how long the holder works on after the last answer about the Lease. It stops before another one takes over.
const HOLDS: Duration = Duration::from_secs(12);
/// How often a controller that waits looks at the Lease. The library sleeps until the Lease would end, even where it is given up before.
const LOOK: Duration = Duration::from_secs(4);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(2);

/// A share in the Lease.
pub(super) struct Lease {
    client: Client,
    /// Shows when the API server last answered about the Lease.
    clock: Answers,
    namespace: String,
    identity: String,
    leads: watch::Sender<bool>,
}

impl Lease {
    pub(super) fn new(client: Client, clock: Answers, namespace: String, identity: String) -> Self {
        Self { client, clock, namespace, identity, leads: watch::Sender::new(false) }
    }

    /// Whether this controller holds the Lease. A process that stood still meanwhile does not hold it any more.
    pub(super) fn is_held(&self) -> bool {
        *self.leads.borrow() && self.is_recent()
    }

    fn is_recent(&self) -> bool {
        self.clock.since_last().is_some_and(|since| since < HOLDS)
    }

    /// Waits until this controller holds the Lease, or does not hold it.
    pub(super) async fn becomes(&self, held: bool) {
        let mut leads = self.leads.subscribe();
        if leads.wait_for(|leads| *leads == held).await.is_err() {
            pending().await
        }
    }

    /// Tries to get and to keep the Lease for ever.
    pub(super) async fn hold(&self) {
        let mut has_failed = false;
        tracing::info!(event = "controller-waits", "the controller waits for its Lease");
        loop {
            let looked = self.look();
            match looked.await {
                Ok(()) => has_failed = false,
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(
                            event = "controller-lease-failed",
                            error = causes(&error.into()),
                            namespace = self.namespace,
                            "the Lease cannot be read or renewed; the controller tries again"
                        );
                    }
                    // Nobody else holds the Lease yet.
                    if !self.is_recent() {
                        self.set(false);
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Looks at the Lease once. Returns after a while where another controller holds it. Where this one holds it, goes on for as long as it
    /// does.
    async fn look(&self) -> Result<(), LeaseManagerError> {
        let manager = self.manager().await?;
        // A new manager says at once that this controller holds the Lease.
        match timeout(LOOK, manager.changed()).await {
            Ok(holds) => self.set(holds?),
            Err(_) => self.set(false),
        }
        if *self.leads.borrow() {
            let lost = self.renew(&manager).await?;
            self.set(!lost);
        }
        Ok(())
    }

    /// Renews the Lease until it is lost. Whether another controller has it.
    async fn renew(&self, manager: &LeaseManager) -> Result<bool, LeaseManagerError> {
        let changed = std::pin::pin!(manager.changed());
        // A request that gets no answer must not keep the controller at work.
        let silent = std::pin::pin!(async {
            while self.is_recent() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        match select(changed, silent).await {
            Either::Left((holds, _)) => Ok(!holds?),
            Either::Right(_) => Ok(true),
        }
    }

    fn set(&self, leads: bool) {
        let changed = self.leads.send_if_modified(|before| std::mem::replace(before, leads) != leads);
        match (changed, leads) {
            (true, true) => {
                tracing::info!(
                    event = "controller-leads",
                    identity = self.identity,
                    "the controller has the Lease, and works"
                );
            }
            (true, false) => {
                tracing::warn!(
                    event = "controller-lost-lease",
                    identity = self.identity,
                    "the controller has lost its Lease, and writes nothing"
                );
            }
            (false, _) => {}
        }
    }

    /// Gives the Lease up where this controller holds it, so that another one need not wait until it ends.
    pub(super) async fn release(&self) {
        if !self.is_held() {
            return;
        }
        let released = async { self.manager().await?.release().await };
        let why = match timeout(PAUSE, released).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => causes(&error.into()),
            Err(_) => "no answer".to_owned(),
        };
        tracing::warn!(
            event = "controller-lease-kept",
            error = why,
            "the Lease could not be given up; another controller waits until it ends"
        );
    }

    async fn manager(&self) -> Result<LeaseManager, LeaseManagerError> {
        let params = LeaseParams::new(&self.identity, DURATION.as_secs(), GRACE.as_secs())
            .with_field_manager(format!("nodefence-{}", self.identity));
        let mode = LeaseCreateMode::AutoCreate;
        LeaseManager::new(self.client.clone(), NAME, &self.namespace, params, mode).await
    }
}
