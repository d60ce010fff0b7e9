//! Mends faults, which are differences that have lasted for long enough. Only faults of the named kinds are mended.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{
    super::{
        chain::chain,
        watched::{AuditMemory, now},
    },
    look::look,
    read::{AuditContext, Scene},
    rows::subject,
};
use crate::{
    conntrack::{Conntrack, Flow},
    ipvs::{self, Change, Ipvs, ServiceKey},
    ledger::{IpvsLock, Ledger},
    plan::{
        Mode,
        audit::{Client, Difference, Grace, Kind, Mend, Observed, Part, State, Subject},
    },
    proxy::{self, ProxyChoice},
    report::{RepairOutcome, RepairReport, RepairRow},
};

/// How many virtual servers are changed at once, while the drain waits.
const AT_ONCE: usize = 16;

/// Looks anew, mends the faults of these kinds, and looks whether they are gone. Blocking.
pub(super) fn repair(
    context: &AuditContext,
    memory: &mut AuditMemory,
    kinds: &BTreeSet<Kind>,
    dry_run: bool,
) -> RepairReport {
    let parts: BTreeSet<Part> = kinds.iter().map(|kind| kind.part()).collect();
    look(memory, context, parts.iter().copied());
    let (due, rest): (Vec<Observed>, Vec<Observed>) = memory
        .tracker
        .observed(now())
        .filter(|one| kinds.contains(&one.difference.kind))
        .partition(|one| one.state == State::Fault);
    let mut notes: Vec<String> = kinds
        .iter()
        .filter_map(|kind| Some(format!("{kind}: {}", memory.not_looked_at.get(kind)?)))
        .collect();
    let may: Vec<Result<(), &'static str>> =
        due.iter().map(|one| may_mend(context, &one.difference)).collect();
    let wanted: Vec<&Difference> =
        due.iter().zip(&may).filter(|(_, may)| may.is_ok()).map(|(one, _)| &one.difference).collect();
    let mut left = HashMap::new();
    if !dry_run && !wanted.is_empty() {
        notes.extend(carry_out(context, &wanted));
        look(memory, context, parts);
        let there = memory.tracker.observed(now()).map(|one| one.difference);
        left.extend(there.map(|now| ((now.kind, now.subject), now.grace)));
    }
    let mut rows: Vec<RepairRow> = due
        .iter()
        .zip(may)
        .map(|(Observed { difference, .. }, may)| RepairRow {
            kind: difference.kind,
            subject: subject(&difference.subject),
            service: difference.service.clone(),
            outcome: match may {
                Err(_) => RepairOutcome::Skipped,
                Ok(()) if dry_run => RepairOutcome::WouldFix,
                // A destination that is to end gently has begun to end.
                Ok(()) => match left.get(&(difference.kind, difference.subject.clone())) {
                    Some(grace) if difference.grace != Grace::Sync || *grace == Grace::Sync => {
                        RepairOutcome::Failed
                    }
                    _ => RepairOutcome::Fixed,
                },
            },
            action: match (may, &difference.mend) {
                (Err(why), _) => why.to_owned(),
                (Ok(()), mend) => mend.as_ref().map_or_else(String::new, action),
            },
        })
        .collect();
    rows.sort_by(|a, b| (a.kind, &a.subject).cmp(&(b.kind, &b.subject)));
    RepairReport { dry_run, rows, not_due: rest.len(), notes }
}

/// Mends the faults of these kinds that were seen last.
pub(super) fn mend(context: &AuditContext, memory: &mut AuditMemory, kinds: &BTreeSet<Kind>) {
    let due: Vec<Observed> = memory
        .tracker
        .observed(now())
        .filter(|one| one.state == State::Fault && kinds.contains(&one.difference.kind))
        .filter(|one| may_mend(context, &one.difference).is_ok())
        .collect();
    if due.is_empty() {
        return;
    }
    for problem in carry_out(context, &due.iter().map(|one| &one.difference).collect::<Vec<_>>()) {
        tracing::error!(
            event = "repair-incomplete",
            problem,
            "not all faults could be repaired; the agent tries again"
        );
    }
    let parts: BTreeSet<Part> = due.iter().map(|one| one.difference.kind.part()).collect();
    look(memory, context, parts);
}

const PROXY_NONE: &str = "--proxy none: stale conntrack entries and affinity are left alone";

/// Whether a fault may be mended now.
///
/// # Errors
/// Why nothing is done about the fault.
fn may_mend(context: &AuditContext, difference: &Difference) -> Result<(), &'static str> {
    let deletes = matches!(difference.kind, Kind::FlaggedFlow | Kind::FlaggedAffinity);
    match &difference.mend {
        None if deletes && context.sight.settings.proxy == ProxyChoice::None => Err(PROXY_NONE),
        None => Err(difference.kind.remedy()),
        Some(_) if context.sight.mode() == Mode::Observe => Err("observe mode: nothing is changed"),
        Some(Mend::Forget(_) | Mend::ForgetClient) if context.sight.settings.proxy == ProxyChoice::None => {
            Err(PROXY_NONE)
        }
        Some(_) if context.source.borrow().error.is_some() => {
            Err("the source of nodes cannot be read: what it said before may have changed since")
        }
        Some(_) if context.source.borrow().is_away() => {
            Err("the source of nodes does not answer: what it said before may have changed since")
        }
        Some(_) => Ok(()),
    }
}

