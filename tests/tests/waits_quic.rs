//! How long QUIC clients of a flagged node wait until their library (quinn) reports an end, with its default settings and with keep-alive.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use nodefence_tests::{
    Netns,
    checks::SOON,
    waits::{Served, Waiting},
    watch::within,
};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, Incoming, ServerConfig,
    TokioRuntime, TransportConfig,
};
use rustls::{RootCertStore, pki_types::PrivatePkcs8KeyDer};
use tokio::runtime::{Builder, Runtime};

/// The Service's port.
const PORT: u16 = 4433;
/// The name in the certificate.
const NAME: &str = "served";
/// quinn's default idle timeout.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval in which a client with keep-alive sends.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The last packet may have come this long before the test began to count, and a timer may be this late.
const SLACK: Duration = Duration::from_secs(5);

/// The settings that both ends share.
struct Configs {
    server: ServerConfig,
    client: ClientConfig,
    kept_alive: ClientConfig,
}

impl Configs {
    fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        let certificate = made.cert.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let client = ClientConfig::with_root_certificates(Arc::new(roots))?;
        let mut transport = TransportConfig::default();
        transport.keep_alive_interval(Some(KEEP_ALIVE));
        let mut kept_alive = client.clone();
        kept_alive.transport_config(Arc::new(transport));
        let server = ServerConfig::with_single_cert(vec![certificate], key.into())?;
        Ok(Self { server, client, kept_alive })
    }
}

/// An endpoint whose socket is in `ns`. The caller must be within a runtime.
fn endpoint(ns: &Netns, port: u16, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = ns.run(move || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))?;
    Ok(Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?)
}

/// Serves clients until the endpoint is closed.
async fn serve(endpoint: Endpoint, name: &'static str) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(answer(incoming, name));
    }
}

/// Sends the server's name on each stream that the client opens, until the client ends.
async fn answer(incoming: Incoming, name: &'static str) -> Result<()> {
    let connection = incoming.await?;
    loop {
        let (mut send, mut receive) = connection.accept_bi().await?;
        receive.read_to_end(16).await?;
        send.write_all(name.as_bytes()).await?;
        send.finish()?;
    }
}

/// A client with a socket of its own.
struct Client {
    _endpoint: Endpoint,
    connection: Connection,
}

impl Client {
    async fn connect(endpoint: Endpoint, to: SocketAddr, config: ClientConfig) -> Result<Self> {
        let connection = endpoint.connect_with(config, to, NAME)?.await?;
        Ok(Self { _endpoint: endpoint, connection })
    }

    /// The name of the server.
    async fn who(&self) -> Result<String> {
        let (mut send, mut receive) = self.connection.open_bi().await?;
        send.write_all(b"w").await?;
        send.finish()?;
        Ok(String::from_utf8(receive.read_to_end(16).await?)?)
    }

    /// Sends ten times a second, as long as there is a connection.
    async fn send(connection: Connection) -> Result<()> {
        let mut stream = connection.open_uni().await?;
        loop {
            stream.write_all(b"x").await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[test]
fn clients_wait_for_the_idle_timeout() -> Result<()> {
    let served = Served::new("udp", PORT, None)?;
    let runtime = Runtime::new()?;
    let _within = runtime.enter();
    let configs = Configs::new()?;
    // Node B's servers have a thread of their own, so that they can hang as a node does.
    let hanging = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    for (node, serves) in [(&served.cluster.b, &hanging), (&served.cluster.c, &runtime)] {
        let _of_its_own = serves.enter();
        serves.spawn(serve(endpoint(&node.pod, PORT, Some(configs.server.clone()))?, node.name));
    }
    let connect = |to: SocketAddr, config: &ClientConfig| -> Result<(Client, String)> {
        let endpoint = endpoint(served.client(), 0, None)?;
        runtime.block_on(async {
            let client = Client::connect(endpoint, to, config.clone()).await?;
            let name = client.who().await?;
            Ok((client, name))
        })
    };
    let to_b = |to: SocketAddr, config: &ClientConfig| -> Result<Client> {
        for _ in 0..100 {
            let (client, name) = connect(to, config)?;
            if name == "node-b" {
                return Ok(client);
            }
        }
        bail!("100 connections to {to} and none went to node-b")
    };
    let b = served.pod(&served.cluster.b);
    let c = served.pod(&served.cluster.c);
    let mut clients = Vec::new();
    for (way, at) in [("to the pod itself", b), ("through a Service", served.service())] {
        clients.push((format!("sends, {way}"), true, Duration::ZERO, to_b(at, &configs.client)?));
        clients.push((format!("is idle, {way}"), false, Duration::ZERO, to_b(at, &configs.client)?));
        clients.push((format!("is kept alive, {way}"), false, KEEP_ALIVE, to_b(at, &configs.kept_alive)?));
    }
    let (other, name) = connect(c, &configs.kept_alive)?;
    ensure!(name == "node-c");
    // The hung servers must not repeat packets that were not acknowledged before the flag: each repetition would restart the client's timer.
    let (hangs, released) = mpsc::channel::<()>();
    hanging.spawn(async move { released.recv() });
    served.agent.flag("node-b")?;
    let mut waiting = Vec::new();
    for (what, sends, later, client) in clients {
        if sends {
            runtime.spawn(Client::send(client.connection.clone()));
        }
        let handle = runtime.handle().clone();
        let wait = move || handle.block_on(client.connection.closed());
        waiting.push((later, Waiting::begin(format!("QUIC, {what}"), wait)?));
    }
    let handle = runtime.handle().clone();
    let endpoint = endpoint(served.client(), 0, None)?;
    let config = configs.client.clone();
    let new = Waiting::begin("QUIC, new, to the pod itself", move || {
        let connected = handle.block_on(Client::connect(endpoint, b, config));
        connected.err().and_then(|error| error.downcast::<ConnectionError>().ok())
    })?;
    let begun = Instant::now();
    for at in 0..6 {
        let (_, name) = connect(served.service(), &configs.client)?;
        ensure!(name == "node-c", "new, through the Service, {at}: answered by {name}");
    }
    within("QUIC, new, through the Service: six answered by node C", SOON, begun)?;
    for (later, waiting) in waiting {
        let told = |how: &ConnectionError| matches!(how, ConnectionError::TimedOut);
        waiting.end()?.is(IDLE_TIMEOUT - SLACK, IDLE_TIMEOUT + later + SLACK, told)?;
    }
    let timed_out = |how: &Option<ConnectionError>| matches!(how, Some(ConnectionError::TimedOut));
    new.end()?.is(IDLE_TIMEOUT - SLACK, IDLE_TIMEOUT + SLACK, timed_out)?;
    let who = runtime.block_on(other.who())?;
    ensure!(who == "node-c", "a client of node C, kept alive: answered by {who}");
    drop(hangs);
    Ok(())
}
