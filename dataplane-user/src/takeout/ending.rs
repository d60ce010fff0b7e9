//! What an agent does about the tables before it ends. Whatever is in the way is tried again: where the guard ends with the agent, nobody else will.
use std::time::Duration;

use super::{Book, Drive, Failure, Tables};
use crate::{ipvs, ledger};

/// Time between two rounds.
const STEP: Duration = Duration::from_millis(5);
/// The same after something was in the way.
const AGAIN: Duration = Duration::from_millis(100);

/// A ledger whose lease can be taken again after it has lapsed.
pub trait Claim: Book {
    /// Takes the lease again after it has lapsed; [`Drive::claimed_again`] must follow. It is still ours to put back: the guard forgets nothing while this
    /// process lives. Gives up to when (CLOCK_MONOTONIC) what was changed is known to have been put back; see [`ledger::Held::claim_again`].
    ///
    /// # Errors
    /// Where its files cannot be used.
    fn claim_again(&mut self) -> Result<Option<Duration>, ledger::Error>;

    /// Nothing is ours any more.
    ///
    /// # Errors
    /// Where the file cannot be written anew.
    fn forget_all(&mut self) -> Result<(), ledger::Error>;
}

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

/// Who puts back: the agent, or a test.
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

/// Claims the ledger again: somebody has put back what was taken, or may have. Nothing that was believed holds, and the next round reads everything.
///
/// # Errors
/// Where the ledger's files cannot be used.
pub fn claim_anew<T: Tables, B: Claim>(drive: &mut Drive<T, B>) -> Result<(), ledger::Error> {
    let put_back = drive.book().claim_again()?;
    drive.claimed_again(put_back)
}

/// Puts back all that is ours; nobody may be flagged in the plan any more. False where that was not done within `longest`.
pub fn put_back_within<T: Tables, B: Claim>(
    drive: &mut Drive<T, B>,
    around: &mut impl Surroundings<T>,
    longest: Duration,
) -> bool {
    let end = around.now() + longest;
    drive.read_all();
    while around.now() < end {
        let problem = match drive.round() {
            // This process stood still for long; who knows whether there is a guard.
            Ok(round) if round.lapsed => claim_anew(drive).err().map(Failure::Ledger),
            // What has left stays with the weight of 0 that kube-proxy gives it too.
            Ok(_) if drive.machine.next_due().is_none() => {
                let _kept_longer = drive.book().forget_all();
                return true;
            }
            Ok(_) => None,
            Err(Failure::Tables(error)) => {
                match around.reopen(&error) {
                    Reopened::Tables(tables) => drive.replace_tables(tables),
                    Reopened::NotYet => {}
                    Reopened::Gone => {
                        let _kept_longer = drive.book().forget_all();
                        return true;
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
    false
}
