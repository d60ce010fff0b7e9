//! Pod networks by the names of their DaemonSets, and which of them replace kube-proxy. Pure.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Container},
};
use kube::ResourceExt as _;

/// A pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Network {
    /// Its name.
    pub(super) name: &'static str,
    /// That it replaces kube-proxy. `None` where it does not, as far as is known.
    pub(super) replaces: Option<String>,
    /// Why it is not known whether it replaces kube-proxy. `None` where it is known.
    pub(super) unsure: Option<String>,
}

/// What a DaemonSet tells of kube-proxy.
enum Tells {
    /// It forwards Services itself.
    Replaces,
    /// It leaves Services to kube-proxy.
    Leaves,
    /// Its configuration elsewhere says so.
    Unknown,
}

/// The networks that have DaemonSets of these names.
pub(super) fn networks(sets: &[DaemonSet], cilium: Option<&ConfigMap>) -> Vec<Network> {
    let mut found: Vec<Network> = sets.iter().filter_map(|set| network(set, cilium)).collect();
    found.sort_by_key(|network| network.name);
    found.dedup_by_key(|network| network.name);
    found
}

fn network(set: &DaemonSet, cilium: Option<&ConfigMap>) -> Option<Network> {
    let (name, tells) = match set.name_any().as_str() {
        "cilium" => ("cilium", of_cilium(cilium)),
        "calico-node" => ("calico", of_calico(set)),
        "antrea-agent" => ("antrea", Tells::Unknown),
        "kube-router" => ("kube-router", of_kube_router(set)),
        // GKE Dataplane V2 is Cilium without kube-proxy.
        "anetd" => ("gke-dataplane-v2", Tells::Replaces),
        "ovnkube-node" => ("ovn-kubernetes", Tells::Replaces),
        "kube-flannel-ds" => ("flannel", Tells::Leaves),
        "weave-net" => ("weave", Tells::Leaves),
        "kindnet" => ("kindnet", Tells::Leaves),
        "aws-node" => ("aws-vpc", Tells::Leaves),
        _ => return None,
    };
    let mut network = Network { name, replaces: None, unsure: None };
    match tells {
        Tells::Replaces => {
            network.replaces =
                Some(format!("{name} replaces kube-proxy: agents only observe (see `nodefence doctor`)"));
        }
        Tells::Unknown => {
            network.unsure = Some(format!(
                "{name} may replace kube-proxy, and the API server does not tell: see `nodefence doctor` on a node"
            ));
        }
        Tells::Leaves => {}
    }
    Some(network)
}

/// Cilium's option `kube-proxy-replacement`: true or false, and in versions before 1.14 also strict, partial, probe or disabled.
fn of_cilium(config: Option<&ConfigMap>) -> Tells {
    let data = config.and_then(|config| config.data.as_ref());
    match data.and_then(|data| data.get("kube-proxy-replacement")).map(String::as_str) {
        Some("true" | "strict") => Tells::Replaces,
        Some("false" | "disabled") => Tells::Leaves,
        _ => Tells::Unknown,
    }
}

/// Calico's eBPF mode. A FelixConfiguration may switch it on too.
fn of_calico(set: &DaemonSet) -> Tells {
    let variable = containers(set).flat_map(|container| container.env.iter().flatten());
    let mut values = variable.filter(|variable| variable.name == "FELIX_BPFENABLED");
    match values.find_map(|variable| variable.value.as_deref()).map(str::to_lowercase).as_deref() {
        Some("true") => Tells::Replaces,
        Some("false") => Tells::Leaves,
        _ => Tells::Unknown,
    }
}

/// kube-router forwards Services unless it is told not to.
fn of_kube_router(set: &DaemonSet) -> Tells {
    let words = |container: &Container| {
        let all = [container.command.clone(), container.args.clone()].into_iter().flatten().flatten();
        all.collect::<Vec<_>>()
    };
    match containers(set).flat_map(words).any(|word| word == "--run-service-proxy=false") {
        true => Tells::Leaves,
        false => Tells::Replaces,
    }
}

fn containers(set: &DaemonSet) -> impl Iterator<Item = &Container> {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.into_iter().flat_map(|pod| &pod.containers)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(name: &str, container: Value) -> DaemonSet {
        let mut container = container;
        container["name"] = json!("one");
        let template = json!({ "spec": { "containers": [container] } });
        let spec = json!({ "selector": {}, "template": template });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    }

    /// Whether the DaemonSet replaces kube-proxy. `None` where that is not known.
    fn replaces(set: DaemonSet, cilium: Option<&ConfigMap>) -> Option<bool> {
        let found = networks(&[set], cilium);
        assert_eq!(found.len(), 1);
        found[0].unsure.is_none().then(|| found[0].replaces.is_some())
    }

    #[test]
    fn what_replaces_kube_proxy_is_known_by_its_configuration() {
        let cilium = |value: &str| -> ConfigMap {
            serde_json::from_value(json!({ "data": { "kube-proxy-replacement": value } })).unwrap()
        };
        let plain = |name: &str| set(name, json!({}));
        assert_eq!(replaces(plain("cilium"), None), None);
        assert_eq!(replaces(plain("cilium"), Some(&cilium("true"))), Some(true));
        assert_eq!(replaces(plain("cilium"), Some(&cilium("false"))), Some(false));
        assert_eq!(replaces(plain("cilium"), Some(&cilium("partial"))), None);
        let calico = |value: &str| {
            set("calico-node", json!({ "env": [{ "name": "FELIX_BPFENABLED", "value": value }] }))
        };
        assert_eq!(replaces(calico("True"), None), Some(true));
        assert_eq!(replaces(calico("false"), None), Some(false));
        assert_eq!(replaces(plain("calico-node"), None), None);
        assert_eq!(replaces(plain("kube-router"), None), Some(true));
        let router =
            set("kube-router", json!({ "args": ["--run-router=true", "--run-service-proxy=false"] }));
        assert_eq!(replaces(router, None), Some(false));
        assert_eq!(replaces(plain("ovnkube-node"), None), Some(true));
        assert_eq!(replaces(plain("anetd"), None), Some(true));
        assert_eq!(replaces(plain("kube-flannel-ds"), None), Some(false));
    }

    #[test]
    fn other_daemon_sets_are_no_networks() {
        let sets = ["kube-proxy", "node-exporter", "weave-net", "weave-net"].map(|name| set(name, json!({})));
        let found: Vec<&str> = networks(&sets, None).iter().map(|network| network.name).collect();
        assert_eq!(found, ["weave"]);
    }
}
