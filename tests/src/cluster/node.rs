//! What runs on a node: containerd, the kubelet and kube-proxy, and the files that these read.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::{machine::Machine, wire};

/// How long containerd may take to start, and to take and unpack the images.
const IMAGES: Duration = Duration::from_secs(300);

/// Starts what runs on the node. The node is not ready yet when this returns.
pub(super) fn start(machine: &Machine, server: &str, authority: &str, proxy: &str) -> Result<()> {
    let node = machine.node;
    let name = wire::name(node);
    machine.put("/etc/machine-id", &format!("{:032x}\n", 0x7700 + u32::from(node)))?;
    machine.put("/etc/resolv.conf", "")?;
    machine.put("/etc/containerd/config.toml", CONTAINERD)?;
    machine.put("/etc/cni/net.d/10-cluster.conflist", &pretty(&cni(node)))?;
    machine.put("/etc/kubernetes/ca.crt", authority)?;
    machine.put("/etc/kubernetes/kubelet.json", &pretty(&kubelet()))?;
    machine.put("/etc/kubernetes/kubelet.conf", &pretty(&kubeconfig(server, &token(&name))))?;
    machine.put("/etc/kubernetes/kube-proxy.json", &pretty(&kube_proxy(&name, proxy)))?;
    machine.put("/etc/kubernetes/kube-proxy.conf", &pretty(&kubeconfig(server, &token(KUBE_PROXY))))?;
    machine.begin("containerd", &["containerd", "--config", "/etc/containerd/config.toml"])?;
    machine.run(IMPORT, IMAGES)?;
    let address = wire::address(node).to_string();
    machine.begin(
        "kubelet",
        &[
            "kubelet",
            "--config=/etc/kubernetes/kubelet.json",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            &format!("--hostname-override={name}"),
            &format!("--node-ip={address}"),
        ],
    )?;
    machine.begin("kube-proxy", &["kube-proxy", "--config=/etc/kubernetes/kube-proxy.json"])
}

/// The user of kube-proxy, which the API server's own roles know.
pub(super) const KUBE_PROXY: &str = "system:kube-proxy";

/// The token of a user. It is no secret: the server and its namespace are the test's own.
pub(super) fn token(user: &str) -> String {
    format!("cluster-{}", user.replace(':', "-"))
}

/// Takes the images once containerd serves.
const IMPORT: &str = "until ctr version >/dev/null 2>&1; do sleep 0.2; done
    for archive in /images/*.tar; do ctr -n k8s.io images import \"$archive\" || exit 1; done
    ctr -n k8s.io images ls -q";

const CONTAINERD: &str = r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"#;

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// A bridge for the node's pods. The other nodes have a route to their range, so nothing is masqueraded.
fn cni(node: u8) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "cluster",
        "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "ranges": [[{"subnet": wire::pods(node)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}

/// The kubelet's settings. Periods and limits in time are its own.
fn kubelet() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        // The node's disks are its memory.
        "evictionHard": {"memory.available": "20Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "failSwapOn": false,
        "resolvConf": "",
    })
}

fn kube_proxy(name: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": mode, "hostnameOverride": name, "clusterCIDR": wire::PODS,
        "clientConnection": {"kubeconfig": "/etc/kubernetes/kube-proxy.conf"},
    })
}

fn kubeconfig(server: &str, token: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": {
            "server": server, "certificate-authority": "/etc/kubernetes/ca.crt",
        }}],
        "users": [{"name": "node", "user": {"token": token}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "node"}}],
    })
}
