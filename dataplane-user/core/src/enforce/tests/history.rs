//! A random history, and what must hold in it between any two writes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use nodefence_common::NodeEntry;

use super::{
    model::OWN,
    oracle::{Held, Members, OnDisk, Oracle},
    random::Seeded,
    rig::{BEGIN, Fate, Rig, SECOND, now},
};
use crate::{
    cluster::NodeName,
    enforce::{
        Auto, ClaimSource, EnforcerSettings, Input, Now, Output, Refusal, Share, Standing, place::cuts,
    },
    plan::{self, Mode},
};

/// The variable by which one history is tried alone and shows all that it did: `NODEFENCE_HISTORY=4093`.
pub(super) const ALONE: &str = "NODEFENCE_HISTORY";

/// What a history counts, once each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Saw {
    Cut,
    Observed,
    Exempted,
    Excepted,
    Exceeded,
    Failed,
    Refused,
    TablesFailed,
    TakeOver,
    Bridged,
    TwoViews,
    ByDelta,
    Lapsed,
    Live,
    CameBack,
    HandedOver,
    WentOn,
    Lost,
    Old,
    Replaced,
}

/// A history and what must hold in it.
pub(super) struct History {
    pub(super) rig: Rig,
    pub(super) random: Seeded,
    /// How many of a hundred map writes fail.
    pub(super) failing: Rc<RefCell<(u64, Seeded)>>,
    pub(super) oracle: Oracle,
    /// Places whose entry may cut although no claim wants it: a write of theirs was said to have failed.
    pub(super) excused: BTreeSet<u32>,
    pub(super) saw: BTreeSet<Saw>,
    /// A write failed in this agent's life.
    pub(super) any_failed: bool,
    /// Requests that wait, and the node of each.
    pub(super) asked: BTreeMap<u64, NodeName>,
    pub(super) steps: Vec<String>,
    /// The position of the last view's cluster among all clusters.
    pub(super) at: usize,
    /// Whether this history is tried alone.
    pub(super) alone: bool,
}

