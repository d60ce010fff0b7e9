//! What is kept and why, as the rows that the CLI prints.

use crate::{
    cluster::{ClusterView, TrafficPolicy},
    plan::{Keep, Why},
    report::KeptRow,
};

/// What is kept and why, for `status`.
pub(super) fn kept_rows<'a>(view: &'a ClusterView, keep: &'a Keep) -> impl Iterator<Item = KeptRow> + 'a {
    keep.ports.iter().filter_map(|(kept, reason)| {
        let service = view.services.as_ref()?.get(reason.service as usize)?;
        let port = &service.ports.get(reason.port as usize)?;
        let name = if port.name.is_empty() { port.port.to_string() } else { port.name.clone() };
        let why = match reason.why {
            Why::NothingElse(TrafficPolicy::Cluster) => {
                format!("all that port {name} of {} may use here is on flagged nodes", service.name)
            }
            Why::NothingElse(TrafficPolicy::Local) => {
                format!("all local endpoints of port {name} of {} are on flagged nodes", service.name)
            }
            Why::Untied => format!("port {name} of {} names it without a node", service.name),
        };
        Some(KeptRow {
            node: view.at(kept.node)?.name.to_string(),
            address: kept.address,
            port: kept.port,
            protocol: kept.protocol,
            service: service.name.clone(),
            why,
        })
    })
}
