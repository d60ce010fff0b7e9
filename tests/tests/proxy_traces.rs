//! The agent finds kube-proxy's traces in the kernel, and deletes exactly a flagged node's elements of its affinity. The tests use real `nft` and `iptables`.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use nodefence::{
    cluster::Protocol,
    proxy::{
        self, Affinity, Endpoint, Facts, Flushed, Forget, Mode, ModeReply, ProxyChoice, Said, flush, judge,
    },
};
use nodefence_tests::{Agent, Netns, client::wait_until};
use serde_json::Value;

/// A port without a listener.
const NOBODY: &str = "127.0.0.1:10249";

fn facts(ns: &Netns) -> Facts {
    ns.run(|| Facts::gather_from(NOBODY.parse().unwrap()))
}

fn mode(ns: &Netns) -> Option<Mode> {
    judge(ProxyChoice::Auto, &facts(ns)).mode
}

#[test]
fn traces_of_each_mode_are_found() -> Result<()> {
    let ns = Netns::new("proxy-none")?;
    let nothing = facts(&ns);
    assert!(matches!(nothing.answer, ModeReply::Silent(_)));
    assert_eq!((nothing.kube_ipvs0, nothing.table, nothing.chains), (false, false, false));
    assert_eq!(judge(ProxyChoice::Auto, &nothing).mode, None);

    // kube-proxy in nftables mode has a table of this name for each IP version.
    for family in ["ip", "ip6"] {
        let ns = Netns::new("proxy-nft")?;
        ns.nft(&format!("table {family} kube-proxy {{ chain services {{}}; }}"))?;
        assert_eq!(mode(&ns), Some(Mode::Nftables));
    }
    // A table of this name in another family, or of a longer name, is another one.
    let ns = Netns::new("proxy-like")?;
    ns.nft("table inet kube-proxy {}; table ip kube-proxy2 {}; table ip nat { chain KUBE-SERVICE {}; }")?;
    assert_eq!(mode(&ns), None);

    for tool in ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"] {
        let ns = Netns::new("proxy-chains")?;
        ns.exec(&format!("{tool} -t nat -N KUBE-SERVICES-OF-OTHERS"))?;
        ns.exec(&format!("{tool} -t nat -A OUTPUT -m comment --comment KUBE-SERVICES -j ACCEPT"))?;
        // The kubelet makes this chain in every mode.
        ns.exec(&format!("{tool} -t mangle -N KUBE-KUBELET-CANARY"))?;
        assert_eq!(mode(&ns), None, "{tool}");
        ns.exec(&format!("{tool} -t nat -N KUBE-SERVICES"))?;
        assert_eq!(mode(&ns), Some(Mode::Iptables), "{tool}");
        // IPVS mode has these chains too. (Its device is a dummy, which not every kernel here has.)
        ns.ip("link add kube-ipvs0 type veth peer name other")?;
        assert_eq!(mode(&ns), Some(Mode::Ipvs), "{tool}");
        ns.nft("table ip kube-proxy {}")?;
        assert_eq!(mode(&ns), None, "{tool}: several");
    }
    Ok(())
}

/// `nodefence_core::proxy` has a device for each product that replaces kube-proxy.
#[test]
fn what_forwards_in_its_place_is_found_by_its_device() -> Result<()> {
    let ns = Netns::new("proxy-replaced")?;
    assert_eq!(facts(&ns).replacement, None);
    for (device, product) in [("kube-dummy-if", "kube-router's service proxy"), ("antrea-gw0", "Antrea")] {
        ns.ip(&format!("link add {device} type veth peer name other"))?;
        let found = facts(&ns);
        assert_eq!(found.replacement.map(|found| (found.product, found.device)), Some((product, device)));
        // The device of a replacement does not decide kube-proxy's mode.
        assert_eq!(judge(ProxyChoice::Auto, &found).mode, None);
        ns.ip(&format!("link delete {device}"))?;
        assert_eq!(facts(&ns).replacement, None);
    }
    Ok(())
}

/// The facts if a server at kube-proxy's port gives this answer.
fn told(ns: &Netns, answer: &'static str) -> Facts {
    ns.run(move || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut request = [0; 256];
            let read = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        let found = Facts::gather_from(at);
        assert!(server.join().unwrap().starts_with("GET /proxyMode HTTP/1.0\r\n"));
        found
    })
}

