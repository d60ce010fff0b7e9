//! The guard: a process of its own that restores what has lapsed, whatever has become of the agent. It is the agent's child, or was started
//! apart and stays while agents come and go.
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::unistd::{getppid, setsid};

use super::{
    Ends,
    lapsed::{LapseError, lapse},
};
use crate::{
    causes::causes,
    dataplane,
    flags::monotonic_ns,
    ledger::{self, Entry, Ledger, OwnerLock, Pair, WaitingGuard},
    sched,
};

/// How often the lease is looked at.
const TICK: Duration = Duration::from_millis(200);
/// How long to wait after something could not be restored, and before what was restored is read again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long another guard's lock is waited for: a process that only looks whether a guard is there holds the lock for a moment.
const PATIENCE: Duration = Duration::from_millis(500);
/// The nice value that the agent's child inherits from the thread that starts it: IPVS is to be restored within five seconds.
const PRECEDENCE: i32 = -20;

/// Why a guard ended without having done its work.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The run folder cannot be used.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// Another guard watches over this run folder.
    #[error(
        "another `nodefence guard` watches over the run folder {} (its `ledger.apart` is locked); expected one for each, named by --run-dir",
        run_dir.display()
    )]
    Second {
        /// The folder.
        run_dir: PathBuf,
    },
}

/// Starts a guard for the ledger in a run folder and the lease below a pin folder, from this very program.
///
/// # Errors
/// Where the process cannot be made.
pub fn spawn_guard(run_dir: &Path, pin_dir: &Path) -> io::Result<Child> {
    // The running program, even where another one lies in its place by now.
    Command::new("/proc/self/exe")
        .arg("guard")
        .arg("--parent")
        .arg(std::process::id().to_string())
        .arg("--run-dir")
        .arg(run_dir)
        .arg("--pin-dir")
        .arg(pin_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
}

/// Watches over the ledger in a run folder as long as the agent, process `parent`, lives, and then until nothing is left to guard.
///
/// # Errors
/// Where the folder cannot be used.
pub fn guard_child(run_dir: &Path, pin_dir: &Path, parent: u32) -> Result<(), GuardError> {
    // A signal to the agent's session or group is meant for the agent. The guard ends by itself once nothing is left to be restored.
    let _leader_already = setsid();
    GuardState::new(run_dir, pin_dir, Whose::Agent { process: parent }).run()
}

/// Watches over the ledger in a run folder, whichever agents come and go, until it is told to end and nothing is left to be restored. With
/// `wait` the guard first waits until no other guard watches over the folder.
///
/// # Errors
/// Where the folder cannot be used, or, without `wait`, another guard watches over it.
pub fn guard(run_dir: &Path, pin_dir: &Path, mut ends: Ends, wait: bool) -> Result<(), GuardError> {
    let place = if wait {
        match await_place(run_dir, &mut ends)? {
            Some(place) => place,
            // It watched over nothing yet, so there is nothing to be restored.
            None => return Ok(()),
        }
    } else {
        take_place(run_dir, PATIENCE)?
    };
    if let Err(error) = sched::fair(PRECEDENCE, Some(sched::SHORT_SLICE)) {
        tracing::debug!(
            event = "guard-keeps-nice",
            %error,
            "the guard keeps the nice value that it was given"
        );
    }
    let run = run_dir.display();
    let pins = pin_dir.display();
    tracing::info!(
        event = "guard-watches",
        run_dir = %run,
        pin_dir = %pins,
        "the guard watches over what agents drain from IPVS"
    );
    if !dataplane::in_bpffs(pin_dir).unwrap_or(false) {
        tracing::warn!(
            event = "guard-no-bpffs",
            "the guard's pin folder {pins} is in no BPF filesystem yet; in a container, mount the agent's there (volume of /sys/fs/bpf)"
        );
    }
    let mut state = GuardState::new(run_dir, pin_dir, Whose::Folder { place, ends });
    state.run()?;
    let why = if state.left_to_next { "another guard goes on" } else { "nothing is left to be restored" };
    tracing::info!(event = "guard-ends", "the guard ends; {why}");
    Ok(())
}

fn take_place(run_dir: &Path, patience: Duration) -> Result<OwnerLock, GuardError> {
    OwnerLock::take_apart(run_dir, patience)?
        .ok_or_else(|| GuardError::Second { run_dir: run_dir.to_owned() })
}

/// Waits until no other guard watches over the run folder. Returns `None` where this guard is told to end meanwhile.
fn await_place(run_dir: &Path, ends: &mut Ends) -> Result<Option<OwnerLock>, GuardError> {
    let mut said = false;
    let mut shown = None;
    loop {
        if let Some(place) = OwnerLock::take_apart(run_dir, PATIENCE)? {
            return Ok(Some(place));
        }
        if ends.told().is_some() {
            return Ok(None);
        }
        if shown.is_none() {
            shown = WaitingGuard::show(run_dir)?;
        }
        if !said {
            said = true;
            let run = run_dir.display();
            tracing::info!(
                event = "guard-waits",
                run_dir = %run,
                "another guard watches over this run folder; this one waits until the other has ended"
            );
        }
    }
}

/// Whose guard it is.
enum Whose {
    /// The guard of the agent that started it.
    Agent {
        /// Told by the agent that started the guard: the agent may have died before the guard could look for its parent.
        process: u32,
    },
    /// The guard of the run folder.
    Folder {
        /// The lock that no second guard of the folder gets.
        place: OwnerLock,
        ends: Ends,
    },
}

/// The lease and the ledger, as they are there.
struct GuardState<'a> {
    run_dir: &'a Path,
    pin_dir: &'a Path,
    whose: Whose,
    lock: Option<OwnerLock>,
    /// Destinations that were restored and struck from the ledger. A stopped agent may have changes of them on their way.
    struck: BTreeMap<Pair, Entry>,
    told: String,
    /// Whether this guard ends because another one waits for its place.
    left_to_next: bool,
}

