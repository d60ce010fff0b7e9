//! An oracle of claims and how they stand. It follows only from what the Enforcer was told, and is simple and slow: everything is
//! counted anew each time.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::model::OWN;
use crate::{
    cluster::NodeName,
    enforce::{
        Auto, Change, ClaimSource, EnforcerSettings, Input, LimitScope, Member, NewClaim, Now, Refusal,
        RequestResult, Standing,
    },
    plan::Mode,
};

/// An automatic claim that names no end.
const LASTS: Duration = Duration::from_secs(30);
const WITHHELD: Duration = Duration::from_secs(300);

/// A claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// When it was first raised, by CLOCK_BOOTTIME.
    pub(super) raised: Duration,
    pub(super) ends: Option<Duration>,
    /// When it ends by the wall clock, as the file says it.
    until: Option<Timestamp>,
}

impl Held {
    fn over(&self, now: Now) -> bool {
        self.ends.is_some_and(|ends| ends <= now.boot)
    }
}

pub(super) type Members = BTreeMap<NodeName, Member>;
type Key = (NodeName, ClaimSource);

/// What outlives an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OnDisk {
    pub(super) claims: BTreeMap<Key, Held>,
    /// Since when automatic claims of a scope are withheld.
    pub(super) withheld: BTreeMap<LimitScope, Duration>,
    /// When claims were first raised that were withheld and are gone.
    pub(super) gone: BTreeMap<Key, Duration>,
}

/// All claims, and which automatic ones may be enforced.
#[derive(Clone, Debug)]
pub(super) struct Oracle {
    settings: EnforcerSettings,
    /// A view was taken.
    pub(super) open: bool,
    pub(super) kept: OnDisk,
    /// What was handed out to be saved.
    pub(super) saving: Option<OnDisk>,
    pub(super) saved: OnDisk,
    /// Requests that raised a claim which may still be refused, what was held before, and what they raised.
    asked: BTreeMap<u64, (Key, Option<Held>, Option<Held>)>,
    /// Hand-overs that are not answered, and when (CLOCK_MONOTONIC, ns) each was asked for.
    handing_over: BTreeMap<u64, u64>,
    /// When (CLOCK_BOOTTIME) the view whose tables lie in the maps was last confirmed; before one was written, when the agent began.
    pub(super) confirmed: Duration,
    /// How many agents that still run were given the saved state.
    pub(super) given: u32,
    /// What was saved is gone from the disk.
    pub(super) lost: bool,
    /// Something forwards in kube-proxy's place.
    pub(super) replaced: bool,
    /// When (CLOCK_MONOTONIC, ns) the drain last gave a sign of life.
    pub(super) drain_alive: u64,
    /// How often a limit was exceeded.
    pub(super) exceeded: u64,
    /// How often a claim came back that had been withheld.
    pub(super) came_back: u64,
}

impl Oracle {
    /// The oracle of an agent that finds this saved state.
    pub(super) fn over(saved: OnDisk, settings: EnforcerSettings, now: Now) -> Self {
        Self {
            settings,
            open: false,
            kept: saved.clone(),
            saving: None,
            saved,
            asked: BTreeMap::new(),
            handing_over: BTreeMap::new(),
            confirmed: now.boot,
            given: 0,
            lost: false,
            replaced: false,
            drain_alive: now.mono,
            exceeded: 0,
            came_back: 0,
        }
    }

    /// Takes note of what the Enforcer is about to be told. `members`: of the view that it has.
    pub(super) fn tell(&mut self, input: &Input, members: &Members, now: Now) {
        match input {
            Input::Claim { ticket, .. } if self.is_closed(ticket.is_some()) => {}
            Input::Replace { source, .. } if *source != ClaimSource::File && self.is_closed(false) => {}
            Input::HandOver(_) if self.given > 0 => self.given += 1,
            Input::HandOver(ticket) => drop(self.handing_over.insert(ticket.0, now.mono)),
            Input::HandOverUnheard => self.given = self.given.saturating_sub(1),
            Input::SaveAnew => self.lost = true,
            Input::Replacement(found) => self.replaced = found.is_some(),
            Input::DrainAlive(at) => self.drain_alive = self.drain_alive.max(*at),
            Input::Claim { node, change: Change::Raise { claim, force }, ticket } => {
                if claim.source == ClaimSource::Cli && self.refuses(node, *force, members, now) {
                    return;
                }
                let key = (node.clone(), claim.source.clone());
                let before = self.live(&key, now);
                self.raise(key.clone(), claim, members, now);
                if let Some(ticket) = ticket {
                    let raised = self.kept.claims.get(&key).copied();
                    self.asked.insert(ticket.0, (key, before, raised));
                }
            }
            Input::Claim { node, change: Change::Withdraw(source), .. } => {
                self.put((node.clone(), source.clone()), None, members, now);
            }
            Input::Replace { source, claims } => self.replace(source, claims, members, now),
            Input::View { flags: Some(flags), .. } => self.replace(&ClaimSource::File, flags, members, now),
            _ => {}
        }
    }

