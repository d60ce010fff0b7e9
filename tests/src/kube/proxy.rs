//! A real kube-proxy in a namespace.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::{
    ControlPlane, Mode,
    assets::asset,
    control::{spawn, tail},
};
use crate::{Netns, Proc};

/// How long kube-proxy's first sync may take, also on a busy machine. On an idle one it takes less than a second.
const SYNC: Duration = Duration::from_secs(300);

/// kube-proxy's default `syncPeriod`.
pub const SYNC_PERIOD: Duration = Duration::from_secs(30);

/// kube-proxy's default ports.
const METRICS: u16 = 10_249;
const HEALTH: u16 = 10_256;

/// The metric of the last time at which rules were written, one for each family (pkg/proxy/metrics).
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

/// The metric of the number of syncs of IPv4 (pkg/proxy/metrics). Each family counts its own syncs, and a change of one family is no sync of the other.
const SYNCS: &str = "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";

/// The number of families. kube-proxy serves both where the kernel has IPv6 (`platformCheckSupported`, cmd/kube-proxy/app/server_linux.go).
const FAMILIES: usize = 2;

/// A kube-proxy. It is killed when this is dropped. Its rules stay, as they always do.
#[derive(Debug)]
pub struct KubeProxy {
    /// The mode.
    pub mode: Mode,
    ns: Arc<Netns>,
    proc: Proc,
    dir: TempDir,
}

impl KubeProxy {
    /// Starts a kube-proxy in `ns` for the Node `node`. The Node must exist, and `ns` must reach the API server. Waits for kube-proxy's first sync, which
    /// covers all Services and endpoints that the API server has by then.
    ///
    /// # Errors
    /// Fails if the program is missing, ends, or has not synced in time. The error includes the program's log.
    pub fn start(control: &ControlPlane, ns: &Arc<Netns>, node: &str, mode: Mode) -> Result<Self> {
        Self::start_with(control, ns, node, mode, SYNC_PERIOD)
    }

    /// Same as [`KubeProxy::start`], with another `syncPeriod`.
    ///
    /// # Errors
    /// Fails as [`KubeProxy::start`] does.
    pub fn start_with(
        control: &ControlPlane,
        ns: &Arc<Netns>,
        node: &str,
        mode: Mode,
        sync_period: Duration,
    ) -> Result<Self> {
        let mut this = Self::begin(&control.kubeconfig()?, ns, node, mode, sync_period)?;
        this.wait_for_sync()?;
        Ok(this)
    }

