//! The proxy on node A.

use std::{fmt::Write as _, net::SocketAddr};

use anyhow::{Context as _, Result};

use super::cluster::{Cluster, Family, Overlay, Place, Proxy, Service};

pub(super) fn build(cluster: &Cluster) -> Result<()> {
    match cluster.options.proxy {
        Proxy::Nftables => {
            cluster.a.ns.nft(&(nftables(cluster, Family::V4)? + "\n" + &nftables(cluster, Family::V6)?))
        }
        Proxy::Ipvs => ipvs(cluster),
        Proxy::Nobody => Ok(()),
    }
}

/// The tables, laid out as in kube-proxy's nftables mode. Maps dispatch by address and port. The chain of a Service picks an endpoint by a random number, and
/// the chain of an endpoint translates. Masquerade goes by a mark.
fn nftables(cluster: &Cluster, family: Family) -> Result<String> {
    let (ip, pods, services) = ranges(family);
    let mut chains = String::new();
    let mut by_cluster_ip = vec![];
    let mut by_node_port = vec![];
    for service in Service::ALL {
        let (port, _, node_port) = service.ports();
        let protocol = service.protocol();
        let name = service.name();
        let mut choice = vec![];
        for (at, node) in [&cluster.b, &cluster.c].into_iter().enumerate() {
            let endpoint = endpoint(cluster, service, at, family);
            writeln!(
                chains,
                "chain endpoint-{name}-{at} {{ {ip} saddr {} jump mark-for-masquerade; meta l4proto {protocol} dnat to {endpoint}; }}",
                node.pod_address(family)
            )?;
            choice.push(format!("{at} : goto endpoint-{name}-{at}"));
        }
        // Without masquerade a node would send its answers to a client outside through the tunnel, and A's reverse path filter would drop them.
        let always = service == Service::Host && hides_local(cluster);
        let (hide, hide_strangers) = if cluster.options.masquerade || always {
            (
                "jump mark-for-masquerade;".to_owned(),
                format!("{ip} saddr != {pods} jump mark-for-masquerade;"),
            )
        } else {
            Default::default()
        };
        let pick = format!("numgen random mod {} vmap {{ {} }}", choice.len(), choice.join(", "));
        writeln!(chains, "chain service-{name} {{ {pick}; }}")?;
        writeln!(chains, "chain internal-{name} {{ {hide_strangers} goto service-{name}; }}")?;
        writeln!(chains, "chain external-{name} {{ {hide} goto service-{name}; }}")?;
        by_cluster_ip
            .push(format!("{} . {protocol} . {port} : goto internal-{name}", service.cluster_ip(family)));
        by_node_port.push(format!("{protocol} . {node_port} : goto external-{name}"));
    }
    let local = if hides_local(cluster) {
        format!("{ip} daddr {services} jump mark-for-masquerade;")
    } else {
        String::new()
    };
    let strangers = strangers(cluster, family);
    Ok(format!(
        "table {ip} kube-proxy {{
            chain mark-for-masquerade {{ meta mark set meta mark or 0x4000; }}
            {chains}
            chain services {{
                {ip} daddr . meta l4proto . th dport vmap {{ {} }}
                fib daddr type local meta l4proto . th dport vmap {{ {} }}
            }}
            chain nat-prerouting {{ type nat hook prerouting priority -100; policy accept; jump services; }}
            chain nat-output {{ type nat hook output priority -100; policy accept; {local} jump services; }}
            chain nat-postrouting {{
                type nat hook postrouting priority 100; policy accept;
                meta mark and 0x4000 != 0 masquerade fully-random
                {strangers}
            }}
        }}",
        by_cluster_ip.join(", "),
        by_node_port.join(", "),
    ))
}

/// Whether clients in the host network are always masqueraded. Their packets get the uplink's address before the translation. With a tunnel answers to that
/// address would come by another path, so these packets get the tunnel's address.
fn hides_local(cluster: &Cluster) -> bool {
    !matches!(
        cluster.options.overlay,
        Overlay::HostGateway | Overlay::Vlan | Overlay::VlanInFrame | Overlay::QinQ
    )
}

