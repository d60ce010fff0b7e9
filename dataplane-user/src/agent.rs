//! The agent: the only file (with those below it) that knows all rooms. It owns every task and thread and their end.

mod audit;
mod auto;
mod bridge;
mod core;
mod coverage;
mod file_flags;
mod findings;
mod flagging;
mod idle;
mod kept;
mod lock;
mod mode;
mod neighbours;
mod network;
mod own_node;
mod pinned;
mod preflight;
mod rescue;
mod rows;
mod run;
mod serve;
mod settings;
mod state;
mod takeout;

pub use audit::AuditSettings;
pub use lock::{Lock, LockError};
pub use own_node::{OwnNodeError, own_node};
pub use run::run;
pub use settings::{Settings, Wanted};
