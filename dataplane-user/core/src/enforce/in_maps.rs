//! What the writer of tables knows of the maps: the tables that it wrote last.

use std::sync::Arc;

use super::{now::Epoch, output::TablesPlan};
use crate::plan::{Delta, LeftOut, NodeTables, Tables};

/// The tables that lie in the maps, where that is known.
#[derive(Debug, Default)]
pub struct InMaps(Option<Known>);

/// What was written.
#[derive(Debug)]
struct Known {
    epoch: Epoch,
    tables: Arc<NodeTables>,
    left_out: LeftOut,
}

impl InMaps {
    /// A plan is about to be written: nothing is known until that is done ([`Self::written`]). What must be written: against what was written last, where
    /// the plan says that nothing else lies there; else against what `read` finds there.
    ///
    /// # Errors
    /// Where that fails.
    pub fn begin<E>(
        &mut self,
        plan: &TablesPlan,
        read: impl FnOnce() -> Result<Tables, E>,
    ) -> Result<Delta, E> {
        match self.0.take().filter(|known| plan.base == Some(known.epoch)) {
            Some(known) => Ok(Delta::of_nodes(&known.tables, &known.left_out, &plan.tables)),
            None => Ok(Delta::between(&read()?, &LeftOut::default(), &plan.tables.flat())),
        }
    }

    /// The plan is written, but for what did not fit.
    pub fn written(&mut self, plan: &TablesPlan, left_out: LeftOut) {
        self.0 = Some(Known { epoch: plan.epoch, tables: Arc::clone(&plan.tables), left_out });
    }

    /// What lies in the maps, and what did not fit of it.
    pub fn tables(&self) -> Option<(&Arc<NodeTables>, &LeftOut)> {
        self.0.as_ref().map(|known| (&known.tables, &known.left_out))
    }
}
