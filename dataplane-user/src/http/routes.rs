//! The paths that are answered over TCP.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::encoding::prometheus_text;

use super::cache::{Cache, Facts};

const JSON: &str = "application/json";
const NO_PATH: &str = "not found; expected /metrics, /livez, /readyz or /v1/status\n";
const WELL: &str = "ok\n";

/// The state that routes share.
struct Shared<F> {
    facts: Arc<F>,
    cache: Cache,
}

impl<F> Clone for Shared<F> {
    fn clone(&self) -> Self {
        Self { facts: Arc::clone(&self.facts), cache: self.cache.clone() }
    }
}

/// All paths. `get` answers HEAD too. Other methods get 405 with `Allow`, and other paths 404.
pub(super) fn routes<F: Facts>(facts: Arc<F>, cache: Cache) -> Router {
    Router::new()
        .route("/livez", get(live::<F>))
        .route("/readyz", get(ready::<F>))
        .route("/metrics", get(metrics::<F>))
        .route("/v1/status", get(status::<F>))
        .fallback(async || (StatusCode::NOT_FOUND, NO_PATH))
        .with_state(Shared { facts, cache })
}

async fn live<F: Facts>(State(shared): State<Shared<F>>) -> Response {
    match shared.facts.hangs() {
        None => WELL.into_response(),
        Some(why) => unavailable(&why),
    }
}

async fn ready<F: Facts>(State(shared): State<Shared<F>>) -> Response {
    if let Some(why) = shared.facts.hangs() {
        return unavailable(&why);
    }
    match shared.cache.get().await.map(|snapshot| snapshot.not_ready.clone()) {
        Ok(None) => WELL.into_response(),
        Ok(Some(why)) | Err(why) => unavailable(&why),
    }
}

async fn metrics<F: Facts>(State(shared): State<Shared<F>>) -> Response {
    let snapshot = shared.cache.get().await;
    document(snapshot.map(|snapshot| snapshot.metrics.clone()), prometheus_text::CONTENT_TYPE)
}

async fn status<F: Facts>(State(shared): State<Shared<F>>) -> Response {
    document(shared.cache.get().await.map(|snapshot| snapshot.status.clone()), JSON)
}

fn document(body: Result<Bytes, String>, content_type: &'static str) -> Response {
    match body {
        Ok(body) => ([(header::CONTENT_TYPE, content_type)], body).into_response(),
        Err(why) => unavailable(&why),
    }
}

/// The reason is one line.
fn unavailable(why: &str) -> Response {
    let line = why.replace(['\r', '\n'], " ");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{line}\n")).into_response()
}
