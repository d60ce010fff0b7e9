//! `nodefence` whose agent follows objects from its standard input, for tests and benchmarks. Everything else is as in `nodefence`.
//!
//! Each line is a change. The end of the input is the end of the source.
//! - `node NODE`, `service SERVICE`, `slice SLICE`: the object exists and has this content.
//! - `nodes NODE...`, `services SERVICE...`, `slices SLICE...`: these are all objects of the kind.
//! - `gone node NAME`, `gone service NAME`, `gone slice NAME`: the object was deleted.
//!
//! NODE is `NAME=ADDRESS,...`. SERVICE is `NAME=ADDRESS:PORT`, with an IPv4 address or `None`, target port 8080 and TCP. SLICE is
//! `NAME=SERVICE:ADDRESS@NODE,...`.

use std::{collections::HashSet, io::BufRead as _, sync::Arc};

use anyhow::{Context as _, Result, bail};
use nodefence::{
    allocator::{MiMalloc, give_back_at_once},
    cluster::{
        Change, EndpointObject, NodeObject, ObjectName, Protocol, ServiceObject, ServicePort, SliceObject,
        SourceName,
    },
    source::{Objects, Teller, changes},
};

/// The allocator of `nodefence`, since benchmarks measure the memory of this program in its place.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> std::process::ExitCode {
    give_back_at_once();
    let (teller, changes) = changes();
    std::thread::spawn(move || {
        if let Err(error) = read(&teller) {
            eprintln!("nodefence-objects: {error:#}");
        }
    });
    let name = SourceName::new("the list of objects", "objects");
    nodefence::cli::main_with(Some(Objects { name, services: true, confirms: false, changes }))
}

fn read(teller: &Teller) -> Result<()> {
    let mut reader = Reader::default();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        teller.tell(reader.change(&line).with_context(|| format!("in `{line:.80}`"))?);
    }
    Ok(())
}

/// Reads lines. A text that occurs in many objects is stored once, as a frugal source does.
#[derive(Default)]
struct Reader(HashSet<Arc<str>>);

impl Reader {
    fn change(&mut self, line: &str) -> Result<Change> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split_whitespace();
        let mut one = || words.next().context("there is no object");
        Ok(match verb {
            "node" => Change::Node(self.node(one()?)?),
            "service" => Change::Service(self.service(one()?)?),
            "slice" => Change::Slice(self.slice(one()?)?),
            "nodes" => Change::Nodes(words.map(|word| self.node(word)).collect::<Result<_>>()?),
            "services" => Change::Services(words.map(|word| self.service(word)).collect::<Result<_>>()?),
            "slices" => Change::Slices(words.map(|word| self.slice(word)).collect::<Result<_>>()?),
            "gone" => Change::Gone(match (one()?, one()?) {
                ("node", name) => ObjectName::Node(name.into()),
                ("service", name) => ObjectName::Service(name.into()),
                ("slice", name) => ObjectName::Slice(name.into()),
                (kind, _) => bail!("`{kind}` is no kind of objects"),
            }),
            _ => bail!("`{verb}` is no change"),
        })
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.0.insert(Arc::clone(&new));
        new
    }

    fn node(&mut self, word: &str) -> Result<NodeObject> {
        let (name, addresses) = split(word, '=')?;
        let addresses = addresses.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(NodeObject::new(self.text(name), addresses))
    }

    fn service(&mut self, word: &str) -> Result<ServiceObject> {
        let (name, reached) = split(word, '=')?;
        let (address, port) = split(reached, ':')?;
        let port = ServicePort {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: port.parse()?,
            target: 8080,
            node_port: None,
        };
        let address = (address != "None").then(|| address.parse()).transpose()?;
        Ok(ServiceObject::new(self.text(name), address.into_iter().collect(), vec![port]))
    }

    fn slice(&mut self, word: &str) -> Result<SliceObject> {
        let (name, rest) = split(word, '=')?;
        let (service, endpoints) = split(rest, ':')?;
        let endpoints = endpoints.split(',').map(|text| self.endpoint(text)).collect::<Result<_>>()?;
        Ok(SliceObject { name: self.text(name), service: self.text(service), endpoints })
    }

    fn endpoint(&mut self, text: &str) -> Result<EndpointObject> {
        let (address, node) = split(text, '@')?;
        Ok(EndpointObject::ready(address.parse()?, Some(self.text(node).into())))
    }
}

fn split(text: &str, at: char) -> Result<(&str, &str)> {
    text.split_once(at).with_context(|| format!("`{text:.40}` has no `{at}`"))
}
