//! etcd and an API server, in a namespace or outside the guest in which a test runs.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::{Api, assets::asset, objects, relay, rights};
use crate::{Cluster, Netns, Proc, audit::BOTH, client::wait_until};

/// How long etcd and the API server may take to come up. On an idle machine they take two seconds.
const READY: Duration = Duration::from_secs(180);

/// How long a killed server may take to end.
const END: Duration = Duration::from_secs(10);

/// The token of the client. It is no secret, since the server and its namespace are the test's own.
pub(crate) const TOKEN: &str = "nodefence-tests";

/// The option by which a caller asks for admission plugins, `ServiceAccount` among them.
pub(crate) const PLUGINS: &str = "--enable-admission-plugins=";

/// The ranges of ClusterIPs.
pub const SERVICE_RANGE: &str = "10.96.0.0/16,fd00:96::/112";

/// The port of the API server.
pub const PORT: u16 = 6443;

/// The environment variable that has `address:port` of a running API server. The guests of `cargo xtask vm-test` have it.
const OUTSIDE: &str = "NODEFENCE_TEST_API_SERVER";

/// The collection of Services.
pub const SERVICES: &str = "/api/v1/namespaces/default/services";

/// The collection of EndpointSlices.
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// The collection of CustomResourceDefinitions.
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// etcd and kube-apiserver. Both programs and their storage end when this is dropped, also if the test fails.
#[derive(Debug)]
pub struct ControlPlane {
    /// A client with all rights, in the control plane's own namespace.
    pub api: Api,
    /// The namespace.
    pub ns: Arc<Netns>,
    address: Ipv4Addr,
    /// The certificate by which clients check the server. `None` if the server runs outside.
    pub(super) certificates: Option<PathBuf>,
    /// `None` if the server runs outside.
    programs: Option<Programs>,
    /// Further options of the API server.
    options: Vec<String>,
    /// The length of the audit log when the server was last ready. Before that its authorizer refuses requests that it allows later.
    heard: AtomicU64,
    dir: TempDir,
}

/// The programs of a control plane. The API server comes first, so that it ends first: without its etcd it would linger.
#[derive(Debug)]
struct Programs {
    apiserver: Proc,
    etcd: Proc,
}

impl ControlPlane {
    /// Starts both programs on the loopback device of `ns`, and waits until the server is ready. In a guest whose API server runs outside, deletes all objects
    /// of the tests from that server, and relays it to loopback. Tests that share that server run one after the other.
    ///
    /// # Errors
    /// Fails as [`ControlPlane::start_at`] does.
    pub fn start(ns: &Arc<Netns>) -> Result<Self> {
        match std::env::var(OUTSIDE) {
            Ok(server) => Self::outside(ns, server.parse().with_context(|| format!("{OUTSIDE}={server}"))?),
            Err(_) => Self::start_at(ns, Ipv4Addr::LOCALHOST),
        }
    }

    fn outside(ns: &Arc<Netns>, server: SocketAddr) -> Result<Self> {
        relay::start(ns, PORT, server)?;
        let address = Ipv4Addr::LOCALHOST;
        // The server's certificate is not checked: it stays on the machine outside, and the guest's only wire leads to this server.
        let api = Api::new(ns, &format!("https://{address}:{PORT}"), None, TOKEN)?;
        let dir = TempDir::with_prefix("nodefence-kube-")?;
        let this = Self {
            api,
            ns: Arc::clone(ns),
            address,
            certificates: None,
            programs: None,
            options: Vec::new(),
            heard: AtomicU64::new(0),
            dir,
        };
        for collection in [
            "/api/v1/nodes",
            // The server's own Service stays: the server would create it again in the middle of a test.
            "/api/v1/namespaces/default/services?labelSelector=provider!=kubernetes",
            SLICES,
            CRDS,
        ] {
            this.api.delete(collection)?;
        }
        // The server deletes a CRD once it has deleted all objects of the CRD's kind.
        let gone = || {
            let list = this.api.get(CRDS);
            list.is_ok_and(|list| list["items"].as_array().is_some_and(Vec::is_empty))
        };
        wait_until("the server has no CRD", READY, gone)?;
        Ok(this)
    }

    /// Same as [`ControlPlane::start`], with the API server on an address of `ns` at which other namespaces reach it. etcd stays on loopback.
    ///
    /// # Errors
    /// Fails if a program is missing, ends, or is not ready in time. The error names the command that makes a missing program, and includes the log of any
    /// other.
    pub fn start_at(ns: &Arc<Netns>, address: Ipv4Addr) -> Result<Self> {
        Self::start_with(ns, address, &[])
    }

