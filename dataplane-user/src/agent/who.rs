//! The requester in words: the user that the kernel names, and the user that sudo names.

use super::threads::Crew;
use crate::report::{ErrorKind, Failure, Peer};

/// How many bytes a user's name has at most (LOGIN_NAME_MAX, limits.h).
const LONGEST: usize = 256;
/// The users of the machine itself. No other directory is asked: it may be behind the network that a node hangs on.
const PASSWD: &str = "/etc/passwd";

/// The requester in words. May read a file, but not for root.
fn name(peer: Peer, sudo_user: Option<&str>) -> String {
    let users =
        if peer.uid == 0 { String::new() } else { std::fs::read_to_string(PASSWD).unwrap_or_default() };
    named(peer.uid, &users, sudo_user)
}

/// The requester in words, where `sudo_user` can be a user's name.
pub(super) async fn of(crew: &Crew, peer: Peer, sudo_user: Option<String>) -> Result<String, Failure> {
    check(sudo_user.as_deref())?;
    match peer.uid {
        // No file is read for root's name.
        0 => Ok(name(peer, sudo_user.as_deref())),
        _ => {
            let named = crew.blocking("api", move || name(peer, sudo_user.as_deref()));
            named.await.map_err(Failure::failed)
        }
    }
}

/// This process's user in words: for a command that finds no agent to ask.
pub fn requester(sudo_user: Option<&str>) -> String {
    name(Peer { uid: nix::unistd::geteuid().as_raw() }, sudo_user)
}

fn named(uid: u32, users: &str, sudo_user: Option<&str>) -> String {
    let user = match (uid, users.lines().find_map(|line| of_uid(line, uid))) {
        (0, _) => "root".to_owned(),
        (_, Some(user)) => user.to_owned(),
        (_, None) => format!("user {uid}"),
    };
    match sudo_user {
        Some(sudo_user) => format!("{user} (sudo by {sudo_user})"),
        None => user,
    }
}

/// The name in a line of `/etc/passwd`, if the line is that user's (passwd(5)).
fn of_uid(line: &str, uid: u32) -> Option<&str> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
}

/// Whether `sudo_user` can be a user's name.
fn check(sudo_user: Option<&str>) -> Result<(), Failure> {
    let fits = sudo_user.is_none_or(|user| (1..=LONGEST).contains(&user.len()));
    fits.then_some(()).ok_or_else(|| {
        let message = format!("sudo_user: expected the name of a user, which has 1 to {LONGEST} bytes");
        Failure::new(ErrorKind::Invalid, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/sh\nbad line\n:x\nfence:x:1000:1000::/:/bin/false\nx:x:1001";

    #[test]
    fn who_asks_is_named() {
        for (uid, sudo_user, text) in [
            (0, None, "root"),
            (0, Some("alice"), "root (sudo by alice)"),
            (1000, None, "fence"),
            (1001, None, "x"),
            (1002, None, "user 1002"),
            (1000, Some("bob"), "fence (sudo by bob)"),
        ] {
            assert_eq!(named(uid, USERS, sudo_user), text);
        }
        assert_eq!(name(Peer { uid: 0 }, None), "root");
    }

    #[test]
    fn what_is_no_user_s_name_is_refused() {
        for user in [None, Some("alice"), Some(&*"a".repeat(256))] {
            check(user).unwrap();
        }
        for user in ["", &"a".repeat(257)] {
            let failure = check(Some(user)).unwrap_err();
            assert_eq!(failure.kind, ErrorKind::Invalid);
            assert!(failure.message.starts_with("sudo_user: expected the name of a user"), "{failure}");
        }
    }
}
