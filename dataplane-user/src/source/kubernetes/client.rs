//! How the API server is reached, and clients of it.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig},
};
use tower::{BoxError, ServiceBuilder};
use tower_http::decompression::DecompressionLayer;

use super::{date::ServerClock, news::Heard, pace::Pace};
use crate::flags::now;

/// How long the connection may take, with the TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// After how long without a packet the kernel asks whether the API server is still there, and how often and how many times it asks again.
/// A connection that was cut silently is found dead after 15 + 3 x 5 s.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMES: u32 = 3;
/// How long sent data may stay without an acknowledgement (TCP_USER_TIMEOUT).
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
/// How long a connection may bring nothing though its kernel answers: the API server hangs. A watch without changes brings a bookmark about
/// each minute (`defaultBookmarkFrequency`, apiserver/pkg/storage/cacher, v1.36), and one that was begun anew its first one after two minutes
/// (measured, v1.36).
const SILENT: Duration = Duration::from_secs(180);
/// How many requests a client makes at most in this time. A watch that ends at once without an error, as something between us and the API
/// server may end it, is begun anew without a pause. A list of 50,000 slices has 100 pages.
const REQUESTS: u64 = 120;
const REQUESTS_IN: Duration = Duration::from_secs(60);

/// How an API server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServer {
    /// A kubeconfig file. `None`: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The server's address in place of the one that is configured.
    pub server: Option<String>,
}

impl ApiServer {
    /// Where it is said how the server is reached, for errors.
    pub(super) fn origin(&self) -> String {
        match &self.kubeconfig {
            Some(file) => format!("--kubeconfig {}", file.display()),
            None => "the service account of this pod".to_owned(),
        }
    }
}

/// A client for single requests.
///
/// # Errors
/// Where the configuration cannot be read.
pub(crate) async fn open(server: &ApiServer) -> anyhow::Result<Client> {
    Client::try_from(config(server).await?).with_context(|| server.origin())
}

/// Reads how the API server is reached.
pub(crate) async fn config(server: &ApiServer) -> anyhow::Result<Config> {
    let mut config = match &server.kubeconfig {
        Some(file) => {
            let options = KubeConfigOptions::default();
            let read = async { Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await };
            read.await.with_context(|| server.origin())?
        }
        None => Config::incluster()
            .context("this is no pod with a service account; expected --kubeconfig with a kubeconfig file")?,
    };
    anyhow::ensure!(
        config.proxy_url.is_none(),
        "the kubeconfig file (proxy-url) or the environment (HTTPS_PROXY) names a proxy; expected none: the agent reaches the API server \
         directly"
    );
    if config.accept_invalid_certs {
        // The library would look for the system's certificates, which a container may not have, and then not use them.
        config.root_cert.get_or_insert_default();
    }
    if let Some(address) = &server.server {
        config.cluster_url = url(address)?;
    }
    // The library would try a refused request again for minutes, which looks as if the server did not answer.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    Ok(config)
}

/// The URL that `--api-server` names.
///
/// # Errors
/// Where it is none.
pub(crate) fn url(address: &str) -> anyhow::Result<http::Uri> {
    let url = address.parse().ok();
    url.filter(|url: &http::Uri| url.host().is_some() && url.scheme().is_some())
        .with_context(|| format!("--api-server {address}: expected an address as in https://10.2.0.5:6443"))
}

/// A client for watches. It finds out soon that a connection is dead, and notes when the API server was heard, and what its clock shows.
pub(crate) fn watching_client(
    config: &Config,
    heard: &Heard,
    clock: &ServerClock,
    pace: Pace,
) -> anyhow::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(pace.of(KEEPALIVE)));
    tcp.set_keepalive_interval(Some(pace.of(KEEPALIVE_AGAIN)));
    tcp.set_keepalive_retries(Some(KEEPALIVE_TIMES));
    tcp.set_tcp_user_timeout(Some(pace.of(UNACKNOWLEDGED)));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_read_timeout(Some(SILENT));
    connector.set_reset_reader_on_write(true);
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(connector);
    let heard = heard.clone();
    let clock = clock.clone();
    // The head of an answer shows nothing: something between us and the API server may send it, and then end the watch.
    let note = move |response: Response<Incoming>| {
        let is_answer = response.status().is_success();
        if is_answer {
            clock.note(response.headers(), now());
        }
        let heard = heard.clone();
        response.map(move |body| {
            body.map_frame(move |frame| {
                if is_answer {
                    heard.note();
                }
                frame
            })
        })
    };
    let service = ServiceBuilder::new()
        .rate_limit(REQUESTS, REQUESTS_IN)
        .layer(config.base_uri_layer())
        .layer(DecompressionLayer::new().no_br().no_deflate().no_zstd())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_response(note)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}
