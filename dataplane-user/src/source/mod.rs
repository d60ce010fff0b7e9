//! Where nodes, backends and Services come from: the cluster file on disk, which is read again when it changes, or objects that come one by
//! one, as from the API server.

mod file;
#[cfg(test)]
mod file_tests;
mod file_watch;
pub(crate) mod kubernetes;
mod objects;
mod stored;
mod texts;
mod waiting;

pub use file::FileSource;
pub use file_watch::FileWatch;
pub(crate) use kubernetes::{API_SERVER, OrdersEnd, OrdersRow, SettingsEnd, SettingsNow, Tell};
pub use kubernetes::{ApiServer, Kubernetes, Pace};
pub(crate) use objects::Gathered;
pub use objects::Objects;
pub use stored::{Kept, Stored, StoredAge};
pub(crate) use texts::Texts;
pub use waiting::{Changes, News, Recaller, Teller, changes};
