//! Namespaces with tables of their own, and functions that read and change these.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use nodefence::ipvs::{Applied, Change, ChangeOutcome, Ipvs, Protocol, Service, ServiceKey, is_loaded};
use nodefence_tests::{Netns, ipvs::Snapshot};

/// Lets one test run at a time. Before Linux 7.1 all network namespaces share one table, and a list of `ipvsadm` may lack or repeat services
/// while those of another namespace are added and deleted.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn namespace() -> Result<Netns> {
    let ns = Netns::new("ipvs-tables")?;
    ensure!(
        ns.run(is_loaded),
        "this kernel has no IPVS (module ip_vs): run this file with cargo xtask vm-test"
    );
    Ok(ns)
}

/// Works with a socket that is opened in the namespace.
pub(super) fn with<T: Send + 'static>(
    ns: &Netns,
    work: impl FnOnce(&mut Ipvs) -> Result<T> + Send + 'static,
) -> Result<T> {
    ns.run(move || work(&mut Ipvs::open()?))
}

pub(super) fn snapshot(ns: &Netns) -> Result<Snapshot> {
    let snapshot = with(ns, |ipvs| Ok(Snapshot::read(ipvs)?))?;
    ensure!(snapshot.malformed == 0 && !snapshot.incomplete, "{} unread", snapshot.malformed);
    Ok(snapshot)
}

pub(super) fn apply(ns: &Netns, changes: Vec<Change>) -> Result<Vec<ChangeOutcome>> {
    with(ns, move |ipvs| {
        let Applied { outcomes, failure } = ipvs.apply(&changes);
        failure.map_or(Ok(outcomes), |error| Err(error.into()))
    })
}

/// Makes changes that must all succeed.
pub(super) fn apply_all(ns: &Netns, changes: Vec<Change>) -> Result<()> {
    let count = changes.len();
    let outcomes = apply(ns, changes)?;
    ensure!(outcomes == vec![ChangeOutcome::Done; count], "{outcomes:?}");
    Ok(())
}

pub(super) fn at(address: &str, protocol: Protocol) -> Result<ServiceKey> {
    Ok(ServiceKey::Address { address: address.parse()?, protocol })
}

pub(super) fn service(key: ServiceKey, scheduler: &str) -> Result<Service> {
    Ok(Service::new(key, scheduler.parse()?))
}
