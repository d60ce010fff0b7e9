use std::{fs, path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::{
    cluster::{
        Backend, Builder, Change, ClusterView, Conflict, EndpointObject, Hints, NodeObject, ObjectName,
        Protocol, Rules, Scope, ServiceMode, ServiceObject, ServicePort, SliceObject, SourceName,
        TrafficPolicy,
    },
    enforce::Now,
    source::{Kept, Objects, Stored, StoredAge, changes},
};

const SOURCE: SourceName = SourceName::new("the test", "test");

fn at(wall: i64, boot: u64) -> Now {
    let wall = Timestamp::from_second(wall).unwrap();
    Now { mono: boot * 1_000_000_000, boot: Duration::from_secs(boot), wall }
}

fn node(name: &str, last: u8) -> NodeObject {
    let addresses = vec![[10, 0, 0, last].into(), format!("fd00::{last}").parse().unwrap()];
    let uid = Some(format!("uid-{name}").into());
    NodeObject {
        uid,
        zone: Some("z1".into()),
        pool: Some("front".into()),
        ..NodeObject::new(name, addresses)
    }
}

fn port(name: &str, target: u16) -> ServicePort {
    let node_port = Some(30_000 + target);
    ServicePort { name: name.to_owned(), protocol: Protocol::Tcp, port: 80, target, node_port }
}

fn endpoint(last: u8, node: &str) -> EndpointObject {
    EndpointObject::ready([10, 1, 0, last].into(), Some(node.into()))
}

/// Objects with all that objects can have, in the order of their kinds and names.
fn objects() -> (Vec<NodeObject>, Vec<ServiceObject>, Vec<SliceObject>) {
    let backend = |scope| Backend { address: [10, 0, 0, 2].into(), scope };
    let pod = Backend { address: [10, 1, 0, 77].into(), scope: Scope::Address };
    let with_backends = vec![backend(Scope::Port(9100, Protocol::Tcp)), pod];
    let nodes = vec![node("a", 1), NodeObject { backends: with_backends, ..node("b", 2) }, node("c", 3)];
    let full = ServiceObject {
        external_ips: vec![[192, 0, 2, 1].into()],
        load_balancer_ips: vec![[198, 51, 100, 9].into()],
        affinity: Some(Duration::from_secs(10_800)),
        internal: TrafficPolicy::Local,
        external: TrafficPolicy::Local,
        mode: ServiceMode::Observe,
        ..ServiceObject::new(
            "x/full",
            vec![[10, 96, 0, 1].into(), "fd00:96::1".parse().unwrap()],
            vec![port("http", 8080), ServicePort { node_port: None, port: 81, ..port("metrics", 9100) }],
        )
    };
    let headless = ServiceObject::new("x/headless", Vec::new(), vec![port("", 5432)]);
    let portless = ServiceObject::new("x/portless", Vec::new(), Vec::new());
    let ports = Some(Arc::new([("http".to_owned(), 8081)].into()));
    let hints = Hints { zones: ["z1".into()].into(), nodes: ["a".into(), "b".into()].into() };
    let of_full = vec![
        EndpointObject { zone: Some("z1".into()), ports: ports.clone(), ..endpoint(1, "b") },
        EndpointObject { zone: Some("z1".into()), ports, ..endpoint(2, "b") },
        EndpointObject { hints: Some(Box::new(hints)), ..endpoint(3, "c") },
        EndpointObject { ready: false, ..endpoint(4, "c") },
        EndpointObject { ready: false, serving: false, terminating: true, ..endpoint(5, "c") },
        EndpointObject { node: None, ..endpoint(6, "") },
        EndpointObject { address: [10, 0, 0, 3].into(), host_network: true, ..endpoint(7, "c") },
        EndpointObject { address: "fd00::1:8".parse().unwrap(), ..endpoint(8, "c") },
        endpoint(9, "nowhere"),
    ];
    let slice = |name: &str, service: &str, endpoints| SliceObject {
        name: name.into(),
        service: service.into(),
        endpoints,
    };
    let slices = vec![
        slice("x/full-1", "x/full", of_full),
        slice("x/full-2", "x/full", Vec::new()),
        slice("x/headless-1", "x/headless", vec![endpoint(11, "b")]),
        slice("x/of-nobody-1", "x/of-nobody", vec![endpoint(12, "b")]),
        slice("x/portless-1", "x/portless", vec![endpoint(13, "b")]),
        slice("x/unreadable-1", "x/unreadable", vec![endpoint(1, "b")]),
    ];
    (nodes, vec![full, headless, portless], slices)
}

/// A Service that cannot be read has an endpoint of another one, which is cut for no node because of that.
fn left_out() -> Vec<Conflict> {
    let field = "spec.ports[0].port".to_owned();
    let message = "0 is no port: expected 1 to 65535".to_owned();
    vec![Conflict { object: ObjectName::Service("x/unreadable".into()), field, message, is_usual: false }]
}

fn builder() -> Builder {
    let (nodes, services, slices) = objects();
    let lists = [Change::Slices(slices), Change::Services(services), Change::Nodes(nodes)];
    let mut builder = Builder::new(Rules::Tolerant);
    builder.apply_all(lists.into_iter().chain(left_out().into_iter().map(Change::LeftOut)));
    builder
}

fn kept(builder: &Builder) -> Kept {
    Kept { source: SOURCE, objects: builder.objects(), left_out: left_out() }
}

fn loaded(file: &ViewFile, now: Now) -> Stored {
    match file.load(SOURCE, now).unwrap() {
        Loaded::View(stored) => stored,
        other => panic!("{other:?}"),
    }
}

/// The view and the conflicts of a source from which nothing but this has come.
fn view_of(stored: Stored) -> (ClusterView, Vec<Conflict>) {
    let (_teller, changes) = changes();
    changes.recaller().recall(Ok(stored));
    let objects = Objects { name: SOURCE, services: true, confirms: true, changes };
    let mut gathered = crate::source::Gathered::new(objects);
    let stored = gathered.recalled().unwrap().unwrap();
    let brought = gathered.take_stored(*stored);
    (gathered.view(), brought)
}

#[test]
fn the_same_view_follows_from_what_was_stored() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    assert_eq!(file.load(SOURCE, at(1_000, 20)).unwrap(), Loaded::Nothing);
    let mut builder = builder();
    file.save(&kept(&builder), at(1_000, 10)).unwrap();
    let stored = loaded(&file, at(1_007, 17));
    let (nodes, services, slices) = objects();
    let age = StoredAge { confirmed: at(1_000, 10), before_boot: Duration::ZERO };
    assert_eq!(stored, Stored { nodes, services, slices, left_out: left_out(), age });
    let (view, conflicts) = view_of(stored);
    let wanted = ClusterView { source: SOURCE, ..builder.view() };
    assert_eq!(view, wanted);
    // Endpoints that a Service withholds stay withheld.
    let of_b: Vec<_> = view.node("b").unwrap().backends.iter().map(|backend| backend.address).collect();
    for withheld in [[10, 1, 0, 1], [10, 1, 0, 13]] {
        assert!(!of_b.contains(&withheld.into()), "{of_b:?}");
    }
    let known: Vec<Conflict> = builder.conflicts().cloned().chain(left_out()).collect();
    assert_eq!(conflicts, known);
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(file.path()).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_endpoints_share_stands_in_the_file_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    file.save(&kept(&builder()), at(1_000, 10)).unwrap();
    let text = fs::read_to_string(file.path()).unwrap();
    assert_eq!(text.matches("8081").count(), 1, "{text}");
    let stored = loaded(&file, at(1_000, 10));
    let [one, other] = [0, 1].map(|place| stored.slices[0].endpoints[place].ports.clone().unwrap());
    assert!(Arc::ptr_eq(&one, &other));
}

