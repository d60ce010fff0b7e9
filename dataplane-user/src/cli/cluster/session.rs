//! A connection to the API server, and what is read over it for most verbs.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::{
    args::KubectlCli,
    ask::{self, Server},
    error::Error,
    known::Known,
};
use crate::{
    crds::{NodeFlag, NodeMember, NodefenceSettings, Raw, SETTINGS_NAME},
    source::kubernetes,
};

/// How long the connection may take, with the TLS handshake, and how long an answer may bring nothing.
const CONNECT: Duration = Duration::from_secs(10);
const SILENT: Duration = Duration::from_secs(30);

/// The context of the error that nothing says how the API server is reached.
pub(super) const NO_CONFIGURATION: &str =
    "expected a kubeconfig file (--kubeconfig, KUBECONFIG or ~/.kube/config) that has the context";

/// The error that a proxy is configured, which this client has not the code for.
pub(super) const NO_PROXY: &str = "the kubeconfig file (proxy-url) or the environment (HTTPS_PROXY) names a proxy; expected none: kubectl nodefence reaches the API server \
     directly (where that is possible: `env -u HTTPS_PROXY -u https_proxy kubectl nodefence ...`)";

/// The API server, and its time at the start of the command.
pub(super) struct Session {
    /// The client.
    pub(super) client: Client,
    /// Time and version.
    pub(super) server: Server,
    /// The namespace of the pod in which this process runs. `None` with a kubeconfig file.
    pub(super) own_namespace: Option<String>,
}

impl Session {
    /// Reads the configuration and asks the API server for its time.
    pub(super) async fn open(cli: &KubectlCli) -> anyhow::Result<Self> {
        let (mut config, own_namespace) = config(cli.kubeconfig.as_deref(), cli.context.as_deref()).await?;
        if let Some(address) = &cli.api_server {
            config.cluster_url = kubernetes::url(address)?;
        }
        let client = Client::try_from(config)?;
        Ok(Self { own_namespace, ..Self::over(client).await? })
    }

    /// Asks the API server of a client for its time.
    pub(super) async fn over(client: Client) -> Result<Self, Error> {
        let server = ask::server(&client).await?;
        Ok(Self { client, server, own_namespace: None })
    }

    /// The members.
    pub(super) fn members(&self) -> Api<Raw<NodeMember>> {
        Api::all(self.client.clone())
    }

    /// The flags.
    pub(super) fn flags(&self) -> Api<Raw<NodeFlag>> {
        Api::all(self.client.clone())
    }

    /// The flags, for one that is created.
    pub(super) fn new_flags(&self) -> Api<NodeFlag> {
        Api::all(self.client.clone())
    }

    /// The settings.
    pub(super) fn settings(&self) -> Api<Raw<NodefenceSettings>> {
        Api::all(self.client.clone())
    }

    /// The settings, for those that are created.
    pub(super) fn new_settings(&self) -> Api<NodefenceSettings> {
        Api::all(self.client.clone())
    }

    /// Reads members, flags and settings.
    pub(super) async fn known(&self) -> Result<Known, Error> {
        let members = self.members();
        let flags = self.flags();
        let settings = self.settings();
        let (members, flags, settings) = tokio::try_join!(
            ask::list(&members, ListParams::default()),
            ask::list(&flags, ListParams::default()),
            ask::get(&settings, SETTINGS_NAME),
        )?;
        Ok(Known::read(self.server.now, members, flags, settings))
    }
}

/// Reads how the API server is reached, as kubectl does. Where a pod's service account says it, the pod's namespace too.
async fn config(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> anyhow::Result<(Config, Option<String>)> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut own_namespace = None;
    let mut config = match kubeconfig {
        Some(file) => {
            let read = async { Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await };
            read.await.with_context(|| format!("--kubeconfig {}", file.display()))?
        }
        None => match Config::from_kubeconfig(&options).await {
            Ok(config) => config,
            // In a pod there is no file, and no context to choose.
            Err(error) => {
                let config = match context {
                    None => Config::incluster().map_err(|_| error),
                    Some(_) => Err(error),
                }
                .context(NO_CONFIGURATION)?;
                own_namespace = Some(config.default_namespace.clone());
                config
            }
        },
    };
    anyhow::ensure!(config.proxy_url.is_none(), NO_PROXY);
    // The library would try a refused request again for minutes, which looks as if the server did not answer.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENT);
    Ok((config, own_namespace))
}
