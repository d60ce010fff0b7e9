//! Nodes, Services and EndpointSlices of a Kubernetes API server, watched.

mod client;
mod follow;
mod news;
mod read;
mod wire;

use anyhow::Context as _;
use kube::{Api, runtime::watcher};
use tokio::sync::mpsc;

pub use client::ApiServer;
pub(crate) use client::open;
use client::{config, watching_client};
use follow::follow;
use news::{Heard, Kind, Outlook};
use wire::{Member, Service, Slice};

use super::{Objects, changes};
use crate::cluster::SourceName;

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
    /// Reads how the API server is reached. Returns the source, and the work that fills it: it goes on for ever, and begins watches anew
    /// that end.
    ///
    /// # Errors
    /// Where the configuration cannot be read. The API server need not answer.
    pub(crate) async fn watch(self) -> anyhow::Result<(Objects, impl Future<Output = ()> + Send + 'static)> {
        let config = config(&self.server).await?;
        let from = || self.server.origin();
        let heard = [Heard::default(), Heard::default(), Heard::default()];
        let [of_members, of_services, of_slices] = &heard;
        let members: Api<Member> = Api::all(watching_client(&config, of_members).with_context(from)?);
        let services: Api<Service> = Api::all(watching_client(&config, of_services).with_context(from)?);
        let slices: Api<Slice> = Api::all(watching_client(&config, of_slices).with_context(from)?);
        let all = watcher::Config::default();
        let (service_filter, slice_filter) = match self.no_headless {
            true => (all.clone().fields(NOT_HEADLESS_SERVICES), all.clone().labels(NOT_HEADLESS_SLICES)),
            false => (all.clone(), all.clone()),
        };
        let (teller, changes) = changes();
        let name = SourceName::new("the API server", "kubernetes");
        let objects = Objects { name, services: true, confirms: true, changes };
        let (to, told) = mpsc::channel(WAITING);
        let outlook = Outlook::new(teller, heard);
        let work = async move {
            tokio::join!(
                outlook.take(told),
                follow(Kind::Members, members, all, to.clone()),
                follow(Kind::Services, services, service_filter, to.clone()),
                follow(Kind::Slices, slices, slice_filter, to),
            );
        };
        Ok((objects, work))
    }
}
