//! `preflight`: reads what the API server knows of the nodes, before nodefence is installed.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Namespace, Node},
};
use kube::{Api, api::ListParams};

use super::{
    args::CheckNodes,
    ask,
    error::Error,
    preflight_rows::{Facts, PreflightReport},
    session::Session,
};

/// The namespace in which kube-proxy and most CNIs run.
const SYSTEM: &str = "kube-system";

/// Looks at nodes. What cannot be read besides them is a note.
pub(super) async fn preflight(
    session: &Session,
    namespace: &str,
    args: &CheckNodes,
) -> Result<PreflightReport, Error> {
    let client = &session.client;
    let nodes: Api<Node> = Api::all(client.clone());
    let daemon_sets: Api<DaemonSet> = Api::all(client.clone());
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let (nodes, daemon_sets, kube_proxy, cilium, own) = tokio::join!(
        ask::list(&nodes, ListParams::default()),
        ask::list(&daemon_sets, ListParams::default()),
        ask::get(&config_maps, "kube-proxy"),
        ask::get(&config_maps, "cilium-config"),
        ask::get(&namespaces, namespace),
    );
    let facts = Facts {
        server: session.server.version.clone(),
        nodes: nodes?,
        daemon_sets: daemon_sets.map_err(|error| error.to_string()),
        kube_proxy: kube_proxy.map_err(|error| error.to_string()),
        cilium: cilium.ok().flatten(),
        namespace: namespace.to_owned(),
        own: own.map_err(|error| error.to_string()),
    };
    Ok(PreflightReport::new(&facts, &args.nodes))
}
