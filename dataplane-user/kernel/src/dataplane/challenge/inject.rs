//! Injects challenges by several threads at once.

use std::thread;

use crate::dataplane::{Error, Injector};

/// Threads at most, including the caller's.
const MAX_THREADS: usize = 4;
/// The least number of frames for which starting a thread pays.
const LEAST_SHARE: usize = 128;

/// Injects frames by several threads, so that several processors share the work. The thread that injects a challenge also carries it as far
/// as the wire or the client's socket, and often carries the reply back. Returns for each frame whether it was taken, and the first
/// refusal.
pub fn inject(injector: &Injector, frames: &[(u32, Vec<u8>)]) -> (Vec<bool>, Option<Error>) {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(MAX_THREADS));
    let share = frames.len().div_ceil(threads).max(LEAST_SHARE);
    thread::scope(|scope| {
        let mut shares = frames.chunks(share);
        let own = shares.next().unwrap_or_default();
        let others: Vec<_> = shares.map(|share| scope.spawn(|| inject_share(injector, share))).collect();
        let (mut taken, mut first) = inject_share(injector, own);
        for other in others {
            let (more, error) = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            taken.extend(more);
            first = first.or(error);
        }
        (taken, first)
    })
}

fn inject_share(injector: &Injector, frames: &[(u32, Vec<u8>)]) -> (Vec<bool>, Option<Error>) {
    let mut first = None;
    let inject = |(ifindex, frame): &(u32, Vec<u8>)| match injector.inject(*ifindex, frame) {
        Ok(()) => true,
        Err(error) => {
            first.get_or_insert(error);
            false
        }
    };
    let taken = frames.iter().map(inject).collect();
    (taken, first)
}
