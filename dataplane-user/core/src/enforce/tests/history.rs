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
    oracle::{Book, Oracle},
    random::Seeded,
    rig::{Fate, Rig, now},
};
use crate::{
    cluster::NodeName,
    enforce::{Auto, Claim, Input, Member, Output, Refusal, Share, Told, place::cuts},
    plan::{self, Mode},
};

/// Tries one history alone and shows all that it did: `NODEFENCE_HISTORY=4093`.
pub(super) const ALONE: &str = "NODEFENCE_HISTORY";

/// What a history counts, once each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Saw {
    Cut,
    Observed,
    Exempted,
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
}

/// A history and what must hold in it.
pub(super) struct History {
    pub(super) rig: Rig,
    pub(super) random: Seeded,
    /// How many of a hundred map writes fail.
    pub(super) failing: Rc<RefCell<(u64, Seeded)>>,
    pub(super) oracle: Oracle,
    /// Places whose entry may cut although nobody wants it: a write of theirs was said to have failed.
    pub(super) excused: BTreeSet<u32>,
    /// Whether the Enforcer has a view.
    pub(super) open: bool,
    pub(super) saw: BTreeSet<Saw>,
    /// A write failed in this agent's life.
    pub(super) any_failed: bool,
    /// Requests that wait, and what they want of whom.
    pub(super) asked: BTreeMap<u64, NodeName>,
    pub(super) steps: Vec<String>,
    /// Where the cluster of the last view stands among all.
    pub(super) at: usize,
    /// It alone is looked at.
    pub(super) alone: bool,
}

impl History {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Seeded::new(seed);
        let told = any_told(&mut random);
        let mut rig = Rig::new(told);
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
            oracle: Oracle::default(),
            excused: BTreeSet::new(),
            open: false,
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

    /// The log of a history that is looked at alone is kept whole.
    pub(super) fn forget(&mut self) {
        if !self.alone {
            self.rig.log.clear();
        }
    }

    /// Claims as the Enforcer has them: what they come to is the oracle's to say.
    pub(super) fn book(&self) -> Book {
        let claims = &self.rig.enforcer.claims;
        claims.nodes().map(|node| (node.clone(), claims.of(node).to_vec())).collect()
    }

    pub(super) fn members(&self) -> Arc<BTreeMap<NodeName, Member>> {
        let latest = self.rig.enforcer.views.latest();
        latest.map(|view| Arc::clone(&view.members)).unwrap_or_default()
    }

    /// The Enforcer was told something, or that a write failed.
    pub(super) fn look(&mut self) {
        if self.open {
            let (book, members) = (self.book(), self.members());
            self.oracle.look(&book, &members, &self.rig.told, self.rig.now);
        }
    }

    pub(super) fn fail(&self, why: &str) -> ! {
        panic!("{why}\nsteps:\n{}\nlast:\n{}", self.steps.join("\n"), self.rig.log.join("\n"))
    }

    /// Whether the owner of a place may be cut by what is claimed now.
    pub(super) fn is_claimed(&self, index: u32) -> bool {
        let members = self.members();
        let name = self.rig.maps.name(index);
        let generation = self.rig.maps.nodes[&index].generation;
        let slot = plan::Slot { index, generation };
        let member = members.get(name.as_str()).filter(|member| member.slot == slot);
        let claims = self.rig.enforcer.claims.of(&name);
        if !self.open {
            return claims.iter().any(|claim| !claim.ended(self.rig.now));
        }
        self.oracle.may_cut(claims, member, &self.rig.told, self.rig.now)
    }

    pub(super) fn tell(&mut self, input: Input) {
        self.forget();
        let view = matches!(input, Input::View(_));
        self.rig.enforcer.handle(input, self.rig.now);
        self.open |= view;
        self.look();
        self.run();
    }

