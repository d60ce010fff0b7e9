//! The reports of `flag` and `unflag`.

use std::{collections::HashSet, net::IpAddr, time::Duration};

use super::{
    claim_rows::{flag_of, flag_row},
    exempt_rows::exempt_rows,
    notes::Note,
    rows::{Moment, backend_row, leaving, replacement, uncovered_of},
    sight::Sight,
};
use crate::{
    cluster::Backend,
    enforce::Claim,
    flags::now,
    report::{Beside, ExemptRow, FlagReport, NodeAction, Origin, UnflagReport},
};

/// The report of a `flag` on that node; `None` where the node does not exist any more.
pub(super) fn flag_report(
    sight: &Sight,
    name: &str,
    lasts: Option<Duration>,
    replaced: Option<&Claim>,
    named: usize,
) -> Option<FlagReport> {
    let world = sight.world();
    let moment = Moment::of(sight, &world);
    let node = world.view.node(name)?;
    let row = moment.row(node);
    let mut warnings = Vec::new();
    let mut uncovered: Vec<&Backend> = uncovered_of(&world.coverage, &sight.own_node, node, true).collect();
    if node.name == sight.own_node && row.action != NodeAction::Observe {
        warnings.push(Note::OwnNode.to_string());
    }
    if row.action == NodeAction::Observe {
        let observes = replacement(sight, &world).filter(|row| row.beside == Beside::Observes);
        warnings.push(match observes {
            _ if world.held.view_is_old => Note::ViewIsOld.to_string(),
            Some(row) => row.why,
            None => Note::Observes.to_string(),
        });
    }
    if node.backends.is_empty() {
        warnings.push(Note::NoBackends(world.view.source).to_string());
    }
    let uncovered_count = uncovered.len();
    uncovered.truncate(named);
    let uncovered = uncovered
        .into_iter()
        .map(|backend| backend_row(&world.coverage, &sight.own_node, node, backend, true))
        .collect();
    let mut exempt: Vec<ExemptRow> =
        exempt_rows(&world.view, &moment.exemptions).filter(|exempt| exempt.node == row.name).collect();
    let exempt_addresses: HashSet<IpAddr> = exempt.iter().map(|exempt| exempt.address).collect();
    let is_cut = |backend: &&Backend| {
        world.coverage.of(backend.address).is_ok() && !exempt_addresses.contains(&backend.address)
    };
    let cut_count = leaving(&sight.own_node, node, true).filter(is_cut).count();
    exempt.truncate(named);
    Some(FlagReport {
        exempt,
        cut_count,
        exempt_count: row.exempt,
        node: row.name,
        on: sight.own_node.to_string(),
        by: String::new(),
        index: row.index,
        action: row.action,
        for_seconds: lasts.map(|lasts| lasts.as_secs()),
        backends: row.backends,
        uncovered_count,
        uncovered,
        left_out: node.left_out.len(),
        beyond_maps: 0,
        new_refused: None,
        replaced: replaced.and_then(|claim| flag_row(claim, world.view.source, moment.now)),
        written: true,
        flip_micros: 0,
        received_ns: 0,
        established: None,
        challenging: false,
        challenged: None,
        not_challenged: None,
        warnings,
    })
}

/// The report of an `unflag`.
pub(super) fn unflag_report(
    sight: &Sight,
    node: String,
    was_flagged: bool,
    mut warnings: Vec<String>,
) -> UnflagReport {
    let world = sight.world();
    let still = flag_of(world.claims_on(&node), world.view.source, now());
    match still.as_ref().map(|flag| &flag.origin) {
        Some(Origin::Source(_)) => warnings.push(Note::SourceFlags(world.view.source).to_string()),
        Some(Origin::Cli) => warnings.push(Note::AnotherFlag.to_string()),
        None => {}
    }
    UnflagReport { node, was_flagged, still, warnings }
}
