use std::path::{Path, PathBuf};

use nodefence_common::{
    Config, DEFAULT_ICMP_PER_SECOND, DEFAULT_MAX_BACKENDS, DEFAULT_SAMPLES_PER_SECOND, PIN_ROOT, PIN_VERSION,
};

/// How a [`super::Dataplane`] is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of all pins, in a BPF filesystem; ends in `nodefence/v3`.
    pub pin_dir: PathBuf,
    /// Size of the `backends` map.
    pub max_backends: u32,
    /// The configuration that the kernel programs read.
    pub config: Config,
    /// Whether and how XDP is attached.
    pub xdp: XdpChoice,
    /// How TC programs are attached.
    pub tc: TcChoice,
    /// Whether the kernel programs log sampled cuts through aya-log (see [`super::CutLog`]).
    pub log_cuts: bool,
}

/// Whether and how XDP is attached. XDP is never attached in another mode than the one asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpChoice {
    /// Not at all.
    #[default]
    Off,
    /// In the driver.
    Native,
    /// In the stack, after the driver has made an skb.
    Generic,
}

/// How TC programs are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TcChoice {
    /// tcx if the kernel has it (6.6 and later, with CONFIG_NET_XGRESS), else clsact.
    #[default]
    Auto,
    /// A clsact filter, even if the kernel has tcx.
    Clsact,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pin_dir: default_pin_dir(),
            max_backends: DEFAULT_MAX_BACKENDS,
            config: Config {
                flags: 0,
                icmp_per_second: DEFAULT_ICMP_PER_SECOND,
                samples_per_second: DEFAULT_SAMPLES_PER_SECOND,
                zero: 0,
            },
            xdp: XdpChoice::Off,
            tc: TcChoice::Auto,
            log_cuts: false,
        }
    }
}

/// `/sys/fs/bpf/nodefence/v3`.
fn default_pin_dir() -> PathBuf {
    Path::new("/sys/fs/bpf").join(PIN_ROOT).join(PIN_VERSION)
}
