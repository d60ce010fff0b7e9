use std::sync::Arc;

use super::{super::view::Scope, Problem, parse};

const GOOD: &str = "nodes:
  - name: node-b
    address: 10.2.0.12
    zone: z1
    backends:
      - address: 10.244.2.7
      - { address: 10.2.0.12, port: 9100, protocol: TCP, hostNetwork: true }
  - name: node-a
    address: fd00::11
flags:
  - { node: node-b, until: 2026-12-01T00:00:00Z, reason: \"disk\" }
";

fn message(text: &str) -> String {
    parse(text, false).expect_err("accepted").to_string()
}

fn node(backends: &str) -> String {
    format!("nodes:\n  - name: node-a\n    address: 10.2.0.11\n    backends:\n{backends}")
}

#[test]
fn reads_the_example() {
    let view = parse(GOOD, false).unwrap();
    assert_eq!(view.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["node-a", "node-b"]);
    let node = view.node("node-b").unwrap();
    assert_eq!(node.zone.as_deref(), Some("z1"));
    assert_eq!(
        node.backends.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.2.0.12:9100/tcp", "10.244.2.7"]
    );
    assert_eq!(view.flags[0].until.unwrap().to_string(), "2026-12-01T00:00:00Z");
    assert_eq!(view.backends(), 2);
}

#[test]
fn reads_json() {
    let json = r#"{"nodes":[{"name":"a","address":"10.0.0.1","backends":[
        {"address":"10.0.0.1","port":53,"protocol":"udp","hostNetwork":true}]}]}"#;
    let view = parse(json, false).unwrap();
    assert!(matches!(view.nodes[0].backends[0].scope, Scope::Port(53, _)));
}

#[test]
fn order_means_nothing() {
    let reversed = "nodes:
  - {name: b, address: 10.0.0.2, backends: [{address: 10.1.0.2}, {address: 10.1.0.1}]}
  - {name: a, address: 10.0.0.1}
";
    let sorted = "nodes:
  - {name: a, address: 10.0.0.1}
  - {name: b, address: 10.0.0.2, backends: [{address: 10.1.0.1}, {address: 10.1.0.2}]}
";
    assert_eq!(parse(reversed, false).unwrap(), parse(sorted, false).unwrap());
}

#[test]
fn what_did_not_change_is_shared_with_the_view_before() {
    let text = |nodes: &str, to: &str, services: &str| {
        let service = |name: &str, to: &str| {
            format!("- {{name: d/{name}, ports: [{{port: 80}}], endpoints: [{{address: {to}, node: b}}]}}\n")
        };
        let services: String = services
            .chars()
            .map(|c| service(&c.to_string(), if c == 'n' { to } else { "10.1.0.9" }))
            .collect();
        parse(&format!("nodes:\n{nodes}services:\n{services}"), false).unwrap()
    };
    let node = |name: char, last: u8| format!("- {{name: {name}, address: 10.0.0.{last}}}\n");
    let all = |names: &str| names.bytes().map(|c| node(c.into(), c)).collect::<String>();
    let before = text(&all("bdf"), "10.1.0.1", "mno");
    let same = |nodes: &str, to: &str, services: &str| {
        let fresh = text(nodes, to, services);
        let after = fresh.clone().sharing(&before);
        assert_eq!(after, fresh);
        let old = |name: &str| before.nodes.iter().find(|old| old.name == name);
        let nodes =
            after.nodes.iter().filter(|node| old(&node.name).is_some_and(|old| Arc::ptr_eq(old, node)));
        let nodes: String = nodes.map(|node| node.name.as_str()).collect();
        let (services, old) = (after.services.unwrap(), before.services.as_ref().unwrap());
        let services = services.iter().filter(|one| old.iter().any(|old| Arc::ptr_eq(old, one)));
        (nodes, services.map(|service| &service.name[2..]).collect::<String>())
    };
    let is = |nodes: &str, services: &str| (nodes.to_owned(), services.to_owned());
    assert_eq!(same(&all("bdf"), "10.1.0.1", "mno"), is("bdf", "mno"));
    // The endpoint is a backend of its node.
    assert_eq!(same(&all("bdf"), "10.1.0.2", "mno"), is("df", "mo"));
    assert_eq!(same(&all("bdf"), "10.1.0.1", "lmop"), is("df", "mo"));
    assert_eq!(same(&all("bcd"), "10.1.0.1", "mnop"), is("bd", "mno"));
    assert_eq!(same(&(all("bd") + &node('f', 7)), "10.1.0.1", "n"), is("d", "n"));
    // Its node stands elsewhere in the view, which each of its endpoints says.
    assert_eq!(same(&all("abdf"), "10.1.0.1", "mno"), is("bdf", ""));
}

