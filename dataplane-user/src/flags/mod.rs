//! What operators hold against nodes: flags set by the CLI, kept in a file under the run folder, and flags that stand in
//! the cluster file. Time is handed in; only [`store`] touches the disk.

mod clock;
mod limit;
mod set;
mod store;

#[cfg(test)]
mod tests;

pub use clock::{Clocks, monotonic_ns};
pub use limit::too_many;
pub use set::{Flag, Flags, Origin};
pub use store::{Adopted, FlagStore, StoreError};
