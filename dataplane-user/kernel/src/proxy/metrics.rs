//! When kube-proxy last synced, by its own metrics.
use std::{collections::BTreeMap, io, net::SocketAddr};

use nodefence_core::plan::audit::Syncs;

use super::http::{METRICS, body, get};

/// Bytes of the longest answer that is read.
const LONGEST: usize = 4 << 20;
const LAST: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
const QUEUED: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds";

/// When kube-proxy last synced, by its names of IP families. A kube-proxy that does not tell families apart has an empty name here.
/// Blocking, a third of a second at most.
///
/// # Errors
/// Where kube-proxy does not answer, or its answer says nothing of its syncs.
pub fn syncs() -> io::Result<BTreeMap<String, Syncs>> {
    syncs_from(METRICS)
}

fn syncs_from(metrics: SocketAddr) -> io::Result<BTreeMap<String, Syncs>> {
    let answer = get(metrics, "/metrics", LONGEST)?;
    let found = body(&answer).map(parse).unwrap_or_default();
    if found.is_empty() {
        return Err(io::Error::other(format!("nothing of {QUEUED} at http://{metrics}/metrics")));
    }
    Ok(found)
}

/// Reads the text format of Prometheus (version 0.0.4). A line that is not understood is passed over.
fn parse(text: &str) -> BTreeMap<String, Syncs> {
    let mut found: BTreeMap<String, Syncs> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, rest)) =
            [LAST, QUEUED].iter().find_map(|name| Some((*name, line.strip_prefix(name)?)))
        else {
            continue;
        };
        let (labels, value) = match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some(parts) => parts,
            None if rest.starts_with(' ') => ("", rest),
            None => continue,
        };
        let Some(Ok(value)) = value.split_whitespace().next().map(str::parse::<f64>) else { continue };
        let family = labels.split(',').find_map(|label| label.trim().strip_prefix("ip_family=\""));
        let family = family.and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
        let syncs = found.entry(family.to_owned()).or_default();
        if name == LAST {
            syncs.last = value;
        } else {
            syncs.queued = value;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_told_apart() {
        let text = "# HELP kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds [ALPHA] The last time\n\
                    # TYPE kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge\n\
                    kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} 1.79e+09\n\
                    kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} 1.790000001e+09 17\n\
                    kubeproxy_sync_proxy_rules_last_timestamp_seconds{a=\"b\",ip_family=\"IPv4\"} 1.789999999e+09\n\
                    kubeproxy_sync_proxy_rules_last_timestamp_seconds_more 3\n\
                    kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} nonsense\n\
                    kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"\n\
                    go_goroutines 7\n";
        let of = |last, queued| Syncs { last, queued };
        let expected = [
            ("IPv4".to_owned(), of(1_789_999_999.0, 1_790_000_000.0)),
            ("IPv6".to_owned(), of(0.0, 1_790_000_001.0)),
        ];
        assert_eq!(parse(text), BTreeMap::from(expected));
        assert_eq!(parse(&format!("{LAST} 5\n")), BTreeMap::from([(String::new(), of(5.0, 0.0))]));
        assert!(parse("").is_empty());
    }
}
