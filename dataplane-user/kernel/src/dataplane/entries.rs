//! Reads, writes and deletes entries of hash maps.
use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};

use super::{error::Error, sys};

/// How many entries one call reads.
const AT_ONCE: u32 = 4_096;

/// Calls `each` for every entry of a map.
pub(super) fn each<K: Pod, V: Pod>(
    map: &HashMap<MapData, K, V>,
    name: &'static str,
    mut each: impl FnMut(K, V),
) -> Result<(), Error> {
    let mut from = None;
    loop {
        let page = sys::page(map, from, AT_ONCE).map_err(Error::call(format!("read the map {name}")))?;
        page.entries.into_iter().for_each(|(key, value)| each(key, value));
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

/// Whether a hash map refused an entry only for the moment.
fn is_temporary(error: &MapError) -> bool {
    let MapError::SyscallError(e) = error else { return false };
    matches!(e.io_error.raw_os_error(), Some(libc::ENOMEM | libc::EBUSY | libc::EAGAIN))
}

/// Whether a hash map refused an entry because it is full (kernel/bpf/hashtab.c).
pub(super) fn is_full(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(e) if matches!(e.io_error.raw_os_error(), Some(libc::E2BIG)))
}

/// Deletes a key. A missing key is no error. Returns how many keys were deleted.
pub(super) fn drop_key<K: Pod, V: Pod>(
    map: &mut HashMap<MapData, K, V>,
    key: &K,
    name: &'static str,
) -> Result<u64, Error> {
    match map.remove(key) {
        Ok(()) => Ok(1),
        Err(MapError::KeyNotFound) => Ok(0),
        Err(error) => Err(Error::map(name)(error)),
    }
}

/// How often an insert that failed only for the moment is tried again.
const TRIES: u32 = 20;
/// The pause before each further try.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// Inserts an entry. Tries again if the kernel had no free element, or could not take the bucket's lock (ENOMEM, EBUSY, EAGAIN). From 6.1
/// on elements come from a per-CPU cache that the kernel refills in the background (kernel/bpf/hashtab.c).
pub(super) fn insert<K: Pod, V: Pod>(
    map: &mut HashMap<MapData, K, V>,
    key: &K,
    value: &V,
) -> Result<(), MapError> {
    let mut left = TRIES;
    loop {
        match map.insert(key, value, 0) {
            Err(e) if left > 0 && is_temporary(&e) => {
                left -= 1;
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}
