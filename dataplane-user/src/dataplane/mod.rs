//! The only room that touches BPF.

pub mod answer;