fn action(mend: &Mend) -> String {
    match mend {
        Mend::Ipvs(Change::NewDestination(_, new)) => format!("add it with weight {}", new.weight),
        Mend::Ipvs(Change::SetDestination(_, new)) => format!("set its weight to {}", new.weight),
        Mend::Ipvs(_) => "delete it".to_owned(),
        Mend::Forget(_) => "delete its conntrack entry".to_owned(),
        Mend::ForgetClient => "delete the affinity of the client".to_owned(),
    }
}

/// Makes the changes; returns what went wrong.
fn carry_out(context: &AuditContext, differences: &[&Difference]) -> Vec<String> {
    let mut servers = BTreeMap::<ServiceKey, HashSet<(Kind, Subject)>>::new();
    let mut flows = Vec::new();
    let mut clients = Vec::new();
    let mut problems = Vec::new();
    for difference in differences {
        tracing::info!(
            event = "repair",
            kind = %difference.kind,
            subject = subject(&difference.subject),
            service = difference.service,
            "the agent repairs a fault"
        );
        match (&difference.mend, &difference.subject) {
            (Some(Mend::Ipvs(_)), Subject::Pair(pair)) => {
                let wanted = servers.entry(pair.service).or_default();
                wanted.insert((difference.kind, difference.subject.clone()));
            }
            (Some(Mend::Forget(flow)), _) => flows.push(*flow),
            (Some(Mend::ForgetClient), Subject::Client(client)) => clients.push(client),
            (Some(Mend::Ipvs(_) | Mend::ForgetClient) | None, _) => {}
        }
    }
    if !servers.is_empty() {
        problems.extend(mend_servers(context, &servers).err());
    }
    if !flows.is_empty() {
        problems.extend(forget(context, &flows).err());
    }
    if !clients.is_empty() {
        problems.extend(forget_clients(context, &clients).err());
    }
    problems
}

/// Judges each virtual server once more, as it is now, and makes the changes that are still called for. The drain and its guard wait
/// meanwhile. Destinations that they own by then are not touched.
fn mend_servers(
    context: &AuditContext,
    servers: &BTreeMap<ServiceKey, HashSet<(Kind, Subject)>>,
) -> Result<(), String> {
    let mut ipvs = Ipvs::open().map_err(chain)?;
    let all: Vec<_> = servers.iter().collect();
    for batch in all.chunks(AT_ONCE) {
        let Some(_turn) = IpvsLock::take_or_fail(&context.sight.settings.run_dir).map_err(chain)? else {
            return Err("the drain or its guard is changing IPVS and is busy; try again".to_owned());
        };
        let ledger = Ledger::read(&context.sight.settings.run_dir).map_err(chain)?.entries;
        let scene = Scene::now(context)?;
        for (key, wanted) in batch {
            if ipvs.service(key).map_err(chain)?.is_none() {
                continue;
            }
            let there = ipvs.destinations(key).map_err(chain)?;
            if there.incomplete || there.malformed > 0 {
                continue;
            }
            let ((), found) =
                scene.servers(context, &ledger, |servers, found| servers.look(**key, &there.items, found));
            let is_wanted =
                |difference: &Difference| wanted.contains(&(difference.kind, difference.subject.clone()));
            let called_for = found.differences.into_iter().filter(is_wanted);
            let changes: Vec<Change> = called_for
                .filter_map(|difference| match difference.mend {
                    Some(Mend::Ipvs(change)) => Some(change),
                    _ => None,
                })
                .collect();
            let applied = ipvs.apply(&changes);
            if let Some(failure) = applied.failure {
                return Err(chain(failure));
            }
            if let Some(ipvs::ChangeOutcome::Refused(errno)) =
                applied.outcomes.iter().find(|outcome| matches!(outcome, ipvs::ChangeOutcome::Refused(_)))
            {
                let error = std::io::Error::from_raw_os_error(*errno);
                return Err(format!("{key}: the kernel refused a change: {error}"));
            }
        }
    }
    Ok(())
}

fn forget(context: &AuditContext, flows: &[Flow]) -> Result<(), String> {
    let zone = context.sight.settings.conntrack_zone;
    let deleted = Conntrack::open(zone).and_then(|mut conntrack| conntrack.delete(flows)).map_err(chain)?;
    match deleted.refused {
        0 => Ok(()),
        count => Err(format!("the kernel would not delete {count} conntrack entries")),
    }
}

/// Deletes the affinity of these clients, where the nodes of their endpoints are still flagged.
fn forget_clients(context: &AuditContext, clients: &[&Client]) -> Result<(), String> {
    let scene = Scene::now(context)?;
    let mode = scene.mode.ok_or("it is not known any more how kube-proxy forwards")?;
    let affinities = scene.affinities();
    let mut forget = proxy::Forget::default();
    for client in clients {
        let endpoint = client.endpoint();
        if affinities.contains(endpoint.protocol, endpoint.socket) {
            forget.add(mode, &endpoint, client.address);
        }
    }
    forget.all().map(drop).map_err(chain)
}
