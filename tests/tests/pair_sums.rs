//! Checksums on a wire between two machines: one guest forwards and cuts, and the other one sends and checks the answers.
//!
//! Two guests run this at the same time (`cargo xtask vm-test`), each in its role. They share a link through virtio, where the guest makes the checksums, and a link
//! through vmxnet3, whose device makes the checksums that the kernel left to it.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MsFlags, mount};
use nodefence_tests::{
    Agent, Netns,
    capture::{Capture, Frame},
};

/// The driver of each link, and the number of the link in its networks: the third octet, or the second hextet.
const LINKS: [(&str, u8); 2] = [("virtio_net", 1), ("vmxnet3", 2)];
const BACKEND: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2))];
const ECHO: u16 = 8080;
const SINK: u16 = 8081;
const CONTROL: u16 = 7000;
const SOON: Duration = Duration::from_secs(20);
/// A datagram without an answer within this time is lost. The time is long, since a guest may stand still for seconds.
const UNANSWERED: Duration = Duration::from_secs(10);
/// The other guest may boot much later under emulation.
const BOOT: Duration = Duration::from_secs(240);

const CLUSTER: &str = "nodes:
  - name: node-a
    address: 10.9.0.1
  - name: node-b
    addresses: [10.9.0.3, 'fd00:9::3']
    backends:
      - address: 10.9.0.2
      - address: fd00:9::2
  - name: node-c
    address: 10.9.0.4
";

#[test]
fn answers_to_another_machine_are_summed_right() -> Result<()> {
    match std::env::var("NODEFENCE_ROLE").as_deref() {
        Ok("node") => node(),
        Ok("client") => client(),
        _ => {
            bail!("two guests run this test, each with NODEFENCE_ROLE: cargo xtask vm-test --test pair_sums")
        }
    }
}

/// Moves this guest's two network cards into a namespace. Gives their names in the order of [`LINKS`].
fn take_cards(ns: &Netns, host: u8) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (driver, link) in LINKS {
        let name = card(driver)?;
        let path = ns.path();
        let moved = Command::new("ip").args(["link", "set", &name, "netns"]).arg(&path).status()?;
        ensure!(moved.success(), "move {name} to {}", path.display());
        ns.ip(&format!(
            "addr add 192.0.{link}.{host}/24 dev {name}
             addr add fd00:{link}::{host}/64 dev {name} nodad
             link set {name} up"
        ))?;
        names.push(name);
    }
    // A namespace that ends closes its cards, and the driver of vmxnet3 in 5.10 may crash the kernel then (BUG in `vmxnet3_rq_destroy`). So this mount keeps
    // the namespace as long as the guest runs.
    let kept = format!("/run/netns-of-{host}");
    std::fs::File::create(&kept)?;
    let none: Option<&str> = None;
    mount(Some(&ns.path()), kept.as_str(), none, MsFlags::MS_BIND, none).context("keep the namespace")?;
    Ok(names)
}

fn card(driver: &str) -> Result<String> {
    for entry in std::fs::read_dir("/sys/class/net")? {
        let entry = entry?;
        let bound = std::fs::read_link(entry.path().join("device/driver")).unwrap_or_default();
        if bound.ends_with(driver) {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    bail!("no network card with driver {driver}")
}

fn node() -> Result<()> {
    let ns = Arc::new(Netns::new("node")?);
    take_cards(&ns, 1)?;
    let backend = Netns::new("backend")?;
    ns.ip(&format!("link add up0 type veth peer name eth0 netns {}", backend.path().display()))?;
    ns.ip("addr add 10.9.0.1/24 dev up0\naddr add fd00:9::1/64 dev up0 nodad\nlink set up0 up")?;
    backend.ip("addr add 10.9.0.2/24 dev eth0\naddr add fd00:9::2/64 dev eth0 nodad\nlink set eth0 up
         route add default via 10.9.0.1\nroute add default via fd00:9::1")?;
    ns.sysctl("ipv4/ip_forward", "1")?;
    ns.sysctl("ipv6/conf/all/forwarding", "1")?;
    let (echo, sink, datagrams) = backend.run(|| -> Result<_> {
        let any = Ipv6Addr::UNSPECIFIED;
        Ok((TcpListener::bind((any, ECHO))?, TcpListener::bind((any, SINK))?, UdpSocket::bind((any, ECHO))?))
    })?;
    serve(echo, true);
    serve(sink, false);
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(&buffer[..len], from);
        }
    });
    let agent = Agent::start(&ns, "node-a", &["up0"], CLUSTER)?;
    let control = ns.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, CONTROL)))?;
    let (mut control, _) = control.accept()?;
    control.set_read_timeout(Some(BOOT))?;
    let lines = BufReader::new(control.try_clone()?).lines();
    for line in lines {
        match line.context("the client is gone")?.as_str() {
            "flag" => agent.flag("node-b")?,
            "unflag" => agent.unflag("node-b")?,
            "bye" => return Ok(()),
            other => bail!("control: {other:?}"),
        }
        control.write_all(b"ok\n")?;
    }
    bail!("the client closed the connection without `bye`")
}

