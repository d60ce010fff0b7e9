//! What is done about flagged nodes in IPVS, as the rows that the CLI prints.

use crate::{
    plan::drain::Report,
    report::{DrainRow, ExemptServiceRow},
};

/// Services and problems that `status` names of each node.
const NAMED: usize = 20;

/// The note of `status` on all nodes.
pub(super) fn note(lowered_only: bool, exempt_here_alone: bool) -> Option<String> {
    let notes = [
        (
            lowered_only,
            "net.ipv4.vs.expire_nodest_conn is 0: destinations of flagged nodes get weight 0, and keep the connections they have",
        ),
        (
            exempt_here_alone,
            "without `services` nothing is exempt in the datapath: IPVS keeps destinations of services that would have nobody left, but packets to them are cut",
        ),
    ];
    let notes: Vec<&str> = notes.iter().filter(|(applies, _)| *applies).map(|(_, note)| *note).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The row of `status` for one node.
pub(super) fn node_row(report: Report) -> DrainRow {
    let Report { drained, waiting, planned, exempt, mut problems } = report;
    let failed = problems.len();
    problems.truncate(NAMED);
    let named = exempt.iter().take(NAMED);
    DrainRow {
        drained,
        waiting,
        planned,
        exempt_services: exempt.len(),
        exempt: named
            .map(|(key, why)| ExemptServiceRow { service: key.to_string(), why: (*why).to_owned() })
            .collect(),
        failed,
        problems,
    }
}