impl<'a> GuardState<'a> {
    fn new(run_dir: &'a Path, pin_dir: &'a Path, whose: Whose) -> Self {
        Self {
            run_dir,
            pin_dir,
            whose,
            lock: None,
            struck: BTreeMap::new(),
            told: String::new(),
            left_to_next: false,
        }
    }

    fn run(&mut self) -> Result<(), GuardError> {
        loop {
            match self.step() {
                Ok(None) => return Ok(()),
                Ok(Some(pause)) => thread::sleep(pause),
                Err(error @ GuardError::Second { .. }) => return Err(error),
                // Without agent and ledger nothing says what there is to restore.
                Err(error) if self.may_end() && !Ledger::path(self.run_dir).exists() => return Err(error),
                Err(error) => thread::sleep(self.failed(error)),
            }
        }
    }

    /// Whether the guard ends once nothing is left: its agent is gone, or it was told to end.
    fn may_end(&mut self) -> bool {
        match &mut self.whose {
            Whose::Agent { process } => u32::try_from(getppid().as_raw()) != Ok(*process),
            Whose::Folder { ends, .. } => ends.told().is_some(),
        }
    }

    /// One look; returns the time to the next look, or `None` where nothing is left to guard.
    fn step(&mut self) -> Result<Option<Duration>, GuardError> {
        self.find_place()?;
        if self.lock.is_none() {
            // An earlier agent's guard may be at work.
            self.lock = OwnerLock::take_guard(self.run_dir, Duration::ZERO)?;
        }
        let may_end = self.may_end();
        if Ledger::is_empty(self.run_dir)? && self.struck.is_empty() {
            return Ok((!may_end).then_some(TICK));
        }
        let of_agent = matches!(self.whose, Whose::Agent { .. });
        // As when a pod ends beside the new pod of its node, whose agent holds the drain: the guard that waits restores what this one would. Without that
        // one, this guard stays until the kubelet kills it.
        if may_end && !of_agent && self.struck.is_empty() && WaitingGuard::is_shown(self.run_dir)? {
            self.left_to_next = true;
            return Ok(None);
        }
        // The guard owns the ledger while it restores, so that no agent takes the ledger over meanwhile.
        let asks = may_end || !of_agent;
        let owner = if asks { OwnerLock::take(self.run_dir, Duration::ZERO)? } else { None };
        if of_agent && may_end && owner.is_none() {
            // Struck destinations concern this guard no more: no change of a dead agent is on its way.
            self.struck.clear();
            // The ledger is another agent's and its guard's by now. This guard gives back its lock for that guard, and stays until that
            // guard has the lock: until then nobody else would restore.
            return Ok(self.lock.take().map(|_given_back| TICK));
        }
        let lease = dataplane::lease(self.pin_dir);
        if lease > monotonic_ns() {
            self.struck.clear();
            return Ok(Some(TICK));
        }
        if self.lock.is_none() {
            return Ok(Some(TICK));
        }
        if !of_agent && owner.is_none() && lease == 0 {
            return Ok(Some(self.unseen()));
        }
        match lapse(self.run_dir, &mut self.struck) {
            Ok(left) if left.is_empty() && owner.is_some() => Ok(self.restore()?),
            Ok(left) => Ok(Some(self.left(&left))),
            // Another agent began a new ledger: nothing in it concerns this guard.
            Err(LapseError::Unread(_)) if may_end && of_agent => Ok(None),
            // Nobody else can restore from a ledger that this guard cannot read: the next agent moves it aside.
            Err(error @ LapseError::Unread(_)) if may_end && owner.is_some() => {
                self.failed(error);
                Ok(None)
            }
            Err(error) => Ok(Some(self.failed(error))),
        }
    }