#[test]
fn objects_that_are_replaced_meanwhile_are_stored_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    let mut builder = builder();
    let before = kept(&builder);
    let revision = builder.revision();
    builder.apply_all([
        Change::Nodes(vec![node("z", 9)]),
        Change::Services(Vec::new()),
        Change::Slices(Vec::new()),
    ]);
    assert!(builder.revision() > revision);
    file.save(&before, at(1_000, 10)).unwrap();
    let stored = loaded(&file, at(1_000, 10));
    let (nodes, services, slices) = objects();
    assert_eq!((stored.nodes, stored.services, stored.slices), (nodes, services, slices));
}

#[test]
fn the_revision_rises_with_changes_alone() {
    let mut builder = builder();
    let revision = builder.revision();
    let (nodes, services, slices) = objects();
    builder.apply_all(nodes.iter().cloned().map(Change::Node));
    builder.apply_all(services.iter().cloned().map(Change::Service));
    builder.apply_all(slices.iter().cloned().map(Change::Slice));
    assert_eq!(builder.revision(), revision);
    for change in [
        Change::Node(NodeObject { zone: None, ..nodes[0].clone() }),
        Change::Service(ServiceObject { affinity: None, ..services[0].clone() }),
        Change::Slice(SliceObject { endpoints: Vec::new(), ..slices[0].clone() }),
        Change::Gone(ObjectName::Slice("x/full-2".into())),
    ] {
        let before = builder.revision();
        builder.apply(change);
        assert!(builder.revision() > before);
    }
}

