//! What an agent does about the tables before it ends. Whatever is in the way is tried again: where the guard ends with the agent, nobody else will.
use std::{collections::BTreeMap, time::Duration};

use super::{Book, Drive, Failure, Tables};
use crate::ipvs;

/// Time between two rounds.
const STEP: Duration = Duration::from_millis(5);
/// The same after something was in the way.
const AGAIN: Duration = Duration::from_millis(100);

/// What came of opening the tables once more.
#[derive(Debug)]
pub enum Reopened<T> {
    /// Another socket to them.
    Tables(T),
    /// They cannot be opened either.
    NotYet,
    /// IPVS is not loaded any more: all that was ours went with it.
    Gone,
}

/// Who restores: the agent, or a test.
pub trait Surroundings<T> {
    /// CLOCK_MONOTONIC.
    fn now(&self) -> Duration;

    /// Waits.
    fn pause(&mut self, time: Duration);

    /// Opens the tables once more, which did not answer.
    fn reopen(&mut self, error: &ipvs::Error) -> Reopened<T>;

    /// Something is in the way; it is tried again.
    fn tell(&mut self, problem: Failure);
}

/// What came of restoring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestoredAtEnd {
    /// All of it was restored.
    All,
    /// Not all of it in time.
    Late,
    /// The lease has lapsed: what is still to be restored is what the ledger names ([`super::restore_named`]).
    Lapsed,
}

/// Restores all that is ours, within `longest`; nobody may be flagged in the plan any more.
pub fn restore_within<T: Tables, B: Book>(
    drive: &mut Drive<T, B>,
    around: &mut impl Surroundings<T>,
    longest: Duration,
) -> RestoredAtEnd {
    let end = around.now() + longest;
    // What waits for the source would never be restored.
    drive.machine.end();
    drive.read_all();
    while around.now() < end {
        let problem = match drive.round() {
            Ok(round) if round.lapsed => return RestoredAtEnd::Lapsed,
            // What has left stays with the weight of 0 that kube-proxy gives it too.
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