    /// Somebody may have removed the run folder, or all files of the ledger. Agents lock the files that lie there by now.
    fn find_place(&mut self) -> Result<(), GuardError> {
        if let Whose::Folder { place, .. } = &mut self.whose {
            if self.lock.as_ref().is_some_and(|lock| !lock.is_in(self.run_dir)) {
                self.lock = None;
            }
            if !place.is_in(self.run_dir) {
                *place = take_place(self.run_dir, PATIENCE)?;
            }
        }
        Ok(())
    }

    /// All of it was restored, and no agent has a hand in it.
    fn restore(&mut self) -> Result<Option<Duration>, ledger::Error> {
        if let Whose::Agent { .. } = self.whose {
            return Ok(None);
        }
        self.struck.clear();
        // A ledger of mere history would keep this guard busy.
        Ledger::open(self.run_dir)?.0.rest(0, BTreeMap::new)?;
        Ok(Some(TICK))
    }

    /// An agent lives, and this guard does not see its lease. Where the lease lies in another BPF filesystem, restoring would undo a drain
    /// that still holds.
    fn unseen(&mut self) -> Duration {
        let pins = self.pin_dir.display();
        self.tell(format!(
            "no lease can be read below {pins}, though an agent has the ledger: expected its --pin-dir, in the same BPF filesystem"
        ));
        AGAIN
    }

    fn left(&mut self, left: &BTreeMap<Pair, Option<i32>>) -> Duration {
        if let Some((pair, errno)) = left.first_key_value() {
            self.tell(format!("{} destinations cannot be restored: {pair}, error {errno:?}", left.len()));
        }
        AGAIN
    }

    fn failed(&mut self, error: impl Into<anyhow::Error>) -> Duration {
        self.tell(causes(&error.into()));
        AGAIN
    }

