//! The pure half of the kernel programs: parsing, the decision and the bytes of an answer, unit-tested on the host.
//!
//! Nothing here calls a helper or touches a map. The programs (`main.rs`) feed it packet bytes and map values.
#![no_std]

pub mod answer;
pub mod bytes;
pub mod decide;
pub mod limit;
pub mod parse;
