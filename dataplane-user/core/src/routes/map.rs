//! Ways by address, each worked out once.
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use super::{
    matcher::Matcher,
    model::{Object, Policies, Route, Rule, Ways},
    policies::PolicyTable,
    prefix::number,
    table::Tables,
};
use crate::Family;

/// The kernel's routing as read at one moment.
#[derive(Debug, Default)]
pub struct Dump {
    /// All policy rules; rules of one priority are in their order.
    pub rules: Vec<Rule>,
    /// Routes of all tables; routes of one range and metric are in their order.
    pub routes: Vec<Route>,
    /// Nexthop objects by number.
    pub objects: HashMap<u32, Object>,
    /// Tables of VRF devices.
    pub vrfs: Vec<u32>,
    /// IPsec policies.
    pub policies: Policies,
}

/// Tells where packets to any address may go, as of one reading of the kernel.
///
/// Between the ends of the ranges of all routes, rules and policies, all addresses have the same ways. These are worked out when one of the addresses is first
/// looked up.
#[derive(Debug)]
pub struct RouteMap {
    matcher: Matcher,
    v4: Stretches,
    v6: Stretches,
}

/// The intervals between the ends of ranges.
#[derive(Debug)]
struct Stretches {
    family: Family,
    /// Where each interval begins; the first at 0.
    begins: Vec<u128>,
    ways: Vec<OnceLock<Arc<Ways>>>,
}

impl Stretches {
    fn new(family: Family, matcher: &Matcher) -> Self {
        let routed = matcher.tables().ranges().filter(|range| range.family() == family);
        let ruled = matcher.rules(family).iter().filter_map(|rule| rule.to);
        let wrapped = matcher.policies().ranges().filter(|range| range.family() == family);
        let mut begins = vec![0];
        for range in routed.chain(ruled).chain(wrapped) {
            begins.push(range.first());
            begins.extend(range.last().checked_add(1));
        }
        begins.sort_unstable();
        begins.dedup();
        let ways = begins.iter().map(|_| OnceLock::new()).collect();
        Self { family, begins, ways }
    }

    fn place(&self, number: u128) -> usize {
        self.begins.partition_point(|begin| *begin <= number) - 1
    }
}

impl RouteMap {
    /// The map of what was read.
    pub fn new(dump: Dump) -> Self {
        let Dump { rules, routes, objects, vrfs, policies } = dump;
        let policies = PolicyTable::new(policies);
        let matcher = Matcher::new(rules, Tables::new(routes), objects, vrfs, policies);
        let v4 = Stretches::new(Family::V4, &matcher);
        let v6 = Stretches::new(Family::V6, &matcher);
        Self { matcher, v4, v6 }
    }

    /// Where packets to this address may go.
    pub fn ways(&self, to: IpAddr) -> &Arc<Ways> {
        let stretches = match Family::of(to) {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let place = stretches.place(number(to));
        stretches.ways[place]
            .get_or_init(|| Arc::new(self.matcher.ways(stretches.family, stretches.begins[place])))
    }

    /// How many routes are stored.
    pub fn routes(&self) -> usize {
        self.matcher.tables().len()
    }
}