#[test]
fn emptiness_is_an_error_unless_it_is_meant() {
    for text in ["", "\n", "  \n\n", "\u{feff}\n"] {
        assert!(matches!(parse(text, true), Err(Problem::Empty)), "{text:?}");
    }
    assert!(matches!(parse("nodes: []\n", false), Err(Problem::NoNodes)));
    assert!(parse("nodes: []\n", true).unwrap().nodes.is_empty());
    // A comment alone, a missing list and another document are no cluster.
    for text in ["# nothing\n", "nodes:\n", "{}\n", "[]\n", "nodes\n"] {
        assert!(parse(text, true).is_err(), "{text:?}");
    }
}

#[test]
fn no_truncation_is_accepted_inside_a_line() {
    for cut in 1..GOOD.len() {
        let text = &GOOD[..cut];
        if !text.ends_with('\n') {
            assert!(parse(text, true).is_err(), "accepted when cut at {cut}: {text:?}");
        }
    }
}

#[test]
fn says_line_and_field() {
    let cases = [
        (
            node("      - address: 127.0.0.1\n"),
            "nodes[0].backends[0].address: 127.0.0.1 is a loopback address, which no node, backend or Service can have at line 5, column 18",
        ),
        (node("      - address: 224.0.0.5\n"), "multicast"),
        (node("      - address: ff02::1\n"), "multicast"),
        (node("      - address: 169.254.1.1\n"), "link-local"),
        (node("      - address: fe80::1\n"), "link-local"),
        (node("      - address: 0.0.0.0\n"), "unspecified"),
        (node("      - address: '::'\n"), "unspecified"),
        (node("      - address: '::ffff:127.0.0.1'\n"), "loopback"),
        (node("      - address: 255.255.255.255\n"), "broadcast"),
        (node("      - address: 10.2.0.300\n"), "`10.2.0.300` is no IP address"),
        (node("      - address: 10.2.0.11\n"), "needs hostNetwork: true"),
        (node("      - {address: 10.2.0.11, hostNetwork: true}\n"), "nodes[0].backends[0].port: missing"),
        (
            node("      - {address: 10.2.0.11, hostNetwork: true, port: 80}\n"),
            "nodes[0].backends[0].protocol: missing",
        ),
        (
            node("      - {address: 10.2.0.11, hostNetwork: true, port: 65536, protocol: tcp}\n"),
            "`65536` is no port",
        ),
        (node("      - {address: 10.2.0.11, hostNetwork: true, port: 0, protocol: tcp}\n"), "`0` is no port"),
        (
            node("      - {address: 10.2.0.11, hostNetwork: true, port: +80, protocol: tcp}\n"),
            "`+80` is no port: expected 1 to 65535",
        ),
        (
            node("      - {address: 10.2.0.11, hostNetwork: true, port: 080, protocol: tcp}\n"),
            "`080` is no port",
        ),
        (
            node("      - {address: 10.2.0.11, hostNetwork: true, port: 80, protocol: icmp}\n"),
            "`icmp` is no protocol",
        ),
        (node("      - {address: 10.3.0.1, port: 80}\n"), "nodes[0].backends[0].port: only a hostNetwork"),
        (
            node("      - address: 10.3.0.1\n      - address: 10.3.0.1\n"),
            "nodes[0].backends[1].address: backend 10.3.0.1 stands there already at line 6, column 18",
        ),
        (
            node("      - adress: 10.3.0.1\n"),
            "nodes[0].backends[0].adress: unknown field `adress`, expected one of address, port, protocol, hostNetwork at line 5, column 9",
        ),
        (node("      - {}\n"), "nodes[0].backends[0]: missing field `address` at line 5, column 9"),
        (
            node("      - {address: 10.2.0.11, hostNetwork: yess}\n"),
            "nodes[0].backends[0].hostNetwork: invalid boolean at line 5, column 43",
        ),
        (node("      - 10.3.0.1\n"), "nodes[0].backends[0]: expected mapping start at line 5, column 9"),
        (node("      address: 10.3.0.1\n"), "nodes[0].backends: expected sequence start at line 5, column 7"),
        (
            "nodes:\n  - {name: [a], address: 10.0.0.1}\n".into(),
            "nodes[0].name: expected string scalar at line 2, column 12",
        ),
        (
            "nodes:\n  - {name: a, name: b, address: 10.0.0.1}\n".into(),
            "duplicate mapping key: name not allowed here at line 2, column 15",
        ),
        (
            "nodes:\n  - {name: a, address: 10.0.0.1}\n---\nnodes: []\n".into(),
            "only single YAML document expected but multiple found at line 4, column 1",
        ),
        (
            "nodes:\n\t- {name: a, address: 10.0.0.1}\n".into(),
            "tabs disallowed within this context (block indentation) at line 2, column 2",
        ),
        ("nodes:\n  - {name: A, address: 10.0.0.1}\n".into(), "nodes[0].name: `A` is no node name"),
        (
            "nodes:\n  - {name: a, address: 10.0.0.1}\n  - {name: a, address: 10.0.0.2}\n".into(),
            "nodes[1].name: `a` is the name of nodes[0] already at line 3, column 12",
        ),
        (
            "nodes:\n  - {name: a, address: 10.0.0.1}\n  - {name: b, address: 10.0.0.1}\n".into(),
            "nodes[0].address: 10.0.0.1 is claimed for `a` and for `b`, and counts for neither at line 2, column 24",
        ),
        (
            "nodes:\n  - {name: a, address: 10.0.0.1, backends: [{address: 10.1.0.1}]}\n  \
             - {name: b, address: 10.0.0.2, backends: [{address: 10.1.0.1}]}\n"
                .into(),
            "nodes[0].backends[0].address: 10.1.0.1 is claimed for `a` and for `b`, and counts for neither at line 2",
        ),
        (
            "nodes:\n  - {name: a, address: 10.0.0.1, backends: \
             [{address: 10.0.0.2, port: 80, protocol: tcp, hostNetwork: true}]}\n  \
             - {name: b, address: 10.0.0.2}\n"
                .into(),
            "nodes[0].backends[0].address: 10.0.0.2 is claimed for `a` and for `b`, and counts for neither",
        ),
        (
            "nodes:\n  - {name: a, address: 10.0.0.1}\nflags:\n  - {node: c}\n".into(),
            "flags[0].node: `c` is not among the nodes at line 4, column 12",
        ),
        (
            "nodes:\n  - {name: a, address: 10.0.0.1}\nflags:\n  - {node: a, until: tomorrow}\n".into(),
            "flags[0].until: `tomorrow` is no time",
        ),
        (
            format!(
                "nodes:\n  - {{name: a, address: 10.0.0.1}}\nflags:\n  - {{node: a, reason: {}}}\n",
                "x".repeat(1_001)
            ),
            "flags[0].reason: 1000 characters at most, and these are 1001",
        ),
        ("nodes:\n  - {name: a, address: 10.0.0.1}\nnodes: []\n".into(), "line 3"),
        ("nodes: [\n".into(), "line"),
        ("nodes: 7\n".into(), "line 1"),
        ("nodes:\n  - {name: a, address: 10.0.0.1}\nnode: []\n".into(), "line 3"),
    ];
    for (text, expected) in cases {
        let message = message(&text);
        assert!(message.contains(expected), "{text}\nsays: {message}\nexpected: {expected}");
        assert!(message.contains("line"), "no line in: {message}");
        assert!(!message.contains('\n'), "more than one line: {message}");
    }
}

