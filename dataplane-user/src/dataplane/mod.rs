//! The only room that touches BPF.

pub mod answer;
pub mod sweep;
