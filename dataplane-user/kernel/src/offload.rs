//! Tells whether a device's hardware may forward packets that TC would otherwise see. Asks by the ethtool ioctl, since sysfs does not show
//! this feature.
#![expect(unsafe_code, reason = "SIOCETHTOOL takes a pointer in an ifreq")]

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

// include/uapi/linux/ethtool.h
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
// musl has the number as an int, glibc as an unsigned long.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const FEATURE: &[u8] = b"hw-tc-offload";

/// Whether `hw-tc-offload` is active on the device. `None` if the kernel does not know that feature.
///
/// # Errors
/// Fails if the ioctl fails: the device does not exist, or has no ethtool operations. Fails if the name is too long.
pub fn hw_tc_offload(device: &str) -> io::Result<Option<bool>> {
    let socket = socket()?;
    let mut info = [0u32; 5];
    info[0] = ETHTOOL_GSSET_INFO;
    info[2] = 1 << ETH_SS_FEATURES;
    ioctl(&socket, device, &mut info)?;
    let count = info[4] as usize;

    let mut strings = vec![0u32; 3 + count * ETH_GSTRING_LEN / 4];
    strings[0] = ETHTOOL_GSTRINGS;
    strings[1] = ETH_SS_FEATURES;
    strings[2] = count as u32;
    ioctl(&socket, device, &mut strings)?;
    let names: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let Some(index) =
        names.chunks(ETH_GSTRING_LEN).position(|name| name.split(|byte| *byte == 0).next() == Some(FEATURE))
    else {
        return Ok(None);
    };

    // struct ethtool_gfeatures: cmd, size, then for each 32 features the words available, requested, active and never_changed.
    let blocks = count.div_ceil(32);
    let mut features = vec![0u32; 2 + blocks * 4];
    features[0] = ETHTOOL_GFEATURES;
    features[1] = blocks as u32;
    ioctl(&socket, device, &mut features)?;
    let active = features[2 + (index / 32) * 4 + 2];
    Ok(Some(active & (1 << (index % 32)) != 0))
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn ioctl(socket: &OwnedFd, device: &str, command: &mut [u32]) -> io::Result<()> {
    if device.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "device name too long"));
    }
    // SAFETY: ifreq is plain memory, and all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
    // SAFETY: the request and the command buffer outlive the call. The buffer is as long as the count in it says.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