#[test]
fn the_age_counts_from_the_last_confirmation() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    let sum = file.save(&kept(&builder()), at(1_000, 10)).unwrap();
    let age = |now| loaded(&file, now).age;
    // Within a boot the wall clock may be set to anything.
    for wall in [1_000 - 86_400, 1_050, 1_000 + 86_400] {
        let found = age(at(wall, 60));
        assert_eq!((found.confirmed.boot, found.before_boot), (Duration::from_secs(10), Duration::ZERO));
        assert_eq!(found.confirmed.mono, 10_000_000_000);
    }
    file.confirm(sum, at(1_030, 40)).unwrap();
    assert_eq!(age(at(1_050, 60)).confirmed, at(1_030, 40));
    // It is of another view.
    file.confirm(sum ^ 1, at(1_040, 50)).unwrap();
    assert_eq!(age(at(1_050, 60)).confirmed, at(1_000, 10));
    fs::write(dir.path().join("view-confirmed.json"), "{").unwrap();
    assert_eq!(age(at(1_050, 60)).confirmed, at(1_000, 10));
}

/// Changes the boot to which the times in a file belong.
fn of_another_boot(file: &ViewFile) {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    resummed(file, |text| text.replace(boot_id.trim(), "another"));
}

/// Changes the file, and gives it a checksum that fits.
fn resummed(file: &ViewFile, change: impl Fn(&str) -> String) {
    let text = fs::read_to_string(file.path()).unwrap();
    let before = change(&text[..text.rfind("{\"end\"").unwrap()]);
    let sum = crc32fast::hash(before.as_bytes());
    fs::write(file.path(), format!("{before}{{\"end\":{sum}}}\n")).unwrap();
}

#[test]
fn after_a_boot_the_age_is_the_wall_clocks() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    file.save(&kept(&builder()), at(1_000, 500)).unwrap();
    of_another_boot(&file);
    let found = loaded(&file, at(1_090, 30)).age;
    assert_eq!(found.before_boot, Duration::from_secs(60));
    assert_eq!((found.confirmed.boot, found.confirmed.mono), (Duration::ZERO, 0));
    assert_eq!(found.confirmed.wall, Timestamp::from_second(1_000).unwrap());
    // The machine has run for longer than the wall clock, which was set back, says.
    let found = loaded(&file, at(1_090, 300)).age;
    assert_eq!((found.before_boot, found.confirmed.boot), (Duration::ZERO, Duration::ZERO));
}

#[test]
fn a_view_from_the_future_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    let unusable = |now| match file.load(SOURCE, now).unwrap() {
        Loaded::Unusable(why) => why,
        other => panic!("{other:?}"),
    };
    file.save(&kept(&builder()), at(1_000, 500)).unwrap();
    assert!(unusable(at(1_000, 499)).contains("view.json is from the future"));
    of_another_boot(&file);
    assert!(unusable(at(999, 600)).contains("view.json is from the future"));
    // The file may be good once the clock is.
    assert_eq!(loaded(&file, at(1_001, 600)).nodes.len(), 3);
}

fn rejected(file: &ViewFile, now: Now) -> String {
    let text = fs::read(file.path()).unwrap();
    let Loaded::Unusable(why) = file.load(SOURCE, now).unwrap() else { panic!("it was taken") };
    assert!(!file.path().exists());
    assert_eq!(fs::read(bad(file.path())).unwrap(), text);
    why
}

fn bad(path: &Path) -> std::path::PathBuf {
    path.with_extension("json.bad")
}

#[test]
fn a_file_that_cannot_be_believed_gives_no_view_and_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    let now = at(1_000, 10);
    file.save(&kept(&builder()), now).unwrap();
    let good = fs::read_to_string(file.path()).unwrap();
    let half = good[..good.len() / 2].rfind('\n').unwrap() + 1;
    for (text, says) in [
        (String::new(), "is damaged: it ends too early"),
        (good[..good.len() / 2].to_owned(), "is damaged: it ends too early"),
        // Whole lines, and the file ends between two.
        (good[..half].to_owned(), "is damaged: it ends too early"),
        (good[..good.len() - 1].to_owned(), "is damaged: it ends too early"),
        (format!("{good}x"), "is damaged: it goes on after its end"),
        (good.replace("10.1.0.2", "10.1.0.3"), "is damaged: the checksum is another one"),
        (good.replace("\"zone\"", "\"zome\""), "is damaged: unknown field `zome`"),
    ] {
        assert_ne!(text, good, "{says}");
        fs::write(file.path(), text).unwrap();
        let why = rejected(&file, now);
        let wanted = format!("{} {says}", file.path().display());
        assert!(why.starts_with(&wanted) && why.contains("; kept as "), "{why}");
    }
    fs::write(file.path(), &good).unwrap();
    resummed(&file, |text| text.replace(",3,0]", ",3,70]"));
    resummed(&file, |text| text.replace(",6,0]", ",6,70]"));
    assert!(rejected(&file, now).contains("an endpoint names content that is not there"));
}

