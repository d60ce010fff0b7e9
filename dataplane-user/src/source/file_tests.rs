//! Cluster files that are refused.

use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::FileSource;

/// The whole error message, which has one line.
fn refusal(path: &Path) -> String {
    let message = FileSource::new(path.to_owned(), false).load().expect_err("accepted").to_string();
    assert!(message.starts_with(&format!("cluster file {}: ", path.display())), "{message}");
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn what_is_no_regular_file_is_neither_read_nor_waited_for() {
    let dir = TempDir::new().unwrap();
    let [pipe, link, missing] = ["pipe", "link", "missing"].map(|name| dir.path().join(name));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // The link leads to itself, so that not even root can read it.
    std::os::unix::fs::symlink(&link, &link).unwrap();
    let begun = Instant::now();
    for (path, says) in [
        (missing.as_path(), "cannot be read: No such file"),
        (dir.path(), "is a folder; expected a regular file"),
        (&pipe, "is a pipe; expected a regular file"),
        (Path::new("/dev/null"), "is a device; expected a regular file"),
        (Path::new("/dev/zero"), "is a device; expected a regular file"),
        (&link, "cannot be read: Too many levels of symbolic links"),
    ] {
        let message = refusal(path);
        assert!(message.contains(says), "{message}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_is_too_long_or_no_text_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("cluster.yaml");
    File::create(&path).unwrap().set_len(65 << 20).unwrap();
    let message = refusal(&path);
    assert!(message.contains("is 68157440 bytes long; the limit is 67108864"), "{message}");
    for (bytes, says) in [
        (&b"nodes:\n- name: \xff\n"[..], "is not UTF-8 (first bad byte at offset 15)"),
        (b"", "is empty; write `nodes: []`"),
        (b"\n\n", "is empty; write `nodes: []`"),
        (b"nodes: []\n", "`nodes` is empty; if that is meant, start the agent with --allow-empty"),
        (b"nodes:\n- name: node-a\n  address: 10.9.0.1\n- name: nod", "does not end with a line feed"),
        (b"{\"nodes\": [{\"name\": \"node-a\"", "does not end with a line feed"),
        (
            b"nodes:\n- name: node-a\n  address: 10.9.0.999\n",
            "nodes[0].address: `10.9.0.999` is no IP address: expected one as in 10.2.0.12 or fd00::12 at line 3, column 12",
        ),
        (
            b"nodes:\n- name: node-a\n  adress: 10.9.0.1\n",
            "nodes[0].adress: unknown field `adress`, expected one of name, address, addresses, zone, pool, backends at line 3, column 3",
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        let message = refusal(&path);
        assert!(message.contains(says), "{message}");
    }
}
