//! All objects of a builder at one time, for whoever stores them while the builder goes on.

use std::sync::Arc;

use super::{
    super::object::{NodeObject, ServiceObject, SliceObject},
    names::NameId,
    slice::Slice,
};

/// All objects that a builder had at one time. It shares them with the builder.
#[derive(Debug)]
pub struct KnownObjects {
    pub(super) nodes: Vec<Arc<NodeObject>>,
    pub(super) services: Vec<Arc<ServiceObject>>,
    /// Each with its Service.
    pub(super) slices: Vec<(NameId, Arc<Slice>)>,
    /// By number, the names that slices have.
    pub(super) names: Box<[Arc<str>]>,
}

impl KnownObjects {
    /// The nodes, in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeObject> {
        self.nodes.iter().map(|node| &**node)
    }

    /// The Services, in the order of their names.
    pub fn services(&self) -> impl Iterator<Item = &ServiceObject> {
        self.services.iter().map(|service| &**service)
    }

    /// The slices. Each is made when it is asked for.
    pub fn slices(&self) -> impl Iterator<Item = SliceObject> {
        let text = |name: NameId| &self.names[name.index() as usize];
        self.slices.iter().map(move |(service, slice)| slice.object(Arc::clone(text(*service)), text))
    }
}
