//! Slices as they are stored: there is an endpoint for each backend, and most have the same content but for their address.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use super::{
    super::{
        node::NodeName,
        object::{EndpointObject, SliceObject},
        service::Hints,
    },
    names::{NameId, Names},
};

/// A slice, beside its Service's name.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) name: Arc<str>,
    endpoints: Endpoints,
    /// The content of endpoints beside their marks, each once.
    more: Box<[Arc<More>]>,
}

/// Nearly all slices have addresses of one family, and IPv4 is short.
#[derive(Debug)]
enum Endpoints {
    V4(Box<[Packed<Ipv4Addr>]>),
    Any(Box<[Packed<IpAddr>]>),
}

/// An endpoint as it is stored.
#[derive(Clone, Copy, Debug)]
struct Packed<A> {
    address: A,
    node: Option<NameId>,
    /// The endpoint's marks, a bit each; above these, one more than the place in `more`, 0 for none.
    says: u32,
}

/// An endpoint as delivered ([`EndpointObject`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedEndpoint<'a> {
    pub(super) address: IpAddr,
    pub(super) node: Option<NameId>,
    says: u32,
    more: Option<&'a More>,
}

/// Content that only some endpoints have, and that is mostly equal within a slice: equal ones share it.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct More {
    zone: Option<Arc<str>>,
    ports: Option<Arc<BTreeMap<String, u16>>>,
    hints: Option<Box<Hints>>,
}

// The marks of an endpoint, a bit each.
const HOST_NETWORK: u32 = 1;
const READY: u32 = 2;
const SERVING: u32 = 4;
const TERMINATING: u32 = 8;
/// How many marks there are.
const BITS: u32 = 4;

fn says(object: &EndpointObject) -> u32 {
    let all = [
        (object.host_network, HOST_NETWORK),
        (object.ready, READY),
        (object.serving, SERVING),
        (object.terminating, TERMINATING),
    ];
    all.into_iter().filter_map(|(says, bit)| says.then_some(bit)).sum()
}

impl Slice {
    /// Stores an object, and takes the names of its nodes.
    pub(super) fn new(object: SliceObject, names: &mut Names) -> Self {
        let mut more = Alike::default();
        let all = object.endpoints.into_iter().map(|object| Packed {
            says: says(&object)
                | more.place(More { zone: object.zone, ports: object.ports, hints: object.hints }) << BITS,
            address: object.address,
            node: object.node.map(|node| names.take(node.text())),
        });
        let all: Box<[Packed<IpAddr>]> = all.collect();
        let v4 = all.iter().map(|one| match one.address {
            IpAddr::V4(address) => Some(Packed { address, node: one.node, says: one.says }),
            IpAddr::V6(_) => None,
        });
        let endpoints = match v4.collect() {
            Some(v4) => Endpoints::V4(v4),
            None => Endpoints::Any(all),
        };
        Self { name: object.name, endpoints, more: more.all.into() }
    }

    /// The endpoints of the slice.
    pub(super) fn endpoints(&self) -> impl ExactSizeIterator<Item = ListedEndpoint<'_>> {
        (0..self.len()).map(move |at| match &self.endpoints {
            Endpoints::V4(all) => self.listed(all[at].address.into(), all[at].node, all[at].says),
            Endpoints::Any(all) => self.listed(all[at].address, all[at].node, all[at].says),
        })
    }

    fn len(&self) -> usize {
        match &self.endpoints {
            Endpoints::V4(all) => all.len(),
            Endpoints::Any(all) => all.len(),
        }
    }

    fn listed(&self, address: IpAddr, node: Option<NameId>, says: u32) -> ListedEndpoint<'_> {
        let more = (says >> BITS).checked_sub(1).and_then(|at| self.more.get(at as usize));
        ListedEndpoint { address, node, says: says & ((1 << BITS) - 1), more: more.map(|more| &**more) }
    }

    /// Whether the slice is equal to this object, of the same Service.
    pub(super) fn is(&self, object: &SliceObject, names: &Names) -> bool {
        self.len() == object.endpoints.len()
            && self.endpoints().zip(&object.endpoints).all(|(one, object)| one.is(object, names))
    }

    /// The object that was stored. `text`: the text of each name.
    pub(super) fn object<'a>(&self, service: Arc<str>, text: impl Fn(NameId) -> &'a Arc<str>) -> SliceObject {
        let endpoints = self.endpoints().map(|endpoint| endpoint.object(&text)).collect();
        SliceObject { name: Arc::clone(&self.name), service, endpoints }
    }

    /// Gives the names of its nodes back.
    pub(super) fn give_back(&self, names: &mut Names) {
        self.endpoints().filter_map(|endpoint| endpoint.node).for_each(|node| names.give_back(node));
    }
}

impl<'a> ListedEndpoint<'a> {
    /// Whether its source says that it shares its node's network.
    pub(super) const fn host_network(&self) -> bool {
        self.says & HOST_NETWORK != 0
    }

    pub(super) const fn ready(&self) -> bool {
        self.says & READY != 0
    }

    pub(super) const fn serving(&self) -> bool {
        self.says & SERVING != 0
    }

    pub(super) const fn terminating(&self) -> bool {
        self.says & TERMINATING != 0
    }

