use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::Error;

/// How long another holder of the turn is waited for. One that keeps it longer is stopped, and must not keep what has lapsed from being put
/// back.
const TURN: Duration = Duration::from_millis(500);

/// Where a deadline would be: the guard is putting back what has lapsed.
const LET_GO: u64 = 0;
/// The same: it has put all of it back. As a deadline both are long over.
const PUT_BACK: u64 = 1;

/// Up to when what is in the ledger holds, and whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// Raised by each agent that takes the ledger over, and by the guard when it lets go what has lapsed.
    pub epoch: u64,
    /// CLOCK_MONOTONIC, in ns. 0 where the guard has let it go, 1 once it has put back everything.
    pub until: u64,
}

impl Lease {
    /// Whether it holds at `now` (CLOCK_MONOTONIC, in ns).
    pub fn holds(&self, now: u64) -> bool {
        self.until > now.max(PUT_BACK)
    }
}

/// The lease's file.
#[derive(Debug)]
pub struct LeaseFile {
    file: File,
    path: PathBuf,
}

impl LeaseFile {
    /// Opens it in a run folder; made where it is missing.
    ///
    /// # Errors
    /// Where it cannot be opened for reading and writing.
    pub fn open(run_dir: &Path) -> Result<Self, Error> {
        let path = run_dir.join(format!("{}lease", super::FILES));
        let file = open(&path).map_err(|source| Error { path: path.clone(), what: "open it", source })?;
        Ok(Self { file, path })
    }

    /// What the lease of a run folder says at this moment; it does not hold where there is none. By its path: a file that is kept open may be one that
    /// was removed, while another agent has one of its own.
    ///
    /// # Errors
    /// Where it cannot be opened or read.
    pub fn look(run_dir: &Path) -> Result<Lease, Error> {
        let path = run_dir.join(format!("{}lease", super::FILES));
        if !path.exists() {
            return Ok(Lease::default());
        }
        Self::open(run_dir)?.read()
    }

    /// For the guard, with the turn taken: lets go what has lapsed, so that an agent that was stopped finds that it is not its own any more. `None` where
    /// it holds at `now`.
    ///
    /// # Errors
    /// Where it cannot be read or written.
    pub fn let_go(&self, _turn: &Turn, now: u64) -> Result<Option<Lease>, Error> {
        let mut lease = self.read()?;
        if lease.holds(now) {
            return Ok(None);
        }
        if lease.epoch == 0 || !matches!(lease.until, LET_GO | PUT_BACK) {
            lease = Lease { epoch: lease.epoch + 1, until: LET_GO };
            self.write(lease)?;
        }
        Ok(Some(lease))
    }

    /// For the guard: notes that all is put back that had lapsed when it let go the lease `of`. Nothing where somebody has claimed it since.
    ///
    /// # Errors
    /// Where it cannot be read or written.
    pub fn put_back(&self, of: Lease) -> Result<(), Error> {
        if of.until == LET_GO && self.read()? == of {
            self.write(Lease { until: PUT_BACK, ..of })?;
        }
        Ok(())
    }

    /// What it says. A file that says nothing is a lease that does not hold.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn read(&self) -> Result<Lease, Error> {
        // A writer may be halfway.
        for _ in 0..3 {
            let mut bytes = [0; LEN];
            let len = self.file.read_at(&mut bytes, 0).map_err(|source| Error {
                path: self.path.clone(),
                what: "read it",
                source,
            })?;
            if len == 0 {
                return Ok(Lease::default());
            }
            if let Some(lease) = parse(&bytes[..len]) {
                return Ok(lease);
            }
            thread::yield_now();
        }
        Ok(Lease::default())
    }

    /// Writes it, at once as a reader sees it.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, lease: Lease) -> Result<(), Error> {
        self.file.write_all_at(text(lease).as_bytes(), 0).map_err(|source| Error {
            path: self.path.clone(),
            what: "write it",
            source,
        })
    }
}

/// An agent's hold on the lease.
#[derive(Debug)]
pub struct Held {
    file: LeaseFile,
    epoch: u64,
    /// As last written.
    until: u64,
}

impl Held {
    /// Takes the ledger over, up to `until`: nobody who held it before may act on it any more.
    ///
    /// # Errors
    /// Where the lease cannot be read or written.
    pub fn claim(run_dir: &Path, until: u64) -> Result<Self, Error> {
        let _turn = Turn::take(run_dir)?;
        let file = LeaseFile::open(run_dir)?;
        let epoch = file.read()?.epoch + 1;
        file.write(Lease { epoch, until })?;
        Ok(Self { file, epoch, until })
    }

    /// Takes it again after it has lapsed. Gives the deadline (CLOCK_MONOTONIC, ns) that it had where the guard has put back since all that was
    /// changed before; `None` where that is not known, or nobody did.
    ///
    /// # Errors
    /// Where the lease cannot be read or written.
    pub fn claim_again(&mut self, run_dir: &Path, until: u64) -> Result<Option<u64>, Error> {
        let _turn = Turn::take(run_dir)?;
        let file = LeaseFile::open(run_dir)?;
        let lease = file.read()?;
        let lapsed = (lease.epoch > self.epoch && lease.until == PUT_BACK).then_some(self.until);
        let epoch = lease.epoch.max(self.epoch) + 1;
        file.write(Lease { epoch, until })?;
        *self = Self { file, epoch, until };
        Ok(lapsed)
    }

