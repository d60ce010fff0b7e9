//! Checks the objects that a source delivers against each other, and makes the view that follows from them.

mod builder;
mod change;
mod check;
mod group;
mod member;
mod named_by;
mod names;
mod objects;
mod owners;
mod reached;
mod slice;
mod values;

#[cfg(test)]
pub(super) mod tests;

pub use builder::Builder;
pub use change::{Change, Rules};
pub use objects::KnownObjects;
pub use values::check_address;
