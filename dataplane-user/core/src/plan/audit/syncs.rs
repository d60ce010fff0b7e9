//! Whether kube-proxy does the syncs that it was asked for, by its own metrics.

use std::{collections::BTreeMap, time::Duration};

use super::{Difference, Found, Grace, Kind, Subject};

/// A last sync that is older than this is stale where another sync was asked for since.
const STALE: Duration = Duration::from_secs(120);

/// Times of kube-proxy's last syncs, by the wall clock, in seconds since 1970. 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Syncs {
    /// A sync succeeded (`kubeproxy_sync_proxy_rules_last_timestamp_seconds`, pkg/proxy/metrics/metrics.go).
    pub last: f64,
    /// A sync was asked for (`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds`).
    pub queued: f64,
}

/// Finds the IP families in which kube-proxy is behind. `now`: the wall clock, in seconds since 1970.
pub fn stale_syncs(families: &BTreeMap<String, Syncs>, now: f64) -> Found {
    let mut found = Found::default();
    for (family, syncs) in families {
        let is_stale = syncs.queued > syncs.last && now - syncs.last > STALE.as_secs_f64();
        if !is_stale {
            continue;
        }
        found.add(Kind::KubeProxyStale, || Difference {
            kind: Kind::KubeProxyStale,
            subject: Subject::KubeProxy(family.clone()),
            service: None,
            detail: if syncs.last > 0.0 {
                format!(
                    "its last sync was {:.0} s ago, and it was asked for another one since",
                    now - syncs.last
                )
            } else {
                "it was asked for a sync, and none has succeeded".to_owned()
            },
            grace: Grace::Sync,
            mend: None,
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stale(last: f64, queued: f64) -> Vec<String> {
        let families = BTreeMap::from([("IPv6".to_owned(), Syncs { last, queued })]);
        let found = stale_syncs(&families, 1_000_000.0).differences;
        found.into_iter().map(|one| format!("{}: {}", one.subject, one.detail)).collect()
    }

    #[test]
    fn a_sync_is_stale_only_where_another_one_was_asked_for() {
        let ago = |seconds: f64| 1_000_000.0 - seconds;
        assert_eq!(
            stale(ago(300.0), ago(200.0)),
            ["kube-proxy IPv6: its last sync was 300 s ago, and it was asked for another one since"]
        );
        assert_eq!(
            stale(0.0, ago(1.0)),
            ["kube-proxy IPv6: it was asked for a sync, and none has succeeded"]
        );
        for (last, queued) in [
            (ago(300.0), ago(301.0)),
            (ago(300.0), ago(300.0)),
            (ago(119.0), ago(100.0)),
            // No sync was asked for yet; clocks that differ.
            (0.0, 0.0),
            (ago(-50.0), ago(-60.0)),
            (ago(300.0), f64::NAN),
        ] {
            assert_eq!(stale(last, queued), [""; 0], "{last} {queued}");
        }
    }
}