    fn replace(
        &mut self,
        source: &ClaimSource,
        claims: &[(NodeName, NewClaim)],
        members: &Members,
        now: Now,
    ) {
        let is_its = |key: &&Key| key.1 == *source && !claims.iter().any(|(node, _)| *node == key.0);
        let went: Vec<Key> = self.kept.claims.keys().filter(is_its).cloned().collect();
        for (node, claim) in claims {
            self.raise((node.clone(), source.clone()), claim, members, now);
        }
        for key in went {
            self.put(key, None, members, now);
        }
    }

    /// Whether no change is taken any more. From a source that asks: once another agent wants to take over. From a source that only tells: once another agent has the
    /// saved state.
    fn is_closed(&self, asks: bool) -> bool {
        self.given > 0 || asks && !self.handing_over.is_empty()
    }

    /// Whether a person is refused a flag.
    fn refuses(&self, node: &NodeName, force: bool, members: &Members, now: Now) -> bool {
        if !self.open || !members.contains_key(node) {
            return true;
        }
        let by_person = |other: &&NodeName| {
            let live = |source| self.live(&((*other).clone(), source), now).is_some();
            *other != node && (live(ClaimSource::Cli) || live(ClaimSource::File))
        };
        let flagged = members.keys().filter(by_person).count() + 1;
        !force && (*node == *OWN || flagged * 3 > members.len())
    }

    fn live(&self, key: &Key, now: Now) -> Option<Held> {
        self.kept.claims.get(key).copied().filter(|held| !held.over(now))
    }

    fn raise(&mut self, key: Key, claim: &NewClaim, members: &Members, now: Now) {
        let before = self.kept.claims.get(&key).copied();
        let automatic = is_automatic(&key.1);
        let by_wall = claim.until.map(|until| {
            now.boot + Duration::try_from(until.duration_since(now.wall)).unwrap_or(Duration::ZERO)
        });
        let lasts = claim.lasts.or(automatic.then_some(LASTS));
        let mut held = Held {
            raised: now.boot,
            ends: by_wall.into_iter().chain(lasts.map(|lasts| now.boot + lasts)).min(),
            until: claim.until,
        };
        match before {
            // The file says of it what it said before.
            Some(before) if key.1 == ClaimSource::File && before.until == claim.until => held = before,
            Some(before) if automatic && !before.over(now) => held.raised = before.raised,
            _ if automatic => {
                if let Some(before) = before {
                    self.leave(&key, before, members, now);
                }
                let first = self.kept.gone.get(&key).copied();
                let first = first.filter(|first| !self.withheld(&key.0, *first, members, now).is_empty());
                self.came_back += u64::from(first.is_some());
                held.raised = first.unwrap_or(now.boot);
            }
            _ => {}
        }
        self.put(key, Some(held), members, now);
    }

    fn put(&mut self, key: Key, held: Option<Held>, members: &Members, now: Now) {
        match held.filter(|held| key.1 == ClaimSource::File || !held.over(now)) {
            Some(held) => drop(self.kept.claims.insert(key, held)),
            None => {
                if let Some(before) = self.kept.claims.remove(&key) {
                    self.leave(&key, before, members, now);
                }
            }
        }
    }

    /// A claim is gone.
    fn leave(&mut self, key: &Key, held: Held, members: &Members, now: Now) {
        if is_automatic(&key.1) && !self.withheld(&key.0, held.raised, members, now).is_empty() {
            self.kept.gone.insert(key.clone(), held.raised);
        }
    }

    /// Scopes that withhold automatic claims on the node that were raised then; of a node that nobody knows any scope.
    fn withheld(&self, node: &NodeName, raised: Duration, members: &Members, now: Now) -> Vec<LimitScope> {
        let holds = |scope: &LimitScope| {
            let at = self.kept.withheld.get(scope);
            at.is_some_and(|at| raised <= *at && now.boot < *at + WITHHELD)
        };
        let scopes: Vec<LimitScope> = match members.get(node) {
            Some(member) => member.scopes().collect(),
            None => self.kept.withheld.keys().cloned().collect(),
        };
        scopes.into_iter().filter(holds).collect()
    }

    /// The Enforcer answered a hand-over; when it was asked for, where what was saved is another agent's since.
    pub(super) fn handed_over(&mut self, ticket: u64, answer: &RequestResult) -> Option<u64> {
        let asked = self.handing_over.remove(&ticket).filter(|_| answer.is_ok());
        self.given += u32::from(asked.is_some());
        asked
    }

    /// The Enforcer answered a request. Where the verdict could not be written, what was held before is held again, but for a claim
    /// that somebody changed since.
    pub(super) fn answered(&mut self, ticket: u64, answer: &RequestResult, members: &Members, now: Now) {
        let Some((key, before, raised)) = self.asked.remove(&ticket) else { return };
        let refused = matches!(answer, Err(Refusal::NotWritten(_) | Refusal::NotExempt { .. }));
        if refused && raised.is_some_and(|raised| self.kept.claims.get(&key) == Some(&raised)) {
            self.put(key, before, members, now);
        }
    }

