//! Reads the tables part by part, and finds what differs.
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;

use super::super::{
    chain::chain, own_node::local_addresses, sight::Sight, told::SourceRow, watched::Reading,
};
use crate::{
    cluster::{ClusterView, NodeName, NodeSet},
    conntrack::{Conntrack, Family},
    ipvs::{self, Destination, Ipvs, Service, ServiceKey, flags, is_loaded},
    ledger::{Entry, Ledger, Pair},
    plan::{
        Exemptions, Mode, Proxy, VirtualAddresses,
        audit::{
            Addresses, Affinities, Cluster, Found, Kind, MayDelete, Part, Servers, StaleFlows, stale_syncs,
        },
    },
    proxy::{self, Affinity, Endpoint, Mode as ProxyMode, clients},
    sysctl,
};

/// The agent's state that is looked at beside the tables.
pub(in super::super) struct AuditContext {
    pub(in super::super) sight: Sight,
    /// The state of the source of views.
    pub(in super::super) source: watch::Receiver<SourceRow>,
}

/// Reads a part. Blocking.
///
/// # Errors
/// Why nothing of the part can be looked at.
pub(super) fn read(context: &AuditContext, part: Part) -> Result<Reading, String> {
    let scene = Scene::now(context)?;
    let mut not_looked_at = BTreeMap::new();
    let found = match part {
        Part::Ipvs => ipvs(&scene, context)?,
        Part::Conntrack => conntrack(&scene, context.sight.settings.conntrack_zone)?,
        Part::Affinity => affinity(&scene, context)?,
        Part::KubeProxy => Some(kube_proxy(context)?),
    };
    if scene.view.services.is_none() && part == Part::Conntrack {
        not_looked_at.insert(Kind::StaleUdp, no_services(&scene.view));
    }
    if scene.view.services.is_none()
        && part == Part::Affinity
        && matches!(scene.mode, None | Some(ProxyMode::Iptables))
    {
        not_looked_at.insert(Kind::FlaggedAffinity, no_services(&scene.view));
    }
    if !scene.enforce {
        let why = "observe mode: flows, affinity and destinations of flagged nodes stay as they are";
        let flagged = [Kind::FlaggedDestination, Kind::FlaggedFlow, Kind::FlaggedAffinity];
        let here = flagged.into_iter().filter(|kind| kind.part() == part);
        not_looked_at.extend(here.map(|kind| (kind, why.to_owned())));
    }
    if found.is_none() {
        let why = "changed too fast to be read whole; what was known before is shown";
        not_looked_at.extend(part.kinds().iter().map(|kind| (*kind, why.to_owned())));
    }
    Ok(Reading { found, not_looked_at })
}

fn no_services(view: &ClusterView) -> String {
    format!("{} has no `services`", view.source)
}

/// The facts that tables are judged by.
pub(super) struct Scene {
    pub(super) view: Arc<ClusterView>,
    virtual_addresses: Arc<VirtualAddresses>,
    own_node: NodeName,
    /// Flagged nodes; none in observe mode.
    pub(super) flagged: NodeSet,
    exemptions: Exemptions,
    pub(super) mode: Option<ProxyMode>,
    why: String,
    enforce: bool,
    local: BTreeSet<IpAddr>,
}

impl Scene {
    pub(super) fn now(context: &AuditContext) -> Result<Self, String> {
        let local = local_addresses().map_err(|error| format!("this machine's addresses: {error}"))?;
        let world = context.sight.world();
        let enforce = world.held.mode == Mode::Enforce;
        Ok(Self {
            flagged: if enforce { world.enforced_nodes() } else { NodeSet::default() },
            view: Arc::clone(&world.view),
            virtual_addresses: Arc::clone(&world.addresses),
            exemptions: world.exemptions(),
            own_node: context.sight.own_node.clone(),
            mode: world.proxy.mode,
            why: world.proxy.to_string(),
            enforce,
            local: local.iter().map(IpAddr::to_canonical).collect(),
        })
    }

    fn addresses(&self) -> Addresses<'_> {
        let services = self.view.services.as_deref().unwrap_or_default();
        Addresses::new(services, &self.virtual_addresses, &self.local)
    }

    /// Judges which clients affinity keeps, where nftables or iptables forward.
    pub(super) fn affinities(&self) -> Affinities<'_> {
        let deletes = matches!(self.mode, Some(ProxyMode::Iptables | ProxyMode::Nftables));
        Affinities::new(&self.view, &self.flagged, &self.exemptions, deletes)
    }

    /// Judges virtual servers; `look` shows them one by one.
    pub(super) fn servers<T>(
        &self,
        context: &AuditContext,
        ledger: &BTreeMap<Pair, Entry>,
        look: impl FnOnce(&mut Servers<'_>, &mut Found) -> T,
    ) -> (T, Found) {
        let addresses = self.addresses();
        let cluster = Cluster {
            view: &self.view,
            proxy: Proxy::of(&self.view, &self.own_node, ProxyMode::Ipvs),
            flagged: &self.flagged,
            ledger,
            excluded: &context.sight.settings.audit.excluded,
        };
        let mut found = Found::default();
        let done = look(&mut Servers::new(cluster, &addresses), &mut found);
        (done, found)
    }
}

