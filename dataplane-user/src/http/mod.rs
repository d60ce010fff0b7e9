//! The agent's state over TCP, for monitoring and probes: `/metrics`, `/livez`, `/readyz` and `/v1/status`. Read only: nothing here changes the
//! agent, and all requests that do are taken on the unix socket alone.

mod cache;
mod metrics;
mod ready;
mod routes;
mod server;
mod snapshot;
mod verdicts;

pub use cache::Facts;
pub use metrics::Measured;
pub use ready::not_ready;
pub use server::serve;
pub use snapshot::Snapshot;
