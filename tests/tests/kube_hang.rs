//! Clients of a real kube-proxy while a node hangs.

use anyhow::Result;
use nodefence_tests::kube::{Mode, hang, in_nftables_mode, local};

mod iptables {
    use super::*;

    #[test]
    fn clients_go_on() -> Result<()> {
        hang::clients_go_on(Mode::Iptables)
    }

    #[test]
    fn clients_of_the_hung_node_go_on() -> Result<()> {
        hang::clients_of_the_hung_node_go_on(Mode::Iptables)
    }

    #[test]
    fn other_ports_go_on() -> Result<()> {
        hang::other_ports_go_on(Mode::Iptables)
    }
}

mod nftables {
    use super::*;

    #[test]
    fn clients_go_on() -> Result<()> {
        in_nftables_mode(hang::clients_go_on)
    }

    #[test]
    fn clients_of_the_hung_node_go_on() -> Result<()> {
        in_nftables_mode(hang::clients_of_the_hung_node_go_on)
    }

    #[test]
    fn other_ports_go_on() -> Result<()> {
        in_nftables_mode(hang::other_ports_go_on)
    }
}

/// Needs the kernel's IPVS.
mod ipvs {
    use super::*;

    #[test]
    fn clients_go_on() -> Result<()> {
        hang::clients_go_on(Mode::Ipvs)
    }

    #[test]
    fn clients_of_the_hung_node_go_on() -> Result<()> {
        hang::clients_of_the_hung_node_go_on(Mode::Ipvs)
    }

    #[test]
    fn other_ports_go_on() -> Result<()> {
        hang::other_ports_go_on(Mode::Ipvs)
    }

    #[test]
    fn the_node_port_of_a_local_service_goes_on() -> Result<()> {
        local::node_port_goes_on()
    }
}
