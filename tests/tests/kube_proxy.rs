//! A real kube-proxy, which gets Services from a real API server, forwards to real servers.

use anyhow::Result;
use nodefence_tests::kube::{Mode, forwards, in_nftables_mode};

#[test]
fn iptables() -> Result<()> {
    forwards::holds(Mode::Iptables)
}

/// Does not run in guests, which have one control plane.
mod namespaces {
    use std::sync::Arc;

    use anyhow::ensure;
    use nodefence_tests::{Netns, kube::ControlPlane};

    use super::*;

    /// Two control planes on the same machine know nothing of each other.
    #[test]
    fn each_namespace_has_its_own() -> Result<()> {
        let one = Arc::new(Netns::new("kube-one")?);
        let two = Arc::new(Netns::new("kube-two")?);
        let one = ControlPlane::start(&one)?;
        let two = ControlPlane::start(&two)?;
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

/// kube-proxy refuses nftables mode on kernels before 5.13.
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
