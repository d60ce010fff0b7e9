//! Nodes, Services, EndpointSlices, flags and settings of a Kubernetes API server, watched.

mod client;
mod date;
mod flags;
mod follow;
mod machines;
mod news;
mod orders;
mod pace;
mod read;
mod settings;
mod settings_watch;
mod wire;

use anyhow::Context as _;
use kube::{Api, runtime::watcher};
use tokio::sync::{mpsc, oneshot, watch};

pub use client::ApiServer;
pub(crate) use client::{config, open, url, watching_client};
#[cfg(test)]
pub(crate) use date::instant;
pub(crate) use date::{ServerClock, shown};
use follow::follow;
pub(crate) use follow::has_missed_something;
use machines::Machines;
pub(crate) use news::Heard;
use news::{Kind, Outlook, WAITING};
use orders::Orders;
pub(crate) use orders::{OrdersEnd, OrdersRow, Tell};
pub use pace::Pace;
pub(crate) use settings::shared_settings;
pub(crate) use settings_watch::{SettingsEnd, SettingsNow};
use wire::{Flag, Member, Service, Slice};

use super::{Objects, changes};
use crate::cluster::SourceName;

/// The name of this source.
pub(crate) const API_SERVER: SourceName = SourceName::new("the API server", "kubernetes");
/// The label that the endpoints controller gives to slices of headless Services.
const NOT_HEADLESS_SLICES: &str = "!service.kubernetes.io/headless";
/// The field by which the API server knows headless Services (`cmd/kube-proxy/app/server.go`, v1.36).
const NOT_HEADLESS_SERVICES: &str = "spec.clusterIP!=None";

/// The objects of an API server as a source.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    /// Which API server, and how it is reached.
    pub server: ApiServer,
    /// Whether headless Services are left out. Their clients use pods' addresses, of which kube-proxy knows nothing.
    pub no_headless: bool,
    /// How soon the watches find faults.
    pub pace: Pace,
}

impl Kubernetes {
    /// Begins to watch the settings alone, which goes on while the agent is off. Returns the end from which they come, and the work that fills it: it goes on
    /// for ever.
    ///
    /// # Errors
    /// Where the configuration cannot be read. The API server need not answer.
    pub(crate) async fn watch_settings(
        &self,
    ) -> anyhow::Result<(SettingsEnd, impl Future<Output = ()> + Send + 'static)> {
        settings_watch::watch_settings(&self.server, self.pace).await
    }

    /// Reads how the API server is reached. `settings`: the watch of the settings. Returns the source, the end from which flags and settings come, and the
    /// work that fills both: it goes on for ever, and begins watches anew that end.
    ///
    /// # Errors
    /// Where the configuration cannot be read. The API server need not answer.
    pub(crate) async fn watch(
        self,
        settings: SettingsEnd,
    ) -> anyhow::Result<(Objects, OrdersEnd, impl Future<Output = ()> + Send + 'static)> {
        let config = config(&self.server).await?;
        let from = || self.server.origin();
        let heard = [Heard::default(), Heard::default(), Heard::default()];
        let [of_members, of_services, of_slices] = &heard;
        let of_flags = Heard::default();
        let SettingsEnd { now: settings, clock } = settings;
        let pace = self.pace;
        let client = |heard| watching_client(&config, heard, &clock, pace).with_context(from);
        let members: Api<Member> = Api::all(client(of_members)?);
        let services: Api<Service> = Api::all(client(of_services)?);
        let slices: Api<Slice> = Api::all(client(of_slices)?);
        let flags: Api<Flag> = Api::all(client(&of_flags)?);
        let all = watcher::Config::default();
        let (service_filter, slice_filter) = match self.no_headless {
            true => (all.clone().fields(NOT_HEADLESS_SERVICES), all.clone().labels(NOT_HEADLESS_SLICES)),
            false => (all.clone(), all.clone()),
        };
        let (teller, changes) = changes();
        let objects = Objects { name: API_SERVER, services: true, confirms: true, changes };
        let (to, told) = mpsc::channel(WAITING);
        let (machines, of_machines) = watch::channel(Machines::default());
        let outlook = Outlook::new(teller, heard, machines);
        let (flags_to, flags_told) = mpsc::channel(WAITING);
        let (begins, begun) = oneshot::channel();
        let (orders, row) = Orders::new(clock, of_machines, of_flags, settings);
        let work = async move {
            tokio::join!(
                outlook.take(told),
                follow(Kind::Members, members, (all.clone(), pace), to.clone()),
                follow(Kind::Services, services, (service_filter, pace), to.clone()),
                follow(Kind::Slices, slices, (slice_filter, pace), to),
                orders.carry(flags_told, begun),
                follow(Kind::Flags, flags, (all, pace), flags_to),
            );
        };
        Ok((objects, OrdersEnd { begins, row }, work))
    }
}
