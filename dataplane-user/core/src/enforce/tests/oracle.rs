//! The limits once more, by counting everything anew each time.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    cluster::NodeName,
    enforce::{Claim, LimitScope, Member, Now, Told, WITHHELD_FOR},
    plan::Mode,
};

/// Which automatic claims may be enforced.
#[derive(Clone, Default)]
pub(super) struct Oracle {
    pub(super) released: BTreeMap<LimitScope, Duration>,
    /// How often a limit was exceeded.
    pub(super) exceeded: u64,
}

/// All claims.
pub(super) type Book = BTreeMap<NodeName, Vec<Claim>>;

impl Oracle {
    /// Something changed, or time went by.
    pub(super) fn look(&mut self, book: &Book, members: &BTreeMap<NodeName, Member>, told: &Told, now: Now) {
        let mut sizes: BTreeMap<LimitScope, u32> = BTreeMap::new();
        for scope in members.values().flat_map(Member::scopes) {
            *sizes.entry(scope).or_default() += 1;
        }
        let mut scopes: Vec<LimitScope> = sizes.keys().chain(self.released.keys()).cloned().collect();
        scopes.sort();
        scopes.dedup();
        for scope in scopes {
            let in_time = |at: &Duration| now.boot < *at + WITHHELD_FOR;
            let since = self.released.get(&scope).copied().filter(in_time);
            if since.is_none() {
                self.released.remove(&scope);
            }
            let (mut counted, mut automatic) = (0, 0);
            for (name, member) in members {
                if !member.scopes().any(|its| its == scope) {
                    continue;
                }
                let claims = || book.get(name).into_iter().flatten().filter(|claim| !claim.ended(now));
                let person = claims().any(|claim| !claim.source.automatic());
                let counts = |claim: &&Claim| {
                    let on = told.auto.under(told.mode).is_some();
                    on && claim.source.automatic() && since.is_none_or(|since| claim.raised > since)
                };
                let new = claims().filter(counts).count();
                automatic += u32::from(new > 0);
                counted += u32::from(new > 0 || person);
            }
            let allowed =
                (sizes.get(&scope).copied().unwrap_or_default() * told.limit.part / told.limit.of).max(1);
            if automatic > 0 && counted > allowed {
                self.released.insert(scope, now.boot);
                self.exceeded += 1;
            }
        }
    }

    /// Whether a node may be cut for one of its claims.
    pub(super) fn may_cut(&self, claims: &[Claim], member: Option<&Member>, told: &Told, now: Now) -> bool {
        let Some(member) = member else { return false };
        claims.iter().filter(|claim| !claim.ended(now)).any(|claim| {
            if !claim.source.automatic() {
                return told.mode == Mode::Enforce;
            }
            let withheld =
                |scope: LimitScope| self.released.get(&scope).is_some_and(|at| claim.raised <= *at);
            told.auto.under(told.mode) == Some(Mode::Enforce) && !member.scopes().any(withheld)
        })
    }
}