    /// Logs each problem once.
    fn tell(&mut self, problem: String) {
        if self.told != problem {
            tracing::error!(
                event = "guard-cannot-restore",
                problem,
                "the guard could not restore destinations whose lease has lapsed; it tries again"
            );
            self.told = problem;
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;
    use crate::{
        ipvs::{Destination, Protocol, ServiceKey},
        ledger::{Phase, Record, has_guard_apart},
    };

    /// A run folder whose ledger names a destination.
    fn drained() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let address = "10.96.0.1:80".parse().unwrap();
        let destination = "10.244.2.7:8080".parse().unwrap();
        let pair = Pair { service: ServiceKey::Address { address, protocol: Protocol::TCP }, destination };
        let original = Destination::new(destination, 1);
        let entry = Entry { node: "node-b".into(), phase: Phase::Lowered, original };
        Ledger::open(folder.path()).unwrap().0.append(&[Record::Own(pair, entry)]).unwrap();
        folder
    }

    fn apart<'a>(run_dir: &'a Path, pin_dir: &'a Path) -> GuardState<'a> {
        let place = take_place(run_dir, Duration::ZERO).unwrap();
        GuardState::new(run_dir, pin_dir, Whose::Folder { place, ends: Ends::hold().unwrap() })
    }

    /// An agent that takes over may be killed before it has a guard: the earlier guard stays that long.
    #[test]
    fn the_guard_of_a_dead_agent_leaves_once_the_next_one_s_is_there() {
        let folder = drained();
        let run_dir = folder.path();
        let pin_dir = run_dir.join("none");
        // Nobody's: its agent is dead.
        let mut guard = GuardState::new(run_dir, &pin_dir, Whose::Agent { process: 0 });
        assert!(guard.may_end());
        let next_agent = OwnerLock::take(run_dir, Duration::ZERO).unwrap().unwrap();
        for look in 0..20 {
            assert_eq!(guard.step().unwrap(), Some(TICK), "look {look}");
        }
        // This guard does not keep the next one from its lock.
        let next_guard = OwnerLock::take_guard(run_dir, Duration::ZERO).unwrap().unwrap();
        assert_eq!(guard.step().unwrap(), None);
        drop((next_agent, next_guard));
    }
    #[test]
    fn one_that_is_told_to_end_goes_once_nothing_is_left() {
        let folder = drained();
        let (run_dir, pin_dir) = (folder.path(), folder.path().join("none"));
        let agent = OwnerLock::take(run_dir, Duration::ZERO).unwrap().unwrap();
        let mut guard = apart(run_dir, &pin_dir);
        // To this thread alone.
        raise(Signal::SIGTERM).unwrap();
        // An agent lives whose lease lies elsewhere: its drain holds.
        for look in 0..3 {
            assert_eq!(guard.step().unwrap(), Some(AGAIN), "look {look}");
        }
        assert!(guard.told.contains("no lease can be read below"), "{}", guard.told);
        assert!(!Ledger::is_empty(run_dir).unwrap());
        drop(agent);
        assert_eq!(guard.step().unwrap(), Some(TICK));
        assert!(Ledger::is_empty(run_dir).unwrap());
        assert_eq!(guard.step().unwrap(), None);
    }

    #[test]
    fn one_that_is_told_to_end_leaves_the_rest_to_one_that_waits() {
        let folder = drained();
        let (run_dir, pin_dir) = (folder.path(), folder.path().join("none"));
        let _agent = OwnerLock::take(run_dir, Duration::ZERO).unwrap().unwrap();
        let mut guard = apart(run_dir, &pin_dir);
        let waits = WaitingGuard::show(run_dir).unwrap().unwrap();
        let another = WaitingGuard::show(run_dir).unwrap().unwrap();
        assert_eq!(guard.step().unwrap(), Some(AGAIN), "nobody told it to end");
        // To this thread alone.
        raise(Signal::SIGTERM).unwrap();
        drop(waits);
        assert_eq!(guard.step().unwrap(), None);
        assert!(guard.left_to_next && !Ledger::is_empty(run_dir).unwrap());
        drop(another);
        assert_eq!(guard.step().unwrap(), Some(AGAIN), "nobody waits any more");
    }

    /// A long ledger of which all is restored would keep the guard from its end.
    #[test]
    fn it_stays_while_it_is_not_told_and_leaves_no_history() {
        let folder = drained();
        let (run_dir, pin_dir) = (folder.path(), folder.path().join("none"));
        let loaded = Ledger::read(run_dir).unwrap();
        let (pair, entry) = loaded.entries.first_key_value().unwrap();
        let again = vec![Record::Own(*pair, entry.clone()); 100];
        Ledger::open(run_dir).unwrap().0.append(&again).unwrap();
        let mut guard = apart(run_dir, &pin_dir);
        for look in 0..3 {
            assert_eq!(guard.step().unwrap(), Some(TICK), "look {look}");
        }
        assert!(Ledger::is_empty(run_dir).unwrap());
    }

    #[test]
    fn there_is_one_for_a_run_folder_wherever_the_folder_goes() {
        let folder = tempfile::tempdir().unwrap();
        let (run_dir, pin_dir) = (folder.path().join("run"), folder.path().join("none"));
        std::fs::create_dir(&run_dir).unwrap();
        assert!(!has_guard_apart(&run_dir));
        let mut guard = apart(&run_dir, &pin_dir);
        assert!(has_guard_apart(&run_dir));
        let second = take_place(&run_dir, Duration::ZERO).unwrap_err();
        assert!(second.to_string().starts_with("another `nodefence guard` watches over"), "{second}");
        // Removed and made anew, as an agent does.
        std::fs::remove_dir_all(&run_dir).unwrap();
        assert!(guard.step().is_err());
        std::fs::create_dir(&run_dir).unwrap();
        assert!(!has_guard_apart(&run_dir));
        assert_eq!(guard.step().unwrap(), Some(TICK));
        assert!(has_guard_apart(&run_dir) && guard.lock.as_ref().unwrap().is_in(&run_dir));
        // Another guard took the folder first.
        std::fs::remove_dir_all(&run_dir).unwrap();
        std::fs::create_dir(&run_dir).unwrap();
        let _other = take_place(&run_dir, Duration::ZERO).unwrap();
        assert!(matches!(guard.step(), Err(GuardError::Second { .. })));
    }
}
