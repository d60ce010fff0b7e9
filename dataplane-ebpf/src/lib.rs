//! The pure half of the kernel programs: parsing rules and the decision, unit-tested on the host.
#![no_std]
