use std::{fs, os::unix::fs::PermissionsExt as _};

use super::*;

fn off() -> Off {
    Off {
        by: "root (sudo by alice)".to_owned(),
        since: Some(Timestamp::UNIX_EPOCH),
        reason: "it \"rains\"".to_owned(),
        problem: None,
    }
}

#[test]
fn what_is_written_is_read_again_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let file = OffFile::new(folder.path());
    assert!(!file.is_there() && file.read().is_none() && !file.remove().unwrap());
    file.write(&off()).unwrap();
    assert!(file.is_there());
    assert_eq!(file.read(), Some(off()));
    assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
    // Something lies where the new file is to be made.
    fs::write(folder.path().join("off.new"), "half").unwrap();
    let other = Off { by: "root".to_owned(), ..off() };
    file.write(&other).unwrap();
    assert_eq!(file.read(), Some(other));
    fs::write(folder.path().join("off.new"), "half").unwrap();
    assert!(file.remove().unwrap() && !file.is_there());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_cannot_be_understood_counts_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = OffFile::new(folder.path());
    let half = "{\"version\":1,\"by\":\"root\",\"sin";
    let long = "x".repeat(100_000);
    let damaged = ["", half, "[]", "{\"version\":1}"].map(|text| (text, "off.json is damaged: "));
    let unread = [(long.as_str(), "off.json cannot be read: is longer than 65536 bytes")];
    for (text, said) in damaged.into_iter().chain(unread) {
        fs::write(file.path(), text).unwrap();
        let off = file.read().unwrap();
        let problem = off.problem.unwrap();
        assert!(off.since.is_none() && problem.contains(said), "{problem}");
        assert!(problem.ends_with("turns the agent off all the same"), "{problem}");
    }
    // A later version may say more.
    fs::write(file.path(), "{\"version\":2,\"by\":\"root\",\"since\":\"1970-01-01T00:00:00Z\",\"more\":1}")
        .unwrap();
    assert_eq!(file.read(), Some(Off { by: "root".to_owned(), reason: String::new(), ..off() }));
    fs::remove_file(file.path()).unwrap();
    fs::create_dir(file.path()).unwrap();
    let off = file.read().unwrap();
    assert!(file.is_there() && off.problem.unwrap().contains("cannot be read: is not a regular file"));
    let error = file.remove().unwrap_err().to_string();
    assert!(error.starts_with("cannot remove ") && error.contains("off.json: "), "{error}");
    // A link that leads nowhere is a file all the same.
    fs::remove_dir(file.path()).unwrap();
    std::os::unix::fs::symlink("nowhere", file.path()).unwrap();
    assert!(file.is_there());
}
