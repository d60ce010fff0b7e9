//! Which NodeMember a Node is to have. Pure.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::wire::{Member, Node};
use crate::{cluster::check_address, crds::NodeMemberSpec};

/// How many addresses a NodeMember may have.
const MOST_ADDRESSES: usize = 32;
/// The kinds of addresses that are a node's own, in this order. The others are names.
const ADDRESS_TYPES: [&str; 2] = ["InternalIP", "ExternalIP"];
const OS: &str = "kubernetes.io/os";
const ZONE: &str = "topology.kubernetes.io/zone";

/// The content of a NodeMember, and its owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) spec: NodeMemberSpec,
    pub(super) owner: OwnerReference,
}

/// Why a NodeMember is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unwanted {
    /// The list of Nodes has no Node of that name.
    NodeGone,
    /// The Node runs another operating system than Linux.
    NotLinux,
    /// The Node is another machine than the member's, and its addresses are not known yet.
    OtherMachine,
}

/// What is to be done about a NodeMember.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Nothing,
    Create(Wanted),
    Change(Wanted),
    Delete(Unwanted),
}

/// What is to be done about the NodeMember of a name. `pool_labels`: the labels of Nodes that may name a pool; the first that a Node has
/// counts.
pub(super) fn step(node: Option<&Node>, member: Option<&Member>, pool_labels: &[String]) -> Step {
    if member.is_some_and(|member| member.metadata.deletion_timestamp.is_some()) {
        // Once it is gone this is asked again.
        return Step::Nothing;
    }
    let unwanted = |why| if member.is_some() { Step::Delete(why) } else { Step::Nothing };
    let Some(node) = node else { return unwanted(Unwanted::NodeGone) };
    if label(node, OS).is_some_and(|os| os != "linux") {
        return unwanted(Unwanted::NotLinux);
    }
    let (Some(name), Some(uid)) = (&node.metadata.name, &node.metadata.uid) else { return Step::Nothing };
    let existing = member.map(|member| serde_json::from_value::<NodeMemberSpec>(member.spec.clone()).ok());
    let known = existing.as_ref().and_then(Option::as_ref);
    let mut addresses = addresses(node);
    if addresses.is_empty() {
        // A machine keeps its addresses while its kubelet or the cloud does not tell them. Another machine of that name has others.
        match known.filter(|spec| spec.uid == *uid && !spec.addresses.is_empty()) {
            Some(spec) => addresses.clone_from(&spec.addresses),
            None => return unwanted(Unwanted::OtherMachine),
        }
    }
    let wanted = Wanted {
        spec: NodeMemberSpec {
            uid: uid.clone(),
            addresses,
            zone: label(node, ZONE).map(str::to_owned),
            pool: pool_labels.iter().find_map(|name| label(node, name)).map(str::to_owned),
        },
        owner: OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: name.clone(),
            uid: uid.clone(),
            ..OwnerReference::default()
        },
    };
    let Some(member) = member else { return Step::Create(wanted) };
    let owners = member.metadata.owner_references.as_deref().unwrap_or_default();
    if known == Some(&wanted.spec) && *owners == [wanted.owner.clone()] {
        return Step::Nothing;
    }
    Step::Change(wanted)
}

/// A label of a Node. An empty one says nothing.
fn label<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    let value = node.metadata.labels.as_ref()?.get(name)?;
    Some(value.as_str()).filter(|value| !value.is_empty())
}

