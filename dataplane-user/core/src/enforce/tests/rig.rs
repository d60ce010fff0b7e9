//! Drives an Enforcer against the model of the maps.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use jiff::Timestamp;
use nodefence_common::{NodeEntry, PortKey, port_flags};

use super::model::{Cluster, Known, Maps, OWN, Slots, word};
use crate::{
    cluster::{ClusterView, Node},
    enforce::{
        Auto, Change, ClaimSource, Enforcer, EnforcerSettings, Epoch, Event, InMaps, Input, NewClaim,
        NewView, Now, Output, RequestResult, Saved, Share, TablesPlan, Ticket, ToSave, World,
    },
    plan::{self, LeftOut, Mode, Policy, Step},
    proxy::Replacement,
};

pub(super) const SECOND: u64 = 1_000_000_000;
/// When the tests begin, by CLOCK_MONOTONIC.
pub(super) const BEGIN: u64 = 1_000 * SECOND;

/// What becomes of a map write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    Failed,
    /// It is said to have failed but was done all the same, as where the second of two maps refuses it.
    FailedAndDone,
}

/// Decides on map writes.
pub(super) type Fates = Box<dyn FnMut(&Output) -> Fate>;

/// An Enforcer, its driver and the maps.
pub(super) struct Rig {
    pub(super) enforcer: Enforcer,
    pub(super) settings: EnforcerSettings,
    pub(super) now: Now,
    pub(super) maps: Maps,
    pub(super) slots: Slots,
    pub(super) fates: Fates,
    /// What was done, in words.
    pub(super) log: Vec<String>,
    /// Tables that were handed out and not written.
    pub(super) tables: Option<TablesPlan>,
    /// What the writer of tables knows of the maps.
    pub(super) in_maps: InMaps,
    /// What is left to be written of those that are on their way.
    pub(super) writing: Option<Vec<Step>>,
    /// How many plans were written by what changed.
    pub(super) deltas: u64,
    /// Whether they are written at once.
    pub(super) writes_tables: bool,
    /// What was handed out to be saved.
    pub(super) saving: Option<(u64, ToSave)>,
    /// Whether it is saved at once.
    pub(super) saves: bool,
    pub(super) saved: Saved,
    pub(super) answers: BTreeMap<u64, RequestResult>,
    pub(super) events: Vec<Event>,
    pub(super) world: Option<Arc<World>>,
    pub(super) lease: Option<u64>,
    /// Views by their epoch.
    pub(super) known: BTreeMap<Epoch, Known>,
    pub(super) last: Option<Arc<NewView>>,
    pub(super) tickets: u64,
    /// The maps hold what was written and nothing else.
    exact: bool,
}

pub(super) fn settings() -> EnforcerSettings {
    EnforcerSettings {
        own: OWN.into(),
        mode: Mode::Enforce,
        auto: Auto::Enforce,
        answer: plan::Answer::Refuse,
        limit: Share::default(),
        max_view_age: None,
        force: false,
        shares: false,
    }
}

pub(super) fn now(mono: u64) -> Now {
    let wall = Timestamp::from_nanosecond(i128::from(mono) + 1_700_000_000_000_000_000).unwrap();
    // The machine slept for an hour: the two clocks are not the same.
    Now { mono, boot: Duration::from_nanos(mono) + Duration::from_secs(3_600), wall }
}

pub(super) fn policy(settings: &EnforcerSettings) -> Policy<'_> {
    Policy { own_node: &settings.own, mode: settings.mode, answer: settings.answer }
}

/// Nodes in two pools, by their names.
fn pool(node: &Node) -> Option<Arc<str>> {
    match node.name.bytes().next() {
        Some(b'a'..=b'c') => Some("front".into()),
        Some(b'd') => Some("back".into()),
        _ => None,
    }
}

pub(super) fn claim(source: ClaimSource) -> NewClaim {
    NewClaim { source, by: "test".into(), reason: "".into(), evidence: None, lasts: None, until: None }
}

pub(super) fn lasting(source: ClaimSource, seconds: u64) -> NewClaim {
    NewClaim { lasts: Some(Duration::from_secs(seconds)), ..claim(source) }
}

impl Rig {
    /// On a machine without maps.
    pub(super) fn new(settings: EnforcerSettings) -> Self {
        Self::over(Maps::default(), Saved::default(), settings, BEGIN)
    }

