//! Clients of a real kube-proxy in nftables and iptables mode while a node hangs. On other kernels: `vm_kube_hang`.

use anyhow::Result;
use nodefence_tests::kube::{Mode, hang};

#[test]
fn clients_go_on_in_nftables_mode() -> Result<()> {
    hang::clients_go_on(Mode::Nftables)
}

#[test]
fn clients_go_on_in_iptables_mode() -> Result<()> {
    hang::clients_go_on(Mode::Iptables)
}

#[test]
fn clients_of_the_hung_node_go_on_in_nftables_mode() -> Result<()> {
    hang::clients_of_the_hung_node_go_on(Mode::Nftables)
}

#[test]
fn clients_of_the_hung_node_go_on_in_iptables_mode() -> Result<()> {
    hang::clients_of_the_hung_node_go_on(Mode::Iptables)
}

#[test]
fn the_next_query_is_answered_in_nftables_mode() -> Result<()> {
    hang::the_next_query_is_answered(Mode::Nftables)
}

#[test]
fn the_next_query_is_answered_in_iptables_mode() -> Result<()> {
    hang::the_next_query_is_answered(Mode::Iptables)
}

#[test]
fn other_ports_go_on_in_nftables_mode() -> Result<()> {
    hang::other_ports_go_on(Mode::Nftables)
}

#[test]
fn other_ports_go_on_in_iptables_mode() -> Result<()> {
    hang::other_ports_go_on(Mode::Iptables)
}