/// The addresses of a Node that a node can have. Agents refuse a member as a whole for any other.
fn addresses(node: &Node) -> Vec<String> {
    let told = node.status.addresses.as_deref().unwrap_or_default();
    let mut addresses: Vec<IpAddr> = Vec::new();
    for kind in ADDRESS_TYPES {
        let of_kind = told.iter().filter(|told| told.type_ == kind);
        for address in of_kind.filter_map(|told| told.address.parse().ok()) {
            if check_address(address).is_ok() && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    addresses.iter().take(MOST_ADDRESSES).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const POOLS: [&str; 2] = ["example.com/pool", "example.com/group"];

    fn node(labels: Value, addresses: &[(&str, &str)]) -> Node {
        let addresses: Vec<Value> =
            addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "b", "uid": "1", "labels": labels},
            "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"addresses": addresses, "images": []},
        }))
        .unwrap()
    }

    fn plain() -> Node {
        node(json!({}), &[("InternalIP", "10.2.0.12"), ("Hostname", "b")])
    }

    fn of(node: &Node, member: Option<&Member>) -> Step {
        step(Some(node), member, &POOLS.map(str::to_owned))
    }

    fn wanted(node: &Node) -> Wanted {
        match of(node, None) {
            Step::Create(wanted) => wanted,
            other => panic!("{other:?}"),
        }
    }

    /// The member as the API server has it once it was written.
    fn written(wanted: &Wanted) -> Member {
        serde_json::from_value(json!({
            "metadata": {"name": "b", "uid": "9", "resourceVersion": "7", "ownerReferences": [wanted.owner]},
            "spec": wanted.spec,
        }))
        .unwrap()
    }

    #[test]
    fn a_member_has_the_node_s_addresses_zone_and_pool() {
        let labels = json!({
            "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "z1", "example.com/group": "g",
            "example.com/pool": "",
        });
        let told = [
            ("Hostname", "10.2.0.99"),
            ("ExternalIP", "203.0.113.7"),
            ("InternalIP", "10.2.0.12"),
            ("InternalIP", "fd00:0:0::12"),
            ("InternalIP", "10.2.0.12"),
            ("ExternalIP", "10.2.0.12"),
            ("InternalIP", "fe80::1"),
            ("InternalIP", "127.0.0.1"),
            ("InternalIP", "b.example.com"),
        ];
        let wanted = wanted(&node(labels, &told));
        let addresses = ["10.2.0.12", "fd00::12", "203.0.113.7"].map(str::to_owned).to_vec();
        let spec = NodeMemberSpec {
            uid: "1".to_owned(),
            addresses,
            zone: Some("z1".to_owned()),
            pool: Some("g".to_owned()),
        };
        assert_eq!(wanted.spec, spec);
        let owner = &wanted.owner;
        assert_eq!([&owner.api_version, &owner.kind, &owner.name, &owner.uid], ["v1", "Node", "b", "1"]);
        let both = json!({"example.com/group": "g", "example.com/pool": "p"});
        let both = node(both, &[("InternalIP", "10.2.0.12")]);
        assert_eq!(self::wanted(&both).spec.pool.as_deref(), Some("p"));
    }

    #[test]
    fn no_more_addresses_than_fit() {
        let many: Vec<String> = (1..=40).map(|last| format!("10.2.0.{last}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|address| ("InternalIP", address.as_str())).collect();
        let addresses = wanted(&node(json!({}), &many)).spec.addresses;
        assert_eq!((addresses.len(), addresses[31].as_str()), (32, "10.2.0.32"));
    }

    #[test]
    fn only_what_differs_is_written() {
        let wanted = wanted(&plain());
        let member = written(&wanted);
        assert_eq!(of(&plain(), Some(&member)), Step::Nothing);
        let mut others = vec![member.clone(); 5];
        others[0].spec["addresses"] = json!(["10.2.0.13"]);
        others[1].spec["zone"] = json!("z1");
        others[2].spec = json!({"addresses": "none"});
        others[3].metadata.owner_references = None;
        if let Some(owners) = &mut others[4].metadata.owner_references {
            owners[0].uid = "0".to_owned();
        }
        for other in &others {
            assert_eq!(of(&plain(), Some(other)), Step::Change(wanted.clone()), "{other:?}");
        }
        let mut labelled = member;
        labelled.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert_eq!(of(&plain(), Some(&labelled)), Step::Nothing);
    }

    #[test]
    fn a_node_made_again_has_a_member_of_its_own() {
        let member = written(&wanted(&plain()));
        let mut again = plain();
        again.metadata.uid = Some("2".to_owned());
        let Step::Change(changed) = of(&again, Some(&member)) else { panic!("no change") };
        assert_eq!((changed.spec.uid.as_str(), changed.owner.uid.as_str()), ("2", "2"));
        again.status.addresses = None;
        assert_eq!(of(&again, Some(&member)), Step::Delete(Unwanted::OtherMachine));
        assert_eq!(of(&again, None), Step::Nothing);
    }

    #[test]
    fn the_last_addresses_of_a_machine_stay() {
        let member = written(&wanted(&plain()));
        let mut silent = plain();
        silent.status.addresses = Some(Vec::new());
        assert_eq!(of(&silent, Some(&member)), Step::Nothing);
        silent.metadata.labels = Some([(ZONE.to_owned(), "z2".to_owned())].into());
        let Step::Change(changed) = of(&silent, Some(&member)) else { panic!("no change") };
        assert_eq!(changed.spec.addresses, ["10.2.0.12"]);
    }

    #[test]
    fn who_is_no_linux_node_has_no_member() {
        let member = written(&wanted(&plain()));
        let windows = node(json!({"kubernetes.io/os": "windows"}), &[("InternalIP", "10.2.0.12")]);
        assert_eq!(of(&windows, None), Step::Nothing);
        assert_eq!(of(&windows, Some(&member)), Step::Delete(Unwanted::NotLinux));
        assert_eq!(step(None, Some(&member), &[]), Step::Delete(Unwanted::NodeGone));
        assert_eq!(step(None, None, &[]), Step::Nothing);
        let mut leaving = member;
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(step(None, Some(&leaving), &[]), Step::Nothing);
        assert_eq!(of(&windows, Some(&leaving)), Step::Nothing);
    }
}