    /// After an agent that left these.
    pub(super) fn over(maps: Maps, saved: Saved, settings: EnforcerSettings, mono: u64) -> Self {
        Self::over_beside(maps, saved, settings, None, mono)
    }

    /// The same where this forwards in kube-proxy's place.
    pub(super) fn over_beside(
        maps: Maps,
        saved: Saved,
        settings: EnforcerSettings,
        replacement: Option<Replacement>,
        mono: u64,
    ) -> Self {
        let now = now(mono);
        let enforcer = Enforcer::bridge(maps.pinned(), saved.clone(), settings.clone(), replacement, now);
        Self {
            enforcer,
            settings,
            now,
            slots: Slots::adopt(&maps),
            exact: maps.nodes.is_empty(),
            maps: Maps { unknown: maps.exempt.keys().copied().collect(), ..maps },
            fates: Box::new(|_| Fate::Done),
            log: Vec::new(),
            tables: None,
            in_maps: InMaps::default(),
            writing: None,
            deltas: 0,
            writes_tables: true,
            saving: None,
            saves: true,
            saved,
            answers: BTreeMap::new(),
            events: Vec::new(),
            world: None,
            lease: None,
            known: BTreeMap::new(),
            last: None,
            tickets: 0,
        }
    }

    /// With a view, whose tables are written.
    pub(super) fn with(text: &str, settings: EnforcerSettings) -> Self {
        let mut rig = Self::new(settings);
        rig.view(&Cluster::parse(text));
        rig.log.clear();
        rig
    }

    /// A comparison read the maps.
    pub(super) fn found(&mut self, whole: bool) -> Input {
        self.maps.unknown.clear();
        let exempt = self.maps.exempt.iter().map(|(key, flags)| (*key, *flags)).collect();
        Input::Found { nodes: self.maps.pinned(), exempt, whole }
    }

    /// Another view comes.
    pub(super) fn view(&mut self, cluster: &Arc<Cluster>) -> Epoch {
        let view = self.deliver(cluster);
        let epoch = view.epoch;
        self.tell(Input::View { view, flags: None });
        epoch
    }

    /// A view as the builder delivers it.
    pub(super) fn deliver(&mut self, cluster: &Arc<Cluster>) -> Arc<NewView> {
        let epoch = Epoch(self.last.as_ref().map_or(1, |last| last.epoch.0 + 1));
        self.slots.reconcile(&cluster.view);
        let slots = self.slots.clone();
        // As who reads a source hands it on.
        let view = match &self.last {
            Some(last) => Arc::new(ClusterView::clone(&cluster.view).sharing(&last.view)),
            None => Arc::clone(&cluster.view),
        };
        let policy = policy(&self.settings);
        let last = self.last.as_deref();
        let new = NewView::build(epoch, view, |name| slots.get(name), pool, &policy, None, last);
        let new = Arc::new(NewView { read: self.now, ..new });
        self.last = Some(Arc::clone(&new));
        self.known.insert(epoch, Known { new: Arc::clone(&new), cluster: Arc::clone(cluster) });
        new
    }

    pub(super) fn tell(&mut self, input: Input) {
        self.enforcer.handle(input, self.now);
        self.run();
    }

    /// Does all that is to be done now.
    pub(super) fn run(&mut self) {
        while let Some(output) = self.enforcer.poll() {
            self.perform(output);
        }
    }

    /// Does one thing.
    pub(super) fn perform(&mut self, output: Output) {
        match &output {
            Output::Publish(world) => {
                let names = world.enforced.iter().filter_map(|bearer| bearer.name.as_ref());
                let names: Vec<&str> = names.map(|name| name.as_str()).collect();
                self.log.push(format!("publish {}", names.join(",")));
                self.world = Some(Arc::clone(world));
            }
            Output::Node(..) | Output::Exempt(_) | Output::Except(_) | Output::Unexempt(_) => {
                self.write(&output);
            }
            Output::Lease(until) => self.lease = Some(*until),
            Output::Tables(plan) => {
                self.log.push(format!("tables {}", plan.epoch.0));
                self.tables = Some(plan.clone());
                if self.writes_tables {
                    self.write_tables();
                }
            }
            Output::Save(serial, saved) => {
                self.saving = Some((*serial, saved.clone()));
                if self.saves {
                    self.save(Ok(()));
                }
            }
            Output::Reply(ticket, answer) => drop(self.answers.insert(ticket.0, answer.clone())),
            Output::Record(event) => self.events.push(event.clone()),
        }
    }