    /// Same as [`ControlPlane::start_at`], with further options of the API server.
    ///
    /// # Errors
    /// Fails as [`ControlPlane::start_at`] does.
    pub fn start_with(ns: &Arc<Netns>, address: Ipv4Addr, options: &[&str]) -> Result<Self> {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let dir = TempDir::with_prefix("nodefence-kube-")?;
        let etcd = spawn(ns, etcd(dir.path())?, &log(dir.path(), "etcd"))?;
        let apiserver =
            spawn(ns, apiserver(dir.path(), address, &options)?, &log(dir.path(), "kube-apiserver"))?;
        let mut programs = Programs { apiserver, etcd };
        let api = Self::until_ready(ns, address, dir.path(), &mut programs)?;
        let certificates = Some(certificates(dir.path()));
        let programs = Some(programs);
        Ok(Self {
            api,
            ns: Arc::clone(ns),
            address,
            certificates,
            programs,
            options,
            heard: AtomicU64::new(0),
            dir,
        })
    }

    /// Waits until the server is ready. Returns a client of it.
    fn until_ready(ns: &Arc<Netns>, address: Ipv4Addr, dir: &Path, programs: &mut Programs) -> Result<Api> {
        let url = format!("https://{address}:{PORT}");
        let certificates = certificates(dir);
        let started = Instant::now();
        let mut last = anyhow::anyhow!("it has made no certificate");
        loop {
            let Programs { apiserver, etcd } = programs;
            for (proc, name) in [(etcd, "etcd"), (apiserver, "kube-apiserver")] {
                if let Some(status) = proc.ended()? {
                    bail!("{name} ended with {status}; its log:\n{}", tail(&log(dir, name)));
                }
            }
            if started.elapsed() > READY {
                let log = tail(&log(dir, "kube-apiserver"));
                return Err(
                    last.context(format!("the API server is not ready after {READY:?}; its log:\n{log}"))
                );
            }
            match Self::ready(ns, &url, &certificates) {
                Ok(api) => return Ok(api),
                Err(error) => last = error,
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks that the server is ready, and that it has created its own objects: the namespace that every test uses, and the Service `kubernetes`.
    fn ready(ns: &Arc<Netns>, url: &str, certificates: &Path) -> Result<Api> {
        let api = Api::new(ns, url, Some(certificates), TOKEN)?;
        api.text("/readyz")?;
        api.get("/api/v1/namespaces/default/services/kubernetes")?;
        Ok(api)
    }

    /// The programs, which a server outside does not have here.
    fn programs(&mut self) -> Result<&mut Programs> {
        self.programs.as_mut().context("the API server runs outside")
    }

    /// The process of the API server.
    ///
    /// # Errors
    /// Fails if the server runs outside.
    pub fn server(&self) -> Result<&Proc> {
        let programs = self.programs.as_ref().context("the API server runs outside")?;
        Ok(&programs.apiserver)
    }

    /// Freezes the API server: its connections stay, and nothing is answered on them.
    ///
    /// # Errors
    /// Fails if the server runs outside, or is gone.
    pub fn freeze_server(&mut self) -> Result<()> {
        self.programs()?.apiserver.freeze()
    }

    /// Leaves out what was asked for so far, as where accounts were removed while their programs still ended.
    pub fn hear_anew(&self) {
        self.heard.store(rights::audited(self.dir.path()), Ordering::Relaxed);
    }

    /// Kills the API server, which ends all of its connections. All objects stay in etcd.
    ///
    /// # Errors
    /// Fails if the server runs outside, or is gone.
    pub fn kill_server(&mut self) -> Result<()> {
        self.nobody_lacked_a_right()?;
        let server = &mut self.programs()?.apiserver;
        server.signal(Signal::SIGKILL)?;
        server.wait(END).map(drop)
    }

    /// Starts the API server again after [`ControlPlane::kill_server`], at the same address, with the same certificate and the same objects. Waits until it is
    /// ready.
    ///
    /// # Errors
    /// Fails if the server runs outside, or as [`ControlPlane::start_at`] does.
    pub fn start_server(&mut self) -> Result<()> {
        let programs = self.programs.as_mut().context("the API server runs outside")?;
        let command = apiserver(self.dir.path(), self.address, &self.options)?;
        programs.apiserver = spawn(&self.ns, command, &log(self.dir.path(), "kube-apiserver"))?;
        self.api = Self::until_ready(&self.ns, self.address, self.dir.path(), programs)?;
        self.hear_anew();
        Ok(())
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("https://{}:{PORT}", self.address)
    }

    /// The folder of the server's certificate and key, `apiserver.crt` and `apiserver.key`. The certificate's file has its authority too.
    pub fn pki(&self) -> PathBuf {
        self.dir.path().join("pki")
    }

    /// A client with the rights of this user.
    ///
    /// # Errors
    /// Fails if the certificates cannot be read.
    pub fn api_as(&self, user: &str) -> Result<Api> {
        Api::new(&self.ns, &self.url(), self.certificates.as_deref(), &rights::token(user))
    }

    /// The folder of the server's files.
    pub(super) fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// From which byte on the audit log counts.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Creates a Node that is Ready.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn node(&self, name: &str, address: Ipv4Addr, zone: Option<&str>) -> Result<()> {
        self.api.create("/api/v1/nodes", &objects::node(name, &[address.into()], zone)).map(drop)
    }

    /// Creates the Nodes of the small cluster, each with an address of each IP version.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn nodes(&self, cluster: &Cluster) -> Result<()> {
        for node in [&cluster.a, &cluster.b, &cluster.c] {
            let addresses = BOTH.map(|family| node.address(family));
            self.api.create("/api/v1/nodes", &objects::node(node.name, &addresses, None))?;
        }
        Ok(())
    }

    /// Creates an object of this collection, or changes it to this content.
    ///
    /// # Errors
    /// Fails with the server's error, or if the object has no name.
    pub fn object(&self, collection: &str, object: &Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().with_context(|| format!("no name in {object}"))?;
        self.api.apply(&format!("{collection}/{name}"), object).with_context(|| object.to_string()).map(drop)
    }

    /// Creates a Service, or changes it to this content. Writes its load balancer's addresses into its status.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn service(&self, service: &objects::Service) -> Result<()> {
        let path = format!("{SERVICES}/{}", service.name);
        let written = self.api.apply(&path, &service.json());
        let written = written.and_then(|_| match service.status() {
            Some(status) => self.api.apply(&format!("{path}/status"), &status).map(drop),
            None => Ok(()),
        });
        written.with_context(|| format!("{service:?}"))
    }

