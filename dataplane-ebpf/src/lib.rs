//! The pure half of the kernel programs: the decision, unit-tested on the host. The agent asks it too, about packets that could not be answered
//! in place. How headers are read and written stands in `nodefence_common::packet`.
//!
//! Nothing here calls a helper or touches a map. The programs (`main.rs`) feed it headers and map values.
#![no_std]

pub mod decide;
pub mod limit;