/// The rules of the overlay itself. Pods are masqueraded toward addresses outside the overlay, since a node answers them by its uplink.
fn strangers(cluster: &Cluster, family: Family) -> String {
    let (ip, pods, _) = ranges(family);
    if hides_local(cluster) {
        format!("oifname eth0 {ip} saddr {pods} {ip} daddr != {pods} masquerade fully-random")
    } else {
        String::new()
    }
}

/// nftables' name of the IP version, the addresses of pods, and the addresses of Services.
fn ranges(family: Family) -> (&'static str, &'static str, &'static str) {
    match family {
        Family::V4 => ("ip", "10.244.0.0/16", "10.96.0.0/16"),
        Family::V6 => ("ip6", "fd00:244::/32", "fd00:96::/112"),
    }
}

fn endpoint(cluster: &Cluster, service: Service, at: usize, family: Family) -> SocketAddr {
    let node = if at == 0 { &cluster.b } else { &cluster.c };
    node.endpoint(service, family)
}

/// Makes virtual servers for ClusterIPs and NodePorts. The ClusterIPs are on a dummy device, as in kube-proxy's ipvs mode. IPVS picks and translates in
/// LOCAL_IN. nftables masquerades by a mark.
fn ipvs(cluster: &Cluster) -> Result<()> {
    let ns = &cluster.a.ns;
    let mut addresses = String::from("link add kube-ipvs0 type dummy\nlink set kube-ipvs0 up\n");
    let mut virtual_servers = String::new();
    for family in [Family::V4, Family::V6] {
        for service in Service::ALL {
            let vip = service.cluster_ip(family);
            let len = if vip.is_ipv4() { 32 } else { 128 };
            // Two Services share an address, so the address may exist already.
            writeln!(addresses, "addr replace {vip}/{len} dev kube-ipvs0")?;
            let flag = if service.protocol() == "tcp" { "-t" } else { "-u" };
            for place in [Place::Pod, Place::Outside] {
                let virtual_server = cluster.service(service, place, family);
                writeln!(virtual_servers, "-A {flag} {virtual_server} -s rr")?;
                for at in 0..2 {
                    let real = endpoint(cluster, service, at, family);
                    writeln!(virtual_servers, "-a {flag} {virtual_server} -r {real} -m -w 1")?;
                }
            }
        }
    }
    ns.ip(&addresses).context("a dummy device with the ClusterIPs")?;
    ns.feed("ipvsadm -R", &virtual_servers).context("IPVS (modules ip_vs and ip_vs_rr)")?;
    ns.sysctl("ipv4/vs/conntrack", "1")?;
    ns.nft(&(masquerade(cluster, Family::V4) + "\n" + &masquerade(cluster, Family::V6)))
}

fn masquerade(cluster: &Cluster, family: Family) -> String {
    let (ip, pods, services) = ranges(family);
    let mark = "meta mark set meta mark or 0x4000";
    let ports: Vec<_> = Service::ALL.map(|service| service.ports().2.to_string()).into();
    let (outside, inside) = if cluster.options.masquerade {
        (
            format!("fib daddr type local th dport {{ {} }} {mark};", ports.join(", ")),
            format!("{ip} saddr != {pods} {ip} daddr {services} {mark};"),
        )
    } else {
        Default::default()
    };
    // Own connections to ClusterIPs are always masqueraded. A connection to a local address gets that address as its source, which no backend could answer.
    let local = format!("{ip} daddr {services} {mark};");
    let strangers = strangers(cluster, family);
    format!(
        "table {ip} kube-proxy {{
            chain nat-prerouting {{ type nat hook prerouting priority -100; policy accept; {outside} {inside} }}
            chain nat-output {{ type nat hook output priority -100; policy accept; {local} }}
            chain nat-postrouting {{
                type nat hook postrouting priority 100; policy accept;
                meta mark and 0x4000 != 0 masquerade fully-random
                {strangers}
            }}
        }}"
    )
}
