//! Whom a source tells.

use std::sync::Arc;

use tokio::sync::watch;

use super::super::{builder::Builds, told::SourceRow};

/// Who takes views, and what `status` says of the source.
pub(in super::super) struct Ground {
    pub(in super::super) builds: Arc<Builds>,
    pub(in super::super) row: watch::Sender<SourceRow>,
}
