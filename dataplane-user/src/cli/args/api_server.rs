use std::path::PathBuf;

use clap::{Args, builder::NonEmptyStringValueParser};

use crate::source::ApiServer;

/// Where the API server is.
#[derive(Clone, Debug, Args)]
pub struct ApiServerArgs {
    /// How the API server is reached [default: by the service account of the pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The API server's address, in place of the one that is configured
    #[arg(long, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    pub api_server: Option<String>,
}

impl ApiServerArgs {
    /// The API server that these options name.
    pub(in crate::cli) fn server(&self) -> ApiServer {
        ApiServer { kubeconfig: self.kubeconfig.clone(), server: self.api_server.clone() }
    }
}
