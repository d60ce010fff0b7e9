//! Devices without an Ethernet header: a pair of tun devices joined by two threads, as by a VPN in user space.
#![expect(unsafe_code, reason = "a tun device is made by ioctl")]

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Netns;

mod ioctl {
    // TUNSETIFF (`linux/if_tun.h`). Its number says that the argument is an int, but the argument is a pointer.
    nix::ioctl_write_int!(
        /// Names the device and its kind.
        tun_set_iff,
        b'T',
        202
    );
}

/// The fields of `struct ifreq` that TUNSETIFF reads (`linux/if.h`, 40 bytes).
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

/// Two tun devices of the same name, one in each namespace. Packets that leave by one arrive on the other.
#[derive(Debug)]
pub struct TunPair {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl TunPair {
    /// Makes the pair. Both devices are up.
    ///
    /// # Errors
    /// Fails without root, or if `/dev/net/tun` is missing.
    pub fn new(left: &Netns, right: &Netns, device: &'static str) -> Result<Self> {
        let ends = [left, right]
            .map(|ns| ns.run(move || open(device)).with_context(|| format!("tun device in {}", ns.name())));
        let [a, b] = ends;
        let a = Arc::new(a?);
        let b = Arc::new(b?);
        for ns in [left, right] {
            ns.ip(&format!("link set {device} up"))?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let threads = [(Arc::clone(&a), Arc::clone(&b)), (b, a)]
            .into_iter()
            .map(|(from, to)| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || pump(&from, &to, &stop))
            })
            .collect();
        Ok(Self { stop, threads })
    }
}

impl Drop for TunPair {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn open(device: &str) -> Result<File> {
    let file =
        File::options().read(true).write(true).open("/dev/net/tun").context("/dev/net/tun (module tun)")?;
    let mut request = IfReq { name: [0; 16], flags: 0, rest: [0; 22] };
    for (to, from) in request.name.iter_mut().take(15).zip(device.bytes()) {
        *to = from;
    }
    request.flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI)?;
    // SAFETY: TUNSETIFF takes a pointer to a struct ifreq, which `request` is laid out as and outlives the call.
    unsafe { ioctl::tun_set_iff(file.as_raw_fd(), (&raw mut request) as u64) }.context("TUNSETIFF")?;
    let _ = request.rest;
    Ok(file)
}

/// Carries packets from one device to the other until `stop` is set.
fn pump(from: &File, to: &File, stop: &AtomicBool) {
    use std::os::fd::AsFd as _;
    let mut packet = vec![0; 70_000];
    let mut from = from;
    let mut to = to;
    let tick = PollTimeout::try_from(Duration::from_millis(50)).unwrap_or(PollTimeout::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, tick) != Ok(1) {
            continue;
        }
        if let Ok(len) = from.read(&mut packet) {
            // An error is ignored: a device that is going down takes no packet, and the packet is lost.
            let _ = to.write(packet.get(..len).unwrap_or_default());
        }
    }
}
