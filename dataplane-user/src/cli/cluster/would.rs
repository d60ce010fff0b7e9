//! What a flag would do: whether it is unwise, and whether a limit withholds it. Pure.

use std::collections::BTreeSet;

use super::known::{Known, scopes};
use crate::{crds::NodeFlag, enforce::LimitScope};

/// What a flag would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Would {
    /// Why the flag is unwise. With `force` none of this keeps it from being set.
    pub(super) unwise: Vec<String>,
    /// What to know about it all the same.
    pub(super) warnings: Vec<String>,
}

/// How many nodes of a set would be flagged, and how many may be.
struct Count {
    scope: LimitScope,
    nodes: usize,
    flagged: usize,
    allowed: u32,
    /// The nodes whose flags the limit withholds, where it is exceeded.
    withheld: BTreeSet<String>,
}

impl Count {
    /// Whether the flags of the set without `force` are withheld.
    fn is_exceeded(&self) -> bool {
        !self.withheld.is_empty() && self.flagged > self.allowed as usize
    }

    fn text(&self) -> String {
        format!(
            "{} of {} nodes ({}) would be flagged, and the limit allows {}",
            self.flagged, self.nodes, self.scope, self.allowed
        )
    }
}

/// What a flag on a node would do. The node must be a member for the limits to count it.
pub(super) fn would(known: &Known, node: &str, force: bool) -> Would {
    let mut would = Would::default();
    let flagged: BTreeSet<&str> = counted(known).map(|flag| flag.spec.node.as_str()).collect();
    let mut others = known.members.keys().filter(|name| *name != node);
    if known.members.contains_key(node) {
        if known.members.len() == 1 {
            would.unwise.push("it is the only node".to_owned());
        } else if others.all(|name| flagged.contains(name.as_str())) {
            would.unwise.push("all other nodes are flagged: it is the last usable one".to_owned());
        }
    } else {
        would
            .warnings
            .push("the node has no NodeMember: nothing is cut until the controller makes one".to_owned());
    }
    for count in counts(known, node, force).into_iter().filter(Count::is_exceeded) {
        if force {
            let nodes = count.withheld.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            would
                .warnings
                .push(format!("{}: agents withhold the flags without force there ({nodes})", count.text()));
        } else {
            would.unwise.push(format!("{}: agents would withhold the flags there", count.text()));
        }
    }
    if known.is_opted_out(node) {
        would.warnings.push("the settings leave the node out (optOuts): it is never cut".to_owned());
    }
    would
}

/// The flags that hold, but for those of nodes that the settings leave out: agents do not count them in their limits.
fn counted(known: &Known) -> impl Iterator<Item = &NodeFlag> {
    known.held().filter(|flag| !known.is_opted_out(&flag.spec.node))
}

/// Counts flags in each set in which the node counts, as if the node were flagged too.
fn counts(known: &Known, node: &str, force: bool) -> Vec<Count> {
    let member = known.members.get(node).filter(|_| !known.is_opted_out(node));
    let Some(member) = member else { return Vec::new() };
    let share = known.limit();
    let count = |scope: LimitScope| {
        let inside: BTreeSet<&str> = known
            .members
            .iter()
            .filter(|(_, other)| scopes(other).contains(&scope))
            .map(|(name, _)| name.as_str())
            .collect();
        let held = || counted(known).filter(|flag| inside.contains(flag.spec.node.as_str()));
        let mut flagged: BTreeSet<&str> = held().map(|flag| flag.spec.node.as_str()).collect();
        flagged.insert(node);
        // A node with a flag that has `force` is cut by that one.
        let forced: BTreeSet<&str> =
            held().filter(|flag| flag.spec.force).map(|flag| flag.spec.node.as_str()).collect();
        let mut withheld: BTreeSet<String> =
            held().filter(|flag| !flag.spec.force).map(|flag| flag.spec.node.clone()).collect();
        if force {
            withheld.remove(node);
        } else {
            withheld.insert(node.to_owned());
        }
        withheld.retain(|name| !forced.contains(name.as_str()));
        let nodes = inside.len();
        let allowed = share.allowed(u32::try_from(nodes).unwrap_or(u32::MAX));
        Count { scope, nodes, flagged: flagged.len(), allowed, withheld }
    };
    scopes(member).into_iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::cluster::samples::{flag, known, member};

    fn five() -> Known {
        let nodes = [("a", "z1"), ("b", "z1"), ("c", "z2"), ("d", "z2"), ("e", "z3"), ("f", "z3")];
        known(nodes.map(|(name, zone)| member(name, Some(zone), None)), [])
    }

    #[test]
    fn one_node_of_a_zone_may_be_flagged() {
        assert_eq!(would(&five(), "a", false), Would::default());
    }

    #[test]
    fn the_limit_of_a_zone_holds() {
        let mut known = five();
        known.flags = vec![flag("a", "alice")];
        let found = would(&known, "b", false);
        let wanted = "2 of 2 nodes (zone z1) would be flagged, and the limit allows 1: agents would withhold the flags there";
        assert_eq!(found.unwise, [wanted]);
        assert_eq!(would(&known, "c", false), Would::default());
    }

    #[test]
    fn the_limit_of_all_nodes_holds() {
        let mut known = five();
        known.flags = vec![flag("a", "alice"), flag("c", "alice")];
        let found = would(&known, "e", false);
        assert_eq!(found.unwise.len(), 1);
        assert!(found.unwise[0].starts_with("3 of 6 nodes (all nodes)"), "{found:?}");
    }

    #[test]
    fn a_flag_with_force_has_others_withheld() {
        let mut known = five();
        known.flags = vec![flag("a", "alice")];
        let found = would(&known, "b", true);
        assert_eq!(found.unwise, [""; 0]);
        assert!(
            found.warnings[0].ends_with("agents withhold the flags without force there (a)"),
            "{found:?}"
        );
        known.flags[0].spec.force = true;
        assert_eq!(would(&known, "b", true), Would::default());
        // A second flag on the same node exceeds nothing.
        assert_eq!(would(&known, "a", false), Would::default());
    }

    #[test]
    fn a_flag_that_is_over_or_of_an_earlier_machine_does_not_count() {
        let mut known = five();
        let mut over = flag("a", "alice");
        over.spec.until = known.now;
        let mut other = flag("a", "alice");
        other.spec.uid = "another".to_owned();
        known.flags = vec![over, other];
        assert_eq!(would(&known, "b", false), Would::default());
    }

    #[test]
    fn the_only_and_the_last_usable_node_are_told() {
        let only = known([member("a", None, None)], []);
        assert_eq!(would(&only, "a", false).unwise, ["it is the only node"]);
        let mut two = known([member("a", None, None), member("b", None, None)], []);
        assert_eq!(would(&two, "b", false), Would::default());
        two.flags = vec![flag("a", "alice")];
        let found = would(&two, "b", false);
        assert!(found.unwise[0].starts_with("all other nodes are flagged"), "{found:?}");
        assert!(found.unwise[1].starts_with("2 of 2 nodes (all nodes)"), "{found:?}");
    }

    #[test]
    fn a_node_without_member_or_that_is_left_out_is_told() {
        let mut known = five();
        let found = would(&known, "new", false);
        assert!(found.unwise.is_empty() && found.warnings[0].contains("no NodeMember"), "{found:?}");
        known.settings.as_mut().unwrap().opt_outs.nodes = vec!["a".to_owned()];
        assert!(would(&known, "a", false).warnings[0].contains("never cut"));
    }
}