#[test]
fn kube_proxy_s_own_word_is_heard() -> Result<()> {
    let ns = Netns::new("proxy-word")?;
    ns.nft("table ip kube-proxy {}")?;
    let (iptables, ipvs) = (
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n\r\niptables",
        "HTTP/1.0 200 OK\r\n\r\nipvs",
    );
    // Any program may listen at that port, so a mode without its trace is not believed.
    for answer in [iptables, ipvs] {
        let found = judge(ProxyChoice::Auto, &told(&ns, answer));
        assert_eq!(found.mode, Some(Mode::Nftables), "{answer:?}: {found}");
        assert!(found.why.contains("not believed"), "{found}");
    }
    ns.exec("iptables-nft -t nat -N KUBE-SERVICES")?;
    ns.ip("link add kube-ipvs0 type veth peer name other")?;
    for (answer, mode) in [(iptables, Some(Mode::Iptables)), (ipvs, Some(Mode::Ipvs))] {
        let found = judge(ProxyChoice::Auto, &told(&ns, answer));
        assert_eq!(found.mode, mode, "{answer:?}: {found}");
    }
    ns.exec("iptables-nft -t nat -X KUBE-SERVICES")?;
    ns.ip("link del kube-ipvs0")?;
    for (answer, mode) in [
        // Another program listens there, so the table counts.
        ("HTTP/1.0 404 Not Found\r\n\r\n404 page not found", Some(Mode::Nftables)),
        ("220 smtp ready\r\n", Some(Mode::Nftables)),
        ("", Some(Mode::Nftables)),
    ] {
        let found = judge(ProxyChoice::Auto, &told(&ns, answer));
        assert_eq!(found.mode, mode, "{answer:?}: {found}");
    }
    // The agent does not wait long for a listener that does not answer.
    let found = ns.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let start = std::time::Instant::now();
        let found = judge(ProxyChoice::Auto, &Facts::gather_from(listener.local_addr().unwrap()));
        (found, start.elapsed())
    });
    assert_eq!(found.0.mode, Some(Mode::Nftables));
    assert!(found.1 < Duration::from_secs(3), "{:?}", found.1);
    Ok(())
}

/// kube-proxy answers before its first sync, so its trace may come later. Another program at its port never has a trace.
#[test]
fn an_agent_believes_a_mode_once_its_trace_is_there() -> Result<()> {
    let ns = Arc::new(Netns::new("proxy-lies")?);
    ns.ip("link add v0 type veth peer name v1\nlink set v0 up\nlink set lo up")?;
    ns.run(|| {
        let listener = TcpListener::bind(NOBODY).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _asked = stream.read(&mut [0; 256]);
                let _said = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nnftables");
            }
        });
    });
    let nodes = "nodes: [{ name: node-a, address: 10.2.0.11 }]\n";
    let agent = Agent::start_with(&ns, "node-a", &["v0"], nodes, &["--proxy", "auto"])?;
    let mode = || -> Result<(Value, String)> {
        let status: Value = serde_json::from_str(&agent.expect(&["status", "-o", "json"])?)?;
        Ok((status["proxy"]["mode"].clone(), status["proxy"]["why"].to_string()))
    };
    let (none, why) = mode()?;
    assert!(none.is_null() && why.contains("says nftables, which is not believed"), "{none}: {why}");
    assert!(agent.expect(&["status"])?.contains("not believed"));
    agent.wait_for_log("says nftables, which is not believed")?;
    ns.nft("table ip kube-proxy {}")?;
    wait_until("the trace is seen", Duration::from_secs(20), || {
        mode().is_ok_and(|(mode, _)| mode == "nftables")
    })?;
    assert!(mode()?.1.contains("kube-proxy says so"), "{:?}", mode()?);
    Ok(())
}