impl History {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Seeded::new(seed);
        let settings = any_settings(&mut random);
        let oracle = Oracle::over(OnDisk::default(), settings.clone(), now(BEGIN));
        let mut rig = Rig::new(settings);
        let failing = Rc::new(RefCell::new((0, Seeded::new(seed ^ 0x5555))));
        let fates = Rc::clone(&failing);
        rig.fates = Box::new(move |output| fate(&mut fates.borrow_mut(), output));
        rig.writes_tables = false;
        rig.saves = random.percent(70);
        let failing_percent = random.pick(&[0, 0, 5, 20, 60]);
        failing.borrow_mut().0 = failing_percent;
        Self {
            rig,
            random,
            failing,
            oracle,
            excused: BTreeSet::new(),
            saw: BTreeSet::new(),
            any_failed: false,
            asked: BTreeMap::new(),
            steps: Vec::new(),
            at: 0,
            alone: std::env::var_os(ALONE).is_some(),
        }
    }

    /// What the history does next.
    pub(super) fn note(&mut self, step: impl Into<String>) {
        let step = step.into();
        if self.alone {
            self.rig.log.push(format!("== {step}"));
        }
        self.steps.push(step);
    }

    /// Only a history that is tried alone stores its whole log.
    pub(super) fn forget(&mut self) {
        if !self.alone {
            self.rig.log.clear();
        }
    }

    /// The members of the view that the Enforcer took. Which view that is follows from the results of writes, so the oracle cannot say.
    pub(super) fn members(&self) -> Arc<Members> {
        let latest = self.rig.enforcer.views.latest();
        latest.map(|view| Arc::clone(&view.members)).unwrap_or_default()
    }

    /// The Enforcer was told something, or that a write failed.
    pub(super) fn look(&mut self) {
        let (members, now) = (self.members(), self.rig.now);
        // Where a verdict could not be written, its claim is not held from now on; the answer is on its way.
        for output in &self.rig.enforcer.out {
            if let Output::Reply(ticket, answer) = output {
                self.oracle.answered(ticket.0, answer, &members, now);
            }
        }
        if self.oracle.open {
            self.oracle.evaluate(&members, now);
        }
    }

    pub(super) fn fail(&self, why: &str) -> ! {
        panic!("{why}\nsteps:\n{}\nlast:\n{}", self.steps.join("\n"), self.rig.log.join("\n"))
    }

    /// Whether the owner of a place may be cut by what is claimed now.
    pub(super) fn is_claimed(&self, index: u32) -> bool {
        let name = NodeName::from(self.rig.maps.name(index));
        let members = self.members();
        if !self.oracle.open {
            return self.oracle.may_cut(&name, &members, self.rig.now);
        }
        let generation = self.rig.maps.nodes[&index].generation;
        let has_it = members.get(&name).is_some_and(|its| its.slot == plan::Slot { index, generation });
        has_it && self.oracle.may_cut(&name, &members, self.rig.now)
    }

    pub(super) fn tell(&mut self, input: Input) {
        self.forget();
        self.oracle.tell(&input, &self.members(), self.rig.now);
        self.oracle.open |= matches!(input, Input::View { .. });
        self.rig.enforcer.handle(input, self.rig.now);
        self.oracle.lapse(&self.members(), self.rig.now);
        self.look();
        self.run();
    }

    /// Tables that were handed out are written.
    pub(super) fn write_tables(&mut self) {
        if self.rig.tables.is_some() {
            self.rig.write_tables();
            let read = self.rig.maps.views[0].new.read.boot;
            self.oracle.confirmed = self.oracle.confirmed.max(read);
        }
    }

    /// The source says that its view is as it is.
    pub(super) fn any_confirmation(&mut self) {
        self.note("confirmed");
        let at = self.rig.now.boot - Duration::from_nanos(self.random.below(SECOND));
        if self.rig.enforcer.views.is_written() {
            self.oracle.confirmed = self.oracle.confirmed.max(at);
        }
        self.tell(Input::Confirmed(Now { boot: at, ..self.rig.now }));
    }

    /// What was handed out to be saved is, or is not.
    pub(super) fn save(&mut self, result: Result<(), Arc<str>>) {
        let own = self.oracle.saving.take();
        if let Some(own) = own.filter(|_| result.is_ok()) {
            self.lies_on_disk(own);
        }
        self.rig.save(result);
    }

    fn lies_on_disk(&mut self, saved: OnDisk) {
        self.oracle.saved = saved;
        self.oracle.lost = false;
    }

    /// Does all that is to be done, and checks each write against the claims.
    pub(super) fn run(&mut self) {
        while let Some(output) = self.rig.enforcer.poll() {
            self.watch(&output);
            if let Output::Save(..) = &output {
                self.oracle.saving = Some(self.oracle.kept.clone());
            }
            let failures = self.rig.log.len();
            self.rig.perform(output.clone());
            if self.rig.saving.is_none()
                && let Some(own) = self.oracle.saving.take()
            {
                self.lies_on_disk(own);
            }
            let failed = self.rig.log[failures..].iter().any(|line| line.starts_with("failed: "));
            if failed {
                self.saw.insert(Saw::Failed);
                self.any_failed = true;
                if let Output::Node(index, _) = &output {
                    self.excused.insert(*index);
                }
                self.look();
            } else if let Output::Node(index, _) = &output {
                self.excused.remove(index);
            }
            if let Output::Reply(ticket, answer) = &output {
                self.asked.remove(&ticket.0);
                if let Some(asked) = self.oracle.handed_over(ticket.0, answer) {
                    self.saw.insert(Saw::HandedOver);
                    // Later what sources tell is not waited for.
                    if self.rig.now.mono < asked + SECOND {
                        self.is_saved_but_for_renewals();
                    }
                }
                if matches!(answer, Err(Refusal::NotWritten(_) | Refusal::NotExempt { .. })) {
                    self.saw.insert(Saw::Refused);
                }
            }
        }
        self.settled();
    }

    /// Checks an output before it is carried out.
    pub(super) fn watch(&mut self, output: &Output) {
        match output {
            Output::Node(index, entry) if cuts(entry) => {
                self.saw.insert(Saw::Cut);
                if !self.oracle.open {
                    self.saw.insert(Saw::Bridged);
                }
                let claims = self.claims_of(entry);
                let generation = self.rig.maps.nodes.get(index).map(|entry| entry.generation);
                if generation != Some(entry.generation) {
                    self.fail("a verdict comes with a new generation");
                }
                let ends = claims.iter().map(|claim| claim.ends).collect::<Option<Vec<_>>>();
                let longest = ends.map(|all| all.into_iter().max().unwrap_or(self.rig.now.boot));
                let longest = longest.map(|ends| ends - self.rig.now.boot);
                if longest.is_some_and(|left| entry.until > self.rig.now.mono + left.as_nanos() as u64) {
                    self.fail("a verdict outlives its claims");
                }
                if entry.until > self.rig.now.mono && !self.is_claimed(*index) {
                    self.fail(&format!("{} is cut and may not be", self.rig.maps.name(*index)));
                }
            }
            Output::Node(_, entry) if entry.verdict != 0 => drop(self.saw.insert(Saw::Observed)),
            Output::Exempt(_) => drop(self.saw.insert(Saw::Exempted)),
            Output::Except(_) => drop(self.saw.insert(Saw::Excepted)),
            Output::Lease(_) if self.rig.now.mono - self.oracle.drain_alive >= 60 * SECOND => {
                self.fail("the lease is renewed, and the drain has been silent for a minute");
            }
            Output::Tables(plan) => {
                let known = &self.rig.known[&plan.epoch];
                for member in known.new.members.values() {
                    let there = self.rig.maps.nodes.get(&member.slot.index).map(|entry| entry.generation);
                    if there != Some(member.slot.generation) {
                        self.fail("tables go out before a new owner's generation is written");
                    }
                }
            }
            _ => {}
        }
    }

    /// The claims for which the node may be cut that an entry names.
    pub(super) fn claims_of(&self, entry: &NodeEntry) -> Vec<Held> {
        let name = String::from_utf8_lossy(&entry.name).trim_end_matches('\0').to_owned();
        self.oracle.cutting(&name.into(), &self.members(), self.rig.now)
    }

    /// Nothing more is to be done now.
    pub(super) fn settled(&mut self) {
        let now = self.rig.now.mono;
        let cut: Vec<plan::Slot> = self.rig.maps.cut(now).collect();
        self.excused.retain(|index| cut.iter().any(|slot| slot.index == *index));
        for slot in &cut {
            if self.oracle.open && !self.excused.contains(&slot.index) && !self.is_claimed(slot.index) {
                self.fail(&format!("{} is still cut", self.rig.maps.name(slot.index)));
            }
        }
        if self.rig.maps.views.len() > 1 && !cut.is_empty() {
            self.saw.insert(Saw::TwoViews);
        }
        if self.rig.deltas > 0 {
            self.saw.insert(Saw::ByDelta);
        }
        if self.oracle.exceeded > 0 {
            self.saw.insert(Saw::Exceeded);
        }
        if self.oracle.is_old(self.rig.now) {
            self.saw.insert(Saw::Old);
        }
        if self.oracle.replaced && !self.rig.settings.force && self.rig.settings.mode == Mode::Enforce {
            self.saw.insert(Saw::Replaced);
        }
        if self.oracle.came_back > 0 {
            self.saw.insert(Saw::CameBack);
        }
        self.is_shown();
        self.is_all_saved();
        if self.rig.enforcer.deadline() <= now {
            self.fail(&format!(
                "the deadline is over, and there is nothing to do: {now}, {:?}",
                self.rig.enforcer
            ));
        }
        self.is_live(&cut);
    }

    /// The snapshot has the claims that the oracle knows, how each stands, and the scopes in which automatic claims are withheld.
    fn is_shown(&self) {
        if !self.oracle.open {
            return;
        }
        let members = self.members();
        let mut shown: BTreeMap<(NodeName, ClaimSource), (Duration, Option<Duration>, Standing)> =
            BTreeMap::new();
        for (node, claims) in self.rig.world().claims.by_name() {
            for its in claims {
                let key = (node.clone(), its.claim.source.clone());
                shown.insert(key, (its.claim.raised, its.claim.ends, its.standing.clone()));
            }
        }
        let own = self.oracle.standings(&members, self.rig.now).into_iter();
        let own = own.map(|(key, (held, standing))| (key, (held.raised, held.ends, standing))).collect();
        if shown != own {
            self.fail(&format!("what is shown\n{shown:?}\nis not what holds\n{own:?}"));
        }
        let withheld = self.rig.world().withheld.iter();
        let withheld: BTreeMap<_, _> = withheld.map(|row| (row.scope.clone(), row.since)).collect();
        if withheld != self.oracle.kept.withheld {
            self.fail(&format!("{withheld:?} are shown as withheld, not {:?}", self.oracle.kept.withheld));
        }
    }

    /// Where nothing was handed out that is not saved, a successor misses nothing.
    fn is_all_saved(&self) {
        let world = self.rig.world.as_ref();
        let waits = self.rig.saving.is_some()
            || world.is_none_or(|world| world.closing || world.unsaved.is_some())
            || self.oracle.lost;
        if !waits && self.oracle.open {
            self.is_saved_but_for_renewals();
        }
    }

    /// A successor would miss renewals of automatic claims and nothing else.
    fn is_saved_but_for_renewals(&self) {
        let saved = &self.oracle.saved.claims;
        let held = &self.oracle.kept.claims;
        let same = |(key, held): (&(NodeName, ClaimSource), &Held)| {
            saved.get(key).is_some_and(|saved| {
                saved.raised == held.raised
                    && (saved.ends == held.ends || (key.1.automatic() && saved.ends < held.ends))
            })
        };
        if saved.len() != held.len() || !held.iter().all(same) {
            self.fail(&format!("{saved:?}\nare saved, and these held:\n{held:?}"));
        }
    }

    /// What a successor finds is what the oracle saved.
    pub(super) fn is_saved(&self) {
        let saved = &self.rig.saved;
        let claims = saved
            .claims
            .iter()
            .map(|(node, claim)| ((node.clone(), claim.source.clone()), (claim.raised, claim.ends)));
        let claims: BTreeMap<_, _> = claims.collect();
        let withheld: BTreeMap<_, _> = saved.withheld.iter().cloned().collect();
        let gone =
            saved.gone.iter().map(|(node, source, first)| ((node.clone(), source.clone()), first.raised));
        let gone: BTreeMap<_, _> = gone.collect();
        let own = &self.oracle.saved;
        let own_claims: BTreeMap<_, _> =
            own.claims.iter().map(|(key, held)| (key.clone(), (held.raised, held.ends))).collect();
        if claims != own_claims || withheld != own.withheld || gone != own.gone {
            self.fail(&format!("{saved:?} is saved, not {own:?}"));
        }
    }

    /// Where no write failed, every node is cut that may be, and nothing is exempt without need.
    pub(super) fn is_live(&mut self, cut: &[plan::Slot]) {
        let written = self.rig.enforcer.views.written();
        let latest = self.rig.enforcer.views.latest().map(|view| view.epoch);
        if self.any_failed || !self.oracle.open || latest != written || self.rig.maps.views.len() != 1 {
            return;
        }
        let members = self.members();
        for (name, member) in members.iter().filter(|(name, _)| name.as_str() != OWN) {
            let wanted = self.oracle.may_cut(name, &members, self.rig.now);
            if wanted != cut.contains(&member.slot) {
                self.fail(&format!("{name} should be cut: {wanted}"));
            }
        }
        let exempt = self.rig.world().exemptions().keys();
        if exempt != self.rig.maps.exempt {
            self.fail(&format!("{exempt:?} should be exempt"));
        }
        if !cut.is_empty() {
            self.saw.insert(Saw::Live);
        }
    }

    /// Time goes by. The driver is on time, or stands still for a while.
    pub(super) fn pass(&mut self, ns: u64, late: bool) {
        let end = self.rig.now.mono + ns;
        while self.rig.now.mono < end {
            let alive = self.rig.maps.cut(self.rig.now.mono).count();
            let deadline = self.rig.enforcer.deadline().max(self.rig.now.mono);
            self.rig.now = now(if late { end } else { deadline.min(end) });
            self.rig.check();
            // A verdict that is alive now and was written before is one that is claimed now.
            for slot in self.rig.maps.cut(self.rig.now.mono).collect::<Vec<_>>() {
                let entry = self.rig.maps.nodes[&slot.index];
                // A view becomes too old from one moment to the next. A verdict that was renewed before that still holds.
                if self.claims_of(&entry).is_empty()
                    && !self.oracle.is_old(self.rig.now)
                    && !self.excused.contains(&slot.index)
                    && self.oracle.open
                {
                    self.fail("a verdict is alive whose claims are over");
                }
            }
            if self.rig.maps.cut(self.rig.now.mono).count() < alive {
                self.saw.insert(Saw::Lapsed);
            }
            self.tell(Input::Tick);
        }
    }
}

pub(super) fn any_settings(random: &mut Seeded) -> EnforcerSettings {
    EnforcerSettings {
        own: OWN.into(),
        mode: if random.percent(85) { Mode::Enforce } else { Mode::Observe },
        auto: random.pick(&[Auto::Enforce, Auto::Enforce, Auto::Enforce, Auto::Observe, Auto::Off]),
        answer: plan::Answer::Refuse,
        limit: random.pick(&[Share::default(), Share { part: 1, of: 2 }, Share { part: 1, of: 1 }]),
        max_view_age: random.percent(25).then(|| Duration::from_secs(random.pick(&[2, 10, 60]))),
        force: random.percent(20),
        shares: false,
    }
}

fn fate(failing: &mut (u64, Seeded), _: &Output) -> Fate {
    let (percent, random) = failing;
    match (random.percent(*percent), random.percent(30)) {
        (false, _) => Fate::Done,
        (true, false) => Fate::Failed,
        (true, true) => Fate::FailedAndDone,
    }
}
