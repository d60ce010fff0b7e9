//! The kernel programs on packets that BPF_PROG_TEST_RUN cannot make: GSO and CHECKSUM_PARTIAL, cloned and non-linear skbs,
//! devices without an Ethernet header, tunnels, and the redirect itself. No agent takes part.

use std::{fs::File, io::Write as _, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nodefence_common::Reason;
use nodefence_tests::{
    Cluster, Conn, Family, Options, Outcome, Overlay, Place,
    audit::BOTH,
    bare::{self, Bare},
    capture::{Capture, Frame},
    checks::{Case, Fence as _, SOON, reset_at_next_packet, sums_hold},
    client::pattern,
    topology::{NODE_PORT_OF_ITS_OWN, Service},
};

fn matrix(options: Options) -> Result<()> {
    bare::matrix(options, &options.interfaces())
}

nodefence_tests::each_topology!(matrix);

/// Uploads from each of these places, one after the other.
fn uploads(options: Options, cases: &[(Place, Family)]) -> Result<()> {
    let cluster = Cluster::new(options)?;
    let mut bare = Bare::start(&cluster)?;
    for &(place, family) in cases {
        let case = Case { cluster: &cluster, place, family };
        upload(case, &mut bare).with_context(|| case.to_string())?;
        bare.unflag("node-b")?;
    }
    Ok(())
}

/// Uploads in segments of 64 KiB (GSO) until the node is flagged. The checksums of the RST must be valid where the client receives it.
fn upload(case: Case<'_>, bare: &mut Bare) -> Result<()> {
    let Case { cluster, place, family } = case;
    let resets = bare.counter(Reason::Reset)?;
    let mut conn = case.to_b(Service::Web)?;
    let device = if place == Place::Node { "lo" } else { "eth0" };
    let capture = Capture::start(cluster.at(place), device)?;
    conn.start_upload(1 << 30)?;
    let block = pattern(256 << 10);
    for _ in 0..64 {
        conn.stream.write_all(&block)?;
    }
    bare.flag("node-b")?;
    let ended = (|| loop {
        conn.stream.write_all(&block)?;
    })();
    let error: std::io::Error = match ended {
        Ok(never) => never,
        Err(error) => error,
    };
    ensure!(Outcome::of(&error) == Outcome::Reset, "{case}: {error}");
    let frames = capture.finish();
    ensure!(bare.counter(Reason::Reset)? > resets && bare.counter(Reason::Failed)? == 0);
    if place != Place::Node {
        let from = cluster.service(Service::Web, place, family).ip();
        if cluster.options.offloads {
            let big = frames.iter().any(|frame| frame.outgoing && frame.bytes.len() > 10_000);
            ensure!(big, "no segment was larger than a wire's packet: GSO was off");
            let received: Vec<Frame> =
                frames.into_iter().filter(|frame| !frame.outgoing && is_rst(frame)).collect();
            ensure!(!received.is_empty(), "no RST captured");
        } else {
            sums_hold(&frames, from)?;
        }
    }
    Ok(())
}

fn is_rst(frame: &Frame) -> bool {
    frame.segment().is_some_and(|segment| segment.rst)
}

#[test]
fn gso_uploads() -> Result<()> {
    let all = Place::ALL.into_iter().flat_map(|place| BOTH.map(|family| (place, family)));
    uploads(Options::default(), &all.collect::<Vec<_>>())
}

#[test]
fn gso_uploads_through_tunnels() -> Result<()> {
    for overlay in [Overlay::Vxlan, Overlay::VxlanMetadata, Overlay::Tun] {
        let options = Options { overlay, ..Options::default() };
        uploads(options, &[(Place::Pod, Family::V4), (Place::Node, Family::V6)])?;
    }
    Ok(())
}

#[test]
fn sums_hold_on_the_wire_after_uploads() -> Result<()> {
    let options = Options { offloads: false, ..Options::default() };
    uploads(options, &BOTH.map(|family| (Place::Outside, family)))?;
    uploads(Options { masquerade: false, ..options }, &BOTH.map(|family| (Place::Pod, family)))
}

/// A CHECKSUM_PARTIAL packet becomes a RST that goes back through a device without offloads. There the kernel writes out the checksum, so that the capture sees it.
#[test]
fn sums_of_partial_packets_hold_on_the_wire() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let cluster = Cluster::new(Options::default())?;
        let mut bare = Bare::start(&cluster)?;
        // Only the devices back to the clients are without offloads. The devices towards the backends keep theirs.
        for device in ["out0", "pod0"] {
            cluster.a.ns.exec(&format!("ethtool -K {device} tx off"))?;
        }
        for place in [Place::Outside, Place::Pod] {
            cluster.at(place).exec("ethtool -K eth0 rx off")?;
            let case = Case { cluster: &cluster, place, family };
            for len in [1, 10, 1_000, 65_000] {
                let mut conn = case.to_b(Service::Web)?;
                let capture = Capture::start(cluster.at(place), "eth0")?;
                bare.flag("node-b")?;
                let outcome = conn.echo(&pattern(len)).map_err(|error| Outcome::of(&error));
                ensure!(outcome == Err(Outcome::Reset), "{case}: {len} bytes: {outcome:?}");
                let received: Vec<Frame> =
                    capture.finish().into_iter().filter(|frame| !frame.outgoing).collect();
                sums_hold(&received, cluster.service(Service::Web, place, family).ip())?;
                bare.unflag("node-b")?;
            }
        }
    }
    Ok(())
}