/// kube-proxy is restarted on a node where it ran in other modes before, whose traces are still there.
#[test]
fn what_it_said_holds_while_its_own_trace_is_there() -> Result<()> {
    let ns = Netns::new("proxy-said")?;
    ns.exec("iptables-nft -t nat -N KUBE-SERVICES")?;
    ns.ip("link add kube-ipvs0 type veth peer name other")?;
    ns.nft("table ip kube-proxy {}")?;
    let mut said = Said::default();
    let mut mode = |facts: &Facts| said.judge(ProxyChoice::Auto, facts).mode;
    assert_eq!(mode(&facts(&ns)), None, "several traces, and no answer so far");
    assert_eq!(mode(&told(&ns, "HTTP/1.0 200 OK\r\n\r\niptables")), Some(Mode::Iptables));
    assert_eq!(mode(&facts(&ns)), Some(Mode::Iptables));
    assert_eq!(mode(&told(&ns, "220 smtp ready\r\n")), Some(Mode::Iptables));
    ns.nft("delete table ip kube-proxy")?;
    assert_eq!(mode(&facts(&ns)), Some(Mode::Iptables), "beside the device of an earlier mode");
    ns.exec("iptables-nft -t nat -X KUBE-SERVICES")?;
    assert_eq!(mode(&facts(&ns)), Some(Mode::Ipvs), "the trace of the mode in the answer is gone");
    Ok(())
}

