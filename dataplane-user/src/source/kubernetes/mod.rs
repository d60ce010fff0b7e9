//! Nodes, Services, EndpointSlices, flags and settings of a Kubernetes API server, watched.

mod client;
mod date;
mod flags;
mod follow;
mod machines;
mod news;
mod orders;
mod read;
mod settings;
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
use news::{Kind, Outlook};
use orders::Orders;
pub(crate) use orders::{OrdersEnd, OrdersRow, Tell};
use wire::{Flag, Member, Service, Settings, Slice};

use super::{Objects, changes};
use crate::{cluster::SourceName, crds::SETTINGS_NAME};

/// How many changes wait at most between a watch and the end that takes them. They are taken without delay.
const WAITING: usize = 64;

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
}

impl Kubernetes {
    /// Reads how the API server is reached. Returns the source, the end from which flags and settings come, and the work that fills both: it goes on for
    /// ever, and begins watches anew that end.
    ///
    /// # Errors
    /// Where the configuration cannot be read. The API server need not answer.
    pub(crate) async fn watch(
        self,
    ) -> anyhow::Result<(Objects, OrdersEnd, impl Future<Output = ()> + Send + 'static)> {
        let config = config(&self.server).await?;
        let from = || self.server.origin();
        let heard = [Heard::default(), Heard::default(), Heard::default()];
        let [of_members, of_services, of_slices] = &heard;
        let ordered = [Heard::default(), Heard::default()];
        let [of_flags, of_settings] = &ordered;
        let clock = ServerClock::default();
        let client = |heard| watching_client(&config, heard, &clock).with_context(from);
        let members: Api<Member> = Api::all(client(of_members)?);
        let services: Api<Service> = Api::all(client(of_services)?);
        let slices: Api<Slice> = Api::all(client(of_slices)?);
        let flags: Api<Flag> = Api::all(client(of_flags)?);
        let settings: Api<Settings> = Api::all(client(of_settings)?);
        let all = watcher::Config::default();
        let (service_filter, slice_filter) = match self.no_headless {
            true => (all.clone().fields(NOT_HEADLESS_SERVICES), all.clone().labels(NOT_HEADLESS_SLICES)),
            false => (all.clone(), all.clone()),
        };
        let (teller, changes) = changes();
        let name = SourceName::new("the API server", "kubernetes");
        let objects = Objects { name, services: true, confirms: true, changes };
        let (to, told) = mpsc::channel(WAITING);
        let (machines, of_machines) = watch::channel(Machines::default());
        let outlook = Outlook::new(teller, heard, machines);
        let the_one = all.clone().fields(&format!("metadata.name={SETTINGS_NAME}"));
        let (flags_to, flags_told) = mpsc::channel(WAITING);
        let (settings_to, settings_told) = mpsc::channel(WAITING);
        let (begins, begun) = oneshot::channel();
        let (orders, row) = Orders::new(clock, of_machines, ordered);
        let work = async move {
            tokio::join!(
                outlook.take(told),
                follow(Kind::Members, members, all.clone(), to.clone()),
                follow(Kind::Services, services, service_filter, to.clone()),
                follow(Kind::Slices, slices, slice_filter, to),
                orders.carry(flags_told, settings_told, begun),
                follow(Kind::Flags, flags, all, flags_to),
                follow(Kind::Settings, settings, the_one, settings_to),
            );
        };
        Ok((objects, OrdersEnd { begins, row }, work))
    }
}
