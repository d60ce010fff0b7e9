//! The only room that touches BPF: loads the programs, attaches them, writes the maps.
//!
//! Everything stays pinned and attached when a [`Dataplane`] is dropped; verdicts lapse by themselves. Only [`detach`]
//! takes the dataplane away.

mod ahead;
pub mod answer;
mod attach;
mod clsact;
mod compare;
mod detach;
mod error;
mod events;
mod exposed;
mod features;
mod folders;
mod handle;
pub mod hold;
mod inject;
mod inspect;
pub mod interfaces;
mod lease;
mod links;
mod load;
mod lock;
mod log;
mod maps;
mod names;
mod netlink;
mod node_writer;
mod options;
pub mod policies;
pub mod probe;
mod programs;
mod rescue;
pub mod route;
pub mod route_table;
mod staging;
pub mod sweep;
mod sys;
mod table_maps;
mod tc;
mod versions;
mod write;
mod xdp;

pub use ahead::ProgramAhead;
pub use attach::{Attach, InterfaceStatus};
pub use compare::Comparison;
pub use detach::{DetachReport, detach};
pub use error::{Error, OLDEST};
pub use events::EventStream;
pub use features::{Features, features};
pub use folders::in_bpffs;
pub use handle::Dataplane;
pub use inject::{Injector, Unanswered};
pub use inspect::inspect;
pub use interfaces::{Interface, LinkLayer};
pub use lease::lease;
pub use load::check;
pub use log::CutLog;
pub use maps::{Counters, Switches};
pub use node_writer::NodeWriter;
pub use options::{Options, TcChoice, XdpChoice};
pub use rescue::Rescues;
pub use table_maps::TableMaps;
pub use tc::TcMode;
pub use write::WriteReport;
pub use xdp::{XdpState, XdpStatus};
