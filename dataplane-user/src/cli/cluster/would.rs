//! What a flag would do: whether it is unwise, and whether a limit withholds it. Pure.

use std::{collections::BTreeSet, time::Duration};

use kube::ResourceExt as _;

use super::known::{Known, scopes};
use crate::{
    cluster::NodeName,
    crds::NodeFlag,
    enforce::{ClaimCause, ClaimSource, Judge, JudgedNode, NewClaim, Now, Standing, Withheld},
};

/// What a flag would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Would {
    /// Why the flag is unwise. With `force` none of this keeps it from being set.
    pub(super) unwise: Vec<String>,
    /// What to know about it all the same.
    pub(super) warnings: Vec<String>,
}

/// What a flag on a node would do. The node must be a member for the limits to count it. `replaced`: the names of the flags that go once this one is there.
pub(super) fn would(known: &Known, node: &str, force: bool, replaced: &[String]) -> Would {
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
    for exceeded in exceeded(known, node, force, replaced) {
        let Exceeded { withheld, nodes, of_others } = exceeded;
        let text = format!(
            "{} of {nodes} nodes ({}) would be flagged, and the limit allows {}",
            withheld.counted, withheld.scope, withheld.allowed
        );
        if force {
            would
                .warnings
                .push(format!("{text}: agents withhold the flags without force there ({of_others})"));
        } else {
            would.unwise.push(format!("{text}: agents would withhold the flags there"));
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

/// A limit that a flag would exceed.
struct Exceeded {
    withheld: Withheld,
    /// How many nodes its scope has.
    nodes: usize,
    /// The other nodes whose flags would be withheld there.
    of_others: String,
}

/// The limits that withhold flags once this one is there, by the code of the agents. All flags are judged at once: agents, which saw some of them come earlier,
/// come to the same end after some minutes.
fn exceeded(known: &Known, node: &str, force: bool, replaced: &[String]) -> Vec<Exceeded> {
    let member = known.members.get(node).filter(|_| !known.is_opted_out(node));
    let Some(member) = member else { return Vec::new() };
    let mut judge = Judge::new(known.limit());
    judge.open(known.members.iter().map(|(name, member)| JudgedNode {
        name: name.as_str().into(),
        zone: member.spec.zone.as_deref().map(Into::into),
        pool: member.spec.pool.as_deref().map(Into::into),
    }));
    let others = counted(known).filter(|flag| !replaced.contains(&flag.name_any()));
    let mut claims: Vec<(NodeName, NewClaim)> =
        others.map(|flag| flag.spec.claim(&flag.name_any(), flag.spec.until)).collect();
    claims.push(new(node, force));
    let nodes: Vec<NodeName> = claims.iter().map(|(node, _)| node.clone()).collect();
    let forced: BTreeSet<NodeName> =
        claims.iter().filter(|(_, claim)| !claim.source.limited()).map(|(node, _)| node.clone()).collect();
    let now = Now { mono: 1, boot: Duration::from_secs(1), wall: known.now };
    let standings = judge.judge(claims, now);
    let inside = scopes(member).into_iter().filter_map(|scope| {
        let is_withheld = |standing: &Standing| match standing {
            Standing::Withheld(scopes) => scopes.contains(&scope),
            _ => false,
        };
        let both = nodes.iter().zip(&standings).filter(|(_, standing)| is_withheld(standing));
        // A node with a flag that has force is cut by that one.
        let of_others: BTreeSet<&str> = both
            .map(|(name, _)| name)
            .filter(|name| ***name != *node && !forced.contains(*name))
            .map(|name| name.as_str())
            .collect();
        let withholds = if force { !of_others.is_empty() } else { standings.last().is_some_and(is_withheld) };
        let withheld = judge.withheld().into_iter().find(|withheld| withheld.scope == scope);
        withheld.filter(|_| withholds).map(|withheld| Exceeded {
            withheld,
            nodes: known.members.values().filter(|other| scopes(other).contains(&scope)).count(),
            of_others: of_others.into_iter().collect::<Vec<_>>().join(", "),
        })
    });
    inside.collect()
}

/// The claim of the flag that is not there yet.
fn new(node: &str, forced: bool) -> (NodeName, NewClaim) {
    let source = ClaimSource::Object { name: "".into(), cause: ClaimCause::Operator, forced, uid: None };
    let claim =
        NewClaim { source, by: "".into(), reason: "".into(), evidence: None, lasts: None, until: None };
    (node.into(), claim)
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
        assert_eq!(would(&five(), "a", false, &[]), Would::default());
    }

    #[test]
    fn the_limit_of_a_zone_holds() {
        let mut known = five();
        known.flags = vec![flag("a", "alice")];
        let found = would(&known, "b", false, &[]);
        let wanted = "2 of 2 nodes (zone z1) would be flagged, and the limit allows 1: agents would withhold the flags there";
        assert_eq!(found.unwise, [wanted]);
        assert_eq!(would(&known, "c", false, &[]), Would::default());
    }

    #[test]
    fn the_limit_of_all_nodes_holds() {
        let mut known = five();
        known.flags = vec![flag("a", "alice"), flag("c", "alice")];
        let found = would(&known, "e", false, &[]);
        assert_eq!(found.unwise.len(), 1);
        assert!(found.unwise[0].starts_with("3 of 6 nodes (all nodes)"), "{found:?}");
    }

    #[test]
    fn a_flag_with_force_has_others_withheld() {
        let mut known = five();
        known.flags = vec![flag("a", "alice")];
        let found = would(&known, "b", true, &[]);
        assert_eq!(found.unwise, [""; 0]);
        assert!(
            found.warnings[0].ends_with("agents withhold the flags without force there (a)"),
            "{found:?}"
        );
        known.flags[0].spec.force = true;
        assert_eq!(would(&known, "b", true, &[]), Would::default());
        // A second flag on the same node exceeds nothing.
        assert_eq!(would(&known, "a", false, &[]), Would::default());
    }

    #[test]
    fn a_flag_that_is_over_or_of_an_earlier_machine_does_not_count() {
        let mut known = five();
        let mut over = flag("a", "alice");
        over.spec.until = known.now;
        let mut other = flag("a", "alice");
        other.spec.uid = "another".to_owned();
        known.flags = vec![over, other];
        assert_eq!(would(&known, "b", false, &[]), Would::default());
    }

    #[test]
    fn the_only_and_the_last_usable_node_are_told() {
        let only = known([member("a", None, None)], []);
        assert_eq!(would(&only, "a", false, &[]).unwise, ["it is the only node"]);
        let mut two = known([member("a", None, None), member("b", None, None)], []);
        assert_eq!(would(&two, "b", false, &[]), Would::default());
        two.flags = vec![flag("a", "alice")];
        let found = would(&two, "b", false, &[]);
        assert!(found.unwise[0].starts_with("all other nodes are flagged"), "{found:?}");
        assert!(found.unwise[1].starts_with("2 of 2 nodes (all nodes)"), "{found:?}");
    }

    #[test]
    fn a_node_without_member_or_that_is_left_out_is_told() {
        let mut known = five();
        let found = would(&known, "new", false, &[]);
        assert!(found.unwise.is_empty() && found.warnings[0].contains("no NodeMember"), "{found:?}");
        known.settings.as_mut().unwrap().opt_outs.nodes = vec!["a".to_owned()];
        assert!(would(&known, "a", false, &[]).warnings[0].contains("never cut"));
    }

    #[test]
    fn the_flags_that_are_replaced_do_not_count() {
        let mut known = five();
        known.flags = vec![flag("a", "alice")];
        known.flags[0].spec.force = true;
        let name = known.flags[0].name_any();
        let found = would(&known, "b", false, &[]);
        assert!(found.unwise[0].starts_with("2 of 2 nodes (zone z1)"), "{found:?}");
        assert_eq!(would(&known, "b", false, &[name]), Would::default());
    }

    /// Another's flag with force cuts the node. A flag without force is withheld there all the same, as its status would say.
    #[test]
    fn a_flag_is_judged_by_itself_where_another_cuts_the_node() {
        let mut known = five();
        known.flags = vec![flag("a", "bob"), flag("b", "bob")];
        known.flags.iter_mut().for_each(|flag| flag.spec.force = true);
        let found = would(&known, "a", false, &[]);
        assert!(found.unwise[0].starts_with("2 of 2 nodes (zone z1)"), "{found:?}");
        assert_eq!(would(&known, "a", true, &[]), Would::default());
    }
}
