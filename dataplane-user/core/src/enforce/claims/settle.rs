//! Decides on nodes: which of their claims stand, and what follows from these.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    super::{
        claim::{Claim, ClaimSource},
        decision::Decision,
        limits::{Counted, LimitChange},
        now::Now,
        scope::LimitScope,
        standing::{ShownClaim, Standing},
        view::Member,
    },
    Claims, Crossed,
};
use crate::{cluster::NodeName, plan::Mode};

impl Claims {
    /// Decides on the nodes whose claims changed, and on those that a limit concerns. Returns these nodes, and which limits were
    /// crossed.
    pub(in super::super) fn settle(&mut self, now: Now) -> (BTreeSet<NodeName>, Vec<Crossed>) {
        let mut names = std::mem::take(&mut self.dirty);
        let mut scopes: BTreeSet<LimitScope> = self.limits.over(now).cloned().collect();
        let all = std::mem::take(&mut self.all_dirty);
        if all {
            names.extend(self.held.nodes().chain(self.decisions.keys()).chain(self.shown.nodes()).cloned());
        }
        if std::mem::take(&mut self.scopes_dirty) || all {
            scopes.extend(self.limits.scopes().cloned());
        }
        for name in &names {
            let counted = self.counted(name, now);
            self.limits.count(name, counted, &mut scopes);
        }
        let mut crossed = Vec::new();
        for scope in scopes {
            let change = self.limits.evaluate(&scope, now);
            if change != LimitChange::Same {
                names.extend(self.limits.automatic(&scope).cloned());
                crossed.push(Crossed { scope, change });
            }
        }
        if self.limits.withheld().next().is_none() {
            self.gone.forget();
        }
        for name in &names {
            self.decide(name, now);
        }
        if !crossed.is_empty() {
            self.changes.note();
        }
        (names, crossed)
    }

    /// What of a node counts in the limits, and in which scopes.
    fn counted(&self, node: &NodeName, now: Now) -> Option<(Counted, Vec<LimitScope>)> {
        let member = self.members.get(node).filter(|_| !self.is_opted_out(node))?;
        let holds = |claim: &&Claim| !claim.ended(now) && member.is_of(&claim.source);
        let claims = || self.held.of(node).iter().filter(holds);
        let counts = self.auto().under(self.most).is_some();
        let limited =
            claims().filter(|claim| claim.source.limited() && (counts || !claim.source.automatic()));
        let counted = Counted {
            person: claims().any(|claim| !claim.source.limited()),
            latest: limited.map(|claim| claim.raised).max(),
        };
        let any = counted.person || counted.latest.is_some();
        any.then(|| (counted, member.scopes().collect()))
    }

    fn decide(&mut self, node: &NodeName, now: Now) {
        let member = self.members.get(node);
        let claims = self.held.of(node);
        let shown: Arc<[ShownClaim]> = claims
            .iter()
            .map(|claim| ShownClaim {
                standing: self.standing(node, claim, member, now),
                claim: claim.clone(),
            })
            .collect();
        match Decision::of(&shown, now) {
            Some(decision) => drop(self.decisions.insert(node.clone(), decision)),
            None => drop(self.decisions.remove(node)),
        }
        let before = self.shown.of(node);
        if *before != *shown {
            let mut sources = before.iter().chain(shown.iter()).map(|shown| &shown.claim.source);
            self.file_changed |= sources.any(|source| *source == ClaimSource::File);
            self.shown.put(node, shown);
        }
    }

    fn standing(&self, node: &str, claim: &Claim, member: Option<&Member>, now: Now) -> Standing {
        if claim.ended(now) {
            return Standing::Over;
        }
        // A claim that an agent saved may be about an earlier machine of the same name.
        let Some(member) = member.filter(|member| member.is_of(&claim.source)) else {
            return Standing::Unknown;
        };
        if self.is_opted_out(node) {
            return Standing::OptedOut;
        }
        let Some(mode) = self.mode_of(claim) else { return Standing::Off };
        if claim.source.limited() {
            let by: Vec<LimitScope> =
                member.scopes().filter(|scope| self.limits.withholds(scope, claim.raised)).collect();
            if !by.is_empty() {
                return Standing::Withheld(by.into());
            }
        }
        match mode {
            Mode::Enforce => Standing::Enforced,
            Mode::Observe => Standing::Observed,
        }
    }

    /// How a claim is carried out where no limit withholds it; `None` where it is only shown.
    pub(in super::super) fn mode_of(&self, claim: &Claim) -> Option<Mode> {
        if claim.source.automatic() { self.auto().under(self.most) } else { Some(self.most) }
    }
}
