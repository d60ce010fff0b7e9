mod histories;
mod objects;
mod single;

pub(crate) use objects::{Seeded, Source};
