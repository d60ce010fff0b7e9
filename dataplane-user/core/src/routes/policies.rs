//! IPsec policies: which packets are wrapped before they come to a device.
//!
//! Of the policies that match, the one with the lowest priority number decides (`xfrm_policy_lookup_bytype`, net/xfrm/xfrm_policy.c). A packet that a policy wraps
//! is ESP, AH or IPcomp when it comes to TC egress, in a tunnel under another destination: `xfrm_output` (net/xfrm/xfrm_output.c) is done before `dst_output`. Read
//! as of IP-TFS (6.14).
use std::collections::{BTreeSet, HashMap};

use super::{
    model::{Policies, Policy},
    prefix::Prefix,
};
use crate::Family;

/// Policies by the range for which they are.
#[derive(Debug, Default)]
pub(super) struct PolicyTable {
    lens: BTreeSet<u8>,
    policies: HashMap<Prefix, Vec<Policy>>,
    /// Why the policies are not known.
    pub(super) unread: Option<String>,
}

impl PolicyTable {
    pub(super) fn new(read: Policies) -> Self {
        let mut table = Self { unread: read.unread, ..Self::default() };
        for policy in read.list {
            table.lens.insert(policy.to.bits());
            table.policies.entry(policy.to).or_default().push(policy);
        }
        table
    }

    /// The ranges for which there are policies, in no order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Prefix> {
        self.policies.keys().copied()
    }

    /// Policies that packets to this address may meet and that wrap them, the first one first.
    pub(super) fn wrapping(&self, family: Family, to: u128) -> impl Iterator<Item = &Policy> {
        let of_len = |len: &u8| self.policies.get(&Prefix::of_number(family, to, *len));
        let mut met: Vec<&Policy> = self.lens.iter().filter_map(of_len).flatten().collect();
        // Among policies of one priority the older goes first, but the list does not tell which that is.
        met.sort_by_key(|policy| (policy.priority, !policy.wraps));
        if let Some(last) = met.iter().position(|policy| policy.is_for_all()) {
            met.truncate(last + 1);
        }
        met.into_iter().filter(|policy| policy.wraps)
    }
}