    /// Same as [`KubeProxy::start_with`], with this kubeconfig, and without the wait for the first sync.
    ///
    /// # Errors
    /// Fails if the program is missing, or if it cannot be started.
    pub fn begin(
        kubeconfig: &Path,
        ns: &Arc<Netns>,
        node: &str,
        mode: Mode,
        sync_period: Duration,
    ) -> Result<Self> {
        let dir = TempDir::with_prefix("nodefence-kube-proxy-")?;
        // JSON is YAML too. kube-proxy must not set conntrack's limits, which are the machine's and not this namespace's.
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "mode": mode.to_string(),
            (mode.to_string()): {"syncPeriod": format!("{}s", sync_period.as_secs_f64())},
            "hostnameOverride": node,
            "clientConnection": {"kubeconfig": kubeconfig},
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            // In nftables mode node ports are by default only at the Node's own address.
            "nodePortAddresses": ["0.0.0.0/0", "::/0"],
            "healthzBindAddress": format!("127.0.0.1:{HEALTH}"),
            "metricsBindAddress": format!("127.0.0.1:{METRICS}"),
        });
        let file = dir.path().join("config");
        std::fs::write(&file, config.to_string())?;
        let mut command = Command::new(asset("kube-proxy")?);
        command.arg("--config").arg(file);
        let log = dir.path().join("log");
        let proc = spawn(ns, command, &log)?;
        Ok(Self { mode, ns: Arc::clone(ns), proc, dir })
    }

    /// Waits until both families have synced.
    fn wait_for_sync(&mut self) -> Result<()> {
        let started = Instant::now();
        let mut last = anyhow::anyhow!("not asked yet");
        loop {
            if let Some(status) = self.proc.ended()? {
                bail!("kube-proxy ended with {status}; its log:\n{}", self.log());
            }
            match self.last_sync() {
                Ok(at) if at > 0.0 => return Ok(()),
                Ok(_) => last = anyhow::anyhow!("it serves, and has not synced"),
                Err(error) => last = error,
            }
            if started.elapsed() > SYNC {
                return Err(
                    last.context(format!("no sync within {SYNC:?}; kube-proxy's log:\n{}", self.log()))
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The time of the last sync in seconds of the epoch, for the family whose last sync is older. 0 until both families have synced.
    ///
    /// # Errors
    /// Fails if kube-proxy does not serve its metrics.
    pub fn last_sync(&self) -> Result<f64> {
        let metrics = self.ask("/metrics")?;
        let times = metrics.lines().filter(|line| line.starts_with(LAST_SYNC));
        let times = times.filter_map(|line| line.rsplit(' ').next()?.parse().ok());
        // A family that has not synced yet has no such metric.
        let times: Vec<f64> = times.collect();
        Ok(if times.len() < FAMILIES { 0.0 } else { times.into_iter().fold(f64::INFINITY, f64::min) })
    }

    /// The number of ended syncs of IPv4, failed ones included.
    ///
    /// # Errors
    /// Fails if kube-proxy does not serve its metrics, or if none counts syncs.
    pub fn syncs(&self) -> Result<u32> {
        let metrics = self.ask("/metrics")?;
        let count = metrics.lines().find_map(|line| line.strip_prefix(SYNCS)?.trim().parse().ok());
        count.with_context(|| format!("kube-proxy has no metric {SYNCS}"))
    }

    /// Sends a GET to kube-proxy's metrics port. Returns the body of the answer.
    ///
    /// # Errors
    /// Fails if kube-proxy does not serve the path.
    pub fn ask(&self, path: &str) -> Result<String> {
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        self.ns.run(move || {
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS));
            let mut stream = TcpStream::connect(to).context("kube-proxy's metrics port")?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
            if !head.starts_with("HTTP/1.0 200") {
                bail!("{}", head.lines().next().unwrap_or_default());
            }
            Ok(body.to_owned())
        })
    }

    /// The last lines of kube-proxy's log.
    pub fn log(&self) -> String {
        tail(&self.log_path())
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// The process.
    pub const fn process(&self) -> &Proc {
        &self.proc
    }

    /// Freezes kube-proxy. Its rules stay as they are, as if its watch of the API server had died.
    ///
    /// # Errors
    /// Fails if the process is gone.
    pub fn freeze(&self) -> Result<()> {
        self.proc.freeze()
    }

    /// Lets kube-proxy go on.
    ///
    /// # Errors
    /// Fails if the process is gone.
    pub fn thaw(&self) -> Result<()> {
        self.proc.thaw()
    }

    /// Removes the rules of all modes in `ns`, as `kube-proxy --cleanup` does. No kube-proxy may run there.
    ///
    /// # Errors
    /// Fails if the program is missing, or if it fails. The error includes what it said.
    pub fn clean_up(ns: &Netns) -> Result<()> {
        let mut command = Command::new(asset("kube-proxy")?);
        command.arg("--cleanup");
        let output = ns.run(move || command.output())?;
        ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Sends SIGTERM to kube-proxy and waits for its end. Its rules stay.
    ///
    /// # Errors
    /// Fails if kube-proxy still runs after 10 s.
    pub fn stop(mut self) -> Result<()> {
        self.proc.signal(Signal::SIGTERM)?;
        self.proc.wait(Duration::from_secs(10)).map(drop)
    }
}