#[test]
fn reads_a_large_cluster() {
    use std::fmt::Write as _;
    let mut text = String::from("nodes:\n");
    for n in 0..600 {
        let _ =
            writeln!(text, "  - name: node-{n}\n    address: 10.{}.{}.1\n    backends:", n / 256, n % 256);
        for b in 0..250 {
            let _ = writeln!(text, "      - address: 10.{}.{}.{}", 100 + n / 256, n % 256, b + 1);
        }
    }
    assert_eq!(parse(&text, false).unwrap().backends(), 150_000);
}

#[test]
fn the_end_of_time_is_a_time() {
    let until = |text: &str| {
        let file = format!("{}flags: [{{node: node-a, until: {text}}}]\n", node(""));
        parse(&file.replace("    backends:\n", ""), false).map(|view| view.flags[0].until.unwrap())
    };
    for text in ["9999-12-31T23:59:59Z", "9999-12-31T00:00:00+01:00", "9999-12-30T23:00:00Z"] {
        assert_eq!(until(text).unwrap(), jiff::Timestamp::MAX, "{text}");
    }
    for text in ["9999-12-31", "9999-12-31T23:59:59", "10000-01-01T00:00:00Z", "9999-13-01T00:00:00Z"] {
        assert!(until(text).unwrap_err().to_string().contains("is no time"), "{text}");
    }
}
