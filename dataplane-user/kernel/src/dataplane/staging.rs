//! Replaces pinned maps by maps of another size. The new maps are made and filled in a folder of their own, while the old programs go on
//! with the old maps. Then the devices are switched one by one. At last the new pins take the place of the old ones.
use std::{
    fs,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya_obj::Object;
use nodefence_common::NodeEntry;

use super::{
    entries::{insert, is_full},
    error::Error,
    folders,
    maps::Maps,
    names::{self, MAPS},
    sys::{self, MapInfo},
};

/// New maps whose pins wait until every device runs the programs that use these maps.
pub(super) struct Staged {
    pin_dir: PathBuf,
    names: Vec<&'static str>,
}

/// Names of the pinned maps whose size differs from the object's. `None` if a pinned map has another layout.
pub(super) fn differing(
    pin_dir: &Path,
    object: &[u8],
    max_backends: u32,
) -> Result<Option<Vec<&'static str>>, Error> {
    let object = Object::parse(object).map_err(|error| Error::Load(error.into()))?;
    let mut differing = Vec::new();
    for name in MAPS {
        let wanted = object.maps.get(name).ok_or(Error::Missing { kind: "map", name })?;
        let wanted = MapInfo {
            kind: wanted.map_type(),
            key_size: wanted.key_size(),
            value_size: wanted.value_size(),
            max_entries: if name == names::BACKENDS { max_backends } else { wanted.max_entries() },
            flags: wanted.map_flags(),
        };
        let path = pin_dir.join(name);
        let Ok(pinned) = sys::get(&path) else { continue };
        let pinned = sys::map_info(pinned.as_fd()).map_err(Error::file(path, "query the pinned map"))?;
        if pinned == wanted {
            continue;
        }
        if (MapInfo { max_entries: wanted.max_entries, ..pinned }) != wanted {
            tracing::warn!(
                event = "map-layout-changed",
                map = name,
                ?pinned,
                ?wanted,
                "the pinned map has another layout"
            );
            return Ok(None);
        }
        tracing::info!(
            event = "map-resized",
            map = name,
            pinned = pinned.max_entries,
            wanted = wanted.max_entries,
            "the pinned map has another size; a new one is filled beside it"
        );
        differing.push(name);
    }
    Ok(Some(differing))
}

/// Removes what an earlier attempt left, and makes the folder if maps differ.
pub(super) fn prepare(pin_dir: &Path, differing: &[&str]) -> Result<(), Error> {
    let dir = names::staging(pin_dir);
    folders::remove_pins(&dir)?;
    if !differing.is_empty() {
        folders::make(&dir).map_err(Error::file(dir, "make the folder"))?;
    }
    Ok(())
}

impl Staged {
    /// Copies the entries of the old maps into the new ones. `None` if no map differs.
    pub(super) fn fill(
        pin_dir: &Path,
        names: Vec<&'static str>,
        maps: &mut Maps,
    ) -> Result<Option<Self>, Error> {
        if names.is_empty() {
            return Ok(None);
        }
        for &name in &names {
            let Some(old) = open_old(pin_dir, name)? else { continue };
            let copied = match name {
                names::BACKENDS => {
                    HashMap::try_from(old).map(|old| copy_hash(&old, &mut maps.backends, name))
                }
                names::PORTS => HashMap::try_from(old).map(|old| copy_hash(&old, &mut maps.ports, name)),
                names::DEVICES => {
                    HashMap::try_from(old).map(|old| copy_hash(&old, &mut maps.devices.0, name))
                }
                names::NODES => Array::try_from(old).map(|old| copy_array(&old, &mut maps.nodes, name)),
                // Counters start at zero. The configuration is written at each start. The other maps hold what is only of the moment, and
                // start empty.
                _ => continue,
            };
            copied.map_err(Error::map(name))??;
        }
        Ok(Some(Self { pin_dir: pin_dir.to_owned(), names }))
    }

    /// Whether a new map of this name was made.
    pub(super) fn has(&self, name: &'static str) -> bool {
        self.names.contains(&name)
    }

    /// The old map of this name, which devices use that are not switched yet. `None` if there is only one map of this name.
    pub(super) fn old<T>(&self, name: &'static str) -> Result<Option<T>, Error>
    where
        T: TryFrom<Map, Error = MapError>,
    {
        let map = if self.has(name) { open_old(&self.pin_dir, name)? } else { None };
        map.map(T::try_from).transpose().map_err(Error::map(name))
    }

    /// Puts the new pins in the place of the old ones. The caller must have switched every device to the new programs. After a failure this
    /// may be called again.
    pub(super) fn commit(&self) -> Result<(), Error> {
        let dir = names::staging(&self.pin_dir);
        for &name in &self.names {
            let path = dir.join(name);
            // A missing pin was moved by an earlier try.
            folders::gone(fs::rename(&path, self.pin_dir.join(name)))
                .map_err(Error::file(path, "move it over the old map's pin"))?;
        }
        folders::gone(fs::remove_dir(&dir)).map_err(Error::file(dir, "remove the folder")).map(drop)
    }
}

fn open_old(pin_dir: &Path, name: &'static str) -> Result<Option<Map>, Error> {
    match MapData::from_pin(pin_dir.join(name)).and_then(Map::from_map_data) {
        Ok(map) => Ok(Some(map)),
        Err(MapError::SyscallError(e)) if e.io_error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::map(name)(e)),
    }
}

fn copy_hash<K: aya::Pod, V: aya::Pod>(
    old: &HashMap<MapData, K, V>,
    new: &mut HashMap<MapData, K, V>,
    name: &'static str,
) -> Result<(), Error> {
    for entry in old.iter() {
        let (key, value) = entry.map_err(Error::map(name))?;
        match insert(new, &key, &value) {
            Ok(()) => {}
            // The new map is smaller. Packets to the entries that do not fit pass, and the next write reports these entries.
            Err(e) if is_full(&e) => return Ok(()),
            Err(e) => return Err(Error::map(name)(e)),
        }
    }
    Ok(())
}

fn copy_array(
    old: &Array<MapData, NodeEntry>,
    new: &mut Array<MapData, NodeEntry>,
    name: &'static str,
) -> Result<(), Error> {
    for index in 0..old.len().min(new.len()) {
        let entry = old.get(&index, 0).map_err(Error::map(name))?;
        if entry.generation != 0 || entry.verdict != 0 {
            new.set(index, &entry, 0).map_err(Error::map(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_failed_is_finished_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let pin_dir = folder.path().to_owned();
        let names = vec![names::BACKENDS, names::NODES, names::PORTS];
        let staging = names::staging(&pin_dir);
        fs::create_dir(&staging).unwrap();
        for name in &names {
            fs::write(pin_dir.join(name), "old").unwrap();
            fs::write(staging.join(name), "new").unwrap();
        }
        // A file cannot be renamed over a folder.
        let blocked = pin_dir.join(names::NODES);
        fs::remove_file(&blocked).unwrap();
        fs::create_dir(&blocked).unwrap();
        let staged = Staged { pin_dir: pin_dir.clone(), names: names.clone() };
        let refused = staged.commit().unwrap_err().to_string();
        assert!(refused.contains("nodes"), "{refused}");
        assert!(staging.join(names::PORTS).exists() && !staging.join(names::BACKENDS).exists());
        fs::remove_dir(&blocked).unwrap();
        staged.commit().unwrap();
        for name in names {
            assert_eq!(fs::read_to_string(pin_dir.join(name)).unwrap(), "new", "{name}");
        }
        assert!(!staging.exists());
    }
}
