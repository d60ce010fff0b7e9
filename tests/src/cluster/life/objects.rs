//! Which objects of nodefence the API server has.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;

use super::{
    super::{KubeCluster, install::NAMESPACE},
    check::Check,
};

/// Kinds that are no objects of anybody's: events end by themselves, and component statuses are made up at each look.
const LEFT_OUT: [&str; 3] = ["events", "events.events.k8s.io", "componentstatuses"];

/// The API group of our kinds.
const GROUP: &str = "nodefence.io";

/// What stays on purpose after `helm uninstall` (docs/install.md): what helm did not make, our kinds with their objects, the controllers' Lease, and the Job of the
/// removal, whose log names what it did. Each is a kind, and the beginning of a name.
const STAYS: [(&str, &str); 10] = [
    ("Namespace", NAMESPACE),
    // These two are in every namespace.
    ("ServiceAccount", "default"),
    ("ConfigMap", "kube-root-ca.crt"),
    ("CustomResourceDefinition", ""),
    ("APIService", "v1alpha1.nodefence.io"),
    ("NodeMember", "node-"),
    ("NodefenceSettings", "default"),
    ("Lease", "nodefence-controller"),
    ("Job", "nodefence-uninstall"),
    ("Pod", "nodefence-uninstall-"),
];

impl KubeCluster {
    /// After `helm uninstall` only that is left which stays on purpose, with the flag that stood.
    pub(super) fn left_in_api(&self, flag: &str) -> Result<Check> {
        let found = self.ours()?;
        let (stays, left): (Vec<_>, Vec<_>) = found.into_iter().partition(|object| object.stays(flag));
        let what = "after helm uninstall no object of the release is left in the API server";
        let names = |objects: &[Object]| objects.iter().map(Object::name).collect::<Vec<_>>().join(", ");
        let is_there = ["CustomResourceDefinition", "NodefenceSettings", "NodeFlag", "Job"]
            .iter()
            .all(|kind| stays.iter().any(|object| object.kind == *kind));
        let evidence = match left.is_empty() {
            true => format!("what stays on purpose: {}", names(&stays)),
            false => format!("left: {}", names(&left)),
        };
        Ok(Check::of(what, left.is_empty() && is_there, evidence))
    }

    /// The commands of docs/install.md that remove the rest.
    pub(super) fn clean_up(&self) -> Result<Vec<Check>> {
        let kinds = self.kubectl(&["get", "crds", "--output=name"], None)?;
        let kinds: Vec<&str> = kinds.lines().filter(|kind| kind.ends_with(GROUP)).collect();
        self.kubectl(&[&["delete"], &*kinds].concat(), None)?;
        self.kubectl(&["delete", "namespace", NAMESPACE], None)?;
        self.waiting.say("kinds and namespace are deleted");
        let left: Vec<String> = self.ours()?.iter().map(Object::name).collect();
        let what =
            "after the kinds and the namespace are deleted too, the API server has nothing of nodefence";
        Ok(vec![Check::of(what, left.is_empty(), format!("{} objects left {}", left.len(), left.join(", ")))])
    }

    /// All objects of nodefence.
    fn ours(&self) -> Result<Vec<Object>> {
        let kinds = self.kubectl(&["api-resources", "--verbs=list", "--output=name"], None)?;
        let kinds: Vec<&str> = kinds.lines().filter(|kind| !LEFT_OUT.contains(kind)).collect();
        let all = ["get", &kinds.join(","), "--all-namespaces", "--ignore-not-found", "--output=json"];
        let all = self.kubectl(&all, None)?;
        // Without a single object kubectl prints nothing.
        Ok(if all.trim().is_empty() { Vec::new() } else { ours(&serde_json::from_str(&all)?) })
    }
}

/// An object, by its names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Object {
    kind: String,
    name: String,
}

impl Object {
    fn name(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    fn stays(&self, flag: &str) -> bool {
        let is_flag = self.kind == "NodeFlag" && self.name == flag;
        is_flag || STAYS.iter().any(|(kind, name)| self.kind == *kind && self.name.starts_with(name))
    }
}

/// The objects of a list that are of our kinds or in our namespace, or that our name or our chart's labels are on.
fn ours(list: &Value) -> Vec<Object> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_ours = |object: &&Value| {
        let metadata = &object["metadata"];
        text(&metadata["name"]).contains("nodefence")
            || metadata["namespace"] == NAMESPACE
            || metadata["labels"]["app.kubernetes.io/instance"] == NAMESPACE
            || text(&object["apiVersion"]).starts_with(GROUP)
    };
    let of = |object: &Value| Object { kind: text(&object["kind"]), name: text(&object["metadata"]["name"]) };
    let all: BTreeSet<Object> =
        list["items"].as_array().into_iter().flatten().filter(is_ours).map(of).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, group: &str, name: &str, namespace: Option<&str>) -> Value {
        json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": name, "namespace": namespace}})
    }

    #[test]
    fn only_what_is_ours_is_found_and_only_what_the_docs_say_stays() {
        let mut labelled = object("ConfigMap", "v1", "other", Some("default"));
        labelled["metadata"]["labels"] = json!({"app.kubernetes.io/instance": "nodefence"});
        let list = json!({"items": [
            object("Pod", "v1", "server-node-2-0", Some("incident")),
            object("ServiceAccount", "v1", "default", Some("nodefence")),
            object("ServiceAccount", "v1", "nodefence-agent", Some("nodefence")),
            object("ClusterRole", "rbac", "nodefence-view", None),
            object("Secret", "v1", "sh.helm.release.v1.x.v1", Some("nodefence")),
            object("NodeFlag", GROUP, "node-2", None),
            object("NodeFlag", GROUP, "node-3", None),
            object("CustomResourceDefinition", "apiextensions", "nodeflags.nodefence.io", None),
            labelled,
        ]});
        let (stays, left): (Vec<_>, Vec<_>) =
            ours(&list).into_iter().partition(|object| object.stays("node-2"));
        let names = |objects: &[Object]| objects.iter().map(Object::name).collect::<Vec<_>>();
        assert_eq!(
            names(&stays),
            ["CustomResourceDefinition nodeflags.nodefence.io", "NodeFlag node-2", "ServiceAccount default"]
        );
        assert_eq!(
            names(&left),
            [
                "ClusterRole nodefence-view",
                "ConfigMap other",
                "NodeFlag node-3",
                "Secret sh.helm.release.v1.x.v1",
                "ServiceAccount nodefence-agent",
            ]
        );
    }
}
