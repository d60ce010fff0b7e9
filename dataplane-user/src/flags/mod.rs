//! The file that keeps what is claimed of nodes while no agent runs, and the clocks by which claims end. Time is handed in but
//! for [`clock`]; only [`store`] touches the disk.

mod clock;
mod format;
mod store;

#[cfg(test)]
mod tests;

pub use clock::{monotonic_ns, now};
pub use store::{Adopted, FlagStore, StoreError};
