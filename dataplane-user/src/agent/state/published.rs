//! What of the state others read, made known as one [`World`].

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::watch;

use super::State;
use crate::{
    agent::{
        coverage::Coverage,
        world::{Enforced, World},
    },
    cluster::{NodeIx, NodeName},
    dataplane::probe::Findings,
    flags::Clocks,
    proxy::Judgement,
};

impl State {
    /// For those who read what is made known.
    pub(in crate::agent) fn reader(&self) -> watch::Receiver<Arc<World>> {
        self.world.subscribe()
    }

    /// Makes known what has changed since that was last done.
    pub(in crate::agent) fn publish(&self) {
        self.publish_with(World::enforced(&self.armed, &self.ask_since));
    }

    /// The same, with verdicts that are about to be written.
    pub(super) fn publish_with(&self, enforced: BTreeMap<NodeName, Enforced>) {
        let before = Arc::clone(&self.world.borrow());
        let mut world = World {
            epoch: before.epoch + 1,
            view: Arc::clone(&self.view),
            loaded: self.loaded,
            slots: Arc::clone(&self.indices),
            flags: Arc::clone(&self.flags),
            enforced: Arc::clone(&before.enforced),
            exempt: Arc::clone(self.kept.keep()),
            coverage: Arc::clone(&self.coverage),
            proxy: Arc::clone(&self.proxy),
            findings: Arc::clone(&self.findings),
        };
        if *before.enforced != enforced {
            world.enforced = Arc::new(enforced);
        }
        if world.is_news_to(&before) {
            self.world.send_replace(Arc::new(world));
        }
    }

    /// Notes which device leads to which backend.
    pub(in crate::agent) fn set_coverage(&mut self, coverage: Coverage) {
        self.coverage = Arc::new(coverage);
        self.publish();
    }

    /// Notes how kube-proxy forwards. Whether that is news.
    pub(in crate::agent) fn set_proxy(&mut self, judgement: &Judgement) -> bool {
        self.kept.set_mode(judgement.mode);
        let news = *self.proxy != *judgement;
        if news {
            self.proxy = Arc::new(judgement.clone());
            self.publish();
        }
        news
    }

    /// Notes what was found out about this kernel.
    pub(in crate::agent) fn set_findings(&mut self, findings: Findings) {
        self.findings = Arc::new(findings);
        self.publish();
    }

    /// What is enforced, and what is about to be but for nodes with what could not be kept.
    pub(super) fn about_to_be_enforced(
        &self,
        now: Clocks,
        begun: u64,
        unkept: &BTreeMap<NodeIx, String>,
    ) -> BTreeMap<NodeName, Enforced> {
        let mut all = World::enforced(&self.armed, &self.ask_since);
        for (name, _) in self.flags.iter(now) {
            let Some(slot) = self.indices.get(name) else { continue };
            if self.view.index(name).is_none_or(|node| !unkept.contains_key(&node)) {
                all.entry(name.clone()).or_insert(Enforced { slot, ask_since: begun });
            }
        }
        all
    }
}
