//! What an agent does about the tables before it ends. Whatever fails is tried again: where the guard ends with the agent, nobody else
//! restores.
use std::{collections::BTreeMap, time::Duration};

use super::{Book, Drive, Failure, Tables};
use crate::ipvs;

/// Time between two rounds.
const STEP: Duration = Duration::from_millis(5);
/// Time to the next round after a failure.
const AGAIN: Duration = Duration::from_millis(100);

/// The outcome of opening the tables once more.
#[derive(Debug)]
pub enum Reopened<T> {
    /// Another socket to them.
    Tables(T),
    /// They still cannot be opened.
    NotYet,
    /// IPVS is not loaded any more, and all that was ours went with it.
    Gone,
}

/// What surrounds the drive: the agent, or a test.
pub trait Surroundings<T> {
    /// CLOCK_MONOTONIC.
    fn now(&self) -> Duration;

    /// Waits.
    fn pause(&mut self, time: Duration);

    /// Opens the tables again after they failed with `error`.
    fn reopen(&mut self, error: &ipvs::Error) -> Reopened<T>;

    /// Reports a problem. The step is tried again.
    fn tell(&mut self, problem: Failure);
}

/// The outcome of restoring before the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestoredAtEnd {
    /// All of it was restored.
    All,
    /// Not all of it was restored in time.
    Late,
    /// The lease has lapsed. What is still to be restored is named in the ledger ([`super::restore_named`]).
    Lapsed,
}

/// Restores all that is ours, within `longest`. No node may be flagged in the plan any more.
pub fn restore_within<T: Tables, B: Book>(
    drive: &mut Drive<T, B>,
    around: &mut impl Surroundings<T>,
    longest: Duration,
) -> RestoredAtEnd {
    let end = around.now() + longest;
    // Otherwise destinations that wait for the source would never be restored.
    drive.machine.end();
    drive.read_all();
    while around.now() < end {
        let problem = match drive.round() {
            Ok(round) if round.lapsed => return RestoredAtEnd::Lapsed,
            // Endpoints that have left keep the weight of 0 that kube-proxy gives them too.
            Ok(_) if drive.machine.next_due().is_none() => {
                let _kept_longer = drive.book().write_all(&BTreeMap::new());
                return RestoredAtEnd::All;
            }
            Ok(_) => None,
            Err(Failure::Tables(error)) => {
                match around.reopen(&error) {
                    Reopened::Tables(tables) => drive.replace_tables(tables),
                    Reopened::NotYet => {}
                    Reopened::Gone => {
                        let _kept_longer = drive.book().write_all(&BTreeMap::new());
                        return RestoredAtEnd::All;
                    }
                }
                Some(Failure::Tables(error))
            }
            Err(error @ Failure::Ledger(_)) => Some(error),
        };
        match problem {
            None => around.pause(STEP),
            Some(problem) => {
                around.tell(problem);
                drive.read_all();
                around.pause(AGAIN);
            }
        }
    }
    RestoredAtEnd::Late
}
