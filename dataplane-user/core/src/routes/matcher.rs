//! By which devices packets to an address may leave: follows the rules in their order, and the routes of their tables.
//!
//! A rule may ask for more than the destination (source, mark, device, user, ports), which differs from packet to packet. Such a rule may hold or
//! not, so both cases are followed. Read in `fib_rules_lookup` (net/core/fib_rules.c), `fib4_rule_action` and `fib_table_lookup` (net/ipv4), and
//! `__fib6_rule_action` (net/ipv6/fib6_rules.c), Linux 6.18.
use std::collections::{BTreeSet, HashMap};

use super::{
    model::{Action, Fate, Hop, Object, Route, Rule, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN, Ways},
    policies::PolicyTable,
    table::{Sure, Tables},
};
use crate::Family;

/// All rules, tables, nexthop objects and policies that decide.
#[derive(Debug)]
pub(super) struct Matcher {
    /// The rules of each family, in their order.
    rules: HashMap<Family, Vec<Rule>>,
    tables: Tables,
    objects: HashMap<u32, Object>,
    /// Tables of VRF devices.
    vrfs: Vec<u32>,
    policies: PolicyTable,
    /// Whether IPv4's local and main table are one, as they are while nobody has touched the rules (`fib_trie_unmerge`, net/ipv4/fib_trie.c).
    merged: bool,
}

/// What follows from a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleOutcome {
    /// No packet comes to the next rule.
    Ends,
    /// Some packets come to the next rule.
    MayGoOn,
    /// All packets come to the next rule.
    GoesOn,
}

/// The ways found so far.
#[derive(Default)]
struct Found {
    main: Option<Hop>,
    /// The first way that only some packets take.
    other: Option<Hop>,
    devices: BTreeSet<u32>,
    local: bool,
    wrapped: Option<String>,
    unknown: Option<String>,
}

