//! Judges a run: which promises it held, and by which evidence.

mod faults;
mod figures;
#[cfg(test)]
pub(crate) mod sample;
mod verdict;
mod waits;

pub use faults::{Bound, Fault, Promise};
pub use figures::{Attempts, Datagrams, Established, Figures, Idle};
pub use verdict::{Loss, Verdict, judge, judge_with, shows_the_fault};
pub use waits::{LONGEST_WAIT_US, Wait, waits};
