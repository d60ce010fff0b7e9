//! The audit reads kube-proxy's own metrics.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Netns,
    audit::{Audit, wait_faults},
    client::wait_until,
};

use super::common::{LIMIT, agent, cluster, nothing_for_a_while};

/// A server that answers as kube-proxy's metrics port does, with `text` at `/metrics`, until it is dropped.
struct Metrics {
    text: Arc<Mutex<String>>,
    ends: Arc<AtomicBool>,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

impl Metrics {
    fn serve(ns: &Netns) -> Result<Self> {
        let text = Arc::new(Mutex::new(String::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&text);
        let over = Arc::clone(&ends);
        ns.spawn(move || -> Result<()> {
            let listener = TcpListener::bind("127.0.0.1:10249")?;
            listener.set_nonblocking(true)?;
            while !over.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                stream.set_nonblocking(false)?;
                let mut request = [0; 256];
                let read = stream.read(&mut request)?;
                let body = match request[..read].starts_with(b"GET /metrics ") {
                    true => told.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.clone(),
                    false => "nftables".to_owned(),
                };
                // The client may have given up.
                let _gone = stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{body}").as_bytes());
            }
            Ok(())
        })?;
        Ok(Self { text, ends })
    }

    /// Shows a kube-proxy that last synced `synced` seconds ago, and was last asked to sync `asked` seconds ago.
    fn says(&self, synced: f64, asked: f64) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let line = |what: &str, family: &str, ago: f64| {
            format!(
                "kubeproxy_sync_proxy_rules_{what}_timestamp_seconds{{ip_family=\"{family}\"}} {:e}\n",
                now - ago
            )
        };
        // IPv6 has no fault at any time.
        let lines = [
            line("last", "IPv6", 1.0),
            line("last_queued", "IPv6", 2.0),
            line("last", "IPv4", synced),
            line("last_queued", "IPv4", asked),
        ];
        *self.text.lock().map_err(|_| anyhow::anyhow!("poisoned"))? = lines.concat();
        Ok(())
    }
}

#[test]
fn a_kube_proxy_that_does_not_come_to_its_syncs_is_found() -> Result<()> {
    let cluster = cluster()?;
    let agent = agent(&cluster, &[])?;
    let why =
        Audit::of(&agent)?.not_looked_at("kube-proxy-stale").context("metrics without a server")?.to_owned();
    ensure!(why.starts_with("kube-proxy's metrics: "), "{why}");
    let metrics = Metrics::serve(&cluster.a.ns)?;
    metrics.says(600.0, 601.0)?;
    let looked_at = || Audit::of(&agent).is_ok_and(|audit| audit.not_looked_at("kube-proxy-stale").is_none());
    wait_until("the metrics are read", LIMIT, looked_at)?;
    nothing_for_a_while(&agent).context("no sync was asked for since the last one")?;
    metrics.says(600.0, 300.0)?;
    let audit = wait_faults(&agent, &["kube-proxy-stale kube-proxy IPv4"])?;
    let row = audit.row("kube-proxy-stale kube-proxy IPv4").context("no row")?;
    let detail = row["detail"].as_str().unwrap_or_default();
    ensure!(detail.contains("s ago, and it was asked for another one since"), "{row}");
    metrics.says(1.0, 2.0)?;
    let none = || Audit::of(&agent).is_ok_and(|audit| audit.report["differences"] == serde_json::json!([]));
    wait_until("no difference once kube-proxy has synced", LIMIT, none).map(drop)
}