    fn put(&mut self, key: PortKey, flags: u32) {
        self.maps.unknown.remove(&key);
        self.maps.exempt.insert(key, flags);
    }

    fn write(&mut self, output: &Output) {
        let fate = (self.fates)(output);
        self.exact &= fate == Fate::Done;
        self.is_in_order(output);
        if fate != Fate::Failed {
            match output {
                Output::Node(index, entry) => drop(self.maps.nodes.insert(*index, *entry)),
                Output::Exempt(key) => self.put(*key, port_flags::EXEMPT),
                Output::Except(key) => self.put(*key, port_flags::CUT),
                Output::Unexempt(key) => drop(self.maps.exempt.remove(key)),
                _ => unreachable!("{output:?}"),
            }
        }
        let failed = if fate == Fate::Done { "" } else { "failed: " };
        self.log.push(format!("{failed}{}", in_words(&self.maps, output)));
        self.check();
        if fate != Fate::Done {
            self.enforcer.failed(output.clone(), "no room".into(), self.now);
        }
    }

    /// Where no write failed and one view alone holds: keys that cut ports of an exempt address lie in the map before the address' key, and as long. Otherwise
    /// packets may pass meanwhile that need not.
    fn is_in_order(&self, output: &Output) {
        let (Output::Exempt(key) | Output::Unexempt(key)) = output else { return };
        let [known] = &self.maps.views[..] else { return };
        if !self.exact || self.last.as_ref().is_none_or(|last| last.epoch != known.new.epoch) {
            return;
        }
        let address = PortKey::exempt_address(key.addr);
        let nodes = known.cluster.view.indexed();
        let named = nodes.flat_map(|(at, _)| known.new.exempt.named((at, key.addr.into())));
        let named: Vec<PortKey> = named.map(|port| port.key()).collect();
        let in_order = match output {
            Output::Exempt(_) if *key == address && !self.maps.exempt.contains_key(key) => {
                named.iter().all(|port| self.maps.exempt.contains_key(port))
            }
            Output::Unexempt(_) if named.contains(key) => !self.maps.exempt.contains_key(&address),
            _ => true,
        };
        assert!(in_order, "{output:?} is out of order\n{}", self.log.join("\n"));
    }

    /// Writes the tables that were handed out, one entry after the other.
    pub(super) fn write_tables(&mut self) {
        let Some(plan) = self.tables.take() else { return };
        self.write_part(&plan, usize::MAX);
        self.writing = None;
        self.in_maps.written(&plan, LeftOut::default());
        let lie = self.maps.tables();
        assert!(lie == plan.tables.flat(), "{lie:?} in place of {plan:?}\n{}", self.log.join("\n"));
        let known = self.known[&plan.epoch].clone();
        self.maps.views = vec![known];
        self.check();
        self.enforcer.handle(Input::Written { epoch: plan.epoch, result: Ok(()) }, self.now);
    }

    /// Writes so many entries of the tables that were handed out, and fails then.
    pub(super) fn fail_tables(&mut self, entries: usize) {
        let Some(plan) = self.tables.take() else { return };
        self.write_part(&plan, entries);
        self.writing = None;
        let result = Err("it failed".into());
        self.enforcer.handle(Input::Written { epoch: plan.epoch, result }, self.now);
    }

    /// Writes this many more entries, by the code that works out what the kernel's maps get.
    pub(super) fn write_part(&mut self, plan: &TablesPlan, entries: usize) {
        let known = &self.known[&plan.epoch];
        if !self.maps.views.iter().any(|there| Arc::ptr_eq(&there.new, &known.new)) {
            self.maps.views.push(known.clone());
        }
        let mut steps = self.writing.take().unwrap_or_else(|| self.begin(plan));
        for step in steps.drain(..entries.min(steps.len())) {
            self.maps.write(step);
            self.check();
        }
        self.writing = Some(steps);
    }