fn serve(listener: TcpListener, echo: bool) {
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut connection = connection;
                let mut buffer = vec![0; 64 << 10];
                while let Ok(len @ 1..) = connection.read(&mut buffer) {
                    if echo && connection.write_all(&buffer[..len]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// The connection to the node's guest, which carries out commands.
struct Control(BufReader<TcpStream>);

impl Control {
    fn connect(ns: &Netns) -> Result<Self> {
        let to = SocketAddr::from((Ipv4Addr::new(192, 0, 1, 1), CONTROL));
        let started = Instant::now();
        loop {
            match ns.run(move || TcpStream::connect_timeout(&to, Duration::from_secs(2))) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(SOON))?;
                    return Ok(Self(BufReader::new(stream)));
                }
                Err(error) if started.elapsed() > BOOT => return Err(error).context("the node's guest"),
                Err(_) => thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    fn ask(&mut self, what: &str) -> Result<()> {
        self.0.get_mut().write_all(format!("{what}\n").as_bytes())?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).with_context(|| what.to_owned())?;
        ensure!(answer == "ok\n", "{what}: {answer:?}");
        Ok(())
    }
}

fn client() -> Result<()> {
    let ns = Netns::new("client")?;
    let cards = take_cards(&ns, 2)?;
    for card in &cards {
        // Without GRO and LRO the capture shows the packets as they came over the wire.
        ns.exec(&format!("ethtool -K {card} gro off")).context("ethtool")?;
        let _ = ns.exec(&format!("ethtool -K {card} lro off"));
    }
    let mut control = Control::connect(&ns)?;
    let mut lost = 0;
    for (card, (driver, link)) in cards.iter().zip(LINKS) {
        ns.ip(&format!(
            "route replace 10.9.0.0/24 via 192.0.{link}.1\nroute replace fd00:9::/64 via fd00:{link}::1"
        ))?;
        for backend in BACKEND {
            cut_and_back(&ns, &mut control, card, backend, &mut lost)
                .with_context(|| format!("{driver}, {backend}"))?;
        }
    }
    control.0.get_mut().write_all(b"bye\n")?;
    println!("{lost} datagrams lost");
    Ok(())
}

fn cut_and_back(
    ns: &Netns,
    control: &mut Control,
    card: &str,
    backend: IpAddr,
    lost: &mut u32,
) -> Result<()> {
    let echo = SocketAddr::new(backend, ECHO);
    let sink = SocketAddr::new(backend, SINK);
    let connect = move |to| ns.run(move || TcpStream::connect_timeout(&to, SOON));
    let mut quiet = connect(echo).context("connect")?;
    quiet.set_read_timeout(Some(SOON))?;
    quiet.write_all(b"before")?;
    quiet.read_exact(&mut [0; 6]).context("echo")?;
    let datagrams = ns.run(move || -> std::io::Result<_> {
        let any: IpAddr =
            if backend.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(echo)?;
        socket.set_read_timeout(Some(UNANSWERED))?;
        Ok(socket)
    })?;
    ensure!(exchange(&datagrams, lost)?.is_none(), "UDP was refused before the flag");
    let mut upload = connect(sink).context("connect for the upload")?;
    upload.set_write_timeout(Some(SOON))?;
    let upload = thread::spawn(move || {
        let chunk = vec![0x5a; 64 << 10];
        loop {
            if let Err(error) = upload.write_all(&chunk) {
                return error.kind();
            }
        }
    });
    thread::sleep(Duration::from_millis(500));

    let capture = Capture::start(ns, card)?;
    control.ask("flag")?;
    let end = upload.join().map_err(|_| anyhow::anyhow!("the upload panicked"))?;
    ensure!(matches!(end, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "the upload ended with {end}");
    quiet.write_all(b"after")?;
    let end = quiet.read(&mut [0; 8]).map_err(|error| error.kind());
    ensure!(end == Err(ErrorKind::ConnectionReset), "the quiet connection ended with {end:?}");
    let refused = connect(echo).map(drop).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::ConnectionRefused), "a new connection ended with {refused:?}");
    let refused = exchange(&datagrams, lost)?;
    ensure!(refused == Some(ErrorKind::ConnectionRefused), "UDP ended with {refused:?}");
    let frames = capture.finish();
    control.ask("unflag")?;
    sums_hold(&frames, backend)?;
    connect(echo).context("connect after the flag")?;
    Ok(())
}

/// Sends a datagram. Gives `None` for an echo, or the kind of the error. The wire between the guests may lose one datagram, which is sent again.
fn exchange(socket: &UdpSocket, lost: &mut u32) -> Result<Option<ErrorKind>> {
    loop {
        let sent = socket.send(b"datagram");
        match sent.and_then(|_| socket.recv(&mut [0; 16])) {
            Ok(_) => return Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => *lost += 1,
            Err(error) => return Ok(Some(error.kind())),
        }
        ensure!(*lost <= 1, "{lost} datagrams without an answer in {UNANSWERED:?}");
    }
}

fn sums_hold(frames: &[Frame], backend: IpAddr) -> Result<()> {
    let mut resets = 0;
    let mut unreachable = 0;
    for frame in frames.iter().filter(|frame| !frame.outgoing) {
        let Some(segment) = frame.segment() else { continue };
        if segment.src == backend {
            frame.verify()?;
            resets += usize::from(segment.rst);
            unreachable += usize::from(segment.unreachable);
        }
    }
    ensure!(resets >= 3, "{resets} RSTs, expected one for each of three connections at least");
    ensure!(unreachable >= 1, "no ICMP port unreachable");
    Ok(())
}
