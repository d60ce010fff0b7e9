//! Routing tables as the kernel looks into them: the longest range first.
use std::collections::HashMap;

use super::{
    model::{Fate, Route},
    prefix::Prefix,
};
use crate::Family;

/// All tables of both families.
#[derive(Debug, Default)]
pub(super) struct Tables(HashMap<(Family, u32), Table>);

#[derive(Debug, Default)]
struct Table {
    /// Lengths that there are, the longest first.
    lens: Vec<u8>,
    routes: HashMap<Prefix, Vec<Route>>,
}

/// How sure it is that the kernel takes a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Sure {
    /// Some packets may go by it.
    Maybe,
    /// All packets that come so far go by it.
    Yes,
}

impl Tables {
    pub(super) fn new(routes: Vec<Route>) -> Self {
        let mut tables: HashMap<(Family, u32), Table> = HashMap::new();
        for route in routes {
            let table = tables.entry((route.to.family(), route.table)).or_default();
            table.routes.entry(route.to).or_default().push(route);
        }
        for table in tables.values_mut() {
            table.lens = table.routes.keys().map(|to| to.bits()).collect();
            table.lens.sort_unstable_by(|left, right| right.cmp(left));
            table.lens.dedup();
            for routes in table.routes.values_mut() {
                // The sort is stable: routes of one metric stay as they were listed.
                routes.sort_by_key(|route| (!route.only_some, route.metric));
            }
        }
        Self(tables)
    }

    /// Ranges of all routes, in no order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Prefix> {
        self.0.values().flat_map(|table| table.routes.keys().copied())
    }

    /// How many routes there are.
    pub(super) fn len(&self) -> usize {
        self.0.values().flat_map(|table| table.routes.values()).map(Vec::len).sum()
    }

    /// The routes to an address that the kernel may take, in its order. The last one is that which it takes if it takes no other.
    ///
    /// Several `tables` are looked into as if they were one, in which of routes with the same range the first table's come first.
    pub(super) fn candidates(&self, family: Family, tables: &[u32], to: u128) -> Vec<(&Route, Sure)> {
        let tables: Vec<&Table> = tables.iter().filter_map(|table| self.0.get(&(family, *table))).collect();
        let mut lens: Vec<u8> = tables.iter().flat_map(|table| table.lens.iter().copied()).collect();
        lens.sort_unstable_by(|left, right| right.cmp(left));
        lens.dedup();
        let mut found = Vec::new();
        for len in lens {
            let range = Prefix::of_number(family, to, len);
            for routes in tables.iter().filter_map(|table| table.routes.get(&range)) {
                if take(family, routes, &mut found) {
                    return found;
                }
            }
        }
        found
    }
}

/// Takes the routes of one range that may be used. Whether one of them ends the search.
fn take<'a>(family: Family, routes: &'a [Route], found: &mut Vec<(&'a Route, Sure)>) -> bool {
    let mut ended_by = None;
    for route in routes {
        match ended_by {
            // Any of several IPv6 routes with the same metric may be taken, also where they are not one multipath route
            // (`find_rr_leaf`, net/ipv6/route.c).
            Some(metric) if family == Family::V4 || metric != route.metric => break,
            _ => {}
        }
        let leaves = matches!(route.fate, Fate::Leaves | Fate::Unknown(_)) && route.object.is_none();
        if leaves && route.hops.iter().all(|hop| hop.dead) && !route.hops.is_empty() {
            continue;
        }
        let maybe = route.only_some || leaves && route.hops.iter().all(|hop| hop.dead || hop.linkdown);
        found.push((route, if maybe { Sure::Maybe } else { Sure::Yes }));
        if !maybe {
            ended_by = Some(route.metric);
        }
    }
    ended_by.is_some()
}