/// The agent that runs may use it, and this one may never take over.
#[test]
fn a_file_of_another_version_or_source_stays_until_a_view_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    let now = at(1_000, 10);
    file.save(&kept(&builder()), now).unwrap();
    let good = fs::read_to_string(file.path()).unwrap();
    for (text, says) in [
        (good.replace("\"version\":1", "\"version\":2"), "is of version 2, expected 1"),
        ("{\"version\":9,\"view\":[]}\n".to_owned(), "is of version 9, expected 1"),
        (
            good.replace("\"source\":\"test\"", "\"source\":\"other\""),
            "is of the source `other`, expected `test`",
        ),
    ] {
        assert_ne!(text, good, "{says}");
        fs::write(file.path(), &text).unwrap();
        let Loaded::Unusable(why) = file.load(SOURCE, now).unwrap() else { panic!("it was taken") };
        assert_eq!(why, format!("{} {says}", file.path().display()));
        assert_eq!(fs::read_to_string(file.path()).unwrap(), text);
        assert!(!bad(file.path()).exists());
    }
    file.save(&kept(&builder()), now).unwrap();
    assert_eq!(loaded(&file, now).nodes.len(), 3);
}

#[test]
fn what_is_no_regular_file_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = ViewFile::new(dir.path());
    nix::unistd::mkfifo(file.path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = file.load(SOURCE, at(1_000, 10)).unwrap_err().to_string();
    assert!(error.ends_with("view.json: is not a regular file; move it away"), "{error}");
    nix::unistd::mkfifo(&dir.path().join("view.json.new"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let sum = file.save(&kept(&builder()), at(1_000, 10)).unwrap();
    file.confirm(sum, at(1_000, 11)).unwrap();
    fs::write(bad(file.path()), "").unwrap();
    assert!(file.remove().unwrap() && !file.remove().unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let missing = ViewFile::new(&dir.path().join("missing"));
    let error = missing.save(&kept(&builder()), at(1_000, 10)).unwrap_err().to_string();
    assert!(error.contains("missing/view.json: "), "{error}");
}

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-z0-9./\"\\\\\u{e9} -]{0,12}".prop_map(Into::into)
}

fn any_endpoint() -> impl Strategy<Value = EndpointObject> {
    let hints = prop::option::of((prop::collection::btree_set(text(), 0..3), text()))
        .prop_map(|hints| hints.map(|(zones, node)| Box::new(Hints { zones, nodes: [node.into()].into() })));
    let ports = prop::option::of(prop::collection::btree_map("[a-z]{0,3}", any::<u16>(), 0..3));
    let marks = any::<[bool; 4]>();
    let place = (any::<std::net::IpAddr>(), prop::option::of(text()), prop::option::of(text()));
    (place, ports, hints, marks).prop_map(|((address, node, zone), ports, hints, marks)| EndpointObject {
        address,
        node: node.map(Into::into),
        host_network: marks[0],
        zone,
        ports: ports.map(Arc::new),
        ready: marks[1],
        serving: marks[2],
        terminating: marks[3],
        hints,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_slices_are_read_as_they_were(
        slices in prop::collection::btree_map(text(), (text(), prop::collection::vec(any_endpoint(), 0..12)), 0..5)
    ) {
        let slices = slices.into_iter().map(|(name, (service, endpoints))| SliceObject { name, service, endpoints });
        let slices: Vec<SliceObject> = slices.collect();
        let mut builder = Builder::new(Rules::Tolerant);
        builder.apply(Change::Slices(slices.clone()));
        let dir = tempfile::tempdir().unwrap();
        let file = ViewFile::new(dir.path());
        file.save(&kept(&builder), at(1_000, 10)).unwrap();
        let mut stored = loaded(&file, at(1_000, 10)).slices;
        stored.sort_by(|a, b| a.name.cmp(&b.name));
        prop_assert_eq!(stored, slices);
    }
}
