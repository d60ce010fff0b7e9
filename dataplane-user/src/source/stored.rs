//! Objects on their way to a file, and objects that come from one.

use std::time::Duration;

use crate::{
    cluster::{Conflict, KnownObjects, NodeObject, ServiceObject, SliceObject, SourceName},
    enforce::Now,
};

/// All that a source has told, as it is at one time.
#[derive(Debug)]
pub struct Kept {
    /// The source's name.
    pub source: SourceName,
    /// The objects.
    pub objects: KnownObjects,
    /// The objects that cannot be read, and why.
    pub left_out: Vec<Conflict>,
}

/// All that a source had told an earlier agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The nodes.
    pub nodes: Vec<NodeObject>,
    /// The Services.
    pub services: Vec<ServiceObject>,
    /// The slices.
    pub slices: Vec<SliceObject>,
    /// The objects that could not be read, and why.
    pub left_out: Vec<Conflict>,
    /// How old this is.
    pub age: StoredAge,
}

/// The age of what an earlier agent stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAge {
    /// When the source last confirmed all of it. Where that was before the machine booted, all clocks but the wall clock say when the machine booted.
    pub confirmed: Now,
    /// The part of the age that lies before the boot of the machine, which no clock but the wall clock counts.
    pub before_boot: Duration,
}