fn endpoint(port: &'static str, protocol: Protocol, socket: &str) -> Endpoint<'static> {
    Endpoint { service: "default/web", port, protocol, socket: socket.parse().unwrap() }
}

/// The number of clients in a set or a list.
fn clients(text: &str) -> usize {
    text.matches("192.0.2.").count() + text.matches("2001:db8::").count()
}

#[test]
fn of_kube_proxy_s_sets_exactly_ours_are_emptied() -> Result<()> {
    let ns = Netns::new("affinity-nft")?;
    let flagged = [
        endpoint("http", Protocol::Tcp, "10.244.2.7:8080"),
        endpoint("", Protocol::Udp, "10.244.2.7:53"),
        endpoint("http", Protocol::Tcp, "[fd00:244::7]:8080"),
    ];
    let others = [
        endpoint("http", Protocol::Tcp, "10.244.3.7:8080"),
        endpoint("", Protocol::Udp, "10.244.2.7:54"),
        endpoint("http", Protocol::Tcp, "[fd00:244::8]:8080"),
    ];
    // The name of this set is truncated, so only a reader that knows the Service finds it.
    let far = Endpoint {
        service: format!("{}/{}", "s".repeat(62), "n".repeat(62)).leak(),
        port: "p".repeat(62).leak(),
        protocol: Protocol::Sctp,
        socket: "[2001:db8:1111:2222:3333:4444:5555:6666]:65535".parse()?,
    };
    let client = |v4: bool, at| if v4 { format!("192.0.2.{at}") } else { format!("2001:db8::{at}") };
    for one in flagged.iter().chain(&others).chain([&far]) {
        let v4 = one.socket.is_ipv4();
        let (family, kind) = if v4 { ("ip", "ipv4_addr") } else { ("ip6", "ipv6_addr") };
        let (set, chain) = (one.set(), one.set().replacen("affinity-", "endpoint-", 1));
        // The layout is that of pkg/proxy/nftables/proxier.go, v1.36.
        ns.nft(&format!(
            "table {family} kube-proxy {{
                set {set} {{ type {kind}; flags dynamic,timeout; timeout 10800s; elements = {{ {}, {} }}; }}
                chain {chain} {{ update @{set} {{ {family} saddr }}; }}
                chain service {{ {family} saddr @{set} goto {chain}; }}
            }}",
            client(v4, 1),
            client(v4, 2)
        ))?;
    }
    // Neither set is one of kube-proxy's affinity.
    let stranger = flagged[0].set();
    ns.nft(&format!(
        "table ip other {{ set {stranger} {{ type ipv4_addr; elements = {{ 192.0.2.1 }}; }}; }}
         table ip kube-proxy {{ set nodeport-ips {{ type ipv4_addr; elements = {{ 192.0.2.1 }}; }}; }}"
    ))?;
    let before = ns.exec("nft list ruleset")?;
    let list =
        |family: &str, table: &str, set: &str| ns.exec(&format!("nft list set {family} {table} {set}"));

    let ours = [flagged[0].socket, flagged[1].socket, flagged[2].socket];
    let read = |known: Affinity<'static>| {
        ns.run(move || {
            let ours = |_: Protocol, socket: SocketAddr| ours.contains(&socket);
            let mut all = Vec::new();
            let tell = |one: &Endpoint<'_>, client: IpAddr| all.push(format!("{client} {}", one.set()));
            proxy::clients(Mode::Nftables, &ours, &known, tell).unwrap();
            all.sort();
            all
        })
    };
    let stale = |all: &[&Endpoint<'_>]| {
        let both = |one: &&Endpoint<'_>| {
            [1, 2].map(|at| format!("{} {}", client(one.socket.is_ipv4(), at), one.set()))
        };
        let mut all: Vec<String> = all.iter().flat_map(both).collect();
        all.sort();
        all
    };
    // The audit reads the same clients that a flush deletes.
    assert_eq!(read(Affinity::default()), stale(&flagged.each_ref()));
    let run = |known: Affinity<'static>| {
        ns.run(move || {
            let ours = |_: Protocol, socket: SocketAddr| ours.contains(&socket);
            flush(Mode::Nftables, &ours, &known).unwrap()
        })
    };
    assert_eq!(run(Affinity::default()), Flushed { emptied: 3, unknown: 1 });
    for (one, left) in flagged.iter().map(|one| (one, 0)).chain(others.iter().map(|one| (one, 2))) {
        let family = if one.socket.is_ipv4() { "ip" } else { "ip6" };
        assert_eq!(clients(&list(family, "kube-proxy", &one.set())?), left, "{}", one.set());
    }
    assert_eq!(clients(&list("ip", "other", &stranger)?), 1);
    assert_eq!(clients(&list("ip", "kube-proxy", "nodeport-ips")?), 1);
    assert_eq!(clients(&list("ip6", "kube-proxy", &far.set())?), 2);

    let mut known = Affinity::default();
    known.add(&far);
    assert_eq!(read(known.clone()), stale(&[&far]), "only the set that was unknown before has clients left");
    // A flush does not touch empty sets.
    assert_eq!(run(known), Flushed { emptied: 1, unknown: 0 });
    assert_eq!(clients(&list("ip6", "kube-proxy", &far.set())?), 0);
    // Only elements of sets were deleted.
    let without_elements = |ruleset: &str| {
        let lines = ruleset.lines().filter(|line| clients(line) == 0 && !line.contains("elements"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(without_elements(&ns.exec("nft list ruleset")?), without_elements(&before));
    Ok(())
}

/// The deletion of single clients, which a packet that waits for its rescue needs: each client at one endpoint, and no other.
#[test]
fn clients_are_forgotten_one_by_one() -> Result<()> {
    let ns = Netns::new("affinity-one")?;
    let ours = [
        endpoint("http", Protocol::Tcp, "10.244.2.7:8080"),
        endpoint("http", Protocol::Tcp, "[fd00:244::7]:8080"),
    ];
    let other = endpoint("http", Protocol::Tcp, "10.244.2.7:8081");
    for one in ours.iter().chain([&other]) {
        let v4 = one.socket.is_ipv4();
        let (family, kind, clients) = match v4 {
            true => ("ip", "ipv4_addr", "192.0.2.1, 192.0.2.2"),
            false => ("ip6", "ipv6_addr", "2001:db8::1, 2001:db8::2"),
        };
        let set = one.set();
        // The other family also has a set of this name, which is not kube-proxy's.
        let (strange, strange_kind, stranger) =
            if v4 { ("ip6", "ipv6_addr", "2001:db8::1") } else { ("ip", "ipv4_addr", "192.0.2.1") };
        ns.nft(&format!(
            "table {family} kube-proxy {{ set {set} {{ type {kind}; elements = {{ {clients} }}; }}; }}
             table {strange} kube-proxy {{ set {set} {{ type {strange_kind}; elements = {{ {stranger} }}; }}; }}"
        ))?;
    }
    let left = |one: &Endpoint<'_>| -> Result<[usize; 2]> {
        let of = |family| {
            let set = ns.exec(&format!("nft list set {family} kube-proxy {}", one.set()));
            set.map(|set| clients(&set))
        };
        let (own, strange) = if one.socket.is_ipv4() { ("ip", "ip6") } else { ("ip6", "ip") };
        Ok([of(own)?, of(strange)?])
    };
    let [v4, v6] = ours.clone();
    let unknown = endpoint("gone", Protocol::Tcp, "10.244.2.7:8080");
    let forgotten = ns.run(move || {
        let mut forget = Forget::default();
        let mut all = |clients: &[(&Endpoint<'_>, &str)]| {
            for (endpoint, client) in clients {
                forget.add(Mode::Nftables, endpoint, client.parse().unwrap());
            }
            forget.all().unwrap()
        };
        let first = all(&[(&v4, "192.0.2.1"), (&v6, "2001:db8::1")]);
        // The socket still works after a deletion of an absent client, and after one in an absent set.
        let nothing = all(&[(&v4, "192.0.2.1"), (&unknown, "192.0.2.2")]);
        // A set that does not exist does not hinder deletions in others.
        let some = all(&[(&v4, "192.0.2.1"), (&unknown, "192.0.2.2"), (&v6, "2001:db8::2")]);
        forget.add(Mode::Ipvs, &v4, "192.0.2.2".parse().unwrap());
        [first, nothing, some, forget.all().unwrap()]
    });
    assert_eq!(forgotten, [true, false, true, false]);
    assert_eq!([left(&ours[0])?, left(&ours[1])?, left(&other)?], [[1, 1], [0, 1], [2, 1]]);
    Ok(())
}

#[test]
fn of_xt_recent_s_lists_exactly_ours_are_emptied() -> Result<()> {
    for tool in ["iptables-nft", "iptables-legacy"] {
        let ns = Netns::new("affinity-recent")?;
        let flagged = endpoint("http", Protocol::Tcp, "10.244.2.7:8080");
        let other = endpoint("http", Protocol::Tcp, "10.244.3.7:8080");
        // The kernel makes a list for each name that a rule has.
        let made = [&flagged, &other].map(|one| {
            ns.exec(&format!("{tool} -t nat -A OUTPUT -p tcp -m recent --name {} --set", one.list()))
        });
        for made in made {
            made?;
        }
        let file = |one: &Endpoint<'_>| format!("/proc/thread-self/net/xt_recent/{}", one.list());
        for one in [&flagged, &other] {
            let file = file(one);
            ns.run(move || {
                for client in ["+192.0.2.1\n", "+192.0.2.2\n"] {
                    std::fs::OpenOptions::new().write(true).open(&file)?.write_all(client.as_bytes())?;
                }
                anyhow::Ok(())
            })?;
        }
        let count = |one: &Endpoint<'_>| {
            let file = file(one);
            ns.run(move || std::fs::read_to_string(file).unwrap().lines().count())
        };
        let addresses = |one: &Endpoint<'_>| {
            let file = file(one);
            let text = ns.run(move || std::fs::read_to_string(file).unwrap());
            let first = text.lines().filter_map(|line| line.split(' ').next()?.strip_prefix("src="));
            first.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!((count(&flagged), count(&other)), (2, 2), "{tool}");
        let rules = ns.exec(&format!("{tool}-save -t nat"))?;
        let mut known = Affinity::default();
        known.add(&flagged);
        // A Service without affinity has no list.
        known.add(&endpoint("none", Protocol::Tcp, "10.244.2.7:9090"));
        let (read, flushed) = ns.run(move || {
            let mut read = Vec::new();
            let tell = |one: &Endpoint<'_>, client: IpAddr| read.push((client.to_string(), one.socket));
            proxy::clients(Mode::Iptables, &|_, _| true, &known, tell).unwrap();
            // A list has the order of a hash.
            read.sort_unstable();
            (read, flush(Mode::Iptables, &|_, _| true, &known).unwrap())
        });
        assert_eq!(read, ["192.0.2.1", "192.0.2.2"].map(|client| (client.to_owned(), flagged.socket)));
        assert_eq!(flushed, Flushed { emptied: 1, unknown: 0 });
        assert_eq!((count(&flagged), count(&other)), (0, 2), "{tool}");
        let lists = [other.clone(), endpoint("none", Protocol::Tcp, "10.244.2.7:9090")];
        ns.run(move || {
            let mut forget = Forget::default();
            lists.iter().for_each(|one| forget.add(Mode::Iptables, one, IpAddr::from([192, 0, 2, 1])));
            assert!(!forget.all().unwrap(), "a list needed a transaction of nftables");
        });
        assert_eq!(addresses(&other), ["192.0.2.2"], "{tool}");
        let same = |text: &str| text.lines().filter(|line| line.starts_with('-')).count();
        assert_eq!(same(&ns.exec(&format!("{tool}-save -t nat"))?), same(&rules));
    }
    Ok(())
}
