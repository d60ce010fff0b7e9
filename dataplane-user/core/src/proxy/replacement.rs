/// A product that forwards Services in kube-proxy's place, or beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replacement {
    /// The product's name.
    pub product: &'static str,
    /// The device by which the product was found: the product makes it where it forwards Services, and nobody else does.
    pub device: &'static str,
    /// Whether the device is a port of Open vSwitch, which alone can delete it.
    pub is_ovs_port: bool,
}

/// Devices by their names, with who makes them:
/// - Cilium's pair of veth devices (`HostDevice`, `SecondHostDevice`, pkg/defaults). Its programs at the pods' devices balance Services, also without `kubeProxyReplacement`.
/// - Calico's pair for Services of processes of the host, in its eBPF data plane alone; it removes them in the other ones (`ensureBPFDevices`, felix/dataplane/linux/bpf_ep_mgr.go).
/// - kube-router's, which holds Services' addresses (`KubeDummyIf`, pkg/controllers/proxy); its router and its firewall have none.
/// - Antrea's gateway, by its default name (`hostGateway`). Its flows in Open vSwitch balance Services of pods, unless the feature gate `AntreaProxy` is off.
/// - OVN-Kubernetes' management port (`K8sMgmtIntfName`, go-controller/pkg/types); its load balancers are flows in Open vSwitch.
const DEVICES: [(&str, &str, bool); 7] = [
    ("cilium_host", "Cilium", false),
    ("cilium_net", "Cilium", false),
    ("bpfin.cali", "Calico's eBPF data plane", false),
    ("bpfout.cali", "Calico's eBPF data plane", false),
    ("kube-dummy-if", "kube-router's service proxy", false),
    ("antrea-gw0", "Antrea", true),
    ("ovn-k8s-mp0", "OVN-Kubernetes", true),
];

impl Replacement {
    /// How to delete the device where it is left over.
    pub fn remedy(&self) -> String {
        let how = if self.is_ovs_port { "ovs-vsctl del-port" } else { "ip link delete" };
        format!("{how} {}  # only if {} is gone from this node", self.device, self.product)
    }

    /// The product that has one of the existing devices. Of several the first: the others are found once that one is gone.
    pub fn by_devices(exists: impl Fn(&str) -> bool) -> Option<Self> {
        let found = DEVICES.into_iter().find(|(device, _, _)| exists(device));
        found.map(|(device, product, is_ovs_port)| Self { product, device, is_ovs_port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_each_of_its_devices_alone() {
        for (devices, product) in [
            (&["cilium_host", "cilium_net"][..], "Cilium"),
            (&["bpfin.cali", "bpfout.cali"], "Calico's eBPF data plane"),
            (&["kube-dummy-if"], "kube-router's service proxy"),
            (&["antrea-gw0"], "Antrea"),
            (&["ovn-k8s-mp0"], "OVN-Kubernetes"),
        ] {
            for device in devices {
                let found = Replacement::by_devices(|name| name == *device).unwrap();
                assert_eq!((found.product, found.device), (product, *device));
            }
        }
    }

    /// kube-proxy's own device, and what these products have on nodes on which kube-proxy forwards.
    #[test]
    fn other_devices_are_no_traces() {
        for other in [
            "lo",
            "eth0",
            "kube-ipvs0",
            "nodelocaldns",
            "cni0",
            "flannel.1",
            "cilium_vxlan",
            "cali12345678901",
            "vxlan.calico",
            "tunl0",
            "kube-bridge",
            "antrea-tun0",
            "br-int",
            "br-ex",
            "cilium",
            "cilium_host0",
        ] {
            assert_eq!(Replacement::by_devices(|name| name == other), None, "{other}");
        }
        assert_eq!(Replacement::by_devices(|_| false), None);
    }

    #[test]
    fn of_several_the_first_is_named() {
        let there = ["eth0", "kube-dummy-if", "cilium_net"];
        let found = Replacement::by_devices(|name| there.contains(&name)).unwrap();
        assert_eq!((found.product, found.device), ("Cilium", "cilium_net"));
    }
}
