//! The keys of exemptions in `ports`: which must lie in the map and what they must say, which lie there, and which must be written in which order.
//!
//! Ports that are cut although their whole address passes are written before the address and removed after it. Ports that pass are written before it too.

use std::collections::{BTreeMap, BTreeSet};

use nodefence_common::{Addr, PortKey, port_flags};

use super::output::Output;
use crate::plan::Slot;

/// What a key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// The key's port passes. Under an address' key: the whole address passes, but for ports that keys of their own cut.
    Pass,
    /// The key's port is cut, although its address passes.
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
    /// What the key says for certain: it was written, and nobody said that the write failed. `None`: not known, the key may not even lie there.
    says: Option<Says>,
    /// The node for which the key was last needed.
    slot: Option<Slot>,
}

/// A key that some view needs.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// How many views need the key to let pass.
    pass: u32,
    /// How many views need the key to cut, although they let its address pass.
    cut: u32,
    /// The node for which the key was last needed.
    slot: Option<Slot>,
}

/// When a key must be written, or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Before its address passes: the key says that a port which is cut already stays cut.
    First,
    /// Before a verdict: something must pass.
    Before,
    /// After verdicts: nothing needs the key any more, or more is cut by its write.
    After,
}

/// Keys: needed and written.
#[derive(Debug, Default)]
pub(super) struct Keys {
    needed: BTreeMap<PortKey, Need>,
    lies: BTreeMap<PortKey, Lies>,
    /// Each key that is due stands in one of these three sets. By its turn it may be due in another.
    first: BTreeSet<PortKey>,
    before: BTreeSet<PortKey>,
    after: BTreeSet<PortKey>,
    /// The key that was removed last, and the node for which it was last needed.
    removed: Option<(PortKey, Option<Slot>)>,
    /// Keys whose writes failed, and when they are tried again (CLOCK_MONOTONIC, ns).
    later: BTreeMap<PortKey, u64>,
    /// A view was written. Before that an earlier agent's backends lie in the map, and no key that they may need is removed or made to cut.
    settled: bool,
}

impl Keys {
    /// One more view needs the key.
    pub(super) fn need(&mut self, key: PortKey, says: Says, slot: Option<Slot>) {
        let need = self.needed.entry(key).or_insert(Need { pass: 0, cut: 0, slot });
        match says {
            Says::Pass => need.pass += 1,
            Says::Cut => need.cut += 1,
        }
        need.slot = slot;
        self.list_anew(key);
    }

    /// One view less needs the key.
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

    /// More or fewer views let an address pass, so other ports of it are cut.
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

    /// What the key must say. A port of an address that passes is cut only where every view that lets the address pass cuts the port.
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
            // The key may cut a port that no Service names any more, and to which answers may come.
            (None, Some(lies))
                if lies.says != Some(Says::Pass) && *key != address && self.wanted(&address).is_some() =>
            {
                Some(Due::Before)
            }
            (None, Some(_)) => Some(Due::After),
        }
    }

    /// Lists a key as due, also where an earlier write failed: a new need is tried at once.
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

    /// The next write to make before a verdict.
    pub(super) fn next_before(&mut self) -> Option<Output> {
        while let Some(key) = self.first.pop_last() {
            if self.due(&key) == Some(Due::First) {
                return Some(self.write(key));
            }
            self.list(key);
        }
        // An address comes after its ports, so that all ports named there are in the map while the address passes.
        while let Some(key) = self.before.pop_last() {
            if self.due(&key) == Some(Due::Before) {
                return Some(self.write(key));
            }
            self.list(key);
        }
        None
    }

    /// The next write to make once verdicts are written, and the node of which more is cut then.
    pub(super) fn next_after(&mut self) -> Option<(Output, Option<Slot>)> {
        if !self.settled {
            return None;
        }
        // An address comes before its ports.
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

    /// Gives the output that writes or removes the key, and takes it as done.
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

    /// Whether all that must pass does by the map.
    pub(super) fn whole(&self) -> bool {
        self.before.is_empty() && !self.later.keys().any(|key| self.must_pass(key))
    }

    /// Whether a write of the key is due that something needs in order to pass.
    pub(super) fn must_pass(&self, key: &PortKey) -> bool {
        self.due(key) == Some(Due::Before)
    }

    /// Whether the key is that of a port that must pass, not that of an address or of a port that nobody names any more.
    pub(super) fn passes(&self, key: &PortKey) -> bool {
        *key != PortKey::exempt_address(key.addr) && self.wanted(key) == Some(Says::Pass)
    }

    /// Takes note that a key could not be written or removed: whether it lies in the map, and what it says, is not known.
    pub(super) fn failed(&mut self, key: PortKey, again: u64) {
        let removed = self.removed.take().filter(|(last, _)| *last == key).and_then(|(_, slot)| slot);
        let slot = self.owner(key).or(removed);
        self.lies.insert(key, Lies { says: None, slot });
        for set in [&mut self.first, &mut self.before, &mut self.after] {
            set.remove(&key);
        }
        self.later.insert(key, again);
    }

    /// Has failed writes tried again that are due.
    pub(super) fn retry(&mut self, now: u64) {
        let due: Vec<PortKey> =
            self.later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| *key).collect();
        due.into_iter().for_each(|key| self.list_anew(key));
    }

    /// When a failed write is tried again (CLOCK_MONOTONIC, ns).
    pub(super) fn next_retry(&self) -> Option<u64> {
        self.later.values().min().copied()
    }

    /// Takes these keys as read in the map with their values; where `whole`, they are all keys of the map. What was read may be old by now and proves
    /// nothing, so a needed key that differs is written again. Returns how many keys differed from what was believed.
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

    /// The node for which a key is needed, or was last needed.
    fn owner(&self, key: PortKey) -> Option<Slot> {
        let needed = self.needed.get(&key).and_then(|need| need.slot);
        needed.or_else(|| self.lies.get(&key).and_then(|lies| lies.slot))
    }
}