    pub(super) fn zone(&self) -> Option<&'a Arc<str>> {
        self.more?.zone.as_ref()
    }

    /// Its own ports by the names of the Service's; `None` where they are the Service's targets.
    pub(super) fn ports(&self) -> Option<&'a BTreeMap<String, u16>> {
        self.more?.ports.as_deref()
    }

    pub(super) fn hints(&self) -> Option<&'a Hints> {
        self.more?.hints.as_deref()
    }

    fn is(&self, object: &EndpointObject, names: &Names) -> bool {
        let node = self.node.map(|node| &**names.text(node));
        self.address == object.address
            && self.says == says(object)
            && node == object.node.as_deref()
            && self.zone() == object.zone.as_ref()
            && self.ports() == object.ports.as_deref()
            && self.hints() == object.hints.as_deref()
    }

    fn object<'b>(&self, text: &impl Fn(NameId) -> &'b Arc<str>) -> EndpointObject {
        EndpointObject {
            address: self.address,
            node: self.node.map(|node| NodeName::from(Arc::clone(text(node)))),
            host_network: self.host_network(),
            zone: self.zone().cloned(),
            ports: self.more.and_then(|more| more.ports.clone()),
            ready: self.ready(),
            serving: self.serving(),
            terminating: self.terminating(),
            hints: self.hints().cloned().map(Box::new),
        }
    }
}

/// A set of shared contents, each once.
#[derive(Debug)]
pub(super) struct Alike<T> {
    places: HashMap<Arc<T>, u32>,
    all: Vec<Arc<T>>,
}

impl<T> Default for Alike<T> {
    fn default() -> Self {
        Self { places: HashMap::new(), all: Vec::new() }
    }
}

impl<T: Default + Eq + Hash> Alike<T> {
    /// The shared content; `None` where it is empty.
    pub(super) fn of(&mut self, one: T) -> Option<Arc<T>> {
        let place = self.place(one).checked_sub(1)?;
        self.all.get(place as usize).cloned()
    }

    /// One more than the content's place; 0 where it is empty.
    fn place(&mut self, one: T) -> u32 {
        if one == T::default() {
            return 0;
        }
        if let Some(known) = self.places.get(&one) {
            return *known;
        }
        let new = Arc::new(one);
        self.all.push(Arc::clone(&new));
        let place = self.all.len() as u32;
        self.places.insert(new, place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(last: u8, node: Option<&str>, zone: Option<&str>) -> EndpointObject {
        let zone = zone.map(Into::into);
        EndpointObject { zone, ..EndpointObject::ready([10, 1, 0, last].into(), node.map(Into::into)) }
    }

    #[test]
    fn it_is_the_object_that_it_was_and_no_other() {
        let hints = Hints { zones: ["z".into()].into(), nodes: ["n".into()].into() };
        let some = endpoint(1, Some("a"), Some("z"));
        let all = [
            some.clone(),
            endpoint(2, Some("a"), Some("z")),
            endpoint(1, Some("b"), Some("z")),
            endpoint(1, None, Some("z")),
            endpoint(1, Some("a"), Some("y")),
            endpoint(1, Some("a"), None),
            EndpointObject { host_network: true, ..some.clone() },
            EndpointObject { ready: false, ..some.clone() },
            EndpointObject { serving: false, ..some.clone() },
            EndpointObject { terminating: true, ..some.clone() },
            EndpointObject { ports: Some(Arc::default()), ..some.clone() },
            EndpointObject { ports: Some(Arc::new([("http".to_owned(), 80)].into())), ..some.clone() },
            EndpointObject { address: "fd00::1".parse().unwrap(), ..some.clone() },
            EndpointObject { hints: Some(Box::new(hints)), ..some },
        ];
        let slice = |endpoints: &[EndpointObject]| SliceObject {
            name: "s".into(),
            service: "x/a".into(),
            endpoints: endpoints.to_vec(),
        };
        let mut names = Names::default();
        for (at, one) in all.iter().enumerate() {
            let kept = Slice::new(slice(std::slice::from_ref(one)), &mut names);
            assert_eq!(kept.object("x/a".into(), |name| names.text(name)), slice(std::slice::from_ref(one)));
            for (other_at, other) in all.iter().enumerate() {
                let is = kept.is(&slice(std::slice::from_ref(other)), &names);
                assert_eq!(is, at == other_at, "{one:?} {other:?}");
            }
            assert!(!kept.is(&slice(&[one.clone(), one.clone()]), &names));
            kept.give_back(&mut names);
        }
        // Of both families, and all that can be said.
        let kept = Slice::new(slice(&all), &mut names);
        assert_eq!(kept.object("x/a".into(), |name| names.text(name)), slice(&all));
        assert!(kept.is(&slice(&all), &names) && !kept.is(&slice(&all[1..]), &names));
        kept.give_back(&mut names);
        names.sweep();
        assert_eq!((names.find("a"), names.find("b")), (None, None));
    }

    #[test]
    fn what_endpoints_say_alike_is_kept_once_and_each_is_small() {
        let endpoints = vec![
            endpoint(1, Some("a"), Some("z")),
            endpoint(2, Some("b"), Some("z")),
            endpoint(3, Some("b"), None),
        ];
        let object = SliceObject { name: "s".into(), service: "x/a".into(), endpoints };
        let kept = Slice::new(object, &mut Names::default());
        let more: Vec<Option<&More>> = kept.endpoints().map(|endpoint| endpoint.more).collect();
        assert!(std::ptr::eq(more[0].unwrap(), more[1].unwrap()) && more[2].is_none());
        assert!(kept.more.len() == 1 && matches!(kept.endpoints, Endpoints::V4(_)));
        let sizes = (size_of::<Packed<Ipv4Addr>>(), size_of::<Packed<IpAddr>>());
        assert_eq!((sizes, size_of::<crate::cluster::Endpoint>()), ((12, 28), 32));
    }
}
