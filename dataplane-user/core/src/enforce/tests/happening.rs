//! What may happen in a random history.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use super::{
    history::{History, Saw, any_settings},
    model::Cluster,
    oracle::{OnDisk, Oracle},
    random::{NODES, Seeded, cluster, without_one},
    rig::{Fate, Rig, SECOND, claim, now},
};
use crate::{
    cluster::NodeName,
    enforce::{Change, ClaimSource, Input, NewClaim, Saved, Ticket},
    proxy::Replacement,
};

/// Clusters to choose from, each with some that lack an endpoint of it; reading each anew would take the most of the time.
static CLUSTERS: LazyLock<Vec<[Arc<Cluster>; 4]>> = LazyLock::new(|| {
    let each = |seed| {
        let random = &mut Seeded::new(seed);
        let one = cluster(random);
        let others = [(); 3].map(|()| without_one(random, &one));
        let [second, third, fourth] = others;
        [one, second, third, fourth]
    };
    (0..300).map(each).collect()
});

impl History {
    pub(super) fn step(&mut self) {
        let what = self.random.below(100);
        match what {
            0..12 => self.any_view(),
            12..38 => self.any_claim(),
            38..46 => self.any_withdrawal(),
            46..52 => self.any_file(),
            52..74 => self.any_tables(),
            74..77 => self.any_save(),
            77 => self.any_confirmation(),
            78..81 => self.any_found(),
            81..83 => {
                let own_attached = self.random.percent(50);
                self.note(format!("routes {own_attached}"));
                self.tell(Input::Routes { own_attached });
            }
            83..86 => self.take_over(),
            86 => self.any_hand_over(),
            87 => self.any_sign(),
            88 if self.random.percent(50) => self.any_replacement(),
            88 => {
                let percent = self.random.pick(&[0, 5, 20, 60, 100]);
                self.note(format!("failing {percent}"));
                self.failing.borrow_mut().0 = percent;
            }
            _ => {
                let ns = match self.random.below(20) {
                    0 => 299 * SECOND,
                    1..4 => 4 * SECOND,
                    4..10 => SECOND,
                    _ => self.random.below(SECOND),
                };
                // Five minutes of renewals in time take long to run.
                let late = ns > 10 * SECOND || self.random.percent(10);
                self.note(format!("pass {ns} {}", if late { "late" } else { "" }));
                self.pass(ns, late);
                self.pass(SECOND / 10, false);
            }
        }
    }

    /// Something forwards in kube-proxy's place, or does so no more.
    fn any_replacement(&mut self) {
        let found = Replacement::by_devices(|_| true).filter(|_| !self.oracle.replaced);
        self.note(format!("replaced by {found:?}"));
        self.tell(Input::Replacement(found));
    }

    pub(super) fn any_view(&mut self) {
        if self.rig.known.len() > 12 {
            return;
        }
        // Often a cluster that differs little.
        if self.random.percent(50) {
            self.at = self.random.below(CLUSTERS.len() as u64) as usize;
        }
        let of = self.random.below(4) as usize;
        self.note(format!("view {} {of}", self.at));
        let cluster = Arc::clone(&CLUSTERS[self.at][of]);
        let view = self.rig.deliver(&cluster);
        let flags = self.random.percent(30).then(|| self.any_flags());
        self.tell(Input::View { view, flags });
    }

    fn any_source(&mut self) -> ClaimSource {
        match self.random.below(6) {
            0 | 1 => ClaimSource::Cli,
            2 => ClaimSource::External("cloud".into()),
            3 | 4 => ClaimSource::Hung,
            _ => ClaimSource::Unreachable,
        }
    }

    pub(super) fn any_claim(&mut self) {
        let (node, source) = (self.random.pick(&NODES), self.any_source());
        let lasts = match self.random.below(5) {
            0 => Some(Duration::from_millis(self.random.below(3_000))),
            1 => Some(Duration::from_secs(self.random.below(600))),
            _ => None,
        };
        let force = self.random.percent(30);
        self.note(format!("claim {node} {source:?} {lasts:?} {force}"));
        let change = Change::Raise { claim: NewClaim { lasts, ..claim(source) }, force };
        self.ask(node, change);
    }

    fn any_withdrawal(&mut self) {
        let (node, source) = (self.random.pick(&NODES), self.any_source());
        self.note(format!("withdraw {node} {source:?}"));
        self.ask(node, Change::Withdraw(source));
    }

    fn ask(&mut self, node: &str, change: Change) {
        let mut ticket = None;
        if self.random.percent(70) {
            self.rig.tickets += 1;
            ticket = Some(Ticket(self.rig.tickets));
            self.asked.insert(self.rig.tickets, node.into());
        }
        self.tell(Input::Claim { node: node.into(), change, ticket });
    }

    fn any_file(&mut self) {
        let claims = self.any_flags();
        self.tell(Input::Replace { source: ClaimSource::File, claims });
    }

    fn any_flags(&mut self) -> Vec<(NodeName, NewClaim)> {
        let nodes: Vec<&str> = NODES.into_iter().filter(|_| self.random.percent(5)).collect();
        self.note(format!("file {nodes:?}"));
        let until = self.random.below(SECOND * 20);
        let until = self.random.percent(25).then(|| now(self.rig.now.mono + until).wall);
        let new = || NewClaim { until, ..claim(ClaimSource::File) };
        nodes.into_iter().map(|node| (NodeName::from(node), new())).collect()
    }

