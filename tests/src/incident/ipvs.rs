//! Compares IPVS's tables before and after.

use std::collections::BTreeSet;

/// The virtual servers and destinations of a table as `ipvsadm -Ln` prints it, without the numbers of connections.
pub(crate) fn rows(listing: &str) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    let mut server = String::new();
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // Address, way of forwarding and weight. The numbers of active and inactive connections follow.
            ["->", address, way, weight, ..] if address != "RemoteAddress:Port" => {
                rows.insert(format!("{server} -> {address} {way} {weight}"));
            }
            [protocol, ..] if ["TCP", "UDP", "SCTP", "FWM"].contains(&protocol) => {
                server = words.join(" ");
                rows.insert(server.clone());
            }
            _ => {}
        }
    }
    rows
}

/// The rows that differ: `-` those that are missing after, `+` those that are new. A virtual server that is new is left out with its destinations: nodefence makes
/// none, and kube-proxy makes one for each NodePort where a node gets another address, as that of the bridge with its first pod.
pub(crate) fn differences(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let missing = before.difference(after).map(|row| format!("- {row}"));
    let is_of_new = |row: &&String| {
        let server = row.split(" -> ").next().unwrap_or_default();
        !before.contains(server)
    };
    let new = after.difference(before).filter(|row| !is_of_new(row));
    missing.chain(new.map(|row| format!("+ {row}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.2.0.11:30080 rr
  -> 10.244.2.2:8080              Masq    1      17         2
  -> 10.244.3.2:8080              Masq    1      0          0
UDP  10.2.0.11:30053 rr
  -> 10.244.2.2:5300              Masq    1      0          0
";

    #[test]
    fn numbers_of_connections_and_the_order_are_no_difference() {
        let later = "\
UDP  10.2.0.11:30053 rr
  -> 10.244.2.2:5300              Masq    1      0          9
TCP  10.2.0.11:30080 rr
  -> 10.244.3.2:8080              Masq    1      5          1
  -> 10.244.2.2:8080              Masq    1      0          0
";
        assert_eq!(rows(TABLE).len(), 5);
        assert!(differences(&rows(TABLE), &rows(later)).is_empty());
    }

    #[test]
    fn a_weight_a_destination_and_a_server_are_differences() {
        let later = TABLE.replacen("Masq    1      17", "Masq    0      17", 1).replace("UDP  10", "UDP  11");
        let expected = [
            "- TCP 10.2.0.11:30080 rr -> 10.244.2.2:8080 Masq 1",
            "- UDP 10.2.0.11:30053 rr",
            "- UDP 10.2.0.11:30053 rr -> 10.244.2.2:5300 Masq 1",
            "+ TCP 10.2.0.11:30080 rr -> 10.244.2.2:8080 Masq 0",
        ];
        assert_eq!(differences(&rows(TABLE), &rows(&later)), expected);
        let without = TABLE.replace("  -> 10.244.3.2:8080              Masq    1      0          0\n", "");
        let expected = ["- TCP 10.2.0.11:30080 rr -> 10.244.3.2:8080 Masq 1"];
        assert_eq!(differences(&rows(TABLE), &rows(&without)), expected);
    }
}
