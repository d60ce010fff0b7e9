//! Exempt ports, and why they are exempt, as the rows that the CLI prints.

use crate::{
    cluster::{ClusterView, TrafficPolicy},
    plan::{Exemptions, Why},
    report::ExemptRow,
};

/// Exempt ports, and why they are exempt, for `status`.
pub(super) fn exempt_rows<'a>(
    view: &'a ClusterView,
    exemptions: &'a Exemptions,
) -> impl Iterator<Item = ExemptRow> + 'a {
    exemptions.ports.iter().filter_map(|(exempt, reason)| {
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
            Why::LeftOut => {
                let mode = service.mode.name().unwrap_or_default();
                format!("port {name} of {}, which is left out (mode: {mode})", service.name)
            }
        };
        Some(ExemptRow {
            node: view.at(exempt.node)?.name.to_string(),
            address: exempt.address,
            port: exempt.port,
            protocol: exempt.protocol,
            service: service.name.clone(),
            why,
        })
    })
}
