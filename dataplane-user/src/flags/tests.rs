use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::cluster::FileFlag;

const MINUTE: Duration = Duration::from_secs(60);

fn clocks(wall: i64, boot: u64) -> Clocks {
    Clocks { wall: Timestamp::from_second(wall).unwrap(), boot: Duration::from_secs(boot) }
}

fn in_file(until: Option<i64>) -> FileFlag {
    let until = until.map(|until| Timestamp::from_second(until).unwrap());
    FileFlag { node: "a".into(), until, reason: "disk".into() }
}

#[test]
fn a_flag_ends_when_its_time_is_over() {
    let mut flags = Flags::default();
    flags.flag("a", String::new(), Some(MINUTE), clocks(1000, 10));
    flags.flag("b", String::new(), None, clocks(1000, 10));
    assert!(flags.get("a", clocks(0, 69)).is_some());
    assert!(flags.get("a", clocks(0, 70)).is_none());
    assert!(flags.get("b", clocks(i64::from(u32::MAX), 1_000_000_000)).is_some());
    assert_eq!(flags.get("a", clocks(0, 40)).unwrap().remaining(clocks(0, 40)), Some(MINUTE / 2));
    assert!(flags.expire(clocks(0, 70)));
    assert!(!flags.expire(clocks(0, 70)));
    assert_eq!(flags.cli().keys().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_step_of_the_wall_clock_cannot_prolong_a_flag() {
    let mut flags = Flags::default();
    flags.set_file(&[in_file(Some(1060))], clocks(1000, 10));
    let flag = |now: Clocks| flags.get("a", now).map(|flag| flag.remaining(now).unwrap());
    assert_eq!(flag(clocks(1030, 40)), Some(MINUTE / 2));
    // Set back by an hour: the minute that was meant is over all the same.
    assert_eq!(flag(clocks(1030 - 3600, 40)), Some(MINUTE / 2));
    assert_eq!(flag(clocks(1070 - 3600, 70)), None);
    // Put forward: the time that was named has come.
    assert_eq!(flag(clocks(5000, 20)), None);
}

#[test]
fn a_reload_does_not_give_a_flag_new_time() {
    let mut flags = Flags::default();
    flags.set_file(&[in_file(Some(1060))], clocks(1000, 10));
    // The wall clock went back by 1000 s; the file is read again.
    flags.set_file(&[in_file(Some(1060))], clocks(30, 40));
    assert!(flags.get("a", clocks(60, 70)).is_none());
    // Another end is another flag.
    flags.set_file(&[in_file(Some(1061))], clocks(30, 40));
    assert!(flags.get("a", clocks(60, 70)).is_some());
    flags.set_file(&[], clocks(60, 70));
    assert!(flags.get("a", clocks(60, 70)).is_none());
}

#[test]
fn the_files_flag_outlives_the_clis() {
    let mut flags = Flags::default();
    flags.set_file(&[in_file(None)], clocks(1000, 10));
    flags.flag("a", "mine".into(), Some(MINUTE), clocks(1000, 10));
    assert_eq!(flags.get("a", clocks(1000, 11)).unwrap().origin, Origin::Cli);
    assert_eq!(flags.iter(clocks(1000, 11)).count(), 1);
    assert!(flags.unflag("a"));
    assert!(!flags.unflag("a"));
    assert_eq!(flags.get("a", clocks(1000, 11)).unwrap().origin, Origin::ClusterFile);
}

#[test]
fn flags_survive_in_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    let now = clocks(1000, 10);
    assert!(store.adopt(now).unwrap().flags.is_empty());
    let mut flags = Flags::default();
    flags.flag("a", "disk \"full\"\n".into(), Some(MINUTE), now);
    flags.flag("b", String::new(), None, now);
    store.save(flags.cli()).unwrap();
    let adopted = store.adopt(clocks(1000 - 86400, 20)).unwrap();
    assert_eq!(&adopted.flags, flags.cli());
    assert!(adopted.problem.is_none());
    assert_eq!(store.adopt(clocks(1000, 70)).unwrap().flags.len(), 1, "one is over");
    let mode =
        std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(dir.path().join("flags.json")).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_damaged_file_gives_no_flags_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    let path = dir.path().join("flags.json");
    let now = clocks(1000, 10);
    let mut flags = Flags::default();
    flags.flag("a", String::new(), None, now);
    store.save(flags.cli()).unwrap();
    let good = std::fs::read_to_string(&path).unwrap();
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for (bad, says) in [
        (String::new(), "is damaged"),
        (good[..good.len() / 2].to_owned(), "is damaged"),
        (good.replace("\"version\": 1", "\"version\": 2"), "is of version 2"),
        (good.replace(id.trim(), "another"), "from before the machine booted"),
    ] {
        std::fs::write(&path, &bad).unwrap();
        let adopted = store.adopt(now).unwrap();
        assert!(adopted.flags.is_empty());
        let problem = adopted.problem.unwrap();
        assert!(problem.contains(says) && problem.contains("flags.json.bad"), "{problem}");
        assert!(!path.exists());
        assert_eq!(std::fs::read_to_string(dir.path().join("flags.json.bad")).unwrap(), bad);
    }
    assert!(store.adopt(now).unwrap().problem.is_none());
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(&dir.path().join("missing"));
    let error = store.save(&std::collections::BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("missing/flags.json"), "{error}");
}

#[test]
fn what_is_no_regular_file_is_named_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = FlagStore::new(dir.path());
    store.check().unwrap();
    std::fs::create_dir(store.path()).unwrap();
    let refused = || store.check().unwrap_err().to_string();
    assert!(refused().contains("flags.json: is not a regular file"), "{}", refused());
    std::fs::remove_dir(store.path()).unwrap();
    nix::unistd::mkfifo(store.path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refused().contains("flags.json: is not a regular file"), "{}", refused());
    // Not even one that came after the check holds anybody up.
    assert!(store.adopt(clocks(1000, 10)).unwrap_err().to_string().contains("is not a regular file"));
    assert!(store.path().exists(), "what cannot be read at this moment stays");
    nix::unistd::mkfifo(&dir.path().join("flags.json.new"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    store.save(&std::collections::BTreeMap::new()).unwrap();
    store.check().unwrap();
    assert!(store.remove().unwrap() && !store.remove().unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
