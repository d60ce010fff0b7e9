//! What the writer of tables knows of the maps: the tables that it wrote last.

use std::sync::Arc;

use super::{now::Epoch, output::TablesPlan};
use crate::plan::{Delta, LeftOut, NodeTables, Tables};

/// The tables that lie in the maps, where that is known.
#[derive(Debug, Default)]
pub struct InMaps(Option<Known>);

/// The tables that were written.
#[derive(Debug)]
struct Known {
    epoch: Epoch,
    tables: Arc<NodeTables>,
    left_out: LeftOut,
}

impl InMaps {
    /// Begins to write a plan: until [`Self::written`], what lies in the maps is not known. Returns what must be written: the difference to the tables that
    /// were written last, where the plan says that nothing else lies there; else the difference to what `read` finds.
    ///
    /// # Errors
    /// Where `read` fails.
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

    /// Takes note that the plan is written, but for what did not fit.
    pub fn written(&mut self, plan: &TablesPlan, left_out: LeftOut) {
        self.0 = Some(Known { epoch: plan.epoch, tables: Arc::clone(&plan.tables), left_out });
    }

    /// The tables in the maps, and what of them did not fit.
    pub fn tables(&self) -> Option<(&Arc<NodeTables>, &LeftOut)> {
        self.0.as_ref().map(|known| (&known.tables, &known.left_out))
    }
}
