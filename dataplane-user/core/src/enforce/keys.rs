//! Keys of `ports` that exempt: which must lie in the map and what they must say, what lies there, and what must be written in which order.
//!
//! Of an address that passes as a whole, ports that are cut all the same are written before it and removed after it. Ports that pass are written before it too.

use std::collections::{BTreeMap, BTreeSet};

use nodefence_common::{Addr, PortKey, port_flags};

use super::output::Output;
use crate::plan::Slot;

/// What a key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// Its port passes; under an address' key, all of the address does but for what is cut by name.
    Pass,
    /// Its port is cut, though its address passes.
    Cut,
}

impl Says {
    fn of(flags: u32) -> Option<Self> {
        match flags {
            port_flags::EXEMPT => Some(Self::Pass),
            port_flags::CUT => Some(Self::Cut),
            _ => None,
        }
    }
}

/// A key that may lie in the map.
#[derive(Clone, Copy, Debug)]
struct Lies {
    /// What it says for certain: it was written, and nobody said that this failed. `None`: not known, it may not even lie there.
    says: Option<Says>,
    /// The node that it was last needed for.
    slot: Option<Slot>,
}

/// A key that some view needs.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// How many views need it to pass.
    pass: u32,
    /// How many views cut it, though they let its address pass.
    cut: u32,
    /// The node that it was last needed for.
    slot: Option<Slot>,
}

/// When a key must be written, or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Before its address passes: it says of what is cut already that it stays so.
    First,
    /// Before a verdict: something must pass.
    Before,
    /// After verdicts: nothing needs it any more, or more is cut then.
    After,
}

/// Keys: needed and written.
#[derive(Debug, Default)]
pub(super) struct Keys {
    needed: BTreeMap<PortKey, Need>,
    lies: BTreeMap<PortKey, Lies>,
    /// Each key that is due stands in one of these. It may be due otherwise by the time of its turn.
    first: BTreeSet<PortKey>,
    before: BTreeSet<PortKey>,
    after: BTreeSet<PortKey>,
    /// The key that was removed last, and the node that it was last needed for.
    removed: Option<(PortKey, Option<Slot>)>,
    /// Writes of these failed; they are tried again then (CLOCK_MONOTONIC, ns).
    later: BTreeMap<PortKey, u64>,
    /// A view was written: before, somebody else's backends lie in the map, and nothing that they may need is removed or cut.
    settled: bool,
}

impl Keys {
    /// One more view needs it.
    pub(super) fn need(&mut self, key: PortKey, says: Says, slot: Option<Slot>) {
        let need = self.needed.entry(key).or_insert(Need { pass: 0, cut: 0, slot });
        match says {
            Says::Pass => need.pass += 1,
            Says::Cut => need.cut += 1,
        }
        need.slot = slot;
        self.list_anew(key);
    }

    /// One view less needs it.
    pub(super) fn unneed(&mut self, key: PortKey, says: Says) {
        let Some(need) = self.needed.get_mut(&key) else { return };
        match says {
            Says::Pass => need.pass -= 1,
            Says::Cut => need.cut -= 1,
        }
        let Need { pass, cut, slot } = *need;
        if pass + cut == 0 {
            self.needed.remove(&key);
            if let Some(lies) = self.lies.get_mut(&key) {
                lies.slot = slot;
            }
        }
        self.list_anew(key);
    }

    /// More or fewer views let an address pass: of its ports others are cut.
    pub(super) fn address_changed(&mut self, addr: Addr) {
        let from = PortKey { addr, port: 0, protocol: 0, kind: 0 };
        let needed = self.needed.range(from..).map(|(key, _)| *key).take_while(|key| key.addr == addr);
        let lie = self.lies.range(from..).map(|(key, _)| *key).take_while(|key| key.addr == addr);
        for key in needed.chain(lie).collect::<BTreeSet<_>>() {
            self.list_anew(key);
        }
    }

    /// A view was written.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// What it must say. A port of an address that passes is cut only where every view cuts it which lets the address pass: what any of them lets pass must pass.
    fn wanted(&self, key: &PortKey) -> Option<Says> {
        let need = self.needed.get(key)?;
        let views = |key| self.needed.get(&key).map_or(0, |need| need.pass);
        match need.pass {
            0 => (need.cut == views(PortKey::exempt_address(key.addr))).then_some(Says::Cut),
            _ => Some(Says::Pass),
        }
    }

    fn due(&self, key: &PortKey) -> Option<Due> {
        let address = PortKey::exempt_address(key.addr);
        match (self.wanted(key), self.lies.get(key)) {
            (None, None) => None,
            (Some(wanted), Some(lies)) if lies.says == Some(wanted) => None,
            (Some(Says::Pass), _) => Some(Due::Before),
            (Some(Says::Cut), None) if self.settled && !self.lies.contains_key(&address) => Some(Due::First),
            (Some(Says::Cut), _) => Some(Due::After),
            // It may say that a port is cut which nobody names any more, and by which answers may come.
            (None, Some(lies))
                if lies.says != Some(Says::Pass) && *key != address && self.wanted(&address).is_some() =>
            {
                Some(Due::Before)
            }
            (None, Some(_)) => Some(Due::After),
        }
    }

    /// An earlier try that failed is no excuse for who needs it from now on: it is tried at once.
    fn list_anew(&mut self, key: PortKey) {
        self.later.remove(&key);
        self.list(key);
    }

