//! Judges a run: which promises it held, and by which evidence.

mod faults;
mod figures;
#[cfg(test)]
pub(super) mod sample;
mod verdict;
mod waits;

pub use faults::{Bound, Fault, Promise};
pub use figures::{Attempts, Datagrams, Established, Figures, Idle};
pub use verdict::{Verdict, judge, shows_the_fault};
pub use waits::{LONGEST_WAIT_US, Wait, waits};