    /// In an order that is the same each time.
    fn begin(&mut self, plan: &TablesPlan) -> Vec<Step> {
        let maps = &self.maps;
        let mut whole = false;
        let read = || {
            whole = true;
            Ok::<_, Infallible>(maps.tables())
        };
        let Ok(delta) = self.in_maps.begin(plan, read);
        self.deltas += u64::from(!whole);
        let mut steps: Vec<Step> = delta.steps().collect();
        // As it is, but for what is in no order.
        steps.sort_by_key(|step| match step {
            Step::DropPort(key) => (0, key.addr, *key),
            Step::DropBackend(addr) => (1, *addr, PortKey::exempt_address(*addr)),
            Step::PutBackend(addr, ..) => (2, *addr, PortKey::exempt_address(*addr)),
            Step::PutPort(key, ..) => (3, key.addr, *key),
        });
        steps
    }

    /// What was handed out to be saved is, or is not.
    pub(super) fn save(&mut self, result: Result<(), Arc<str>>) {
        let Some((serial, saved)) = self.saving.take() else { return };
        if result.is_ok() {
            self.saved = saved.saved();
        }
        self.enforcer.handle(Input::Saved { serial, result }, self.now);
    }

    /// A packet may come, and somebody may ask why it is cut.
    pub(super) fn check(&self) {
        if let Err(error) = self.maps.check(self.now.mono) {
            panic!("{error}\n{}", self.log.join("\n"));
        }
        let Some(world) = &self.world else { return };
        for slot in self.maps.cut(self.now.mono) {
            let mut told = world.enforced.iter().chain(world.lapsing.iter());
            assert!(
                told.any(|bearer| bearer.slot == slot),
                "nobody is told why {slot:?} is cut\n{}",
                self.log.join("\n")
            );
        }
    }

    /// Time goes by, and the driver is on time.
    pub(super) fn pass(&mut self, ns: u64) {
        let end = self.now.mono + ns;
        loop {
            let deadline = self.enforcer.deadline().max(self.now.mono);
            self.now = now(deadline.min(end));
            self.check();
            self.tell(Input::Tick);
            if self.now.mono == end {
                return;
            }
        }
    }

    pub(super) fn raise(&mut self, node: &str, claim: NewClaim, force: bool) -> u64 {
        self.ask(node, Change::Raise { claim, force })
    }

    pub(super) fn ask(&mut self, node: &str, change: Change) -> u64 {
        self.tickets += 1;
        let ticket = Some(Ticket(self.tickets));
        self.tell(Input::Claim { node: node.into(), change, ticket });
        self.tickets
    }

    /// An operator flags a node.
    pub(super) fn flag(&mut self, node: &str) -> RequestResult {
        let ticket = self.raise(node, claim(ClaimSource::Cli), false);
        self.answers.remove(&ticket).expect("an answer")
    }

    /// An operator takes the flag back.
    pub(super) fn unflag(&mut self, node: &str) -> RequestResult {
        let ticket = self.ask(node, Change::Withdraw(ClaimSource::Cli));
        self.answers.remove(&ticket).expect("an answer")
    }

    /// Names of the nodes that are cut.
    pub(super) fn cut(&self) -> String {
        let mut names: Vec<String> =
            self.maps.cut(self.now.mono).map(|slot| self.maps.name(slot.index)).collect();
        names.sort_unstable();
        names.join(",")
    }

    pub(super) fn entry(&self, node: &str) -> NodeEntry {
        let slot = self.slots.get(node).expect("a place");
        self.maps.nodes[&slot.index]
    }

    /// The log since the last call.
    pub(super) fn did(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    pub(super) fn world(&self) -> &World {
        self.world.as_ref().expect("a snapshot")
    }
}

fn in_words(maps: &Maps, output: &Output) -> String {
    match output {
        Output::Node(index, entry) => {
            let name = String::from_utf8_lossy(&entry.name).trim_end_matches('\0').to_owned();
            let name = if name.is_empty() { format!("{index}") } else { name };
            format!("{} {name}", word(entry))
        }
        Output::Exempt(key) => format!("exempt {}", key_in_words(key)),
        Output::Except(key) => format!("except {}", key_in_words(key)),
        Output::Unexempt(key) => format!("unexempt {}", key_in_words(key)),
        _ => format!("{output:?} of {}", maps.nodes.len()),
    }
}

fn key_in_words(key: &PortKey) -> String {
    let address: std::net::IpAddr = key.addr.into();
    if key.port == 0 { address.to_string() } else { format!("{address}:{}", key.port) }
}