    /// Whether it is still the file that others find in the run folder.
    pub fn is_there(&self) -> bool {
        super::is_at(&self.file.file, &self.file.path)
    }

    /// Whether it is still ours and holds at `now`.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn holds(&self, now: u64) -> Result<bool, Error> {
        let lease = self.file.read()?;
        Ok(lease.epoch == self.epoch && lease.holds(now))
    }

    /// Prolongs it, with the turn taken. False, and nothing is written, where it is not ours any more or has lapsed at `now`: others may be
    /// putting things back. `until` must have been worked out before `now` was read: a process that was stopped in between then writes a
    /// deadline that has passed.
    ///
    /// # Errors
    /// Where it cannot be read or written.
    pub fn renew(&mut self, _turn: &Turn, now: u64, until: u64) -> Result<bool, Error> {
        let lease = self.file.read()?;
        if lease.epoch != self.epoch || !lease.holds(now) {
            return Ok(false);
        }
        // Also what another has prolonged, the next agent's bridge.
        self.until = lease.until.max(until);
        if until > lease.until {
            self.file.write(Lease { until, ..lease })?;
        }
        Ok(true)
    }
}

/// Prolongs a lease that holds at `now`, whoever has it: for the time between two agents. Nothing where there is none.
///
/// # Errors
/// Where it cannot be read or written.
pub fn prolong(run_dir: &Path, now: u64, until: u64) -> Result<(), Error> {
    if !run_dir.join(format!("{}lease", super::FILES)).exists() {
        return Ok(());
    }
    let _turn = Turn::take(run_dir)?;
    let file = LeaseFile::open(run_dir)?;
    let lease = file.read()?;
    if lease.holds(now) && until > lease.until {
        file.write(Lease { until, ..lease })?;
    }
    Ok(())
}

/// Keeps agent, guard and `repair` from changing the tables at the same time.
#[derive(Debug)]
pub struct Turn {
    _file: Option<Flock<File>>,
}

impl Turn {
    /// Waits for it, half a second at most: a holder that was stopped meanwhile is passed over, and finds another epoch when it goes on.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take(run_dir: &Path) -> Result<Self, Error> {
        Ok(Self { _file: lock(run_dir, "turn", TURN)? })
    }

    /// For whoever has nothing that must be put back: `None` where another keeps it for half a second.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take_or_fail(run_dir: &Path) -> Result<Option<Self>, Error> {
        Ok(lock(run_dir, "turn", TURN)?.map(|file| Self { _file: Some(file) }))
    }
}

/// Held by an agent while it lives: whoever gets it knows that no agent has a hand in the ledger, not even a stopped one.
#[derive(Debug)]
pub struct Owner {
    file: Flock<File>,
}

impl Owner {
    /// Takes it; `None` where another process has it for longer than `patience`.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take(run_dir: &Path, patience: Duration) -> Result<Option<Self>, Error> {
        Ok(lock(run_dir, "owner", patience)?.map(|file| Self { file }))
    }

    /// Whether its file is still the one that others find in that run folder.
    pub fn is_in(&self, run_dir: &Path) -> bool {
        super::is_at(&self.file, &run_dir.join(format!("{}owner", super::FILES)))
    }

    /// The same for the guard itself: one at a time.
    ///
    /// # Errors
    /// Where the lock's file cannot be used.
    pub fn take_guard(run_dir: &Path, patience: Duration) -> Result<Option<Self>, Error> {
        Ok(lock(run_dir, "guard", patience)?.map(|file| Self { file }))
    }
}

fn lock(run_dir: &Path, name: &str, patience: Duration) -> Result<Option<Flock<File>>, Error> {
    let path = run_dir.join(format!("{}{name}", super::FILES));
    let mut file = open(&path).map_err(|source| Error { path: path.clone(), what: "open it", source })?;
    let end = Instant::now() + patience;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(Some(locked)),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < end => {
                file = back;
                thread::sleep(Duration::from_millis(2));
            }
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => return Ok(None),
            Err((_, errno)) => return Err(Error { path, what: "lock it", source: errno.into() }),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path)
}

/// Epoch, deadline and checksum in hexadecimal, always as long.
const LEN: usize = 16 + 1 + 16 + 1 + 8 + 1;

fn text(lease: Lease) -> String {
    let numbers = format!("{:016x} {:016x}", lease.epoch, lease.until);
    format!("{numbers} {:08x}\n", crc32fast::hash(numbers.as_bytes()))
}

fn parse(bytes: &[u8]) -> Option<Lease> {
    let line = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (numbers, sum) = line.rsplit_once(' ')?;
    if u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(numbers.as_bytes()) {
        return None;
    }
    let (epoch, until) = numbers.split_once(' ')?;
    Some(Lease { epoch: u64::from_str_radix(epoch, 16).ok()?, until: u64::from_str_radix(until, 16).ok()? })
}