impl Matcher {
    pub(super) fn new(
        mut rules: Vec<Rule>,
        tables: Tables,
        objects: HashMap<u32, Object>,
        vrfs: Vec<u32>,
        policies: PolicyTable,
    ) -> Self {
        // The sort is stable: rules of one priority stay as they were listed.
        rules.sort_by_key(|rule| rule.priority);
        let of = |family| rules.iter().filter(|rule| rule.family == family).cloned().collect::<Vec<_>>();
        let rules = HashMap::from([(Family::V4, of(Family::V4)), (Family::V6, of(Family::V6))]);
        let defaults = Rule::defaults();
        let merged = rules[&Family::V4].iter().eq(defaults.iter().filter(|rule| rule.family == Family::V4));
        Self { rules, tables, objects, vrfs, policies, merged }
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    pub(super) fn policies(&self) -> &PolicyTable {
        &self.policies
    }

    pub(super) fn rules(&self, family: Family) -> &[Rule] {
        &self.rules[&family]
    }

    /// Where packets to this address may go.
    pub(super) fn ways(&self, family: Family, to: u128) -> Ways {
        let rules = self.rules(family);
        let mut found = Found::default();
        // For each rule, which packets come to it: all that no earlier rule treats apart, or some.
        let mut come: Vec<Option<Sure>> = vec![None; rules.len()];
        if let Some(first) = come.first_mut() {
            *first = Some(Sure::Yes);
        }
        for (at, rule) in rules.iter().enumerate() {
            let Some(here) = come[at] else { continue };
            let next = at + 1;
            let holds = holds(rule, to);
            if holds != Some(Sure::Yes) {
                reach(&mut come, next, here);
            }
            let Some(holds) = holds else { continue };
            let here = here.min(holds);
            if let Some(what) = &rule.unknown {
                found.do_not_know(format!("policy rule {} asks for {what}", rule.priority));
            }
            let outcome = match rule.action {
                // A target that does not exist (yet) is passed over.
                Action::Goto(priority) => {
                    let target = rules.iter().skip(next).position(|other| other.priority == priority);
                    reach(&mut come, target.map_or(next, |skipped| next + skipped), here);
                    RuleOutcome::Ends
                }
                Action::Nop => RuleOutcome::GoesOn,
                Action::Refuse => RuleOutcome::Ends,
                Action::VrfTable => {
                    self.look_into_vrfs(rule, to, &mut found);
                    RuleOutcome::GoesOn
                }
                Action::Table(table) => self.look_into(rule, table, to, here, &mut found),
            };
            match outcome {
                RuleOutcome::Ends => {}
                RuleOutcome::MayGoOn => reach(&mut come, next, Sure::Maybe),
                RuleOutcome::GoesOn => reach(&mut come, next, here),
            }
        }
        self.look_for_policies(family, to, &mut found);
        found.into()
    }

    fn look_for_policies(&self, family: Family, to: u128, found: &mut Found) {
        for policy in self.policies.wrapping(family, to) {
            if policy.marked {
                found.do_not_know(format!("the IPsec policy to {} asks for a mark", policy.to));
                continue;
            }
            let may = if policy.only_some { "may leave" } else { "leaves" };
            found.wrapped.get_or_insert_with(|| format!("{may} by IPsec (policy to {})", policy.to));
        }
        if let Some(why) = &self.policies.unread {
            found.do_not_know(format!("IPsec policies cannot be read: {why}"));
        }
    }

    /// Looks into the tables of VRFs. Only packets of a VRF come there, and which these are is not known here.
    fn look_into_vrfs(&self, rule: &Rule, to: u128, found: &mut Found) {
        for vrf in &self.vrfs {
            let candidates = self.tables.candidates(rule.family, &[*vrf], to);
            if candidates.iter().any(|(route, _)| matches!(route.fate, Fate::Leaves | Fate::Unknown(_))) {
                found.do_not_know(format!(
                    "policy rule {} has packets of a VRF go by that one's own table {vrf}",
                    rule.priority
                ));
            }
        }
    }

    fn look_into(&self, rule: &Rule, table: u32, to: u128, here: Sure, found: &mut Found) -> RuleOutcome {
        let tables: &[u32] = match (self.merged && rule.family == Family::V4, table) {
            (true, TABLE_LOCAL) => &[TABLE_LOCAL, TABLE_MAIN],
            (true, TABLE_MAIN) => &[],
            (true, TABLE_DEFAULT) => &[TABLE_DEFAULT],
            _ => &[table],
        };
        let mut outcome = RuleOutcome::GoesOn;
        let mut ends = false;
        for (route, sure) in self.tables.candidates(rule.family, tables, to) {
            let taken = self.take(rule, route, here.min(sure), found);
            ends |= taken == RuleOutcome::Ends && sure == Sure::Yes;
            if taken != RuleOutcome::GoesOn {
                outcome = RuleOutcome::MayGoOn;
            }
        }
        if ends { RuleOutcome::Ends } else { outcome }
    }

    /// Takes a route's ways.
    fn take(&self, rule: &Rule, route: &Route, sure: Sure, found: &mut Found) -> RuleOutcome {
        let suppressed = rule.suppressed_len.is_some_and(|len| route.to.bits() <= len);
        match route.fate {
            // `suppress` does not look at a route that refuses.
            Fate::Refused => return RuleOutcome::Ends,
            Fate::NextRule => return RuleOutcome::GoesOn,
            _ if suppressed => return RuleOutcome::GoesOn,
            // Packets with a mark are handed to a proxy of this machine, and do not leave.
            Fate::Local => found.local |= sure == Sure::Yes,
            Fate::Unknown(kind) => found.do_not_know(format!("a route is of the unknown type {kind}")),
            Fate::Leaves => {
                for hop in &route.hops {
                    found.take(hop, sure);
                }
                if let Some(object) = route.object {
                    self.take_object(object, sure, found);
                }
            }
        }
        if rule.suppresses_group { RuleOutcome::MayGoOn } else { RuleOutcome::Ends }
    }

    fn take_object(&self, number: u32, sure: Sure, found: &mut Found) {
        match self.objects.get(&number) {
            Some(Object::Hop(hop)) => found.take(hop, sure),
            Some(Object::Blackhole) => {}
            Some(Object::Group(members)) => {
                for member in members {
                    // A group has no groups in it (`nh_check_attr_group`, net/ipv4/nexthop.c).
                    match self.objects.get(member) {
                        Some(Object::Hop(hop)) => found.take(hop, sure),
                        Some(Object::Blackhole) => {}
                        Some(Object::Group(_)) | None => found.lacks_object(*member),
                    }
                }
            }
            None => found.lacks_object(number),
        }
    }
}

/// Has packets come to the rule at this place, at least as surely as before.
fn reach(come: &mut [Option<Sure>], at: usize, sure: Sure) {
    if let Some(place) = come.get_mut(at) {
        *place = (*place).max(Some(sure));
    }
}

/// Whether a rule holds for packets to this address: for all, for some, or for none.
fn holds(rule: &Rule, to: u128) -> Option<Sure> {
    let matches = match rule.to {
        _ if rule.detached => None,
        Some(range) if !range.has(to) => None,
        _ if rule.only_some || rule.unknown.is_some() => Some(Sure::Maybe),
        _ => Some(Sure::Yes),
    };
    match (rule.inverted, matches) {
        (true, None) => Some(Sure::Yes),
        (true, Some(Sure::Yes)) => None,
        _ => matches,
    }
}

impl Found {
    fn take(&mut self, hop: &Hop, sure: Sure) {
        if let Some(kind) = hop.encap {
            self.do_not_know(format!("a route wraps packets ({})", encap(kind)));
        }
        if hop.ifindex == 0 {
            return;
        }
        self.devices.insert(hop.ifindex);
        let place = if sure == Sure::Yes && !hop.dead { &mut self.main } else { &mut self.other };
        if place.is_none() {
            *place = Some(hop.clone());
        }
    }

    fn do_not_know(&mut self, what: String) {
        self.unknown.get_or_insert(what);
    }

    fn lacks_object(&mut self, number: u32) {
        self.do_not_know(format!("a route has the nexthop object {number}, which the kernel did not list"));
    }
}

impl From<Found> for Ways {
    fn from(found: Found) -> Self {
        let Found { main, other, devices, local, wrapped, unknown } = found;
        let main = main.or(other).map(|hop| (hop.ifindex, hop.gateway));
        Self { main, devices: devices.into_iter().collect(), local, wrapped, unknown }
    }
}

/// `enum lwtunnel_encap_types` (include/uapi/linux/lwtunnel.h).
fn encap(kind: u16) -> String {
    match kind {
        1 => "mpls".to_owned(),
        2 => "ip".to_owned(),
        3 => "ila".to_owned(),
        4 => "ip6".to_owned(),
        5 => "seg6".to_owned(),
        6 => "bpf".to_owned(),
        7 => "seg6local".to_owned(),
        8 => "rpl".to_owned(),
        9 => "ioam6".to_owned(),
        10 => "xfrm".to_owned(),
        other => format!("encapsulation {other}"),
    }
}