    /// Deletes a Service. Its slices stay, since no controller runs that would delete them.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn delete_service(&self, name: &str) -> Result<()> {
        self.api.delete(&format!("{SERVICES}/{name}"))
    }

    /// Creates an EndpointSlice, or changes it to this content.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn slice(&self, slice: &objects::Slice) -> Result<()> {
        self.object(SLICES, &slice.json())
    }

    /// Deletes an EndpointSlice.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn delete_slice(&self, name: &str) -> Result<()> {
        self.api.delete(&format!("{SLICES}/{name}"))
    }
}

impl Drop for ControlPlane {
    /// A Forbidden fails every test.
    fn drop(&mut self) {
        if !std::thread::panicking()
            && let Err(error) = self.nobody_lacked_a_right()
        {
            panic!("{error:#}");
        }
    }
}

/// The certificate by which clients check the server. The server makes it at its first start.
fn certificates(dir: &Path) -> PathBuf {
    dir.join("pki/apiserver.crt")
}

fn etcd(dir: &Path) -> Result<Command> {
    let mut command = Command::new(asset("etcd")?);
    command.arg("--data-dir").arg(dir.join("etcd"));
    command.args([
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=default=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]);
    Ok(command)
}

/// The command of the API server. The server makes its own certificate. The certificate's key signs service account tokens, since neither outlives the test.
fn apiserver(dir: &Path, address: Ipv4Addr, options: &[String]) -> Result<Command> {
    let tokens = dir.join("tokens");
    std::fs::write(&tokens, format!("{TOKEN},admin,1,\"system:masters\"\n{}", rights::tokens()))?;
    let pki = dir.join("pki");
    let mut command = Command::new(asset("kube-apiserver")?);
    command.arg("--cert-dir").arg(&pki);
    for option in ["--service-account-key-file", "--service-account-signing-key-file"] {
        command.arg(option).arg(pki.join("apiserver.key"));
    }
    command.arg("--token-auth-file").arg(tokens).args(rights::audit_options(dir)?);
    command.arg(format!("--bind-address={address}")).arg(format!("--secure-port={PORT}"));
    command.args([
        "--etcd-servers=http://127.0.0.1:2379",
        // Without this address the server looks for a default route. The address is not used, since the Service `kubernetes` gets no endpoints.
        "--advertise-address=192.0.2.1",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--enable-priority-and-fairness=false",
        // As kubeadm has it: the chart's DaemonSet is privileged.
        "--allow-privileged=true",
    ]);
    // Where no controller makes service accounts, no pod could be created with one.
    if !options.iter().any(|option| option.starts_with(PLUGINS)) {
        command.arg("--disable-admission-plugins=ServiceAccount");
    }
    command.arg(format!("--service-cluster-ip-range={SERVICE_RANGE}")).args(options);
    Ok(command)
}

fn log(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.log"))
}

/// Starts a program that writes its output to `log`.
pub(crate) fn spawn(ns: &Netns, mut command: Command, log: &Path) -> Result<Proc> {
    let file = File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    Proc::spawn(ns, command)
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