/// A capture makes the kernel clone each packet that arrives, and TCP sends clones of packets that it may have to retransmit. The cut must not write into data
/// that others still read.
#[test]
fn cloned_packets_are_not_written_to() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut bare = Bare::start(&cluster)?;
    for (place, device) in [(Place::Outside, "out0"), (Place::Pod, "pod0")] {
        let mut conn = Case { cluster: &cluster, place, family: Family::V4 }.to_b(Service::Web)?;
        let client = conn.stream.local_addr()?;
        let capture = Capture::start(&cluster.a.ns, device)?;
        bare.flag("node-b")?;
        let payload = pattern(1_000);
        ensure!(conn.echo(&payload).is_err());
        let frames = capture.finish();
        let sent: Vec<_> = frames
            .iter()
            .filter(|frame| !frame.outgoing)
            .filter_map(Frame::segment)
            .filter(|segment| segment.src == client.ip() && segment.sport == client.port())
            .collect();
        ensure!(
            sent.iter().all(|segment| !segment.rst),
            "{place:?}: the capture shows the answer in place of the client's packet"
        );
        ensure!(
            sent.iter().any(|segment| segment.payload.ends_with(&payload)),
            "{place:?}: the client's bytes are not in the capture: {sent:?}"
        );
        bare.unflag("node-b")?;
    }
    Ok(())
}

/// The payload is in the page cache (sendfile). The packet becomes a RST, and the file must not change.
#[test]
fn pages_of_a_file_are_not_written_to() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut bare = Bare::start(&cluster)?;
    for place in Place::ALL {
        let mut file = tempfile::NamedTempFile::new()?;
        let content = pattern(4 << 20);
        file.write_all(&content)?;
        let mut conn = Case { cluster: &cluster, place, family: Family::V4 }.to_b(Service::Web)?;
        conn.start_upload(content.len())?;
        bare.flag("node-b")?;
        let source = File::open(file.path())?;
        let mut offset = 0;
        let error = loop {
            match nix::sys::sendfile::sendfile(&conn.stream, &source, Some(&mut offset), 1 << 20) {
                Ok(0) => {
                    break conn.stream.take_error()?.context("the whole file was sent without an error")?;
                }
                Ok(_) => {}
                Err(error) => break error.into(),
            }
        };
        ensure!(Outcome::of(&error) == Outcome::Reset, "{place:?}: {error}");
        ensure!(std::fs::read(file.path())? == content, "{place:?}: the file has changed");
        bare.unflag("node-b")?;
    }
    Ok(())
}

#[test]
fn what_is_no_backend_goes_on() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut bare = Bare::start(&cluster)?;
    for family in [Family::V4, Family::V6] {
        let own = (cluster.b.address(family), NODE_PORT_OF_ITS_OWN).into();
        let mut conn = Conn::connect(&cluster.a.ns, own, SOON)?;
        let mut cut = Conn::connect(&cluster.a.ns, (cluster.b.address(family), 9100).into(), SOON)?;
        ensure!(conn.who()? == "node-b" && cut.who()? == "node-b");
        bare.flag("node-b")?;
        reset_at_next_packet(&mut cut)?;
        conn.echo(&pattern(100_000)).context("a port of the node itself was cut")?;
        ensure!(Conn::connect(&cluster.a.ns, own, SOON)?.who()? == "node-b");
        bare.unflag("node-b")?;
    }
    Ok(())
}

/// A hung node's kernel still acknowledges segments. The reset comes at the client's next packet all the same.
#[test]
fn frozen_servers_are_cut_at_the_next_packet() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let mut bare = Bare::start(&cluster)?;
    let mut conns = Vec::new();
    for place in Place::ALL {
        for family in [Family::V4, Family::V6] {
            conns.push(Case { cluster: &cluster, place, family }.to_b(Service::Web)?);
        }
    }
    cluster.b.freeze()?;
    for conn in &mut conns {
        conn.limit(Some(Duration::from_millis(300)))?;
        ensure!(conn.request() == Outcome::TimedOut, "a frozen server answered");
    }
    bare.flag("node-b")?;
    for conn in &mut conns {
        reset_at_next_packet(conn)?;
    }
    Ok(())
}

/// A datagram with a complete checksum is answered in place, by an ICMP message with a valid checksum.
#[test]
fn datagrams_are_refused_in_place() -> Result<()> {
    let cluster = Cluster::new(Options { offloads: false, ..Options::default() })?;
    let mut bare = Bare::start(&cluster)?;
    for family in [Family::V4, Family::V6] {
        for place in [Place::Outside, Place::Pod] {
            for len in [0, 1, 27, 1_400] {
                let flow = Case { cluster: &cluster, place, family }.udp_to_b()?;
                let capture = Capture::start(cluster.at(place), "eth0")?;
                bare.flag("node-b")?;
                let outcome = flow.exchange(&pattern(len)).map_err(|error| Outcome::of(&error));
                ensure!(outcome == Err(Outcome::Refused), "{place:?}, {family:?}, {len} bytes: {outcome:?}");
                let frames = capture.finish();
                frames.iter().try_for_each(Frame::verify)?;
                let service = cluster.service(Service::Dns, place, family).ip();
                let refusals = frames.iter().filter_map(Frame::segment).filter(|segment| segment.unreachable);
                // NAT may or may not translate the source address of the message to the Service's.
                ensure!(refusals.count() > 0, "{place:?}, {family:?}: no ICMP message about {service}");
                bare.unflag("node-b")?;
            }
        }
    }
    ensure!(bare.counter(Reason::Handed)? == 0, "packets were handed to user space");
    Ok(())
}
