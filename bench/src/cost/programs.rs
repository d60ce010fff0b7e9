//! The two BPF objects of (a). The objects share the map of backends and the list.
use std::{net::IpAddr, path::Path, time::Instant};

use anyhow::Context as _;
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap},
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use nodefence_common::{Addr, MacKey, RouteVlan, Verdict};
use rand::{SeedableRng as _, seq::SliceRandom as _};

use crate::tables;

/// The programs that ours are compared with.
pub(crate) static REFERENCE: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nodefence-bench-programs"));
static OURS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nodefence-dataplane"));

/// Entries of the map `list` (dataplane-ebpf/src/bench_list.rs).
const LIST_LEN: u32 = 1 << 18;

/// The sender of the packets.
pub(crate) const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A program that is timed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Program {
    /// The program returns at once.
    Empty,
    /// The program reads the list and returns.
    List,
    /// The program parses, reads the list, and looks up once.
    Lookup,
    /// The egress program.
    Ours,
}

impl Program {
    pub(crate) const ALL: [Self; 4] = [Self::Empty, Self::List, Self::Lookup, Self::Ours];

    fn symbol(self) -> &'static str {
        match self {
            Self::Empty => "b_empty",
            Self::List => "b_list",
            Self::Lookup => "b_lookup",
            Self::Ours => "nf_egress_l2",
        }
    }
}

/// Value of the map `cursor`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cursor {
    position: u32,
    mask: u32,
}

mod pod {
    #![expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
    // SAFETY: repr(C), two u32, no padding.
    unsafe impl aya::Pod for super::Cursor {}
}

/// Both objects, over one set of maps with `backends` entries.
pub(crate) struct Programs {
    reference: Ebpf,
    ours: Ebpf,
    backends: u32,
}

impl Programs {
    /// Loads both objects, with their maps pinned below `pins`, a new folder of a BPF filesystem.
    pub(crate) fn load(pins: &Path, backends: u32) -> anyhow::Result<Self> {
        std::fs::create_dir_all(pins)?;
        let load = |object: &[u8]| EbpfLoader::new().default_map_pin_directory(pins).load(object);
        let mut ours = load(OURS).context("cannot load the bench build of the dataplane")?;
        let mut reference = load(REFERENCE).context("cannot load the reference programs")?;
        for program in Program::ALL {
            let object = if program == Program::Ours { &mut ours } else { &mut reference };
            let found: &mut SchedClassifier = object
                .program_mut(program.symbol())
                .with_context(|| format!("no program {}", program.symbol()))?
                .try_into()?;
            found.load().with_context(|| format!("cannot load program {}", program.symbol()))?;
        }
        let mut programs = Self { reference, ours, backends };
        let map = programs.ours.map_mut("backends").context("no map `backends`")?;
        tables::fill_backends(&mut HashMap::try_from(map)?, backends)?;
        let map = programs.ours.map_mut("macs").context("no map `macs`")?;
        HashMap::<_, MacKey, u32>::try_from(map)?.insert(&MacKey::new(SENDER), &1, 0)?;
        let map = programs.ours.map_mut("route_vlans").context("no map `route_vlans`")?;
        // BPF_PROG_TEST_RUN gives the packet the loopback device.
        let vlan = RouteVlan { ifindex: 1, outer: 0, inner: 0 };
        HashMap::<_, RouteVlan, MacKey>::try_from(map)?.insert(&vlan, &MacKey::new(SENDER), 0)?;
        programs.set_verdict(Verdict::Healthy)?;
        Ok(programs)
    }

    /// Sets the verdict of every node.
    pub(crate) fn set_verdict(&mut self, verdict: Verdict) -> anyhow::Result<()> {
        let map = self.ours.map_mut("nodes").context("no map `nodes`")?;
        tables::fill_nodes(&mut Array::try_from(map)?, self.backends, verdict)
    }

    /// Fills the list with addresses of backends (`hit`) or of no backend, shuffled. A small set gets a short list, so that the list takes no more of
    /// the caches than the set.
    pub(crate) fn set_list(&mut self, hit: bool) -> anyhow::Result<()> {
        let len = self.backends.next_power_of_two().clamp(1024, LIST_LEN);
        let mut indices: Vec<u32> =
            (0..len).map(|index| if hit { index % self.backends.max(1) } else { index }).collect();
        indices.shuffle(&mut rand::rngs::StdRng::seed_from_u64(1));
        let mut list = Array::<_, Addr>::try_from(self.ours.map_mut("list").context("no map `list`")?)?;
        for (at, i) in indices.into_iter().enumerate() {
            let address = if hit { tables::backend(i) } else { tables::stranger(i) };
            list.set(u32::try_from(at)?, &Addr::from(IpAddr::from(address)), 0)?;
        }
        let mut cursor =
            Array::<_, Cursor>::try_from(self.ours.map_mut("cursor").context("no map `cursor`")?)?;
        cursor.set(0, &Cursor { position: 0, mask: len - 1 }, 0)?;
        Ok(())
    }

    /// Runs one program `repeat` times on a fresh copy of `frame`. Returns the program's return value, and nanoseconds a run. The kernel times a single
    /// run. Many runs are timed around the call, since the kernel rounds its quotient down to whole nanoseconds.
    pub(crate) fn run(&self, program: Program, frame: &[u8], repeat: u32) -> anyhow::Result<(i32, f64)> {
        let object = if program == Program::Ours { &self.ours } else { &self.reference };
        let found: &SchedClassifier =
            object.program(program.symbol()).context("the program was loaded")?.try_into()?;
        let mut out = [0; 2048];
        let started = Instant::now();
        let result = found.test_run(TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..Default::default()
        });
        let elapsed = started.elapsed();
        let result = result.with_context(|| format!("test run of {}", program.symbol()))?;
        let ns = match repeat {
            1 => result.duration.as_nanos() as f64,
            _ => elapsed.as_nanos() as f64 / f64::from(repeat),
        };
        Ok((result.return_value.cast_signed(), ns))
    }
}
