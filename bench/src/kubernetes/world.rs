//! etcd and the API server with the cluster's objects, in a namespace of their own.
use std::{
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{time::ClockId, unistd::Pid};
use nodefence_tests::{
    Netns,
    kube::{
        ControlPlane,
        control::{SERVICES, SLICES},
        members::MEMBERS,
    },
};

use super::{
    objects,
    objects::{FULL, OWN},
    sizes::{EACH, LARGE, Sizes},
    write,
};
use crate::progress::Progress;

/// At least this much time lies between two changes of a rolling restart.
const PACE: Duration = Duration::from_millis(20);

/// The API server.
pub(super) struct World {
    pub(super) control: ControlPlane,
    pub(super) sizes: Sizes,
    /// How many endpoints of the large Service were replaced so far.
    restarted: usize,
}

impl World {
    /// Starts the programs, and writes the objects.
    pub(super) fn new(sizes: Sizes) -> anyhow::Result<Self> {
        let progress = Progress::start("the API server's start", 1);
        let control = ControlPlane::start(&Arc::new(Netns::new("control")?))?;
        control.crds()?;
        // kube-proxy wants to know its Node.
        control.node(&objects::node(0), OWN, None)?;
        drop(progress);
        write::create(&control, "NodeMembers", MEMBERS, sizes.members, objects::member)?;
        write::create(&control, "Services", SERVICES, sizes.services + 1, objects::service)?;
        write::create(
            &control,
            "EndpointSlices",
            SLICES,
            sizes.services + LARGE / FULL,
            |number| match number.checked_sub(sizes.services) {
                Some(of_large) => objects::large_slice(of_large, 0, sizes),
                None => objects::slice(number, sizes),
            },
        )?;
        Ok(Self { control, sizes, restarted: 0 })
    }

    /// The processor time that the API server has used.
    pub(super) fn processor(&self) -> anyhow::Result<Duration> {
        processor(self.control.server()?.pid())
    }

    /// Replaces the endpoints of the large Service one by one: a rolling restart of its pods.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        let mut progress = Progress::start("a rolling restart", LARGE as u32);
        let began = Instant::now();
        for count in 1..=LARGE {
            let number = (count - 1) / FULL;
            self.restarted += 1;
            let slice = objects::large_slice(number, self.restarted, self.sizes);
            let path = format!("{SLICES}/{}", objects::large_name(number, self.sizes));
            let api = &self.control.api;
            self.control.ns.within(|| api.replace_here(&path, &slice))?;
            progress.step();
            sleep((PACE * count as u32).saturating_sub(began.elapsed()));
        }
        Ok(())
    }

    /// Adds an object of each kind, has the API server forget all changes until now, and starts it again. Returns how the cluster is then.
    pub(super) fn forget(&mut self) -> anyhow::Result<(Sizes, usize)> {
        let Sizes { members, services } = self.sizes;
        self.control.object(MEMBERS, &objects::member(members))?;
        self.control.object(SERVICES, &objects::service(services + 1))?;
        self.control.object(SLICES, &objects::slice(services + 1, self.sizes))?;
        self.control.compact()?;
        self.control.kill_server()?;
        self.control.start_server()?;
        let sizes = Sizes { members: members + 1, services };
        Ok((sizes, self.sizes.endpoints() + EACH))
    }
}

/// The processor time that a process has used, in its own code and in the kernel.
pub(super) fn processor(process: Pid) -> anyhow::Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(process).context("the process has no clock")?;
    Ok(clock.now().context("cannot read the process' clock")?.into())
}