    /// Time went by, and nobody withdrew what is over now. What the file says stays in the file.
    pub(super) fn lapse(&mut self, members: &Members, now: Now) {
        let lapses = |(key, held): &(&Key, &Held)| key.1 != ClaimSource::File && held.over(now);
        let over: Vec<Key> = self.kept.claims.iter().filter(lapses).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.put(key, None, members, now);
        }
    }

    /// Checks all scopes against their limits. `members`: those of the view that holds now.
    pub(super) fn evaluate(&mut self, members: &Members, now: Now) {
        let mut scopes: Vec<LimitScope> = members.values().flat_map(Member::scopes).collect();
        scopes.extend(self.kept.withheld.keys().cloned());
        scopes.sort();
        scopes.dedup();
        for scope in scopes {
            let since = self.kept.withheld.get(&scope).copied().filter(|at| now.boot < *at + WITHHELD);
            if since.is_none() {
                self.kept.withheld.remove(&scope);
            }
            let (mut nodes, mut counted, mut automatic) = (0, 0, 0);
            for (name, _) in members.iter().filter(|(_, member)| member.scopes().any(|its| its == scope)) {
                let is_new = |held: &Held| since.is_none_or(|since| held.raised > since);
                let (mut person, mut new) = (false, false);
                for ((_, source), held) in self.on(name).filter(|(_, held)| !held.over(now)) {
                    person |= !is_automatic(source);
                    new |= is_automatic(source) && self.settings.auto != Auto::Off && is_new(held);
                }
                nodes += 1;
                automatic += u32::from(new);
                counted += u32::from(new || person);
            }
            let allowed = (nodes * self.settings.limit.part / self.settings.limit.of).max(1);
            if automatic > 0 && counted > allowed {
                self.kept.withheld.insert(scope, now.boot);
                self.exceeded += 1;
            }
        }
        if self.kept.withheld.is_empty() {
            self.kept.gone.clear();
        }
    }

    /// Every claim on a node.
    fn on(&self, node: &NodeName) -> impl Iterator<Item = (&Key, &Held)> {
        let node = node.clone();
        self.kept.claims.iter().filter(move |(key, _)| key.0 == node)
    }

    /// The claims on a node for which it may be cut. Before the first view it may count in any scope.
    pub(super) fn cutting(&self, node: &NodeName, members: &Members, now: Now) -> Vec<Held> {
        let cuts = |(key, held): &(&Key, &Held)| {
            let standing = match self.open {
                true => self.standing(key, held, members, now),
                false => self.carried_out(key, held, &Members::new(), now),
            };
            standing == Standing::Enforced
        };
        self.on(node).filter(cuts).map(|(_, held)| *held).collect()
    }

    /// How each claim stands.
    pub(super) fn standings(&self, members: &Members, now: Now) -> BTreeMap<Key, (Held, Standing)> {
        let standing = |key: &Key, held: &Held| self.standing(key, held, members, now);
        self.kept.claims.iter().map(|(key, held)| (key.clone(), (*held, standing(key, held)))).collect()
    }

    fn standing(&self, key: &Key, held: &Held, members: &Members, now: Now) -> Standing {
        if !held.over(now) && !members.contains_key(&key.0) {
            return Standing::Unknown;
        }
        self.carried_out(key, held, members, now)
    }

    /// How a claim stands, whether or not somebody knows its node.
    fn carried_out(&self, key: &Key, held: &Held, members: &Members, now: Now) -> Standing {
        if held.over(now) {
            return Standing::Over;
        }
        let spares = self.is_old(now) || (self.replaced && !self.settings.force);
        let mut enforces = self.settings.mode == Mode::Enforce && !spares;
        if is_automatic(&key.1) {
            if self.settings.auto == Auto::Off {
                return Standing::Off;
            }
            let by = self.withheld(&key.0, held.raised, members, now);
            if !by.is_empty() {
                return Standing::Withheld(by.into());
            }
            enforces &= self.settings.auto == Auto::Enforce;
        }
        if enforces { Standing::Enforced } else { Standing::Observed }
    }

    /// Whether the view is too old to cut by it.
    pub(super) fn is_old(&self, now: Now) -> bool {
        self.settings.max_view_age.is_some_and(|max| now.boot >= self.confirmed + max)
    }

    /// Whether a node may be cut for one of its claims.
    pub(super) fn may_cut(&self, node: &NodeName, members: &Members, now: Now) -> bool {
        !self.cutting(node, members, now).is_empty()
    }
}

fn is_automatic(source: &ClaimSource) -> bool {
    match source {
        ClaimSource::Cli | ClaimSource::File | ClaimSource::Object { .. } => false,
        ClaimSource::External(_) | ClaimSource::Hung | ClaimSource::Unreachable => true,
    }
}
