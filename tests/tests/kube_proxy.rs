//! A real kube-proxy, told of Services by a real API server, forwards to real servers.

use anyhow::Result;
use nodefence_tests::kube::{Mode, forwards, in_nftables_mode};

#[test]
fn iptables() -> Result<()> {
    forwards::holds(Mode::Iptables)
}

/// Not in guests: there is one control plane beside them all.
mod namespaces {
    use std::sync::Arc;

    use anyhow::ensure;
    use nodefence_tests::{Netns, kube::ControlPlane};

    use super::*;

    /// Two control planes on the same machine know nothing of each other.
    #[test]
    fn each_namespace_has_its_own() -> Result<()> {
        let (one, two) = (Arc::new(Netns::new("kube-one")?), Arc::new(Netns::new("kube-two")?));
        let (one, two) = (ControlPlane::start(&one)?, ControlPlane::start(&two)?);
        one.node("node-a", [10, 2, 0, 11].into(), Some("zone-1"))?;
        let node = one.api.get("/api/v1/nodes/node-a")?;
        ensure!(node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "zone-1", "{node}");
        ensure!(node["status"]["addresses"][0]["address"] == "10.2.0.11", "{node}");
        let error = format!("{:#}", two.api.get("/api/v1/nodes/node-a").expect_err("it is the other's"));
        ensure!(error.contains("404") && error.contains("not found"), "{error}");
        one.api.delete("/api/v1/nodes/node-a")?;
        one.api.get("/api/v1/nodes/node-a").expect_err("deleted");
        Ok(())
    }
}

/// Refused by kube-proxy where the kernel is older than 5.13.
mod nftables {
    use super::*;

    #[test]
    fn forwards_to_real_servers() -> Result<()> {
        in_nftables_mode(forwards::holds)
    }
}

/// Needs the kernel's IPVS.
mod ipvs {
    use super::*;

    #[test]
    fn forwards_to_real_servers() -> Result<()> {
        forwards::holds(Mode::Ipvs)
    }
}