    fn any_tables(&mut self) {
        if self.rig.tables.is_none() {
            return;
        }
        self.forget();
        match self.random.below(4) {
            0 => {
                let entries = self.random.below(12) as usize;
                self.note(format!("tables fail after {entries}"));
                self.rig.fail_tables(entries);
                self.saw.insert(Saw::TablesFailed);
            }
            1 => {
                // They are on their way, and other things happen meanwhile.
                let entries = self.random.below(12) as usize;
                self.note(format!("tables half way, {entries}"));
                if let Some(plan) = self.rig.tables.clone() {
                    self.rig.write_part(&plan, entries);
                }
            }
            _ => {
                self.note("tables".to_owned());
                self.write_tables();
            }
        }
        self.look();
        self.run();
    }

    fn any_save(&mut self) {
        let fails = self.random.percent(20);
        self.note(format!("save {fails}"));
        self.save(if fails { Err("full".into()) } else { Ok(()) });
        self.look();
        self.run();
    }

    fn any_found(&mut self) {
        let whole = self.random.percent(50);
        self.note(format!("found {whole}"));
        let found = self.rig.found(whole);
        self.tell(found);
    }

    /// Another agent asks for the saved state, or has gone.
    fn any_hand_over(&mut self) {
        if self.oracle.given > 0 && self.random.percent(75) {
            self.note("a hand-over that nobody heard");
            self.saw.insert(Saw::WentOn);
            return self.tell(Input::HandOverUnheard);
        }
        self.note("hand-over");
        self.rig.tickets += 1;
        self.asked.insert(self.rig.tickets, NodeName::default());
        self.tell(Input::HandOver(Ticket(self.rig.tickets)));
    }

    /// The file on the disk is gone, or the drain shows that it lives.
    fn any_sign(&mut self) {
        if self.random.percent(50) {
            self.note("what was saved is gone");
            self.saw.insert(Saw::Lost);
            self.oracle.saved = OnDisk::default();
            self.rig.saved = Saved::default();
            return self.tell(Input::SaveAnew);
        }
        let at = self.rig.now.mono - self.random.below(100 * SECOND);
        self.note("the drain lives");
        self.tell(Input::DrainAlive(at));
    }

    /// Another agent takes over, with what was saved.
    fn take_over(&mut self) {
        let settings =
            if self.random.percent(70) { self.rig.settings.clone() } else { any_settings(&mut self.random) };
        let later = self.random.pick(&[1, SECOND / 3, SECOND, 2 * SECOND, 5 * SECOND]);
        self.note(format!("take-over {later} {:?} {:?}", settings.mode, settings.auto));
        self.saw.insert(Saw::TakeOver);
        let maps = std::mem::take(&mut self.rig.maps);
        let saved = self.rig.saved.clone();
        self.is_saved();
        let (exceeded, came_back) = (self.oracle.exceeded, self.oracle.came_back);
        self.oracle =
            Oracle::over(self.oracle.saved.clone(), settings.clone(), now(self.rig.now.mono + later));
        self.oracle.exceeded = exceeded;
        self.oracle.came_back = came_back;
        let fates = std::mem::replace(&mut self.rig.fates, Box::new(|_| Fate::Done));
        let found = Replacement::by_devices(|_| true).filter(|_| self.random.percent(5));
        self.oracle.replaced = found.is_some();
        let mut next = Rig::over_beside(maps, saved, settings, found, self.rig.now.mono + later);
        next.fates = fates;
        next.writes_tables = false;
        next.saves = self.random.percent(70);
        next.tickets = self.rig.tickets;
        next.log = std::mem::take(&mut self.rig.log);
        self.rig = next;
        self.any_failed = false;
        self.asked.clear();
        self.run();
        let bridged = self.random.below(3 * SECOND);
        self.pass(bridged, false);
        let compared = self.random.percent(80);
        if compared {
            self.any_found_whole();
        }
        // Exemptions of an earlier agent are only known from the maps, and stay.
        self.any_failed |= !compared;
        // What an earlier agent left is renewed or taken back now, or that fails.
        self.excused.clear();
        self.any_view();
    }

    fn any_found_whole(&mut self) {
        let found = self.rig.found(true);
        self.tell(found);
    }

    /// In the end: nothing fails any more, tables are written, and whoever asked is answered.
    pub(super) fn end(&mut self) {
        self.note("end".to_owned());
        self.failing.borrow_mut().0 = 0;
        if !self.oracle.open {
            self.any_view();
        }
        self.any_found_whole();
        for _ in 0..8 {
            self.pass(SECOND, false);
            self.write_tables();
            self.look();
            self.run();
            self.save(Ok(()));
            self.look();
            self.run();
        }
        if !self.asked.is_empty() {
            self.fail(&format!("{:?} are not answered", self.asked));
        }
        if self.oracle.lost && self.oracle.given == 0 {
            self.fail("what was gone is not saved anew");
        }
        self.excused.clear();
        self.any_failed = false;
        self.settled();
        let failed = &self.rig.world().failed;
        if !failed.is_empty() || self.rig.world().lapsing.iter().next().is_some() {
            self.fail(&format!("{failed:?} should be over"));
        }
    }
}
