//! The file that stores the claims on nodes while no agent runs, and the clocks by which claims end. Only [`clock`] reads the time; the
//! other files get it from their callers. Only [`store`] touches the disk.

mod clock;
mod format;
mod store;

#[cfg(test)]
mod tests;

pub use clock::{boot_id, monotonic_ns, now};
pub use store::{Adopted, FlagStore, StoreError};