    fn list(&mut self, key: PortKey) {
        let due = self.due(&key);
        let sets =
            [(Due::First, &mut self.first), (Due::Before, &mut self.before), (Due::After, &mut self.after)];
        for (of, set) in sets {
            if due == Some(of) {
                set.insert(key);
            } else {
                set.remove(&key);
            }
        }
    }

    /// The next write that must be made before a verdict, or is to be.
    pub(super) fn next_before(&mut self) -> Option<Output> {
        while let Some(key) = self.first.pop_last() {
            if self.due(&key) == Some(Due::First) {
                return Some(self.write(key));
            }
            self.list(key);
        }
        // An address after its ports: no port that is named there is unknown while it passes.
        while let Some(key) = self.before.pop_last() {
            if self.due(&key) == Some(Due::Before) {
                return Some(self.write(key));
            }
            self.list(key);
        }
        None
    }

    /// The next write that may be made once verdicts are written, and the node of which more is cut then.
    pub(super) fn next_after(&mut self) -> Option<(Output, Option<Slot>)> {
        if !self.settled {
            return None;
        }
        // An address before its ports.
        while let Some(key) = self.after.pop_first() {
            if self.due(&key) != Some(Due::After) {
                self.list(key);
                continue;
            }
            let said = self.lies.get(&key).map(|lies| lies.says);
            let passes = self.lies.contains_key(&PortKey::exempt_address(key.addr));
            let output = self.write(key);
            let more_is_cut = match output {
                Output::Unexempt(_) => said != Some(Some(Says::Cut)),
                _ => said.is_some() || passes,
            };
            let slot = self.owner(key).or_else(|| self.removed.and_then(|(_, slot)| slot));
            return Some((output, slot.filter(|_| more_is_cut)));
        }
        None
    }

    /// Has it written, or removed.
    fn write(&mut self, key: PortKey) -> Output {
        let slot = self.owner(key);
        let wanted = self.wanted(&key);
        self.removed = wanted.is_none().then_some((key, slot));
        match wanted {
            Some(says) => drop(self.lies.insert(key, Lies { says: Some(says), slot })),
            None => drop(self.lies.remove(&key)),
        }
        match wanted {
            Some(Says::Pass) => Output::Exempt(key),
            Some(Says::Cut) => Output::Except(key),
            None => Output::Unexempt(key),
        }
    }

    /// Whether nothing is missing that must pass.
    pub(super) fn whole(&self) -> bool {
        self.before.is_empty() && !self.later.keys().any(|key| self.must_pass(key))
    }

    /// Whether a write of it waits that something needs in order to pass.
    pub(super) fn must_pass(&self, key: &PortKey) -> bool {
        self.due(key) == Some(Due::Before)
    }

    /// Whether it is the key of a port that must pass by it, not that of an address or of a port that nobody names any more.
    pub(super) fn passes(&self, key: &PortKey) -> bool {
        *key != PortKey::exempt_address(key.addr) && self.wanted(key) == Some(Says::Pass)
    }

    /// A key could not be written, or removed: whether it lies there, and what it says, is not known.
    pub(super) fn failed(&mut self, key: PortKey, again: u64) {
        let removed = self.removed.take().filter(|(last, _)| *last == key).and_then(|(_, slot)| slot);
        let slot = self.owner(key).or(removed);
        self.lies.insert(key, Lies { says: None, slot });
        for set in [&mut self.first, &mut self.before, &mut self.after] {
            set.remove(&key);
        }
        self.later.insert(key, again);
    }

    /// Has those tried again whose time has come.
    pub(super) fn retry(&mut self, now: u64) {
        let due: Vec<PortKey> =
            self.later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| *key).collect();
        due.into_iter().for_each(|key| self.list_anew(key));
    }

    /// When a failed write is tried again (CLOCK_MONOTONIC, ns).
    pub(super) fn next_retry(&self) -> Option<u64> {
        self.later.values().min().copied()
    }

    /// These keys were read in the map with their values, all of them where `whole`. What was read may be old by now, so it proves nothing: a key
    /// that is needed is written again. Returns how many differed from what was believed.
    pub(super) fn found(&mut self, keys: &[(PortKey, u32)], whole: bool) -> usize {
        let found: BTreeMap<PortKey, Option<Says>> =
            keys.iter().map(|(key, flags)| (*key, Says::of(*flags))).collect();
        let is_other = |(key, lies): &(&PortKey, &Lies)| {
            let there = found.get(*key);
            lies.says.is_some() && there.map_or(whole, |there| *there != lies.says)
        };
        let other = self.lies.iter().filter(is_other).map(|(key, _)| *key);
        let new = found.keys().filter(|key| !self.lies.contains_key(*key)).copied();
        let differ: Vec<PortKey> = other.chain(new).collect();
        for key in &differ {
            let slot = self.owner(*key);
            self.lies.insert(*key, Lies { says: None, slot });
            self.list(*key);
        }
        differ.len()
    }

    /// The node that a key is needed for, or was last.
    fn owner(&self, key: PortKey) -> Option<Slot> {
        let needed = self.needed.get(&key).and_then(|need| need.slot);
        needed.or_else(|| self.lies.get(&key).and_then(|lies| lies.slot))
    }
}
