//! How often a packet is rescued. kube-proxy's nftables and iptables modes pick an endpoint at random, so a packet that is balanced anew
//! may meet the hung node once more.
use std::{collections::HashMap, hash::Hash};

use crate::conntrack::Tuple;

/// How long (ns) after its first try a packet is still rescued: less than the second after which TCP sends a SYN again. A try takes a fraction of a
/// millisecond, tens of milliseconds on a machine that is crowded or emulated, and 50 where kube-proxy has to forget the client first.
pub const TIME_LIMIT_NS: u64 = 700_000_000;
/// How often a packet is rescued at most.
pub(crate) const MOST_TRIES: u32 = 64;
/// How often a packet is rescued at least, even where the share of flagged endpoints needs less: kube-proxy may know other endpoints at that moment.
pub const LEAST_TRIES: u32 = 8;
/// The probability with which all tries may meet flagged endpoints.
const FAILURE: f64 = 1e-6;
/// How long (ns) a packet that has met the cut is remembered: if it is sent again after this, its tries begin anew.
const SERIES_NS: u64 = 900_000_000;
/// How many packets each half of the memory holds. At 5,000 connections a second it needs a thousand.
const CAPACITY: usize = 16_384;

/// How many picks are needed so that all fall on one of the `flagged` among `usable` endpoints with a chance of less than one in
/// a million; `MOST_TRIES` where more were needed.
pub fn tries(flagged: usize, usable: usize) -> u32 {
    let share = flagged as f64 / usable as f64;
    // Without usable endpoints the share is no number.
    if share.is_nan() || share >= 1.0 {
        return MOST_TRIES;
    }
    // ln 0 is minus infinity: the quotient is 0 then. Beyond the limit the conversion saturates.
    let needed = (FAILURE.ln() / share.ln()).ceil();
    (needed as u32).clamp(LEAST_TRIES, MOST_TRIES)
}

/// Remembers things of the last one to two periods, in two halves of bounded size. A half that is over is dropped as a whole.
#[derive(Debug)]
pub struct Recent<K, V> {
    halves: [HashMap<K, V>; 2],
    /// When (CLOCK_MONOTONIC ns) the first half was begun.
    begun: u64,
    period: u64,
    capacity: usize,
}

impl<K: Eq + Hash + Copy, V: Copy> Recent<K, V> {
    /// A memory that holds things for at least `period` ns, `capacity` in each half.
    pub fn new(period: u64, capacity: usize) -> Self {
        Self { halves: [HashMap::new(), HashMap::new()], begun: 0, period, capacity }
    }

    fn turn(&mut self, now: u64) {
        let age = now.saturating_sub(self.begun);
        if age < self.period {
            return;
        }
        self.halves.swap(0, 1);
        self.halves[0].clear();
        if age >= self.period.saturating_mul(2) {
            self.halves[1].clear();
        }
        self.begun = now;
    }

    /// What is remembered of `key` at `now`.
    pub fn get(&mut self, key: &K, now: u64) -> Option<V> {
        self.turn(now);
        self.halves.iter().find_map(|half| half.get(key)).copied()
    }

    /// How many things are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.halves.iter().map(HashMap::len).sum()
    }

    /// Remembers a value. `false` where there is no room: then nothing of the key is remembered any more, since its old value holds no longer.
    pub fn put(&mut self, key: K, value: V, now: u64) -> bool {
        self.turn(now);
        if self.halves[0].len() >= self.capacity && !self.halves[0].contains_key(&key) {
            self.halves[1].remove(&key);
            return false;
        }
        self.halves[0].insert(key, value);
        true
    }
}

/// Why a packet is not rescued once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spent {
    /// It has had all of its tries.
    Tries,
    /// The first try was too long ago.
    Time,
    /// Too many packets are under way to remember one more.
    Memory,
}

#[derive(Clone, Copy, Debug)]
struct Series {
    first: u64,
    count: u32,
}

/// The identity of a packet: packets for which all of this is the same count as one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sent {
    /// The ends with which it was sent.
    pub ends: Tuple,
    /// Its TCP sequence number: a later connection with the same ends has another one (RFC 9293, 3.4.1). 0 where it is not TCP.
    pub sequence: u32,
}

/// The tries of each packet.
#[derive(Debug)]
pub struct Tries(Recent<Sent, Series>);

impl Default for Tries {
    fn default() -> Self {
        Self(Recent::new(SERIES_NS, CAPACITY))
    }
}

impl Tries {
    /// Takes one try of a packet that met the cut at `now` (CLOCK_MONOTONIC ns) where `limit` are allowed. Returns its number, from 1.
    ///
    /// # Errors
    /// [`Spent`].
    pub fn take(&mut self, packet: Sent, limit: u32, now: u64) -> Result<u32, Spent> {
        let known = self.0.get(&packet, now).filter(|series| now.saturating_sub(series.first) < SERIES_NS);
        let mut series = known.unwrap_or(Series { first: now, count: 0 });
        if now.saturating_sub(series.first) >= TIME_LIMIT_NS {
            // Remembered all the same: the packet is not new when it comes again.
            self.0.put(packet, series, now);
            return Err(Spent::Time);
        }
        if series.count >= limit {
            self.0.put(packet, series, now);
            return Err(Spent::Tries);
        }
        series.count += 1;
        if self.0.put(packet, series, now) { Ok(series.count) } else { Err(Spent::Memory) }
    }

    /// Whether a try was taken for this packet already.
    pub fn has(&mut self, packet: &Sent, now: u64) -> bool {
        self.0.get(packet, now).is_some_and(|series| now.saturating_sub(series.first) < SERIES_NS)
    }
}

#[cfg(test)]
mod tests;
