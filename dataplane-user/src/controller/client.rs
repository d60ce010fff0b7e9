//! The controller's client of the API server for single requests.

use std::time::Duration;

use anyhow::Context as _;
use http::Response;
use kube::{
    Client, Config,
    client::{ClientBuilder, DynBody},
};
use tokio::time::timeout;
use tower::{BoxError, util::MapFutureLayer};

use super::clock::Answers;

/// How long the API server may take to begin an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How long it may be silent within an answer. A connection without requests is closed after that.
const SILENT: Duration = Duration::from_secs(30);

/// A client for single requests. `clock` shows the API server's time, and when it answered last.
pub(super) fn client(config: &Config, clock: &Answers) -> anyhow::Result<Client> {
    let mut config = config.clone();
    config.connect_timeout = Some(PATIENCE);
    config.read_timeout = Some(SILENT);
    config.write_timeout = Some(PATIENCE);
    config.reset_reader_on_write = true;
    let clock = clock.clone();
    let bounded = move |answer| {
        let clock = clock.clone();
        async move { head(timeout(PATIENCE, answer).await?, &clock) }
    };
    let builder = ClientBuilder::try_from(config).context("cannot make a client of the API server")?;
    Ok(builder.with_layer(&MapFutureLayer::new(bounded)).build())
}

fn head(
    answer: Result<Response<Box<DynBody>>, BoxError>,
    clock: &Answers,
) -> Result<Response<Box<DynBody>>, BoxError> {
    let answer = answer?;
    if answer.status().is_success() {
        clock.note(answer.headers());
    }
    Ok(answer)
}