fn kube_proxy(context: &AuditContext) -> Result<Found, String> {
    if context.sight.settings.proxy == proxy::ProxyChoice::None {
        return Err("kube-proxy is not to be looked at (`--proxy none`)".to_owned());
    }
    let syncs = proxy::syncs().map_err(|error| format!("kube-proxy's metrics: {error}"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(stale_syncs(&syncs, now.as_secs_f64()))
}

fn ipvs(scene: &Scene, context: &AuditContext) -> Result<Option<Found>, String> {
    if scene.mode != Some(ProxyMode::Ipvs) {
        return Err(format!("kube-proxy does not forward by IPVS: {}", scene.why));
    }
    if scene.view.services.is_none() {
        return Err(no_services(&scene.view));
    }
    if !is_loaded() {
        return Err("IPVS is not loaded in this kernel".to_owned());
    }
    // The ledger is read before the tables. What is drained in between is not in the ledger as it was read; the next look judges it anew.
    let ledger = Ledger::read(&context.sight.settings.run_dir).map_err(chain)?.entries;
    let (whole, found) = scene.servers(context, &ledger, |servers, found| {
        let whole = walk(|_| true, |key, destinations| servers.look(key, destinations, found));
        servers.finish(found);
        whole
    });
    Ok(whole.map_err(chain)?.then_some(found))
}

/// Shows the virtual servers that are wanted, each with its destinations. Returns whether these are all.
fn walk(
    wanted: impl Fn(&Service) -> bool,
    mut show: impl FnMut(ServiceKey, &[Destination]),
) -> Result<bool, ipvs::Error> {
    let mut ipvs = Ipvs::open()?;
    let listed = ipvs.services()?;
    let mut whole = !listed.incomplete && listed.malformed == 0;
    for service in listed.items.into_iter().filter(wanted) {
        let destinations = ipvs.destinations(&service.key)?;
        whole &= !destinations.incomplete && destinations.malformed == 0;
        // The kernel lists the destinations of a service that is gone as none.
        if destinations.items.is_empty() && ipvs.service(&service.key)?.is_none() {
            continue;
        }
        show(service.key, &destinations.items);
    }
    Ok(whole)
}

fn affinity(scene: &Scene, context: &AuditContext) -> Result<Option<Found>, String> {
    let affinities = scene.affinities();
    let mut found = Found::default();
    if affinities.is_empty() {
        return Ok(Some(found));
    }
    let modes = match scene.mode {
        Some(ProxyMode::Ipvs) => return templates(scene, context),
        Some(ProxyMode::Iptables) => &[ProxyMode::Iptables][..],
        Some(ProxyMode::Nftables) => &[ProxyMode::Nftables],
        // The mode is not known: affinity of either mode is reported.
        None => &[ProxyMode::Nftables, ProxyMode::Iptables],
    };
    let mut known = Affinity::default();
    affinities.endpoints().for_each(|endpoint| known.add(&endpoint));
    let ours = |protocol, socket| affinities.contains(protocol, socket);
    for mode in modes {
        let tell = |endpoint: &Endpoint<'_>, client| affinities.look(endpoint, client, &mut found);
        match clients(*mode, &ours, &known, tell) {
            Ok(()) => {}
            Err(error) if error.is_broken_off() => return Ok(None),
            Err(error) => return Err(chain(error)),
        }
    }
    Ok(Some(found))
}

/// The clients that IPVS keeps at destinations.
fn templates(scene: &Scene, context: &AuditContext) -> Result<Option<Found>, String> {
    if !is_loaded() {
        return Err("IPVS is not loaded in this kernel".to_owned());
    }
    let keeps = |service: &Service| service.flags.bits & flags::PERSISTENT != 0;
    let (whole, found) = scene.servers(context, &BTreeMap::new(), |servers, found| {
        walk(keeps, |key, destinations| servers.look_at_templates(key, destinations, found))
    });
    Ok(whole.map_err(chain)?.then_some(found))
}

fn conntrack(scene: &Scene, zone: u16) -> Result<Option<Found>, String> {
    // A request for the list would load the module.
    let Some(entries) = sysctl::number("net/netfilter/nf_conntrack_count") else {
        return Err("conntrack is not loaded in this kernel".to_owned());
    };
    let addresses = scene.addresses();
    let dnat = matches!(scene.mode, Some(ProxyMode::Iptables | ProxyMode::Nftables));
    let loose = sysctl::number("net/netfilter/nf_conntrack_tcp_loose") != Some(0);
    let may_delete = MayDelete { datagrams: dnat, tcp: dnat && loose };
    let stale = StaleFlows::new(&scene.view, &addresses, &scene.flagged, &scene.exemptions, may_delete);
    let mut found = Found::default();
    if entries == 0 || stale.is_empty() {
        return Ok(Some(found));
    }
    let mut conntrack = Conntrack::open(zone).map_err(chain)?;
    let mut whole = true;
    for family in [Family::V4, Family::V6] {
        // Entries are judged as they stream in: nothing else of the table stays in memory.
        let dump = conntrack.dump(family, |flow| {
            stale.look(flow, &mut found);
            false
        });
        whole &= !dump.map_err(chain)?.incomplete;
    }
    Ok(whole.then_some(found))
}