    /// Does what is to be done, and holds each write against what is claimed.
    pub(super) fn run(&mut self) {
        while let Some(output) = self.rig.enforcer.poll() {
            self.watch(&output);
            let failures = self.rig.log.len();
            self.rig.perform(output.clone());
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
                if matches!(answer, Err(Refusal::NotWritten(_) | Refusal::NotExempt { .. })) {
                    self.saw.insert(Saw::Refused);
                }
            }
        }
        self.settled();
    }

    /// Before something is done.
    pub(super) fn watch(&mut self, output: &Output) {
        match output {
            Output::Node(index, entry) if cuts(entry) => {
                self.saw.insert(Saw::Cut);
                if !self.open {
                    self.saw.insert(Saw::Bridged);
                }
                let claims = self.claims_of(entry);
                let generation = self.rig.maps.nodes.get(index).map(|entry| entry.generation);
                if generation != Some(entry.generation) {
                    self.fail("a verdict comes with a new generation");
                }
                let longest =
                    claims.iter().map(|claim| claim.remaining(self.rig.now)).collect::<Option<Vec<_>>>();
                let longest = longest.map(|all| all.into_iter().max().unwrap_or(Duration::ZERO));
                if longest.is_some_and(|left| entry.until > self.rig.now.mono + left.as_nanos() as u64) {
                    self.fail("a verdict outlives its claims");
                }
                if entry.until > self.rig.now.mono && !self.is_claimed(*index) {
                    self.fail(&format!("{} is cut and may not be", self.rig.maps.name(*index)));
                }
            }
            Output::Node(_, entry) if entry.verdict != 0 => drop(self.saw.insert(Saw::Observed)),
            Output::Exempt(_) => drop(self.saw.insert(Saw::Exempted)),
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

    /// The claims that hold on the node that an entry names.
    pub(super) fn claims_of(&self, entry: &NodeEntry) -> Vec<Claim> {
        let name = String::from_utf8_lossy(&entry.name).trim_end_matches('\0').to_owned();
        let claims = self.rig.enforcer.claims.of(&name).iter();
        claims.filter(|claim| !claim.ended(self.rig.now)).cloned().collect()
    }

    /// Nothing more is to be done now.
    pub(super) fn settled(&mut self) {
        let now = self.rig.now.mono;
        let cut: Vec<plan::Slot> = self.rig.maps.cut(now).collect();
        self.excused.retain(|index| cut.iter().any(|slot| slot.index == *index));
        for slot in &cut {
            if self.open && !self.excused.contains(&slot.index) && !self.is_claimed(slot.index) {
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
        if self.rig.enforcer.deadline() <= now {
            self.fail(&format!(
                "the deadline is over, and there is nothing to do: {now}, {:?}",
                self.rig.enforcer
            ));
        }
        self.is_live(&cut);
    }

    /// Where no write failed, everybody is cut who may be, and nothing else is exempt.
    pub(super) fn is_live(&mut self, cut: &[plan::Slot]) {
        let written = self.rig.enforcer.views.written();
        let latest = self.rig.enforcer.views.latest().map(|view| view.epoch);
        if self.any_failed || !self.open || latest != written || self.rig.maps.views.len() != 1 {
            return;
        }
        let members = self.members();
        for (name, member) in members.iter().filter(|(name, _)| name.as_str() != OWN) {
            let claims = self.rig.enforcer.claims.of(name);
            let wanted = self.oracle.may_cut(claims, Some(member), &self.rig.told, self.rig.now);
            if wanted != cut.contains(&member.slot) {
                self.fail(&format!("{name} should be cut: {wanted}"));
            }
        }
        let exempt = self.rig.enforcer.exempt.ports().keep().keys();
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
                if self.claims_of(&entry).is_empty() && !self.excused.contains(&slot.index) && self.open {
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

pub(super) fn any_told(random: &mut Seeded) -> Told {
    Told {
        own: OWN.into(),
        mode: if random.percent(85) { Mode::Enforce } else { Mode::Observe },
        auto: random.pick(&[Auto::Enforce, Auto::Enforce, Auto::Enforce, Auto::Observe, Auto::Off]),
        answer: plan::Answer::Refuse,
        limit: random.pick(&[Share::default(), Share { part: 1, of: 2 }, Share { part: 1, of: 1 }]),
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
